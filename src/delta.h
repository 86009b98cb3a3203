/*
 * delta.h
 *	  From the result before some changes to the result after them.
 */
#ifndef LIVE_TOPN_DELTA_H
#define LIVE_TOPN_DELTA_H

#include "window.h"

typedef enum DeltaOp
{
	DELTA_LEAVE,				/* at from */
	DELTA_MOVE,					/* at from, then at to */
	DELTA_ENTER,				/* at to */
	DELTA_UPDATE				/* at to */
} DeltaOp;

typedef struct Delta
{
	DeltaOp		op;
	uint32		from;			/* positions count from 1; 0: none */
	uint32		to;
	Row		   *old;			/* NULL for enter; holds a reference */
	Row		   *row;			/* NULL for leave; holds a reference */
	int64		old_rank;		/* as the query counts; 0 if no column shows */
	int64		rank;			/* it */
} Delta;

typedef struct DeltaScript
{
	int			n;
	int			max;
	Delta	   *deltas;			/* in the order in which to apply them */
	int			refs;			/* of batches */
} DeltaScript;

/* In CurrentMemoryContext. */
extern DeltaScript *delta_script(void);

/*
 * Append the shortest script from the rows of a page before the unsettled
 * changes of a window to the rows of a page now.  Relative: leaves, moves,
 * enters, updates, each position as of its turn.  Absolute: every row whose
 * rank changed moves, positions are ranks before and after.  If the query is
 * unranked: leaves, enters and updates without positions.  Rows that only
 * changed columns which are not visible give nothing.
 *
 * Takes O(k log n) for k changed rows of n, absolute O(page).
 */
extern void delta_append(DeltaScript *script, Window *window,
						 ResultPage before, ResultPage after, bool absolute);

static inline DeltaScript *
delta_ref(DeltaScript *script)
{
	script->refs++;
	return script;
}

/* Give up a reference: delta_script has made one. */
extern void delta_free(DeltaScript *script);

/* Its memory, and that of the rows it holds. */
extern Size delta_bytes(const DeltaScript *script);

#endif							/* LIVE_TOPN_DELTA_H */
