/*
 * delta_private.h
 *	  What delta.c and delta_moves.c share: the comparison under way.
 */
#ifndef LIVE_TOPN_DELTA_PRIVATE_H
#define LIVE_TOPN_DELTA_PRIVATE_H

#include "delta.h"

/* A row that was changed, came or went. */
typedef struct Touched
{
	Row		   *old;			/* NULL: not held before */
	Row		   *row;			/* NULL: not held now */
	uint32		before;			/* rank, 0 if not held then */
	uint32		after;
	uint32		before_untouched;	/* untouched rows that precede it */
	uint32		after_untouched;
} Touched;

/* A row with its ranks; what a delta is made of. */
typedef struct Place
{
	Row		   *old;
	Row		   *row;
	uint32		before;
	uint32		after;
	int64		old_rank;		/* as a column shows it, if one does; else 0 */
	int64		rank;
} Place;

typedef struct Places
{
	int			n;
	int			max;
	Place	   *items;
} Places;

typedef struct Differ
{
	Window	   *window;
	ResultPage	before;
	ResultPage	after;

	int			ntouched;
	Touched    *touched;
	int			nold;
	Touched   **by_old;			/* those with an old row, in its order */
	int			nnew;
	Touched   **by_new;			/* those with a new row, in its order */

	/* untouched rows visible in both lists: low + 1 to high */
	uint32		shared_low;
	uint32		shared_high;
	/* rows visible in both lists: a row of each, and their number */
	int			nstaying;
	Touched   **staying;
	Places		leaves;			/* by before, descending */
	Places		enters;			/* by after */
	Places		moves;			/* by after */
	Places		updates;		/* by after */
} Differ;

static inline int
compare_uint32(const void *a, const void *b)
{
	uint32		x = *(const uint32 *) a;
	uint32		y = *(const uint32 *) b;

	return (x > y) - (x < y);
}

/* Ranks, of rows that are visible, become positions in the page. */
extern void delta_add_place(const Differ *differ, Places *places,
							Row *old, Row *row, uint32 before, uint32 after);

/* The n-th untouched row (from 1). */
extern void delta_add_untouched(Differ *differ, Places *places, uint32 n);

/* Divide the rows visible in both lists into moves and updates, unsorted. */
extern void delta_find_moves(Differ *differ);

/* Set the positions of the deltas made of moves, each as of its turn. */
extern void delta_position_moves(Differ *differ, Delta *deltas);

/*
 * The n-th row of the whole list before, from 1; *touched begins at 0 and is
 * kept between calls with ascending n.
 */
extern Row *delta_old_row(const Differ *differ, uint32 n, int *touched);

/*
 * Fill in ranks; rows of which nothing but the rank has changed are added to
 * the updates.  All else is done, relative or absolute.
 */
extern void delta_add_ranks(Differ *differ);

#endif							/* LIVE_TOPN_DELTA_PRIVATE_H */
