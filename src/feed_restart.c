/*
 * feed_restart.c
 *	  What a feed takes over from an earlier database worker.
 *
 * A checkpoint has saved its windows, what changed in them since the last
 * result that clients know, and the number of its last batch; what was
 * published after that shows in the WAL that is decoded again.
 */
#include "postgres.h"

#include "deliver.h"
#include "feed_private.h"
#include "message.h"
#include "route.h"

/* The rows as clients have them, which is no change. */
static void
load_rows(Feed *feed, const SavedRows *saved)
{
	for (int64 i = 0; i < saved->n; i++)
		window_set_load(feed->windows,
						row_from_tuple(feed->format, saved->tuples[i]));
}

/* Make the changes of all windows again. */
static void
change_rows(Feed *feed, const SavedFeed *saved)
{
	WindowSet  *set = feed->windows;

	for (int64 i = 0; i < saved->nwindows; i++)
	{
		const SavedRows *removed = &saved->windows[i].removed;

		for (int64 j = 0; j < removed->n; j++)
		{
			Row		   *row = row_from_tuple(feed->format, removed->tuples[j]);

			window_set_remove(set, row);
			row_unref(row);
		}
	}
	for (int64 i = 0; i < saved->nwindows; i++)
	{
		const SavedRows *added = &saved->windows[i].added;

		for (int64 j = 0; j < added->n; j++)
			window_set_add(set, row_from_tuple(feed->format,
											   added->tuples[j]));
	}
}

/* The window of rows that are there now. */
static void
restore_range(Feed *feed, const SavedWindow *saved, ResultPage known)
{
	MinimalTuple tuple = saved->kept.n > 0 ? saved->kept.tuples[0] :
		saved->added.n > 0 ? saved->added.tuples[0] : saved->key;
	Row		   *key = tuple ? row_from_tuple(feed->format, tuple) : NULL;
	Window	   *window = window_set_get(feed->windows, key);
	ResultPage	page;
	Row		   *high = NULL;

	if (saved->end == WINDOW_BOUNDED)
		high = row_from_tuple(feed->format, saved->high);
	window_set_end(window, saved->end, high);
	if (saved->end == WINDOW_PASSING && !feed->windows->only)
		feed->windows->nwaiting++;
	*feed_known_page(feed_first(feed), window) = known;
	page = feed_page(feed_first(feed), window);
	if (feed_window_need(feed, window) != NEED_NOTHING ||
		page.skip != known.skip || page.end != known.end)
		window_touch(window, key);
	if (key)
		row_unref(key);
}

static void
restore(Feed *feed, const void *arg)
{
	const SavedSubscriber *of = arg;
	const SavedFeed *saved = &of->feed;
	Subscriber *subscriber = feed_first(feed);
	MemoryContext caller;

	feed_move_page(subscriber, of->offset, of->limit);
	feed_set_query(feed, saved->query_text);
	feed->windows->others = saved->others;
	feed->full = saved->low != NULL;
	for (int64 i = 0; i < saved->nwindows; i++)
		if (saved->windows[i].end == WINDOW_PASSING)
			feed_note_full(feed, true);
	if (saved->ndropped > 0)
		feed_note_full(feed, true);
	if (saved->low)
		window_set_begin(feed->windows,
						 row_from_tuple(feed->format, saved->low),
						 saved->before);
	for (int64 i = 0; i < saved->nwindows; i++)
	{
		load_rows(feed, &saved->windows[i].kept);
		load_rows(feed, &saved->windows[i].removed);
	}
	if (feed->windows->only)
		window_settle(feed->windows->only);
	change_rows(feed, saved);
	for (int64 i = 0; i < saved->nwindows; i++)
		restore_range(feed, &saved->windows[i], feed->windows->only ?
					  of->page : saved->windows[i].page);
	for (int64 i = 0; i < saved->ndropped; i++)
		window_set_add_dropped(feed->windows, saved->dropped[i]);
	feed->windows->dropped_rows = saved->dropped_rows;
	cushion_shift(&feed->cushion, feed->windows->nrows);

	feed->loaded = true;
	feed->applied = saved->lsn;
	feed->cursor = feed_position->commit.no;
	subscriber->reset = of->reset;
	feed->recheck = subscriber->unchecked = saved->recheck;
	feed->covered = saved->covered;
	feed->from = saved->from;
	feed->commit = saved->commit;
	caller = MemoryContextSwitchTo(feed->context);
	feed->unseen = list_copy(saved->unseen);
	MemoryContextSwitchTo(caller);
	feed_mark_clean(feed);
	if (feed->covered == 0 && !feed_is_short(feed))
		feed_settle_windows(feed);

	/*
	 * While replaying, only a feed whose batches follow from the commits
	 * alone can go on: another must first know what was published.
	 */
	feed->behind = subscriber->row->throttle_ms > 0 || feed->covered > 0 ||
		feed->recheck || feed_is_short(feed);
	route_note_logger(feed);
}

void
feed_restore(Subscriber *subscriber, const SavedSubscriber *saved)
{
	const SavedFeed *feed = &saved->feed;

	subscriber->seq = subscriber->published = saved->seq;
	subscriber->last_lsn = subscriber->published_lsn = saved->last_lsn;
	subscriber->announced = true;
	feed_restore_lease(subscriber, saved->lease_end);
	if (feed->query_text == NULL)
		return;
	if (feed->covered == 0)
		subscriber->published_lsn = Max(feed->lsn, saved->last_lsn);
	feed_run_safely(subscriber->feed, restore, saved);
}

void
feed_lose_history(Subscriber *subscriber, XLogRecPtr lsn)
{
	subscriber->seq = subscriber->published = Max(subscriber->seq,
												  (int64) lsn);
	subscriber->announced = true;
}

/*
 * A batch as of lsn was published, or, with seq 0, the result at birth shown;
 * or, if there is no lsn, an error.
 */
static void
was_published(Subscriber *subscriber, int64 seq, XLogRecPtr lsn)
{
	if (!subscriber->feed->replaying)
		return;
	feed_mark_dirty(subscriber->feed);
	subscriber->announced = true;
	if (seq <= subscriber->published)
		return;
	subscriber->fell = seq > 0 && XLogRecPtrIsInvalid(lsn);
	subscriber->seq = subscriber->published = seq;
	subscriber->published_lsn = Max(subscriber->published_lsn, lsn);
	subscriber->last_lsn = Max(subscriber->last_lsn, lsn);
}

void
feed_note_published(const char *numbers)
{
	int64		id,
				seq,
				lsn;

	while (message_number(&numbers, &id) && message_number(&numbers, &seq) &&
		   message_number(&numbers, &lsn))
	{
		Subscriber *subscriber = subscriber_find(id);

		if (subscriber)
			was_published(subscriber, seq, lsn);
	}
}

/* The last commit that is in the windows that were saved. */
static uint64
restored_cursor(const Feed *feed)
{
	uint64		cursor = feed_position->commit.no;
	uint64		no = 0;
	LoggedCommit commit;

	while (commit_log_next(feed_commit_log, no, InvalidOid, &commit))
	{
		no = commit.info.no;
		if (commit.info.start >= feed->applied)
		{
			cursor = no - 1;
			break;
		}
	}
	if (feed->events)
		cursor = Min(cursor,
					 ((FeedEvent *) linitial(feed->events))->commit.no - 1);
	return cursor;
}

/*
 * Clients were told of an error, of which the WAL that was replayed shows
 * nothing.  They may not get results from before it now.
 */
static void
forget_replay(Feed *feed)
{
	deliver_discard(feed_first(feed));
	if (feed->loaded)
		feed_start_anew(feed);
}

void
feed_end_replay(Feed *feed)
{
	Subscriber *subscriber = feed_first(feed);

	if (!feed->replaying)
		return;
	if (subscriber->fell)
		forget_replay(feed);
	feed->replaying = false;
	if (subscriber->announced)
		feed_start_interval(feed);
	if (!feed->loaded)
		feed_note_reset(subscriber, subscriber->announced);
	else if (feed->behind)
	{
		feed->cursor = Max(feed->cursor, restored_cursor(feed));

		if (feed->covered > 0 && feed->commit.lsn <= subscriber->published_lsn)
			feed_note_reset(subscriber, false);	/* clients have got it */

		/* a result that was known, and which clients may have by now */
		feed->held = feed->covered > 0 && !feed->recheck &&
			!feed_is_short(feed);
		if (feed->held && feed->commit.lsn <= subscriber->published_lsn)
			feed->due = 0;
	}
	if (feed->loaded)
		feed_share_loaded(feed);
	feed_activate(feed);
}
