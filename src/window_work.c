/*
 * window_work.c
 *	  Windows that change, until they are settled.
 *
 * Of a window at rest there are its rows, and little else.  One that is touched
 * has a WindowWork: what has changed since clients know the result, and what
 * is wanted for it.  That goes when the window is settled and nothing is
 * wanted any more, and so does a window that then tells nothing of its group
 * that is not so of all others.
 */
#include "postgres.h"

#include "window_private.h"

#define MANY_ROWS	1000		/* so many are freed at once */
#define USES_PER_TICK	16		/* part of the windows that are touched meanwhile */

/* The clock of a set ticks so often that ages tell windows apart. */
static void
note_use(Window *window)
{
	WindowSet  *set = window->set;

	if (set->by_group == NULL)
		return;
	window->used = set->clock;
	if (++set->uses > window_set_count(set) / USES_PER_TICK)
	{
		set->clock++;
		set->uses = 0;
	}
}

void
window_touch(Window *window, Row *key)
{
	WindowSet  *set = window->set;
	WindowWork *work = window->work;

	if (work == NULL)
	{
		work = MemoryContextAllocZero(set->context, sizeof(WindowWork));
		work->window = window;
		if (set->by_group)
			work->key = row_ref(key);
		window->work = work;
	}
	if (!work->touched)
	{
		work->touched = true;
		work->before_size = window_size(window);
		note_use(window);
		dlist_push_tail(&set->touched, &work->touched_node);
	}
	if (!work->changed)
	{
		work->changed = true;
		dlist_push_tail(&set->changed, &work->changed_node);
	}
}

Window *
window_set_next_changed(WindowSet *set)
{
	WindowWork *work;

	if (dlist_is_empty(&set->changed))
		return NULL;
	work = dlist_container(WindowWork, changed_node,
						   dlist_pop_head_node(&set->changed));
	work->changed = false;
	return work->window;
}

void
window_end_work(Window *window)
{
	WindowWork *work = window->work;

	if (work->need != NEED_NOTHING)
		dlist_delete(&work->need_node);
	if (work->touched)
		dlist_delete(&work->touched_node);
	if (work->changed)
		dlist_delete(&work->changed_node);
	if (work->key)
		row_unref(work->key);
	if (work->removed)
		pfree(work->removed);
	if (work->added)
		pfree(work->added);
	pfree(work);
	window->work = NULL;
}

/* One of many windows is at rest again, as nearly all of them are. */
static void
end_idle_work(Window *window)
{
	WindowWork *work = window->work;

	if (window != window->set->only && work->need == NEED_NOTHING &&
		!work->touched && !work->changed)
		window_end_work(window);
}

void
window_set_need(Window *window, WindowNeed need)
{
	WindowWork *work = window->work;

	if (work->need != need)
	{
		if (work->need != NEED_NOTHING)
			dlist_delete(&work->need_node);
		work->need = need;
		if (need != NEED_NOTHING)
			dlist_push_tail(&window->set->needy[need], &work->need_node);
	}
	end_idle_work(window);
}

void
window_forget_changes(Window *window)
{
	WindowWork *work = window->work;

	for (int i = 0; i < work->nremoved; i++)
		row_unref(work->removed[i]);
	for (int i = 0; i < work->nadded; i++)
		work->added[i]->fresh = -1;
	work->nremoved = work->nadded = 0;
}

void
window_settle(Window *window)
{
	WindowSet  *set = window->set;
	WindowWork *work = window->work;

	if (work == NULL)
		return;
	window_forget_changes(window);
	set->passed = 0;
	if (window->end == WINDOW_PASSING)
	{
		if (window == set->only && window_size(window) > MANY_ROWS)
			window_free_old_rows(window);
		while (window->root)
			row_unref(window_take_out(window, window->root));
	}
	if (work->touched)
		dlist_delete(&work->touched_node);
	work->touched = false;

	if (window != set->only && window->root == NULL &&
		(window->end == set->others || window->end == WINDOW_PASSING) &&
		work->need == NEED_NOTHING)
	{
		set->nwaiting -= window->end == WINDOW_PASSING;
		window_unlink(window);
		window_free(window);
	}
	else
		end_idle_work(window);
}
