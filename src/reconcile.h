/*
 * reconcile.h
 *	  A snapshot read moved to a log position.
 */
#ifndef LIVE_TOPN_RECONCILE_H
#define LIVE_TOPN_RECONCILE_H

#include "commit_log.h"
#include "evaluate.h"
#include "utils/snapshot.h"

/* For tests: leave one of the facts out and be wrong. */
typedef enum IgnoreFact
{
	IGNORE_NONE,
	IGNORE_REDO,
	IGNORE_UNDO,
	IGNORE_SNAPSHOT				/* trust the LSN instead */
} IgnoreFact;

extern int	reconcile_ignore_fact;	/* live_topn.debug_ignore_fact */

/* What a read saw. */
typedef struct ReadView
{
	SnapshotData snapshot;		/* xmin, xmax and xip are set */
	XLogRecPtr	lsn;			/* WAL insert position after the snapshot */
	bool		is_place;		/* no snapshot: what a window saw, ... */
	uint64		place;			/* ... all commits up to this one */
} ReadView;

typedef enum ReconcileResult
{
	RECONCILED,
	RECONCILE_LATER,			/* first go on to commit *later */
	RECONCILE_READ_AGAIN		/* needs a value that neither WAL nor the read
								 * has */
} ReconcileResult;

/*
 * Move the rows of read, windows as they were under view, to the position
 * after commit p.  held are the rows before them at p, or NULL; since is a commit from
 * which on the log has all changes of the relation.  The log must reach up to
 * view->lsn.  Unless RECONCILED, the contents of read are undefined.
 */
extern ReconcileResult reconcile(Evaluator *evaluator, WindowSet *read,
								 const ReadView *view, CommitLog *log,
								 WindowSet *held, uint64 since, uint64 p,
								 uint64 *later);

#endif							/* LIVE_TOPN_RECONCILE_H */
