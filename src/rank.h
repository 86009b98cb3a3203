/*
 * rank.h
 *	  Ranks within a group, as the query counts them.
 */
#ifndef LIVE_TOPN_RANK_H
#define LIVE_TOPN_RANK_H

#include "window.h"

/*
 * The last rank that belongs to the result of the window's group, of limit
 * ranks after offset; 0: none.
 */
extern uint32 rank_last(const Window *window, int64 offset, int64 limit);

/* How many of the rows held are of the first ranks. */
extern uint32 rank_end(const Window *window, uint32 last);

/* May rows that are not known be of the first ranks? */
extern bool rank_is_open(const Window *window, uint32 last);

/*
 * A function of rows that goes through a list in order: the rank of the next
 * row.
 */
typedef struct RankCounter
{
	const RowFormat *format;
	const Row  *previous;		/* NULL: at the start */
	int64		rows;			/* so far */
	int64		rank;			/* of the previous row */
} RankCounter;

extern int64 rank_next(RankCounter *counter, const Row *row);

/* Ranks of the rows in a page, in CurrentMemoryContext. */
extern int64 *rank_page(const Window *window, ResultPage page);

/* A copy of a row with its rank in the columns that show it. */
extern MinimalTuple rank_show(const RowFormat *format, const Row *row,
							  int64 rank);

#endif							/* LIVE_TOPN_RANK_H */
