/*
 * feed_restart.c
 *	  What a feed takes over from an earlier database worker.
 *
 * A checkpoint has saved its windows and the number of its last batch; what was
 * published after that shows in the WAL that is decoded again.
 */
#include "postgres.h"

#include "deliver.h"
#include "feed_private.h"
#include "route.h"

static void
restore_window(Feed *feed, const SavedWindow *saved)
{
	WindowSet  *set = feed->windows;
	Window	   *window = set->only;
	Row		   *row = NULL;
	Row		   *high = NULL;

	if (saved->end == WINDOW_BOUNDED)
		row = high = row_from_tuple(feed->format, saved->high);
	for (int64 i = 0; i < saved->nrows; i++)
	{
		row = row_from_tuple(feed->format, saved->rows[i]);
		window_set_load(set, row);
	}
	if (window == NULL)
		window = window_set_get(set, row);
	window_set_end(window, saved->end, high);
	window->page = feed_page(feed, window);
}

static void
restore_windows(Feed *feed, const void *arg)
{
	const SavedFeed *saved = arg;

	feed_move_page(feed, saved->offset, saved->limit);
	feed_set_query(feed, saved->query_text);
	feed->windows->others = WINDOW_COMPLETE;
	for (int64 i = 0; i < saved->nwindows; i++)
		restore_window(feed, &saved->windows[i]);
	feed_settle_windows(feed);
	feed->loaded = true;
	feed->applied = saved->lsn;
	feed->cursor = feed_position->commit.no;

	/* which commits share a throttled batch is known once all is replayed */
	feed->behind = !feed->query->inert || feed->row->throttle_ms > 0;
	route_note_logger(feed);
}

void
feed_restore(Feed *feed, const SavedFeed *saved)
{
	feed->seq = feed->published = saved->seq;
	feed->last_lsn = saved->last_lsn;
	feed->published_lsn = Max(saved->lsn, saved->last_lsn);
	feed->announced = true;
	if (saved->query_text)
		feed_run_safely(feed, restore_windows, saved);
}

void
feed_lose_history(Feed *feed, XLogRecPtr lsn)
{
	feed->seq = feed->published = Max(feed->seq, (int64) lsn);
	feed->announced = true;
}

void
feed_was_published(Feed *feed, int64 seq, XLogRecPtr lsn)
{
	if (!feed->replaying)
		return;
	feed->announced = true;
	if (seq <= feed->published)
		return;
	feed->published = seq;
	feed->published_lsn = Max(feed->published_lsn, lsn);
	feed->seq = deliver_forget(feed, seq, feed->published_lsn);
}

void
feed_end_replay(Feed *feed)
{
	if (!feed->replaying)
		return;
	feed->replaying = false;
	if (!feed->loaded)
		feed->reset = feed->announced;
	feed_start_interval(feed);
	feed_activate(feed);
}
