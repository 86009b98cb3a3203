/*
 * window_copy.c
 *	  The windows of one set copied to another of the same format.
 */
#include "postgres.h"

#include "window_private.h"

static Row *
copy(WindowSet *set, Row *row)
{
	return row_from_tuple(set->format, RowTuple(row));
}

static void
load_copies(WindowSet *set, Row **rows, int n)
{
	for (int i = 0; i < n; i++)
		window_set_load(set, copy(set, rows[i]));
}

/* The rows that are held now, or only those that were before they changed. */
static void
load_held(WindowSet *set, const Window *window, bool changed)
{
	for (uint32 i = 0; i < window_size(window); i++)
	{
		Row		   *row = window_nth(window, i);

		if (changed || row->fresh < 0)
			window_set_load(set, copy(set, row));
	}
}

/* The window, once its rows are there. */
static void
copy_range(WindowSet *set, const Window *from)
{
	Row		   *key = window_key(from);
	Window	   *window = window_set_get(set, key);

	window_set_end(window, from->end,
				   from->high ? copy(set, from->high) : NULL);
	window->page = from->page;
	if (from->work)
		window_touch(window, key);
}

/* Where the only window begins, if rows before it are counted. */
static void
copy_begin(WindowSet *set, const WindowSet *from)
{
	if (from->counted)
		window_set_begin(set, copy(set, from->only->low), from->before);
}

static void
copy_ranges(WindowSet *set, const WindowSet *from)
{
	uint64		position = 0;
	Window	   *window;

	while ((window = window_set_next(from, &position)) != NULL)
		copy_range(set, window);
}

void
window_set_copy_rows(WindowSet *set, const WindowSet *from)
{
	uint64		position = 0;
	Window	   *window;

	Assert(!window_set_is_partial(from));
	set->others = WINDOW_COMPLETE;
	copy_begin(set, from);
	while ((window = window_set_next(from, &position)) != NULL)
		load_held(set, window, true);
	copy_ranges(set, from);
}

/* Make the changes of all windows again: a row can go from one to another. */
static void
copy_changes(WindowSet *set, const WindowSet *from)
{
	dlist_iter	iter;

	dlist_foreach(iter, &unconstify(WindowSet *, from)->touched)
	{
		WindowWork *work = dlist_container(WindowWork, touched_node, iter.cur);

		for (int i = 0; i < work->nremoved; i++)
		{
			Row		   *row = copy(set, work->removed[i]);

			window_set_remove(set, row);
			row_unref(row);
		}
	}
	dlist_foreach(iter, &unconstify(WindowSet *, from)->touched)
	{
		WindowWork *work = dlist_container(WindowWork, touched_node, iter.cur);

		for (int i = 0; i < work->nadded; i++)
			window_set_add(set, copy(set, work->added[i]));
	}
}

void
window_set_copy(WindowSet *set, const WindowSet *from)
{
	uint64		position = 0;
	Window	   *window;
	uint32	   *dropped = window_set_list_dropped(from);

	set->others = from->others;
	while ((window = window_set_next(from, &position)) != NULL)
	{
		load_held(set, window, false);
		if (window->work)
			load_copies(set, window->work->removed, window->work->nremoved);
	}
	copy_begin(set, from);
	if (set->only)
		window_settle(set->only);
	copy_changes(set, from);
	copy_ranges(set, from);
	for (uint64 i = 0; i < from->ndropped; i++)
		window_set_add_dropped(set, dropped[i]);
	set->nwaiting = from->nwaiting;
	set->dropped_rows = from->dropped_rows;
	set->loaded = from->loaded;
	pfree(dropped);
}
