/*
 * batch.h
 *	  Deltas as JSON.
 */
#ifndef LIVE_TOPN_BATCH_H
#define LIVE_TOPN_BATCH_H

#include "commit_log.h"
#include "delta.h"
#include "lib/stringinfo.h"

/* How to print the rows of a query. */
typedef struct BatchFormat BatchFormat;

/* In CurrentMemoryContext; looks up functions. */
extern BatchFormat *batch_format(const TopnQuery *query, TupleDesc desc);

/*
 * Append {"key":{…},"row":{…}} for a row, as in a reset.  Values are printed
 * under the settings in force and run output functions: as the owner.
 */
extern void batch_append_row(StringInfo out, BatchFormat *format,
							 MinimalTuple tuple);

/*
 * Append a batch up to its deltas, which "]}" ends.  xid may be invalid, if no
 * transaction made it; from too.
 */
extern void batch_append_head(StringInfo out, const char *name, int64 seq,
							  const CommitInfo *commit, XLogRecPtr from);

/* What changed one subscription's result, and when. */
typedef struct Batch
{
	int64		seq;
	CommitInfo	commit;			/* xid invalid: not by a transaction */
	XLogRecPtr	from;			/* first commit covered, if several */
	char	   *error;			/* the subscription is in error; no deltas */
	DeltaScript *script;		/* NULL: reset */
	int			nrows;			/* of the reset */
	Row		  **rows;
	int64	   *ranks;			/* NULL if no column shows them */
} Batch;

/* A batch's memory, and its references. */
extern void batch_free(Batch *batch);

/* How much memory it keeps, if nobody else needs the rows. */
extern Size batch_bytes(const Batch *batch);

/*
 * Append a batch in the form of doc/protocol.md.  With old, deltas tell what
 * there was before.
 */
extern void batch_append(StringInfo out, const char *name,
						 const Batch *batch, BatchFormat *format,
						 const RowFormat *rows, bool old);

#endif							/* LIVE_TOPN_BATCH_H */
