/*
 * history.h
 *	  The last batches of each feed, for topn_poll.
 */
#ifndef LIVE_TOPN_HISTORY_H
#define LIVE_TOPN_HISTORY_H

#include "lib/stringinfo.h"
#include "utils/palloc.h"

extern int	history_memory_kb;	/* live_topn.poll_memory */
extern int	history_batches;	/* live_topn.poll_batches */

/* The batches of one feed, consecutive, the last one first out. */
typedef struct History History;

extern void history_startup(MemoryContext parent);
extern History *history_create(void);
extern void history_free(History *history);

/*
 * Keep a batch.  Older ones go, of any feed, when there are too many.
 */
extern void history_add(History *history, int64 seq, const char *json,
						int length);

/*
 * Append the batches after seq: int32 number, then each as int32 length and
 * bytes.  False, and nothing appended, unless all up to last are here.
 */
extern bool history_append_after(const History *history, int64 seq,
								 int64 last, StringInfo out);

#endif							/* LIVE_TOPN_HISTORY_H */
