/*
 * checkpoint.h
 *	  Windows saved and restored.
 */
#ifndef LIVE_TOPN_CHECKPOINT_H
#define LIVE_TOPN_CHECKPOINT_H

#include "access/htup.h"
#include "access/xlogdefs.h"
#include "commit_log.h"
#include "nodes/pg_list.h"
#include "window.h"

/* In the data directory. */
#define CHECKPOINT_DIRECTORY	"live_topn"

extern int	checkpoint_interval_ms; /* live_topn.checkpoint_interval */

struct Feed;
struct Subscriber;

typedef struct SavedRows
{
	int64		n;
	MinimalTuple *tuples;
} SavedRows;

/* The rows of one group, with what changed in them since clients know them. */
typedef struct SavedWindow
{
	MinimalTuple key;			/* of its group, if it has no rows; or NULL */
	WindowEnd	end;
	MinimalTuple high;			/* if end is WINDOW_BOUNDED */
	ResultPage	page;			/* that clients know, of kept and removed */
	SavedRows	kept;
	SavedRows	removed;
	SavedRows	added;
} SavedWindow;

/* The windows of a query, which several subscriptions may show. */
typedef struct SavedFeed
{
	char	   *query_text;		/* NULL: no windows, or of no use */
	XLogRecPtr	lsn;			/* they have all before */
	WindowEnd	others;
	int64		ndropped;		/* groups, ... */
	uint32	   *dropped;		/* their hashes */
	int64		dropped_rows;	/* of their results */
	int64		before;			/* low and this: if rows are counted */
	MinimalTuple low;
	int64		nwindows;
	SavedWindow *windows;

	/* of the feed's fields of that name */
	bool		recheck;
	List	   *unseen;
	int			covered;
	XLogRecPtr	from;
	CommitInfo	commit;			/* without no */
} SavedFeed;

/* A subscription as it was saved. */
typedef struct SavedSubscriber
{
	int64		id;
	int64		seq;			/* of its last batch */
	XLogRecPtr	last_lsn;
	TimestampTz lease_end;
	int64		offset;			/* as of the windows */
	int64		limit;
	ResultPage	page;			/* that clients know; of groups see windows */
	bool		reset;
	SavedFeed	feed;
} SavedSubscriber;

/*
 * Save, durably, what is not as it was saved (feed_mark_dirty), or all, in a
 * new file, with a position that nothing is behind and the slot is not beyond.
 * No batch may be waiting for delivery.  If it cannot be done: false, with a
 * warning.
 */
extern bool checkpoint_save(XLogRecPtr restart);

/*
 * After that, or if nothing has changed since: what is saved is right if the
 * slot is moved to this position; note that, durably.  Fails as
 * checkpoint_save.
 */
extern bool checkpoint_move(XLogRecPtr restart);

/*
 * Add a feed to what was saved, for all who show it; or that a subscription
 * was dropped.  Durable after checkpoint_flush, which warns if it cannot be
 * done.
 */
extern void checkpoint_add(struct Feed *feed);
extern void checkpoint_drop(const struct Subscriber *subscriber);
extern void checkpoint_flush(void);

typedef enum CheckpointState
{
	CHECKPOINT_NONE,			/* no file */
	CHECKPOINT_GOOD,
	CHECKPOINT_USELESS			/* damaged, or another slot's */
} CheckpointState;

/*
 * Give subscribers what was saved of them, by feed_restore.  If it does not go
 * with a slot at this position, at most the numbers.
 */
extern CheckpointState checkpoint_load(XLogRecPtr confirmed);

/* Remove what was saved of a database. */
extern void checkpoint_remove(Oid dboid);

#endif							/* LIVE_TOPN_CHECKPOINT_H */
