/*
 * progress.h
 *	  How many rows the query of a refill worker has read so far.
 *
 * What its scans have looked at, not what comes of it: a query that sorts
 * returns no row before it has read all.  Of parallel workers it counts what
 * has been read once they are done.
 */
#ifndef LIVE_TOPN_PROGRESS_H
#define LIVE_TOPN_PROGRESS_H

#include "nodes/execnodes.h"
#include "port/atomics.h"

/* From now on the number can be seen there.  After InitPostgres. */
extern void progress_startup(pg_atomic_uint64 *shown);

/* Another task begins, or there is none: rows count from 0. */
extern void progress_begin(void);
extern void progress_end(void);

/*
 * Count what a plan reads that was started with INSTRUMENT_ROWS, until
 * progress_forget, while it still exists.
 */
extern void progress_watch(PlanState *plan);
extern void progress_forget(void);

#endif							/* LIVE_TOPN_PROGRESS_H */
