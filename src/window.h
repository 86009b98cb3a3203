/*
 * window.h
 *	  An exact stretch of the ordered, filtered relation.
 */
#ifndef LIVE_TOPN_WINDOW_H
#define LIVE_TOPN_WINDOW_H

#include "row.h"

typedef enum WindowEnd
{
	WINDOW_NOTHING,				/* no row is known: (low, low] */
	WINDOW_BOUNDED,				/* rows up to and with high */
	WINDOW_COMPLETE				/* all rows after low */
} WindowEnd;

struct keymap_hash;

/*
 * The rows of (low, high] of the relation at some position of the log.
 *
 * Since the last window_settle, before_size rows were held and changes have
 * been applied; removed has the rows that were held then and are not now, and
 * added those that are held now and were not.  A changed row is in both.
 */
typedef struct Window
{
	RowFormat  *format;
	MemoryContext context;		/* of the arrays */
	Row		   *root;			/* ordered rows, a treap with sizes */
	struct keymap_hash *by_key; /* NULL if the table is keyless */
	Row		   *low;			/* rows sort after it; NULL: from the start */
	WindowEnd	end;
	Row		   *high;			/* boundary if BOUNDED */
	Size		bytes;			/* of the rows held */

	uint32		before_size;
	int			nremoved;
	int			maxremoved;
	Row		  **removed;
	int			nadded;
	int			maxadded;
	Row		  **added;

	/* what a lookup in by_key is for, while it runs */
	const Datum *probe_keys;
	const bool *probe_nulls;
} Window;

static inline uint32
window_size(const Window *window)
{
	return window->root ? window->root->size : 0;
}

/* In context, holding nothing: the range is empty. */
extern Window *window_create(RowFormat *format, MemoryContext context);
extern void window_free(Window *window);

/* Does the range cover a row's place? */
extern bool window_covers(const Window *window, const Row *row);

/* Set the end of the range; takes over the caller's reference on high. */
extern void window_set_end(Window *window, WindowEnd end, Row *high);

/* Add a row of the range that is not held; takes over the reference. */
extern void window_add(Window *window, Row *row);

/*
 * Remove a row that is held; of a keyless table, one that compares equal.
 * Gives up the window's reference, once settled if the row was held before.
 */
extern void window_remove(Window *window, Row *row);

/* Remove all rows and let the range be empty. */
extern void window_clear(Window *window);

/* The held row with that identity, or NULL; not for keyless tables. */
extern Row *window_find_key(Window *window, const Datum *keys,
							const bool *nulls);

/* A held row that compares equal, or NULL. */
extern Row *window_find_equal(const Window *window, const Row *row);

/*
 * How many held rows sort before a row (held or not) or are equal to it, by
 * the first n sort columns.
 */
extern uint32 window_count_upto(const Window *window, const Row *row, int n);

/* The row with that many rows before it. */
extern Row *window_nth(const Window *window, uint32 n);

/*
 * Drop rows from the end until size are held; the range ends at the last one
 * left.  More are held if the last one has equals, which stay with it.
 */
extern void window_trim(Window *window, uint32 size);

/* Forget what changed: the rows held now are what the next changes change. */
extern void window_settle(Window *window);

#endif							/* LIVE_TOPN_WINDOW_H */
