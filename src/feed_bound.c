/*
 * feed_bound.c
 *	  How much memory the rows of a feed may take.
 *
 * One that takes more gives up its cushion first.  If that does not help, the
 * subscription is in error, or of those that share the feed the ones that need
 * most rows are, and holds nothing, until the data or the setting are others.
 * The same goes for what is read: a refill worker stops where it would be more
 * than there is room for.
 */
#include "postgres.h"

#include "feed_private.h"
#include "query_check.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#define TIGHT_MS			60000	/* so long there is no cushion then */

int			feed_result_memory_kb = 1024 * 1024;

static Size
max_memory(void)
{
	return feed_result_memory_kb * (Size) 1024;
}

/* Is more held than may be? */
static bool
is_too_large(const Feed *feed)
{
	return window_set_memory(feed->windows) > max_memory() ||
		feed->windows->nrows > MAX_HELD_ROWS;
}

bool
feed_holds_much(const Feed *feed)
{
	return window_set_is_passing(feed->windows) &&
		window_set_memory(feed->windows) > max_memory() / 2;
}

Size
feed_room(const Feed *feed)
{
	Size		memory = max_memory();

	if (feed->windows && !window_set_is_lost(feed->windows))
		memory -= Min(memory, window_set_memory(feed->windows));
	return memory;
}

/* Give up the cushion, for now. */
static void
tighten(Feed *feed)
{
	uint64		position = 0;
	Window	   *window;

	cushion_tighten(&feed->cushion, feed_must_hold_rows(feed));
	feed->tight_until = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													TIGHT_MS);
	feed_give_up_refill(feed);
	while (feed->windows &&
		   (window = window_set_next(feed->windows, &position)) != NULL)
	{
		window_touch(window, window_key(window));
		if (!feed_window_is_short(feed, window))
			feed_trim(feed, window);
	}
}

static bool
can_tighten(const Feed *feed)
{
	return feed->limit != NO_LIMIT && !feed->cushion.tight;
}

bool
feed_relax(Feed *feed)
{
	TimestampTz now = GetCurrentTimestamp();

	if (!feed->cushion.tight || now < feed->tight_until)
		return false;
	feed->tight_until = TimestampTzPlusMilliseconds(now, TIGHT_MS);
	if (feed->windows &&
		window_set_memory(feed->windows) > max_memory() / 4 * 3)
		return false;
	cushion_relax(&feed->cushion);
	return true;
}

bool
feed_fit(Feed *feed)
{
	if (!is_too_large(feed))
		return true;
	feed_shed(feed);
	if (is_too_large(feed) && can_tighten(feed))
		tighten(feed);
	return !is_too_large(feed);
}

char *
feed_too_large_message(void)
{
	char	   *limit = GetConfigOptionByName("live_topn.result_memory", NULL,
											  false);
	char	   *message = psprintf("result takes more memory than live_topn.result_memory (%s)",
								   limit);

	pfree(limit);
	return message;
}

static void
fail(Feed *feed, const void *arg)
{
	char	   *message = feed_too_large_message();

	feed_fail(feed, ERRCODE_PROGRAM_LIMIT_EXCEEDED, message,
			  "Let the query select fewer or smaller rows, or raise the setting.");
	pfree(message);
}

/* Do all that show the feed need as many rows? */
static bool
needs_are_equal(const Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, unconstify(dlist_head *, &feed->subscribers))
	{
		const Subscriber *subscriber = dlist_container(Subscriber, node,
													   iter.cur);

		if (feed_reach(subscriber->offset, subscriber->limit) <
			feed_reach(feed->offset, feed->limit))
			return false;
	}
	return true;
}

void
feed_fail_too_large(Feed *feed)
{
	int64		most = feed_reach(feed->offset, feed->limit);
	dlist_mutable_iter iter;

	if (needs_are_equal(feed))
	{
		fail(feed, NULL);
		return;
	}

	/* the others may do without the rows that only some need */
	feed_give_up_refill(feed);
	dlist_foreach_modify(iter, &feed->subscribers)
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		if (feed_reach(subscriber->offset, subscriber->limit) == most)
			feed_split(subscriber, fail, NULL);
	}
}

void
feed_take_too_large(Feed *feed)
{
	if (feed_wants_rows(feed) && !feed_needs_reset(feed) && feed->full)
	{
		feed->unwieldy = true;
		feed_drop_refill(feed);
	}
	else if (can_tighten(feed))
		tighten(feed);
	else
		feed_fail_too_large(feed);
}

static void
fit_or_fail(Feed *feed, const void *arg)
{
	if (!feed_fit(feed))
		feed_fail_too_large(feed);
	else if (feed->covered == 0 && !feed_is_short(feed))
		feed_settle_windows(feed);
	feed_activate(feed);
}

void
feed_change_bound(void)
{
	List	   *too_large = NIL;
	dlist_iter	iter;
	ListCell   *lc;

	dlist_foreach(iter, &feed_all)
	{
		Feed	   *feed = dlist_container(Feed, node, iter.cur);

		if (feed->error)
		{
			feed->retry_at = feed->barred_until;
			feed_activate(feed);
		}
		else if (feed->loaded && !feed->replaying && is_too_large(feed))
			too_large = lappend(too_large, feed);
	}

	/* which may add feeds to those of the scan */
	foreach(lc, too_large)
		feed_run_safely(lfirst(lc), fit_or_fail, NULL);
	list_free(too_large);
}
