/*
 * checkpoint_record.h
 *	  A record of a checkpoint file: what is saved of a subscription.
 */
#ifndef LIVE_TOPN_CHECKPOINT_RECORD_H
#define LIVE_TOPN_CHECKPOINT_RECORD_H

#include "checkpoint.h"
#include "checkpoint_file.h"
#include "feed.h"

typedef enum RecordKind
{
	RECORD_NOTHING,				/* there are no windows */
	RECORD_FEED,				/* with the windows of its feed */
	RECORD_SAME_FEED,			/* those of the record before in the file */
	RECORD_LEASE,				/* all is as in its record before, but for the
								 * end of the lease */
	RECORD_DROPPED				/* the subscription is no more */
} RecordKind;

/* Are there windows to be saved? */
static inline bool
record_has_windows(const Feed *feed)
{
	return feed->loaded && !feed->error && !feed->forget;
}

extern void record_put(FileWriter *writer, const Subscriber *subscriber,
					   RecordKind kind);

#ifdef USE_ASSERT_CHECKING
/*
 * Of what a record would say, but for its position and the lease, which differ
 * though nothing has concerned the feed.
 */
extern uint32 record_checksum(const Subscriber *subscriber);
#endif

/*
 * Read the next record; false if there is none that is intact.  *saved is what
 * the call before has left there, or zero.  What its feed points to lives in
 * context, which is reset when it is of no use any more.
 */
extern bool record_get(FileReader *reader, MemoryContext context,
					   SavedSubscriber *saved, RecordKind *kind);

#endif							/* LIVE_TOPN_CHECKPOINT_RECORD_H */
