/*
 * feed_set.c
 *	  A result without positions needs no rows, if changes tell all.
 *
 * Whether a row belongs to such a set depends on nothing but the row.  With
 * REPLICA IDENTITY FULL each change shows the row as it was and as it is, so
 * that the feed can pass it on without looking at any other.  The window then
 * holds only what was added since the last batch, and what was removed.
 *
 * All rows are needed now and then: for a reset, at a certain commit, for
 * which the feed waits; and by clients who ask for a snapshot, or because old
 * rows will no longer be whole, for which it does not.  They are read like
 * those of a window that has lost its rows, and dropped when they have served.
 * Batches do not depend on whether they are there: what cannot be told without
 * them, as TRUNCATE, is always told by a reset.
 */
#include "postgres.h"

#include "feed_private.h"
#include "miscadmin.h"
#include "route.h"
#include "storage/latch.h"

bool
feed_passes(const Feed *feed)
{
	return feed->query->unranked && feed->full;
}

bool
feed_starts_anew(const Feed *feed)
{
	return feed_passes(feed) || window_set_is_passing(feed->windows);
}

bool
feed_can_pass(const Feed *feed)
{
	/* old rows may be whole only after the commit that made them so */
	return feed_passes(feed) &&
		(!feed->behind || feed->cursor >= feed->full_at);
}

void
feed_note_full(Feed *feed, bool full)
{
	if (full && !feed->full)
		feed->full_at = feed_position->commit.no;
	if (full != feed->full)
		feed_mark_dirty(feed);
	feed->full = full;
	if (window_set_is_passing(feed->windows))
		window_touch(feed->windows->only, NULL);
	route_take_windows(feed);
}

void
feed_note_reset(Subscriber *subscriber, bool reset)
{
	const Feed *feed = subscriber->feed;

	subscriber->reset = reset;
	feed_mark_dirty(subscriber->feed);
	if (feed->windows && window_set_is_passing(feed->windows))
		window_touch(feed->windows->only, NULL);
}

void
feed_note_resets(Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, &feed->subscribers)
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		feed_note_reset(subscriber, subscriber->announced);
	}
}

bool
feed_needs_reset(const Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, unconstify(dlist_head *, &feed->subscribers))
		if (dlist_container(Subscriber, node, iter.cur)->reset)
			return true;
	return false;
}

bool
feed_wants_rows(const Feed *feed)
{
	return feed->windows && (window_set_is_passing(feed->windows) ||
							 window_set_is_partial(feed->windows)) &&
		((feed->wanted && !feed->unwieldy) || !feed->full);
}

void
feed_pass(Feed *feed)
{
	if (!feed->wanted)
		feed_shed(feed);
}

void
feed_shed(Feed *feed)
{
	WindowSet  *set = feed->windows;

	if (set->only && set->only->end == WINDOW_COMPLETE &&
		feed_can_pass(feed) && !feed_needs_reset(feed))
	{
		feed_mark_dirty(feed);
		window_set_pass(set);
		feed->unwieldy = feed->wanted;
	}
}

void
feed_start_passing(Feed *feed)
{
	if (feed_passes(feed))
	{
		window_set_pass(feed->windows);
		if (!feed->recheck)
			feed_settle(feed);
	}
}

/* ---- on demand ---- */

bool
feed_hold(Feed *feed)
{
	WindowSet  *set = feed->windows;
	bool		passing = window_set_is_passing(set);
	bool		lacks_rows = passing || window_set_is_partial(set);

	if (!feed->wanted && lacks_rows)
	{
		feed->wanted = true;
		if (passing)
			window_touch(set->only, NULL);
		feed_activate(feed);
		SetLatch(MyLatch);		/* for the next turn */
	}
	return !lacks_rows || feed->unwieldy;
}

static void
pass_again(Feed *feed, const void *arg)
{
	feed_pass(feed);
	if (feed->covered == 0 && !feed_is_short(feed))
		feed_settle_windows(feed);
}

void
feed_release(Feed *feed)
{
	if (!feed->wanted)
		return;
	feed->wanted = feed->unwieldy = false;
	if (feed->loaded && feed->error == NULL)
		feed_run_safely(feed, pass_again, NULL);
	feed_activate(feed);
}
