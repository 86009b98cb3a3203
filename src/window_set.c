/*
 * window_set.c
 *	  The windows of all groups, and their rows by identity.
 *
 * One hash table has the rows of all windows (key_map.c): a change of a row
 * tells its identity, and perhaps not the group that it was in.  Another one
 * has the windows by group, keyed by their rows, so that a window costs a few
 * words; whatever else it needs while it changes is there only then
 * (window_work.c).
 */
#include "postgres.h"

#include "window_private.h"

/* ---- windows by group ---- */

typedef struct GroupEntry
{
	Window	   *window;
	uint32		hash;
	char		status;
} GroupEntry;

static uint32 groupmap_hash_window(const WindowSet *set, const Window *window);
static bool groupmap_equal(const WindowSet *set, const Window *a,
						   const Window *b);

/* A NULL key stands for the set's probe. */
#define SH_PREFIX groupmap
#define SH_ELEMENT_TYPE GroupEntry
#define SH_KEY_TYPE Window *
#define SH_KEY window
#define SH_HASH_KEY(tb, key) groupmap_hash_window(tb->private_data, key)
#define SH_EQUAL(tb, a, b) groupmap_equal(tb->private_data, a, b)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) a->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static uint32
groupmap_hash_window(const WindowSet *set, const Window *window)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (window == NULL)
		return row_hash_group(set->format, set->probe_keys, set->probe_nulls);
	row_get_group(set->format, window_key(window), values, nulls);
	return row_hash_group(set->format, values, nulls);
}

/* A group has one window. */
static bool
groupmap_equal(const WindowSet *set, const Window *a, const Window *b)
{
	if (a && b)
		return a == b;
	return row_group_is(set->format, window_key(a ? a : b), set->probe_keys,
						set->probe_nulls);
}

uint32
window_hash_group(const Window *window)
{
	return groupmap_hash_window(window->set, window);
}

void
window_unlink(Window *window)
{
	groupmap_delete(window->set->by_group, window);
}

Row *
window_key(const Window *window)
{
	if (window->set->only)
		return NULL;
	if (window->work)
		return window->work->key;
	return window->root ? window->root : window->high;
}

/* ---- sets ---- */

static Window *
create_window(WindowSet *set, WindowEnd end)
{
	uint16		place;
	Window	   *window = pool_alloc(set->format->rows, sizeof(Window), &place);

	memset(window, 0, sizeof(Window));
	window->place = place;
	window->set = set;
	window->end = end;
	return window;
}

WindowSet *
window_set_create(RowFormat *format, ParamListInfo params,
				  MemoryContext context)
{
	WindowSet  *set = MemoryContextAllocZero(context, sizeof(WindowSet));

	set->format = format;
	set->params = params;
	set->context = context;
	set->others = WINDOW_NOTHING;
	dlist_init(&set->touched);
	dlist_init(&set->changed);
	for (int i = 0; i < NUM_NEEDS; i++)
		dlist_init(&set->needy[i]);
	if (!format->query->keyless)
		set->by_key = key_map_create(format, context);
	if (format->query->ngroups > 0)
		set->by_group = groupmap_create(context, 2, set);
	else
	{
		set->only = create_window(set, WINDOW_NOTHING);
		window_touch(set->only, NULL);
	}
	return set;
}

void
window_free(Window *window)
{
	Assert(window->root == NULL);
	if (window->work)
		window_end_work(window);
	if (window->low)
		row_unref(window->low);
	if (window->high)
		row_unref(window->high);
	if (window->set->last == window)
		window->set->last = NULL;
	pool_free(window, window->place);
}

/* Tell the holders of the set, if it has any, that it holds the row no more. */
static void
release_row(WindowSet *set, Row *row)
{
	if (row->holding != HOLDER_NONE)
		holders_remove(set->holders, row->holding);
	row->holding = HOLDER_NONE;
}

/* Free the rows of a tree but those added since the window was settled. */
static void
free_tree(WindowSet *set, Row *row)
{
	if (row == NULL)
		return;
	free_tree(set, row->left);
	free_tree(set, row->right);
	release_row(set, row);
	row->left = row->right = NULL;
	if (row->fresh < 0)
		row_unref(row);
}

/* Takes no memory, so that it cannot fail. */
void
window_set_free(WindowSet *set)
{
	uint64		position = 0;
	Window	   *window;

	while ((window = window_set_next(set, &position)) != NULL)
	{
		if (window->work)
			window_forget_changes(window);
		free_tree(set, window->root);
		window->root = NULL;
		window_free(window);
	}
	if (set->holders)
		holders_leave(set->holders, set->holder);
	window_set_forget_dropped(set);
	if (set->by_key)
		key_map_free(set->by_key);
	if (set->by_group)
		groupmap_destroy(set->by_group);
	pfree(set);
}

void
window_set_watch(WindowSet *set, Holders *holders, void *owner)
{
	Assert(set->holders == NULL);
	set->holder = holders_enter(holders, owner);
	set->holders = holders;
	for (uint32 i = 0; i < set->by_key->nbuckets; i++)
		for (Row *row = set->by_key->buckets[i]; row; row = row->next)
			row->holding = holders_add(holders, row->hash, set->holder);
}

void
window_set_unwatch(WindowSet *set)
{
	if (set->holders == NULL)
		return;
	for (uint32 i = 0; i < set->by_key->nbuckets; i++)
		for (Row *row = set->by_key->buckets[i]; row; row = row->next)
			release_row(set, row);
	holders_leave(set->holders, set->holder);
	set->holders = NULL;
}

Size
window_set_bytes(const WindowSet *set)
{
	Size		bytes = set->row_bytes + set->passed;

	if (set->by_group)
		bytes += set->by_group->members * sizeof(Window);
	bytes *= pool_overhead(set->format->rows);
	if (set->by_group)
		bytes += set->by_group->size * sizeof(GroupEntry);
	bytes += window_set_dropped_bytes(set);
	if (set->by_key && set->nrows > 0)
		bytes += key_map_bytes(set->by_key);
	if (set->holders)
		bytes += set->nrows * holders_bytes_each(set->holders);
	return bytes;
}

/* For each row a bucket or two; tables of groups are half full. */
#define KEY_OVERHEAD	(sizeof(Row *) * 3 / 2)
#define GROUP_OVERHEAD	(sizeof(Window) + sizeof(GroupEntry) * 2)

Size
window_set_memory(const WindowSet *set)
{
	Size		memory = set->row_bytes + set->passed +
		set->nrows * KEY_OVERHEAD;

	if (set->by_group)
		memory += set->by_group->members * GROUP_OVERHEAD;
	return memory;
}

Size
window_set_memory_of(Size tuple_len)
{
	return row_bytes_of(tuple_len) + KEY_OVERHEAD;
}

uint64
window_set_count(const WindowSet *set)
{
	return set->only ? 1 : set->by_group->members;
}

Window *
window_set_next(const WindowSet *set, uint64 *position)
{
	if (set->only)
		return (*position)++ == 0 ? set->only : NULL;
	while (*position < set->by_group->size)
	{
		GroupEntry *entry = &set->by_group->data[(*position)++];

		if (entry->status == groupmap_SH_IN_USE)
			return entry->window;
	}
	return NULL;
}

static int
compare_windows(const void *a, const void *b, void *format)
{
	return row_compare_groups(format, window_key(*(Window *const *) a),
							  window_key(*(Window *const *) b));
}

void
window_sort(const WindowSet *set, Window **windows, uint64 n)
{
	qsort_arg(windows, n, sizeof(Window *), compare_windows, set->format);
}

Window **
window_set_list(const WindowSet *set)
{
	uint64		n = window_set_count(set);
	Window	  **list = palloc_extended(sizeof(Window *) * Max(n, 1),
									   MCXT_ALLOC_HUGE);
	uint64		position = 0;

	for (uint64 i = 0; i < n; i++)
		list[i] = window_set_next(set, &position);
	window_sort(set, list, n);
	return list;
}

Window *
window_set_find_group(WindowSet *set, const Datum *values, const bool *nulls)
{
	GroupEntry *entry;

	if (set->only)
		return set->only;
	set->probe_keys = values;
	set->probe_nulls = nulls;
	entry = groupmap_lookup(set->by_group, NULL);
	return entry ? entry->window : NULL;
}

Window *
window_set_find(WindowSet *set, const Row *row)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (set->only)
		return set->only;
	row_get_group(set->format, row, values, nulls);
	return window_set_find_group(set, values, nulls);
}

/* What is known of a group that has no window. */
static WindowEnd
end_of_others(WindowSet *set, const Row *row)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (set->ndropped == 0)
		return set->others;
	row_get_group(set->format, row, values, nulls);
	return window_set_has_dropped(set, row_hash_group(set->format, values,
													  nulls)) ?
		WINDOW_PASSING : set->others;
}

Window *
window_set_get(WindowSet *set, Row *row)
{
	Window	   *window = window_set_find(set, row);
	bool		found;

	if (window)
		return window;
	window = create_window(set, end_of_others(set, row));
	set->nwaiting += window->end == WINDOW_PASSING;
	window_touch(window, row);
	groupmap_insert(set->by_group, window, &found);
	return window;
}

bool
window_set_covers(WindowSet *set, const Row *row)
{
	Window	   *window = window_set_find(set, row);

	return window ? window_covers(window, row) :
		set->others == WINDOW_COMPLETE;
}

bool
window_set_is_lost(const WindowSet *set)
{
	return (set->only ? set->only->end : set->others) == WINDOW_NOTHING;
}

bool
window_set_is_empty(const WindowSet *set)
{
	if (set->only)
		return set->only->end == WINDOW_COMPLETE && set->only->root == NULL &&
			(set->only->low == NULL || (set->counted && set->before == 0));
	return set->others == WINDOW_COMPLETE && set->by_group->members == 0 &&
		set->ndropped == 0;
}

void
window_set_clear(WindowSet *set, WindowEnd end)
{
	uint64		position = 0;
	Window	   *window;

	Assert(end != WINDOW_BOUNDED);
	set->others = end;
	set->nwaiting = 0;
	window_set_forget_dropped(set);
	if (set->counted)
		window_set_begin(set, NULL, 0);
	while ((window = window_set_next(set, &position)) != NULL)
	{
		window_touch(window, window_key(window));
		while (window->root)
			window_set_remove(set, window->root);
		window_set_end(window, end, NULL);
	}
}

void
window_set_begin(WindowSet *set, Row *low, uint64 before)
{
	Assert(low || before == 0);
	if (set->only->low)
		row_unref(set->only->low);
	set->only->low = low;
	set->before = before;
	set->counted = low != NULL;
	window_touch(set->only, NULL);
}

void
window_set_count_before(WindowSet *set, int change)
{
	if (!set->counted)
		return;
	if (change < 0 && set->before == 0)
		elog(ERROR, "rows before a window were miscounted");
	set->before += change;
	window_touch(set->only, NULL);
}

static void
move_rows(WindowSet *set, Window *window)
{
	while (window->root)
	{
		Row		   *row = row_ref(window->root);

		window_set_remove(window->set, row);
		window_set_add(set, row);
	}
}

void
window_set_prepend(WindowSet *set, WindowSet *more)
{
	Row		   *low = more->only->low;
	uint32		n = window_size(more->only);

	if (low ? n > set->before : n != set->before)
		elog(ERROR, "rows before a window were miscounted");
	move_rows(set, more->only);
	window_set_begin(set, low ? row_ref(low) : NULL, set->before - n);
	window_set_free(more);
}

void
window_set_append(WindowSet *set, WindowSet *more)
{
	uint64		position = 0;
	Window	   *window;

	if (more->others == WINDOW_COMPLETE)
	{
		/* all is known of what it has no window for */
		set->others = WINDOW_COMPLETE;
		while ((window = window_set_next(set, &position)) != NULL)
		{
			window_touch(window, window_key(window));
			window_set_end(window, WINDOW_COMPLETE, NULL);
		}
	}
	position = 0;
	while ((window = window_set_next(more, &position)) != NULL)
	{
		Row		   *key = window_key(window);
		Window	   *target = set->only ? set->only : window_set_get(set, key);

		window_touch(window, key);	/* the key is kept */
		window_touch(target, key);
		move_rows(set, window);
		window_set_end(target, window->end,
					   window->high ? row_ref(window->high) : NULL);
	}
	if (more->counted)
		window_set_begin(set, row_ref(more->only->low), more->before);
	window_set_free(more);
}

/* ---- rows in and out ---- */

static void
remember(MemoryContext context, Row ***array, int *n, int *max, Row *row)
{
	if (*n == *max)
	{
		*max = Max(4, *max * 2);
		if (*array)
			*array = repalloc_huge(*array, sizeof(Row *) * (Size) *max);
		else
			*array = MemoryContextAlloc(context, sizeof(Row *) * *max);
	}
	(*array)[(*n)++] = row;
}

/* Raises an error if a row with its identity is held already. */
static void
count_in(WindowSet *set, Row *row)
{
	if (set->by_key)
		key_map_add(set->by_key, row);
	if (set->holders)
		row->holding = holders_add(set->holders, row->hash, set->holder);
	set->nrows++;
	set->row_bytes += row_bytes(row);
	set->own_bytes += row_own_bytes(row);
}

static void
count_out(WindowSet *set, Row *row)
{
	set->nrows--;
	set->row_bytes -= row_bytes(row);
	set->own_bytes -= row_own_bytes(row);
	if (set->by_key)
		key_map_remove(set->by_key, row);
	release_row(set, row);
}

void
window_set_load(WindowSet *set, Row *row)
{
	Window	   *window = window_set_find(set, row);
	bool		found;

	count_in(set, row);
	if (window)
		window_insert(window, row);
	else
	{
		window = create_window(set, set->others);
		window_insert(window, row);
		groupmap_insert(set->by_group, window, &found);
	}
}

void
window_set_add(WindowSet *set, Row *row)
{
	Window	   *window = window_set_get(set, row);
	WindowWork *work;

	window_touch(window, row);
	work = window->work;
	count_in(set, row);
	window_insert(window, row);
	set->last = window;
	row->fresh = work->nadded;
	remember(set->context, &work->added, &work->nadded, &work->maxadded, row);
}

Row *
window_take_out(Window *window, const Row *row)
{
	WindowSet  *set = window->set;
	Row		   *held = window_delete(window, row);

	count_out(set, held);
	return held;
}

void
window_set_remove(WindowSet *set, Row *row)
{
	Window	   *window = window_set_find(set, row);
	WindowWork *work;

	if (window == NULL)
		elog(ERROR, "row is not in a window");
	window_touch(window, row);
	work = window->work;
	if (window->end == WINDOW_PASSING && !window_find_equal(window, row))
	{
		set->passed += row_bytes(row);
		remember(set->context, &work->removed, &work->nremoved,
				 &work->maxremoved, row_ref(row));
		return;
	}

	row = window_take_out(window, row);
	if (row->fresh >= 0)
	{
		Row		   *last = work->added[--work->nadded];

		work->added[row->fresh] = last;
		last->fresh = row->fresh;
		row->fresh = -1;
		row_unref(row);
	}
	else
		remember(set->context, &work->removed, &work->nremoved,
				 &work->maxremoved, row);
}

void
window_free_old_rows(Window *window)
{
	WindowSet  *set = window->set;
	WindowWork *work = window->work;

	free_tree(set, window->root);
	window->root = NULL;
	set->nrows = set->row_bytes = set->own_bytes = 0;
	if (set->by_key)
	{
		key_map_free(set->by_key);
		set->by_key = key_map_create(set->format, set->context);
	}
	for (int i = 0; i < work->nadded; i++)
	{
		window_insert(window, work->added[i]);
		count_in(set, work->added[i]);
	}
}

void
window_set_pass(WindowSet *set)
{
	Window	   *window = set->only;

	window_touch(window, NULL);
	window_free_old_rows(window);
	window_set_end(window, WINDOW_PASSING, NULL);
}

void
window_set_replace(WindowSet *set, WindowSet *read)
{
	const WindowWork *from = set->only->work;
	WindowWork *to;
	Row		  **added = palloc_extended(sizeof(Row *) * Max(from->nadded, 1),
										MCXT_ALLOC_HUGE);

	Assert(set->only->end == WINDOW_PASSING);
	for (int i = 0; i < from->nadded; i++)
	{
		added[i] = window_find_equal(read->only, from->added[i]);
		if (added[i] == NULL)
			elog(ERROR, "a row that was added has not been read");
		window_set_remove(read, row_ref(added[i]));
	}
	window_settle(read->only);

	window_touch(read->only, NULL);
	to = read->only->work;
	for (int i = 0; i < from->nadded; i++)
		window_set_add(read, added[i]);
	for (int i = 0; i < from->nremoved; i++)
		remember(read->context, &to->removed, &to->nremoved, &to->maxremoved,
				 row_ref(from->removed[i]));
	read->passed = set->passed;
	pfree(added);
	window_set_free(set);
}

Row *
window_set_find_key(WindowSet *set, const Datum *keys, const bool *nulls)
{
	return set->nrows == 0 ? NULL : key_map_find(set->by_key, keys, nulls);
}

Row *
window_set_find_equal(WindowSet *set, const Row *row)
{
	Window	   *window = window_set_find(set, row);

	return window ? window_find_equal(window, row) : NULL;
}
