/*
 * refill_queue.h
 *	  Which query the next free refill worker runs.
 */
#ifndef LIVE_TOPN_REFILL_QUEUE_H
#define LIVE_TOPN_REFILL_QUEUE_H

#include "datatype/timestamp.h"
#include "lib/ilist.h"
#include "lib/stringinfo.h"

typedef enum RefillKind
{
	REFILL_CHECK,				/* looks at the query, or drops a subscription */
	REFILL_READ
} RefillKind;

#define NUM_KINDS	(REFILL_READ + 1)

typedef struct RefillJob
{
	MemoryContext context;		/* holds all of this */
	dlist_node	node;			/* if it is queued */
	uint64		ticket;			/* 0: nobody waits for it any more */
	int64		id;				/* of the subscription */
	struct OwnerQueue *owner;	/* in whose queue it is, or was */
	RefillKind	kind;
	bool		urgent;
	TimestampTz started_at;		/* 0: it is queued */
	StringInfoData message;
	int			alike;			/* so many bytes are the same in messages of
								 * jobs that may share a transaction; 0: none */
	struct RefillJob *next;		/* in the batch that it runs in */
	TimestampTz batch_at;		/* when that was begun */
	int			batch_size;
} RefillJob;

typedef struct RefillQueue RefillQueue;

extern RefillQueue *refill_queue_create(MemoryContext context);

/*
 * A job to be run, with an empty message, which the caller makes.  Drops
 * have InvalidOid for an owner.  Urgent reads go before others.
 */
extern RefillJob *refill_queue_add(RefillQueue *queue, Oid oid, int64 id,
								   RefillKind kind, bool urgent);

/* Nobody waits for the job with that ticket any more, if there is one. */
extern void refill_queue_forget(RefillQueue *queue, uint64 ticket);

/* How many wait? */
extern int	refill_queue_length(const RefillQueue *queue);

/* May one of them run? */
extern bool refill_queue_has_next(RefillQueue *queue);

/*
 * Which one, taken from the queue; NULL if none may.  Others that are like it
 * follow it, to be run one after the other in the same transaction.
 */
extern RefillJob *refill_queue_next(RefillQueue *queue);

/*
 * A job has been answered, or its worker has gone.  Frees it, and returns the
 * next one of the batch.
 */
extern RefillJob *refill_queue_end(RefillQueue *queue, RefillJob *job);

/* The worker has gone before it came to a job and those that follow it. */
extern void refill_queue_put_back(RefillQueue *queue, RefillJob *job);

#endif							/* LIVE_TOPN_REFILL_QUEUE_H */
