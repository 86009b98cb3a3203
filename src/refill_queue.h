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
	dlist_node	node;			/* if it is queued */
	uint64		ticket;			/* 0: nobody waits for it any more */
	int64		id;				/* of the subscription */
	struct OwnerQueue *owner;	/* in whose queue it is, or was */
	RefillKind	kind;
	TimestampTz started_at;		/* 0: it is queued */
	StringInfoData message;
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

/* Which one, taken from the queue; NULL if none may. */
extern RefillJob *refill_queue_next(RefillQueue *queue);

/* A job has been answered, or its worker has gone.  Frees it. */
extern void refill_queue_end(RefillQueue *queue, RefillJob *job);

#endif							/* LIVE_TOPN_REFILL_QUEUE_H */
