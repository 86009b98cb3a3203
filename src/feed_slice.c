/*
 * feed_slice.c
 *	  Of a page far from the start, a feed holds a slice of the rows only.
 *
 * The window then begins after a row, its low, and how many rows sort at or
 * before that is counted: each change adds the new version of a row, or takes
 * away the old one, if it is there.  So the old version must be known, which
 * takes REPLICA IDENTITY FULL.  A table without a key has no slices: its equal
 * rows could not be parted where one begins.
 *
 * Rows before the page are a cushion like those after it, for when the page
 * slides down because rows come in before it.
 */
#include "postgres.h"

#include "feed_private.h"

int			feed_slice_offset = 1000;

/* A page that has moved near the start gets all rows before it, to share. */
static bool
is_near(const Feed *feed)
{
	return feed->offset < feed_slice_offset;
}

static bool
can_slice(const Feed *feed)
{
	return !feed->resized && feed->query->ngroups == 0 &&
		feed->query->rank <= RANK_WITH_TIES && feed->query->ranks == NIL &&
		!feed->query->keyless && !is_near(feed);
}

/* Rows that the window holds, or would hold, before the page. */
static uint64
rows_ahead(const Feed *feed, const Window *window)
{
	return feed->offset - Min(feed->offset, window->set->before);
}

uint64
feed_slice_skip(const Feed *feed)
{
	if (!can_slice(feed) || feed->unsliced)
		return 0;
	return feed->offset - Min(feed->offset, cushion_rows(&feed->cushion));
}

/* Where the first page begins: all are the same unless one has just moved. */
static int64
first_offset(const Feed *feed)
{
	int64		offset = feed->offset;
	dlist_iter	iter;

	if (feed->resized)
		dlist_foreach(iter, unconstify(dlist_head *, &feed->subscribers))
			offset = Min(offset, dlist_container(Subscriber, node,
												 iter.cur)->offset);
	return offset;
}

bool
feed_begins_late(const Feed *feed, const Window *window)
{
	return window->set->counted && window->set->before > first_offset(feed);
}

bool
feed_is_thin_ahead(const Feed *feed, const Window *window)
{
	return window->set->counted &&
		(is_near(feed) || rows_ahead(feed, window) < feed->cushion.band.low);
}

uint64
feed_missing_ahead(const Feed *feed, const Window *window)
{
	uint64		before = window->set->before;

	return is_near(feed) ? before : before + feed->cushion.band.fill -
		Min(feed->offset, before + feed->cushion.band.fill);
}

void
feed_trim_ahead(Feed *feed, Window *window)
{
	uint64		ahead = Min(rows_ahead(feed, window), window_size(window));

	if (can_slice(feed) && feed->full && !feed_window_is_short(feed, window) &&
		ahead > feed->cushion.band.high)
	{
		uint64		before = window_size(window);

		feed_mark_dirty(feed);
		window_trim_front(window, ahead - cushion_rows(&feed->cushion));
		cushion_shift(&feed->cushion,
					  (int64) window_size(window) - before);
	}
}

bool
feed_page_is_far(const Feed *feed)
{
	const WindowSet *set = feed->windows;
	const Window *window = set->only;
	uint64		end;

	if (window == NULL || feed->nsubscribers > 1 || !feed->full ||
		window_set_is_lost(set))
		return false;
	end = set->before + window_size(window);
	return (window->end == WINDOW_BOUNDED && can_slice(feed) &&
			feed->offset > end + feed_slice_offset) ||
		set->before > feed->offset + feed_slice_offset;
}
