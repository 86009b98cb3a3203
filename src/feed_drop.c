/*
 * feed_drop.c
 *	  Groups that nobody has touched for long are dropped, and read again.
 *
 * With REPLICA IDENTITY FULL each change shows which group a row was in and
 * which it is in now, so that a feed notices when a group is touched of which
 * it holds nothing (window_drop.c).  Under a key the group of an old row that
 * is not held is unknown: there all groups are held.
 *
 * All rows are needed for a reset and by clients who ask for a snapshot.  Then
 * they are read like those of a window that has lost its rows, and groups are
 * dropped again when that has served.
 */
#include "postgres.h"

#include "feed_private.h"

#define AGES				64	/* told apart; the last one is for all older */

int			feed_group_memory_kb = 256 * 1024;

/* Are groups that nobody has touched for long dropped when memory is short? */
static bool
can_drop(const Feed *feed)
{
	/* old rows may be whole only after the commit that made them so */
	return feed->query->ngroups > 0 && !feed->query->keyless && feed->full &&
		(!feed->behind || feed->cursor >= feed->full_at);
}

static int
age(const WindowSet *set, const Window *window)
{
	uint16		ticks = set->clock - window->used;

	return Min(ticks, AGES - 1);
}

/* Drop the windows at rest that were not touched for longest, up to n. */
static void
drop_oldest(WindowSet *set, uint64 n)
{
	uint64		count[AGES] = {0};
	uint64		position = 0;
	uint64		older = 0;
	int			least = AGES;
	Window	   *window;

	while ((window = window_set_next(set, &position)) != NULL)
		if (window->work == NULL)
			count[age(set, window)]++;
	while (least > 0 && older < n)
		older += count[--least];
	position = 0;
	while (n > 0 && (window = window_set_next(set, &position)) != NULL)
	{
		if (window->work == NULL && age(set, window) >= least)
		{
			window_drop(window);
			position--;			/* where another may be now */
			n--;
		}
	}
}

void
feed_drop_idle(Feed *feed)
{
	WindowSet  *set = feed->windows;
	Size		most = Min(feed_group_memory_kb, feed_result_memory_kb / 4 * 3) *
		(Size) 1024;
	Size		bytes = window_set_memory(set);
	uint64		n = window_set_count(set);
	uint64		rows = set->nrows;

	if (bytes <= most || !can_drop(feed) || feed->wanted ||
		feed_needs_reset(feed))
		return;
	/* so many that this need not be done again soon */
	n -= Min(n, (double) n * most / bytes * 7 / 8);
	drop_oldest(set, n);
	cushion_shift(&feed->cushion, (int64) set->nrows - (int64) rows);
	feed_mark_dirty(feed);
}

/* Does the feed need all groups, and has not all of them? */
static bool
lacks_groups(const Feed *feed)
{
	return feed->windows && window_set_is_partial(feed->windows) &&
		(feed_needs_reset(feed) || feed->wanted || !feed->full);
}

bool
feed_reads_all_groups(const Feed *feed)
{
	/* those that wait are read by themselves */
	return lacks_groups(feed) &&
		feed->windows->ndropped > feed->windows->nwaiting;
}

bool
feed_is_waiting(const Feed *feed, const Window *window)
{
	return !window->set->only &&
		(window->work->nadded > 0 || window->work->nremoved > 0 ||
		 lacks_groups(feed));
}

uint64
feed_rows_to_revive(const Feed *feed, const Window *window)
{
	/* nobody knows how many ties there are */
	if (feed->query->rank != RANK_ROWS)
		return PG_INT32_MAX;
	return feed_last_rank(feed, window) + window->work->nadded +
		Max(cushion_rows(&feed->cushion), 1) + 2 * window->work->in_vain;
}

/* The rows of a group that waits have been read. */
static void
revive(Feed *feed, Window *waiting, Window *read, uint64 limit)
{
	WindowSet  *set = window_set_create(feed->format, feed->params,
										feed->template->rows);
	Window	   *before = window_rewind(set, read, waiting);

	/* too few, if commits that it has to be moved back past brought them */
	if (feed_window_is_short(feed, before))
		waiting->work->in_vain = limit;
	else
	{
		window_revive(waiting, before, feed_page(feed_first(feed), before));
		waiting->work->in_vain = 0;
	}
	window_set_free(set);
	window_discard(read);
}

/* What was read are all groups. */
static void
load_all(Feed *feed, WindowSet *read)
{
	WindowSet  *set = feed->windows;
	uint64		position = 0;
	Window	   *window;

	while ((window = window_set_next(set, &position)) != NULL)
		if (window->end == WINDOW_PASSING)
			revive(feed, window,
				   window_set_get(read, window_key(window)), 0);
	position = 0;
	while ((window = window_set_next(read, &position)) != NULL)
	{
		Row		   *key = window_key(window);

		if (window->root == NULL || window_set_find(set, key))
			continue;
		if (feed_window_is_short(feed, window))
			(void) window_set_get(set, key);	/* waits */
		else
			window_set_load_dropped(set, window, feed_page(feed_first(feed), window));
	}
	if (set->nwaiting == 0)
		window_set_forget_dropped(set);
	window_set_free(read);
}

void
feed_revive(Feed *feed, WindowSet *read, bool everything)
{
	WindowSet  *set = feed->windows;

	if (everything)
	{
		load_all(feed, read);
		return;
	}
	for (int i = 0; i < feed->nreads; i++)
	{
		Window	   *window = window_set_find(set, feed->reads[i].key);

		if (window->end == WINDOW_PASSING)
			revive(feed, window, window_set_find(read, feed->reads[i].key),
				   feed->reads[i].limit);
	}
	window_set_append(set, read);
}
