/*
 * deliver.h
 *	  Batches on their way to clients.
 */
#ifndef LIVE_TOPN_DELIVER_H
#define LIVE_TOPN_DELIVER_H

#include "feed.h"

extern void deliver_startup(MemoryContext parent);

/* Where batches are made, to be enqueued. */
extern MemoryContext deliver_context(void);

/* Queue a batch made in deliver_context; keeps references to its rows. */
extern void deliver_enqueue(Subscriber *subscriber, Batch *batch);

/*
 * The result at birth is known to clients from now on: note that in WAL with
 * the batches.
 */
extern void deliver_announce(Subscriber *subscriber);

/*
 * Of the feeds that retrace the work of an earlier worker, drop what that one
 * has published, and number the rest from there.
 */
extern void deliver_forget_published(void);

/* What is queued of a subscriber is of no use: its numbers are free again. */
extern void deliver_discard(Subscriber *subscriber);

extern int	deliver_pending(void);

/* Is so much queued that it should be published before more is? */
extern bool deliver_is_full(void);

/*
 * Publish all queued batches.  Must be called outside decoding.  False if that
 * is not possible now; then the rest stays queued.
 */
extern bool deliver_publish(void);

/*
 * Flush batches that wait in WAL: consumers get what is on disk.  To be called
 * when there is time to, since others flush WAL as well.
 */
extern void deliver_flush(void);

#endif							/* LIVE_TOPN_DELIVER_H */
