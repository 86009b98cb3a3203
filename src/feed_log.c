/*
 * feed_log.c
 *	  A feed follows the log: changes go in, results come out.
 *
 * Changes come straight from the decoder or, if the feed is behind, from the
 * commit log.  A result is published as soon as it is known, which it is not
 * while the window is short.
 */
#include "postgres.h"

#include "deliver.h"
#include "feed_private.h"
#include "rank.h"
#include "route.h"
#include "storage/procarray.h"
#include "utils/timestamp.h"

/* ---- results ---- */

uint32
feed_needed_rows(const Feed *feed)
{
	return Min(feed->offset + feed->limit, PG_UINT32_MAX);
}

/* Rows to skip of those that are held: others are only counted. */
static int64
offset_in(int64 offset, const Window *window)
{
	return offset - Min(offset, window->set->before);
}

uint32
feed_last_rank(const Feed *feed, const Window *window)
{
	return rank_last(window, offset_in(feed->offset, window), feed->limit);
}

bool
feed_window_is_short(const Feed *feed, const Window *window)
{
	if (feed_begins_late(feed, window))
		return true;
	if (window->end == WINDOW_PASSING)
		return feed_needs_reset(feed) || feed_is_waiting(feed, window);
	if (window->end != WINDOW_BOUNDED)
		return window->end == WINDOW_NOTHING;
	return rank_is_open(window, feed_last_rank(feed, window));
}

/* Look at the windows that changed: what do they need? */
static void
look_at_windows(const Feed *feed)
{
	Window	   *window;

	while ((window = window_set_next_changed(feed->windows)) != NULL)
		window_set_need(window, feed_window_need(feed, window));
}

bool
feed_is_short(const Feed *feed)
{
	WindowSet  *set = feed->windows;

	look_at_windows(feed);
	return (!set->only && window_set_is_lost(set)) ||
		!dlist_is_empty(&set->needy[NEED_RESULT]) ||
		(window_set_is_partial(set) && feed_needs_reset(feed));
}

static ResultPage
make_page(const Window *window, int64 offset, int64 limit)
{
	const TopnQuery *query = window->set->format->query;
	int64		held = offset_in(offset, window);
	uint32		last = rank_last(window, held, limit);
	ResultPage	page = {.end = rank_end(window, last)};

	/* rows are skipped one by one, unless they are skipped by rank */
	page.skip = query->rank == RANK_WITH_TIES ?
		Min(held, window_size(window)) :
		rank_end(window, Min(held, PG_UINT32_MAX));
	if (limit == 0 || page.end < page.skip)
		page.end = page.skip;
	return page;
}

ResultPage
feed_reach_page(const Feed *feed, const Window *window)
{
	return make_page(window, feed->offset, feed->limit);
}

ResultPage
feed_page(const Subscriber *subscriber, const Window *window)
{
	return make_page(window, subscriber->offset, subscriber->limit);
}

uint64
feed_result_rows(Subscriber *subscriber)
{
	uint64		position = 0;
	uint64		rows = subscriber->feed->windows->dropped_rows;
	Window	   *window;

	while ((window = window_set_next(subscriber->feed->windows,
									 &position)) != NULL)
	{
		ResultPage *page = feed_known_page(subscriber, window);

		rows += page->end - page->skip;
	}
	return rows;
}

uint64
feed_skipped_rows(Subscriber *subscriber)
{
	uint64		position = 0;
	uint64		rows = 0;
	Window	   *window;

	while ((window = window_set_next(subscriber->feed->windows,
									 &position)) != NULL)
		rows += feed_known_page(subscriber, window)->skip;
	return rows;
}

void
feed_note_page(Feed *feed, Window *window)
{
	dlist_iter	iter;

	dlist_foreach(iter, &feed->subscribers)
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);
		ResultPage *known = feed_known_page(subscriber, window);
		ResultPage	page = feed_page(subscriber, window);

		if (page.skip != known->skip || page.end != known->end)
			feed_mark_dirty(feed);
		*known = page;
		if (window->set->only == NULL)
			break;				/* a group has one for all */
	}
}

void
feed_settle_windows(Feed *feed)
{
	WindowSet  *set = feed->windows;

	feed_pass(feed);
	look_at_windows(feed);
	while (!dlist_is_empty(&set->touched))
	{
		Window	   *window = dlist_head_element(WindowWork, touched_node,
												&set->touched)->window;

		feed_trim(feed, window);
		feed_note_page(feed, window);
		window_settle(window);
	}
	look_at_windows(feed);
	feed_drop_idle(feed);
}

/* A commit has been applied whose result is not published yet. */
static void
cover(Feed *feed, const CommitInfo *commit)
{
	feed_mark_dirty(feed);
	if (feed->covered > 0 && feed->commit.no == commit->no)
		return;
	if (feed->covered++ == 0)
		feed->from = commit->lsn;
	feed->commit = *commit;
}

/* Follow the commit log from that commit on. */
static void
fall_behind(Feed *feed, uint64 cursor)
{
	if (!feed->behind)
	{
		feed->behind = true;
		feed->cursor = cursor;
		if (feed->covered == 0)
		{
			feed->commit = feed_position->commit;
			feed->commit.lsn = feed_position->lsn;
		}
	}
	route_note_logger(feed);
	feed_activate(feed);
}

void
feed_fall_behind(Feed *feed)
{
	fall_behind(feed, feed_position->commit.no);
}

/* A result that no commit made: the one at the cursor. */
static void
cover_now(Feed *feed)
{
	if (!feed->behind)
	{
		feed->commit = feed_position->commit;
		feed->commit.lsn = feed_position->lsn;
	}
	feed->commit.xid = InvalidTransactionId;
	feed->commit.time = GetCurrentTimestamp();
	feed->covered = 1;
	feed->from = feed->commit.lsn;
}

/* ---- changes while decoding ---- */

static void
forget_rows(Feed *feed)
{
	bool		anew = feed_starts_anew(feed);

	/* from what clients have there is no way to what will be read */
	if (anew || window_set_is_partial(feed->windows))
		feed_note_resets(feed);
	window_set_clear(feed->windows, WINDOW_NOTHING);
	if (anew)
	{
		window_settle(feed->windows->only);
		window_touch(feed->windows->only, NULL);
	}
}

void
feed_lose_rows(Feed *feed)
{
	feed->held = false;
	feed_drop_refill(feed);
	cushion_shift(&feed->cushion, -(int64) feed->windows->nrows);
	forget_rows(feed);
	feed->lost = false;
}

static void
apply_change(Feed *feed, const Change *change)
{
	Window	   *last;

	feed->counters.changes++;
	if (change->kind == CHANGE_TRUNCATE &&
		(feed_starts_anew(feed) || window_set_is_partial(feed->windows)))
		feed_note_resets(feed);
	if (!evaluator_accepts(feed->evaluator, change))
		feed->lost = feed->recheck = true;
	else if (!feed->lost &&
			 !evaluate_change(feed->evaluator, feed->windows, change))
		feed->lost = true;

	/* one transaction can bring any number of rows */
	last = feed->windows->last;
	if (!feed->lost && !feed_fit(feed))
	{
		forget_rows(feed);
		feed->lost = true;		/* and a refill will tell whether it stays so */
	}
	else if (last && window_size(last) >
			 2 * (feed_last_rank(feed, last) + feed->cushion.band.fill) + 1000)
		feed_trim(feed, last);
}

bool
feed_change(Feed *feed, const Change *change, XLogRecPtr start)
{
	if (feed->behind || start < feed->applied)
		return false;
	if (feed->loaded && !feed->query->inert)
	{
		feed_fall_behind(feed);
		feed_note_roused();
		return false;
	}
	if (feed->loaded)
		apply_change(feed, change);
	return true;
}

void
feed_commit(Feed *feed)
{
	if (!feed->loaded)
		return;

	cover(feed, &feed_position->commit);
	cushion_count(&feed->cushion, feed->windows->nrows,
				  feed_position->commit.no);
	if (feed->lost)
		feed_lose_rows(feed);
	if (feed_is_short(feed) || feed->recheck)
	{
		feed->held = false;
		feed_fall_behind(feed);
	}
	else
	{
		feed_publish_if_due(feed);
		feed_balance(feed);
	}
}

/*
 * Is the feed behind the last commit decoded?  One that falls behind at that
 * very commit has its changes.
 */
static bool
is_late(const Feed *feed)
{
	return feed_place(feed) < feed_position->commit.no;
}

/*
 * Must an event at the last commit decoded wait for the feed's turn?  A query
 * that is not inert is not evaluated before, and falls behind.
 */
static bool
waits_for_turn(Feed *feed)
{
	if (feed->loaded && !feed->query->inert)
		fall_behind(feed, feed_position->commit.no - 1);
	return is_late(feed);		/* unless it has lost its rows at this commit */
}

/* At the last commit decoded, where a feed that is late gets later. */
static FeedEvent *
add_event(Feed *feed, Subscriber *subscriber, FeedEventKind kind)
{
	MemoryContext caller = MemoryContextSwitchTo(feed->context);
	FeedEvent  *event = palloc0(sizeof(FeedEvent));

	event->kind = kind;
	event->subscriber = subscriber;
	event->commit = feed_position->commit;
	feed->events = lappend(feed->events, event);
	MemoryContextSwitchTo(caller);
	return event;
}

/*
 * What is read from now on shows rows as they are after a commit that the feed
 * has not come to, and that tells of no change: nothing leads back.
 */
bool
feed_awaits_reload(const Feed *feed)
{
	ListCell   *lc;

	foreach(lc, feed->events)
		if (((FeedEvent *) lfirst(lc))->kind == FEED_RELOAD)
			return true;
	return false;
}

void
feed_reload_later(Feed *feed)
{
	if (is_late(feed))
		add_event(feed, NULL, FEED_RELOAD);
}

bool
feed_resync(Subscriber *subscriber)
{
	Feed	   *feed = subscriber->feed;

	if (feed_has_applied(feed))
		return false;
	if (feed->loaded && waits_for_turn(feed))
	{
		add_event(feed, subscriber, FEED_RESET);
		return false;
	}
	feed_note_reset(subscriber, true);
	return feed->loaded;
}

bool
feed_move(Subscriber *subscriber, int64 offset, int64 limit, bool seen)
{
	Feed	   *feed = subscriber->feed;

	if (!seen)
	{
		subscriber->row->offset = offset;
		subscriber->row->limit = limit;
	}
	if (feed->loaded ? feed_position->commit.start < feed->applied : seen)
		return false;
	if (waits_for_turn(feed))
	{
		FeedEvent  *event = add_event(feed, subscriber, FEED_MOVE);

		event->offset = offset;
		event->limit = limit;
		return false;
	}
	feed_move_page(subscriber, offset, limit);
	return feed->loaded;
}

void
feed_recheck(Feed *feed, bool reload)
{
	dlist_iter	iter;

	feed_mark_dirty(feed);
	feed->recheck = true;
	feed->waiting = false;
	feed->alone = false;
	feed->rechecked = feed_catalog_changes;
	feed_leave_check(feed);
	dlist_foreach(iter, &feed->subscribers)
		dlist_container(Subscriber, node, iter.cur)->unchecked = true;
	if (TransactionIdIsInProgress(feed_position->commit.xid))
	{
		MemoryContext caller = MemoryContextSwitchTo(feed->context);

		feed->unseen = lappend_oid(feed->unseen, feed_position->commit.xid);
		MemoryContextSwitchTo(caller);
		feed_note_unseen(feed_position->commit.xid);
	}
	if (feed->error)
		feed->retry_at = Max(feed->barred_until,
							 Min(feed->retry_at,
								 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
															 MIN_BACKOFF_MS)));
	feed_activate(feed);
	if (feed->nreads > 0)
		feed_drop_refill(feed); /* what it reads must not be published */
	if (reload)
		feed_reload_later(feed);
	if (!feed->loaded)
		return;

	if (reload && !is_late(feed))
		feed->lost = true;

	if (!feed->touched && feed->lost)
		feed_commit(feed);
	feed_fall_behind(feed);
}

/* ---- going through the log ---- */

static bool
apply_logged(const Change *change, void *arg)
{
	apply_change(arg, change);
	return true;
}

static FeedEvent *
next_event(const Feed *feed)
{
	return feed->events ? linitial(feed->events) : NULL;
}

/* The next commit of the log that concerns the feed; false if none. */
static bool
next_commit(const Feed *feed, LoggedCommit *commit)
{
	uint64		no = feed->cursor;

	while (commit_log_next(feed_commit_log, no, feed->query->relid, commit))
	{
		if (commit->info.start >= feed->applied)
			return true;
		no = commit->info.no;
	}
	return false;
}

static void
recovered(Feed *feed)
{
	dlist_iter	iter;

	if (feed->error)
	{
		feed_forget_error(feed);
		dlist_foreach(iter, &feed->subscribers)
			ereport(LOG,
					(errmsg("live_topn subscription \"%s\" is out of error",
							dlist_container(Subscriber, node,
											iter.cur)->row->name)));
	}
	feed->failures = 0;
}

/*
 * A result that was read, not made from another.  It is saved before anybody
 * may know it: the rows cannot be found in WAL.
 */
static void
publish_first(Feed *feed)
{
	bool		resets = false;
	dlist_iter	iter;

	Assert(feed->pending == 0);
	dlist_foreach(iter, &feed->subscribers)
		resets |= dlist_container(Subscriber, node, iter.cur)->reset;
	if (resets)
	{
		cover_now(feed);
		checkpoint_add(feed);
		feed_publish(feed);
	}
	else
	{
		feed_settle_windows(feed);
		checkpoint_add(feed);
	}
	dlist_foreach(iter, &feed->subscribers)
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		if (!resets)
			deliver_announce(subscriber);
		subscriber->announced = true;
	}
}

void
feed_settle(Feed *feed)
{
	if (window_set_is_lost(feed->windows))
		return;

	if (feed_is_short(feed))
	{
		feed_fall_behind(feed); /* from now on no change may be left out */
		return;
	}

	if (!feed->loaded)
	{
		feed->loaded = true;
		recovered(feed);
		publish_first(feed);
		feed_share_loaded(feed);
	}
	else if (feed->covered > 0)
		feed_publish_if_due(feed);
	else
		feed_settle_windows(feed);
	feed_balance(feed);
}

bool
feed_step(Feed *feed)
{
	LoggedCommit found;
	LoggedCommit *commit = next_commit(feed, &found) ? &found : NULL;
	FeedEvent  *event = next_event(feed);
	const CommitInfo *info;

	if (event && commit && event->commit.no > commit->info.no)
		event = NULL;
	if (event && commit && event->commit.no < commit->info.no)
		commit = NULL;
	if (!event && !commit)
		return false;

	info = commit ? &commit->info : &event->commit;
	if (commit)
		commit_log_scan(feed_commit_log, commit, feed->query->relid, false,
						apply_logged, feed);
	feed->cursor = info->no;
	cushion_count(&feed->cushion, feed->windows->nrows, info->no);
	if (feed->loaded)
		cover(feed, info);
	else
		feed->commit = *info;
	for (; event && event->commit.no == feed->cursor; event = next_event(feed))
	{
		switch (event->kind)
		{
			case FEED_RESET:
				feed_note_reset(event->subscriber, true);
				break;
			case FEED_RELOAD:
				feed->lost = true;
				break;
			case FEED_MOVE:
				feed_move_page(event->subscriber, event->offset,
							   event->limit);
				break;
		}
		feed->events = list_delete_first(feed->events);
		pfree(event);
	}

	if (feed->lost)
		feed_lose_rows(feed);
	feed->held = false;
	feed_settle(feed);
	return true;
}
