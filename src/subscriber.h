/*
 * subscriber.h
 *	  One subscription in the database worker: what it shows of a feed, and
 *	  what its clients know.
 */
#ifndef LIVE_TOPN_SUBSCRIBER_H
#define LIVE_TOPN_SUBSCRIBER_H

#include "catalog.h"
#include "history.h"
#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "utils/hsearch.h"
#include "window.h"

typedef struct Subscriber
{
	int64		id;
	struct Feed *feed;			/* whose rows it shows */
	dlist_node	node;			/* in feed->subscribers, unless dropped */

	/* see feed_lease.c */
	pairingheap_node lease_node;
	dlist_node	renewed_node;
	dlist_node	session_node;	/* unless orphaned, if it has a session */
	TimestampTz lease_end;		/* 0: no lease */
	bool		orphaned;		/* its session has ended */
	bool		renewed;		/* the end is not as it was saved */

	uint64		text_hash;		/* of query, arguments and owner */

	MemoryContext context;		/* holds all of this */
	SubscriptionRow *row;		/* as of the last commit decoded */
	bool		dropped;		/* freed once its batches are out */
	bool		announced;		/* clients may know the result at seq */
	int			pending;		/* batches that wait for delivery */

	int64		offset;			/* as of the feed's cursor, see topn_move */
	int64		limit;
	ResultPage	page;			/* of the result that clients know; of groups
								 * see Window */
	bool		reset;			/* the next batch is a reset */
	bool		fell;			/* an earlier worker published last that there
								 * is an error */
	bool		unchecked;		/* its text, see feed->recheck */
	uint64		fingerprint;	/* of its text when it was analysed; 0: not
								 * known */
	History    *history;

	int64		seq;
	XLogRecPtr	last_lsn;		/* of the last batch */
	Size		saved_bytes;	/* of its record in the checkpoint; 0: none */
#ifdef USE_ASSERT_CHECKING
	uint32		saved_checksum;
#endif
	int64		published;		/* by an earlier worker; -1: nothing */
	XLogRecPtr	published_lsn;	/* its result is as of this commit */

	/* statistics */
	int64		batches;
	int64		deltas;
	int64		coalesced;
	int64		resets;
} Subscriber;

extern void subscriber_startup(MemoryContext parent);

/*
 * A subscription that was born at the last commit decoded, or, if found, one
 * that was there when the worker started.  Copies row.
 */
extern Subscriber *subscriber_create(const SubscriptionRow *row, bool found);
extern void subscriber_drop(Subscriber *subscriber);

/* It has been dropped, and its batches are out. */
extern void subscriber_free(Subscriber *subscriber);

extern Subscriber *subscriber_find(int64 id);
extern long subscriber_count(void);

/* All of them: start a scan, fetch until NULL; end early by hash_seq_term. */
extern void subscriber_scan(HASH_SEQ_STATUS *status);
extern Subscriber *subscriber_scan_next(HASH_SEQ_STATUS *status);

/* Has another one, as far as we know, the same query, given as the same text? */
extern bool subscriber_has_equals(const Subscriber *subscriber);

/* Is the query of both the same text, with the same arguments? */
extern bool subscriber_same_text(const Subscriber *a, const Subscriber *b);

#endif							/* LIVE_TOPN_SUBSCRIBER_H */
