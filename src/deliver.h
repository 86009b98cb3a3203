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
extern void deliver_enqueue(Feed *feed, Batch *batch);

/*
 * The result at birth is known to clients from now on: note that in WAL with
 * the batches.
 */
extern void deliver_announce(Feed *feed);

/*
 * Drop what is queued of a feed up to a commit: batch seq has brought clients
 * there.  The others are numbered from there; returns the last number.
 */
extern int64 deliver_forget(Feed *feed, int64 seq, XLogRecPtr lsn);

extern int	deliver_pending(void);

/*
 * Publish all queued batches in one transaction.  Must be called outside
 * decoding.  On an error they stay queued; returns false then.
 */
extern bool deliver_publish(void);

/*
 * Flush batches that wait in WAL: consumers get what is on disk.  To be called
 * when there is time to, since others flush WAL as well.
 */
extern void deliver_flush(void);

#endif							/* LIVE_TOPN_DELIVER_H */
