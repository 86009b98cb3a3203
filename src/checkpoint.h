/*
 * checkpoint.h
 *	  Windows saved and restored.
 */
#ifndef LIVE_TOPN_CHECKPOINT_H
#define LIVE_TOPN_CHECKPOINT_H

#include "access/htup.h"
#include "access/xlogdefs.h"
#include "nodes/pg_list.h"
#include "window.h"

/* In the data directory. */
#define CHECKPOINT_DIRECTORY	"live_topn"

extern int	checkpoint_interval_s;	/* live_topn.checkpoint_interval */

/* The rows of one group. */
typedef struct SavedWindow
{
	WindowEnd	end;
	MinimalTuple high;			/* if end is WINDOW_BOUNDED */
	int64		nrows;
	MinimalTuple *rows;
} SavedWindow;

/* A subscription as it was saved. */
typedef struct SavedFeed
{
	int64		id;
	int64		seq;			/* of its last batch */
	XLogRecPtr	last_lsn;

	/* its windows, if exact at the time; else query_text is NULL */
	char	   *query_text;
	XLogRecPtr	lsn;			/* of all records before this */
	int64		offset;			/* as of then */
	int64		limit;
	int64		nwindows;
	SavedWindow *windows;
} SavedFeed;

/*
 * Save all feeds as of the log position, durably, with the position that the
 * slot is to be moved to afterwards.  No batch may be waiting for delivery.
 * If it cannot be done: false, with a warning.
 */
extern bool checkpoint_save(XLogRecPtr restart);

/*
 * What was saved is still right if the slot is moved to this position: note
 * that, durably.  Fails as checkpoint_save.
 */
extern bool checkpoint_move(XLogRecPtr restart);

typedef enum CheckpointState
{
	CHECKPOINT_NONE,			/* no file */
	CHECKPOINT_GOOD,
	CHECKPOINT_USELESS			/* damaged, or another slot's */
} CheckpointState;

/*
 * What was saved, as a list of SavedFeed in CurrentMemoryContext.  If it does
 * not go with a slot at this position, at most the numbers.
 */
extern CheckpointState checkpoint_load(XLogRecPtr confirmed, List **feeds);

/* Remove what was saved of a database. */
extern void checkpoint_remove(Oid dboid);

#endif							/* LIVE_TOPN_CHECKPOINT_H */
