/*
 * window.h
 *	  Exact stretches of the ordered, filtered relation, one for each group.
 */
#ifndef LIVE_TOPN_WINDOW_H
#define LIVE_TOPN_WINDOW_H

#include "holders.h"
#include "key_map.h"
#include "lib/ilist.h"
#include "nodes/params.h"
#include "row.h"

typedef enum WindowEnd
{
	WINDOW_NOTHING,				/* no row is known: (low, low] */
	WINDOW_BOUNDED,				/* rows up to and with high */
	WINDOW_COMPLETE,			/* all rows after low */
	WINDOW_PASSING				/* those added since it was settled; changes
								 * tell what else there was */
} WindowEnd;

/* The ranks of the rows that are visible: skip + 1 to end. */
typedef struct ResultPage
{
	uint32		skip;
	uint32		end;
} ResultPage;

struct WindowSet;

/* Counts rows that were looked for, as evaluate_progress counts others. */
extern volatile uint64 window_progress;

/*
 * The rows of (low, high] of one group of the relation, at some position of
 * the log.  There may be very many of these.
 */
typedef struct Window
{
	struct WindowSet *set;
	Row		   *root;			/* ordered rows, a treap with sizes */
	Row		   *low;			/* rows sort after it; NULL: from the start */
	Row		   *high;			/* boundary if BOUNDED */
	struct WindowWork *work;	/* NULL: nothing goes on */
	ResultPage	page;			/* of the result that clients know */
	WindowEnd	end;
	uint16		place;			/* in the pool of the rows */
	uint16		used;			/* by the set's clock; see window_drop.c */
} Window;

/* How urgently a window needs more rows. */
typedef enum WindowNeed
{
	NEED_NOTHING,
	NEED_CUSHION,				/* soon */
	NEED_RESULT					/* its result is not known */
} WindowNeed;

#define NUM_NEEDS	(NEED_RESULT + 1)

/*
 * What goes on with a window that is not at rest.
 *
 * Since the last window_settle, before_size rows were held and changes have
 * been applied; removed has the rows that were held then and are not now, and
 * added those that are held now and were not.  A changed row is in both.
 */
typedef struct WindowWork
{
	Window	   *window;
	Row		   *key;			/* a row of its group, a reference; NULL if
								 * the set is not grouped */
	bool		touched;		/* is in set->touched: to be settled */
	bool		changed;		/* is in set->changed: since it was looked at */
	WindowNeed	need;			/* is in set->needy[need], unless nothing */
	uint64		in_vain;		/* rows of a dropped group that were read, and
								 * were too few */
	dlist_node	touched_node;
	dlist_node	changed_node;
	dlist_node	need_node;

	uint32		before_size;
	int			nremoved;
	int			maxremoved;
	Row		  **removed;
	int			nadded;
	int			maxadded;
	Row		  **added;
} WindowWork;

struct groupmap_hash;
struct dropped_hash;

/*
 * The windows of all groups of a query, or its only window.  A group that is
 * empty and of which all is known has none.
 */
typedef struct WindowSet
{
	RowFormat  *format;
	ParamListInfo params;		/* of the filter that the rows satisfy */
	MemoryContext context;		/* of all but the rows */
	KeyMap	   *by_key;			/* rows by identity; NULL if keyless */
	struct groupmap_hash *by_group; /* windows; NULL if not grouped */
	Window	   *only;			/* the window, if not grouped; else NULL */
	WindowEnd	others;			/* of groups without a window: NOTHING is
								 * known, or COMPLETE: they are empty */
	bool		counted;		/* the only window has a low, and it is known
								 * how many rows ... */
	uint64		before;			/* ... sort at or before that; else 0 */
	uint64		nrows;			/* held in all windows */
	Size		row_bytes;		/* of these rows */
	Size		own_bytes;		/* that they would take in a table */
	Size		passed;			/* bytes of removed rows that a PASSING window
								 * did not hold */

	/* groups that have rows and no window, see window_drop.c */
	struct dropped_hash *dropped;	/* NULL: none */
	uint64		ndropped;
	uint64		dropped_rows;	/* in their results */
	uint64		nwaiting;		/* windows of such groups, PASSING */
	uint64		loaded;			/* that are held again, in all */
	uint16		clock;
	uint64		uses;			/* of windows, since it ticked */

	Holders    *holders;		/* told which rows are held; NULL: nobody */
	uint32		holder;			/* by whom */
	Window	   *last;			/* to which a row was added; or NULL */
	dlist_head	touched;		/* of WindowWork */
	dlist_head	changed;
	dlist_head	needy[NUM_NEEDS];

	/* what a lookup is for, while it runs */
	const Datum *probe_keys;
	const bool *probe_nulls;
} WindowSet;

static inline uint32
window_size(const Window *window)
{
	return window->root ? window->root->size : 0;
}

/* In context, holding nothing: the ranges are empty. */
extern WindowSet *window_set_create(RowFormat *format, ParamListInfo params,
									MemoryContext context);
extern void window_set_free(WindowSet *set);

/* Tell holders of the rows that are held, and will be; or no longer. */
extern void window_set_watch(WindowSet *set, Holders *holders, void *owner);
extern void window_set_unwatch(WindowSet *set);

/* The window of a row's group, or NULL. */
extern Window *window_set_find(WindowSet *set, const Row *row);

/* The same by the values of format->query->groups. */
extern Window *window_set_find_group(WindowSet *set, const Datum *values,
									 const bool *nulls);

/* The window of a row's group, made if it is not there. */
extern Window *window_set_get(WindowSet *set, Row *row);

/* All the memory that is taken by what is held. */
extern Size window_set_bytes(const WindowSet *set);

/*
 * The same as a bound may count it: whatever else was held before or is held by
 * others makes no difference.  And what a tuple of that length would add.
 */
extern Size window_set_memory(const WindowSet *set);
extern Size window_set_memory_of(Size tuple_len);

/* Is it known what is in a row's place? */
extern bool window_set_covers(WindowSet *set, const Row *row);

/* Is nothing known of the relation? */
extern bool window_set_is_lost(const WindowSet *set);

/* Is it known that there are no rows? */
extern bool window_set_is_empty(const WindowSet *set);

/*
 * Add a row that is not held while a set is made: that is no change.  Takes
 * over the reference.
 */
extern void window_set_load(WindowSet *set, Row *row);

/* Add a row that is covered and not held; takes over the reference. */
extern void window_set_add(WindowSet *set, Row *row);

/*
 * Remove a row that is held; of a keyless table, one that compares equal.
 * Gives up the reference, once settled if the row was held before.  A PASSING
 * window takes a reference of its own to a row that it does not hold.
 */
extern void window_set_remove(WindowSet *set, Row *row);

/* Remove all rows: there are none (COMPLETE), or nothing is known. */
extern void window_set_clear(WindowSet *set, WindowEnd end);

/*
 * Move the rows of another set of the same format and their ranges to the
 * end of those of this one.  Frees the other set.
 */
extern void window_set_append(WindowSet *set, WindowSet *more);

/*
 * The same to the beginning of the only window, whose rows before are counted,
 * of rows up to its low.
 */
extern void window_set_prepend(WindowSet *set, WindowSet *more);

/*
 * Let the only window begin after low (takes over the reference), with so many
 * rows before it that are not held; or, if NULL, with the first of all rows.
 */
extern void window_set_begin(WindowSet *set, Row *low, uint64 before);

/* A row at or before low has come (1) or gone (-1), if they are counted. */
extern void window_set_count_before(WindowSet *set, int change);

/*
 * The only window holds no rows any longer but those added since it was
 * settled.
 */
extern void window_set_pass(WindowSet *set);

/*
 * Rows read for a PASSING window are to be held in its place: they get the
 * changes since it was settled, of which they have those added.  Frees the
 * set.
 */
extern void window_set_replace(WindowSet *set, WindowSet *read);

static inline bool
window_set_is_passing(const WindowSet *set)
{
	return set->only && set->only->end == WINDOW_PASSING;
}

/* The held row with that identity, or NULL; not for keyless tables. */
extern Row *window_set_find_key(WindowSet *set, const Datum *keys,
								const bool *nulls);

/* A held row that compares equal, or NULL. */
extern Row *window_set_find_equal(WindowSet *set, const Row *row);

/* How many windows there are, and all of them in the order of the groups. */
extern uint64 window_set_count(const WindowSet *set);
extern Window **window_set_list(const WindowSet *set);

/* Put windows into the order of their groups. */
extern void window_sort(const WindowSet *set, Window **windows, uint64 n);

/* All of them in no order: start with *position 0, fetch until NULL. */
extern Window *window_set_next(const WindowSet *set, uint64 *position);

/* Note how urgently a window needs rows. */
extern void window_set_need(Window *window, WindowNeed need);

/* A window that has changed since it was last returned here, or NULL. */
extern Window *window_set_next_changed(WindowSet *set);

/* A row of the window's group; NULL if the set is not grouped. */
extern Row *window_key(const Window *window);

/* Does the range cover the place of a row of the group? */
extern bool window_covers(const Window *window, const Row *row);

/* The window changes.  key is a row of its group; NULL if it is at work. */
extern void window_touch(Window *window, Row *key);

/* Set the end of the range; takes over the caller's reference on high. */
extern void window_set_end(Window *window, WindowEnd end, Row *high);

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

/*
 * Hold the first n rows of the only window no longer, and count them instead.
 * Not for keyless tables.
 */
extern void window_trim_front(Window *window, uint32 n);

/*
 * Forget what changed: the rows held now are what the next changes change.
 * Frees the window of a group that is known to be empty.
 */
extern void window_settle(Window *window);

/* ---- copies for a set that holds nothing, see window_copy.c ---- */

/* The rows held now, all of which must be, as if they had been read. */
extern void window_set_copy_rows(WindowSet *set, const WindowSet *from);

/* All that is known, with what has changed since it was settled. */
extern void window_set_copy(WindowSet *set, const WindowSet *from);

/* ---- groups that are dropped, see window_drop.c ---- */

/* Are there groups with rows that are not held? */
static inline bool
window_set_is_partial(const WindowSet *set)
{
	return set->ndropped > 0 || set->nwaiting > 0;
}

/* May a group that has no window have rows?  By the hash of its keys. */
extern bool window_set_has_dropped(const WindowSet *set, uint32 hash);

/* The hashes of all that do, palloc'd; one more; none. */
extern uint32 *window_set_list_dropped(const WindowSet *set);
extern void window_set_add_dropped(WindowSet *set, uint32 hash);
extern void window_set_forget_dropped(WindowSet *set);
extern Size window_set_dropped_bytes(const WindowSet *set);

/* Hold a group no longer, whose window is at rest and has rows. */
extern void window_drop(Window *window);

/*
 * Of the rows of a dropped group as they were read, and what has been added and
 * removed since it was dropped: what its rows were then.  They go to a set of
 * their own; returns their window.
 */
extern Window *window_rewind(WindowSet *before, Window *read,
							 const Window *waiting);

/* Hold the group again: these were its rows, and that its page. */
extern void window_revive(Window *waiting, Window *before, ResultPage page);

/* Take a window out of a set that was read. */
extern void window_discard(Window *window);

/* window_revive of a group that nothing has happened to. */
extern void window_set_load_dropped(WindowSet *set, Window *read,
									ResultPage page);

#endif							/* LIVE_TOPN_WINDOW_H */
