/*
 * window_drop.c
 *	  Groups that are not held, though they have rows.
 *
 * A group that nobody has touched for long is dropped; what stays of it is the
 * hash of its partition keys.  As long as no commit changes a row of it, its
 * rows are what they were.  When one does, its window is there again, PASSING:
 * it has the rows that were added, and those that were removed, which the change
 * tells.  The rows of the group as they are now are read then; taking back
 * what was added and removed gives what they were when it was dropped, and so
 * what clients know of it.
 *
 * A hash may be that of a group that has no rows, which then is read for
 * nothing.
 */
#include "postgres.h"

#include "window_private.h"

typedef struct DroppedGroup
{
	uint32		hash;
	uint32		count;			/* groups with that hash */
	char		status;
} DroppedGroup;

/* Groups are hashed already. */
#define SH_PREFIX dropped
#define SH_ELEMENT_TYPE DroppedGroup
#define SH_KEY_TYPE uint32
#define SH_KEY hash
#define SH_HASH_KEY(tb, key) key
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

bool
window_set_has_dropped(const WindowSet *set, uint32 hash)
{
	return set->dropped && dropped_lookup(set->dropped, hash) != NULL;
}

void
window_set_add_dropped(WindowSet *set, uint32 hash)
{
	DroppedGroup *entry;
	bool		found;

	if (set->dropped == NULL)
		set->dropped = dropped_create(set->context, 16, NULL);
	entry = dropped_insert(set->dropped, hash, &found);
	entry->count = found ? entry->count + 1 : 1;
	set->ndropped++;
}

static void
remove_dropped(WindowSet *set, uint32 hash)
{
	DroppedGroup *entry;

	entry = set->dropped ? dropped_lookup(set->dropped, hash) : NULL;
	if (entry == NULL)
		return;
	set->ndropped--;
	if (--entry->count == 0)
		dropped_delete(set->dropped, hash);
}

void
window_set_forget_dropped(WindowSet *set)
{
	if (set->dropped)
		dropped_destroy(set->dropped);
	set->dropped = NULL;
	set->ndropped = 0;
	set->dropped_rows = 0;
}

uint32 *
window_set_list_dropped(const WindowSet *set)
{
	uint32	   *list = palloc_extended(sizeof(uint32) *
									   Max(set->ndropped, 1),
									   MCXT_ALLOC_HUGE);
	uint64		n = 0;
	dropped_iterator iterator;
	DroppedGroup *entry;

	if (set->dropped == NULL)
		return list;
	dropped_start_iterate(set->dropped, &iterator);
	while ((entry = dropped_iterate(set->dropped, &iterator)) != NULL)
		for (uint32 i = 0; i < entry->count; i++)
			list[n++] = entry->hash;
	return list;
}

Size
window_set_dropped_bytes(const WindowSet *set)
{
	return set->dropped ? set->dropped->size * sizeof(DroppedGroup) : 0;
}

void
window_drop(Window *window)
{
	WindowSet  *set = window->set;

	Assert(window->work == NULL && window->root != NULL);
	window_set_add_dropped(set, window_hash_group(window));
	set->dropped_rows += window->page.end - window->page.skip;
	window_unlink(window);
	while (window->root)
		row_unref(window_take_out(window, window->root));
	window_free(window);
}

/*
 * Move the rows of a window that was read, and where it ends, to another set;
 * that one's window of the group, if there is one, ends nowhere yet.
 */
static Window *
move_window(WindowSet *set, Window *read)
{
	Row		   *key = row_ref(window_key(read));
	Window	   *window;

	while (read->root)
	{
		Row		   *row = row_ref(read->root);

		window_set_remove(read->set, row);
		window_set_load(set, row);
	}
	window = window_set_get(set, key);
	window_set_end(window, read->end,
				   read->high ? row_ref(read->high) : NULL);
	row_unref(key);
	return window;
}

Window *
window_rewind(WindowSet *before, Window *read, const Window *waiting)
{
	const WindowWork *work = waiting->work;
	Window	   *window;

	for (int i = 0; i < work->nadded; i++)
	{
		Row		   *row = work->added[i];

		if (!window_covers(read, row))
			continue;
		if (!window_find_equal(read, row))
			elog(ERROR, "a row that was added has not been read");
		window_set_remove(read->set, row);
	}
	window = move_window(before, read);
	for (int i = 0; i < work->nremoved; i++)
		if (window_covers(window, work->removed[i]))
			window_set_add(before, row_ref(work->removed[i]));
	return window;
}

/*
 * A row that is removed may be in another group by now, so that its old version
 * cannot be among the rows that are held; that what was removed is known is all
 * that is needed.
 */
void
window_revive(Window *waiting, Window *before, ResultPage page)
{
	WindowSet  *set = waiting->set;
	WindowWork *work = waiting->work;
	int			nremoved = 0;

	if (before->root)
	{
		set->loaded++;
		remove_dropped(set, window_hash_group(waiting));
	}
	set->nwaiting--;
	for (int i = work->nadded; i-- > 0;)
		if (!window_covers(before, work->added[i]))
			window_set_remove(set, work->added[i]);
	for (int i = 0; i < work->nremoved; i++)
	{
		Row		   *row = work->removed[i];

		set->passed -= Min(set->passed, row_bytes(row));
		if (window_covers(before, row))
		{
			window_set_remove(before->set, row);
			work->removed[nremoved++] = row;
		}
		else
			row_unref(row);
	}
	work->nremoved = nremoved;
	move_window(set, before);
	work->before_size = window_size(waiting) - work->nadded + nremoved;
	waiting->page = page;
	set->dropped_rows -= Min(set->dropped_rows, page.end - page.skip);
	window_touch(waiting, window_key(waiting));
}

void
window_set_load_dropped(WindowSet *set, Window *read, ResultPage page)
{
	uint32		hash = window_hash_group(read);

	if (!window_set_has_dropped(set, hash))
		elog(ERROR, "a group has rows that should be held");
	move_window(set, read)->page = page;
	set->loaded++;
	set->dropped_rows -= Min(set->dropped_rows, page.end - page.skip);
	remove_dropped(set, hash);
}

void
window_discard(Window *window)
{
	WindowSet  *set = window->set;

	while (window->root)
		window_set_remove(set, window->root);
	for (int i = 0; window->work && i < window->work->nremoved; i++)
		row_unref(window->work->removed[i]);
	window_unlink(window);
	window_free(window);
}
