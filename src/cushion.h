/*
 * cushion.h
 *	  How many rows a window holds beyond those that it needs.
 */
#ifndef LIVE_TOPN_CUSHION_H
#define LIVE_TOPN_CUSHION_H

#include "lib/ilist.h"

extern int	cushion_memory_kb;	/* live_topn.cushion_memory */

/*
 * Numbers of rows beyond those that the window needs: with fewer than low it
 * asks for more, fill is what it has then, and what exceeds high it drops.
 */
typedef struct CushionBand
{
	uint64		low;
	uint64		fill;
	uint64		high;
} CushionBand;

/*
 * The cushion of a window and, if it is adaptive, what was measured for it.  Time is counted in commits of the database.
 */
typedef struct Cushion
{
	CushionBand band;
	bool		adaptive;
	bool		tight;			/* there is none, see cushion_tighten */
	dlist_node	node;			/* in a list of cushion.c, if adaptive */

	/* how the number of rows changes; weights halve every so many commits */
	uint64		size;			/* of the window, as last counted */
	uint64		counted;		/* the last commit that changed it */
	double		weight;			/* of the commits */
	double		drift;			/* weighted sum of changes */
	double		squares;		/* and of their squares */

	/* what refills cost; older ones count less */
	uint64		asked;			/* the last commit then */
	double		delay;			/* commits until the rows are there; < 0: unknown */
	double		refills;		/* sums over refills: number, rows, ... */
	double		rows;
	double		time;			/* microseconds */
	double		rows_rows;
	double		rows_time;

	/* the band that was given or would be best, were memory not short */
	CushionBand wanted;
	uint64		planned;		/* the last commit then */
	uint64		round;			/* of sharing out memory then */
	double		wanted_bytes;
} Cushion;

/* What a cushion is for. */
typedef struct CushionUse
{
	uint64		needed;			/* rows; 0: at least one of the cushion */
	uint64		rows;			/* held */
	uint64		bytes;			/* that they take */
} CushionUse;

/*
 * Let it be of a fixed size or, with -1, adaptive.  It must be zero at first,
 * and stay where it is until it is released.
 */
extern void cushion_set(Cushion *cushion, int fixed);

/*
 * Hold no row beyond those needed, or with must_hold no more than one, until
 * cushion_relax; cushion_set must be followed by this again.
 */
extern void cushion_tighten(Cushion *cushion, bool must_hold);
extern void cushion_relax(Cushion *cushion);

/* The window holds nothing any more: others may have the memory. */
extern void cushion_release(Cushion *cushion);

/* A commit has left the window with that many rows. */
extern void cushion_count(Cushion *cushion, uint64 size, uint64 commit);

/* Rows came into the window, or left it, but not by a commit. */
extern void cushion_shift(Cushion *cushion, int64 rows);

/* A refill was requested, after that commit; and has brought rows. */
extern void cushion_ask(Cushion *cushion, uint64 commit);
extern void cushion_learn(Cushion *cushion, uint64 commit, uint64 rows,
						  uint64 microseconds);

/* Bring the band up to date; with now, whether or not it is time to. */
extern void cushion_plan(Cushion *cushion, uint64 commit,
						 const CushionUse *use, bool now);

/* Rows held beyond those needed, on average: what users see, and start with. */
extern uint64 cushion_rows(const Cushion *cushion);

/*
 * A cushion to be planned though nothing happens to its window, so that rows
 * are given back that are not worth their memory any more; or NULL.
 */
extern Cushion *cushion_next_stale(uint64 commit);

#endif							/* LIVE_TOPN_CUSHION_H */
