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
offset_in(const Feed *feed, const Window *window)
{
	return feed->offset - Min(feed->offset, window->set->before);
}

uint32
feed_last_rank(const Feed *feed, const Window *window)
{
	return rank_last(window, offset_in(feed, window), feed->limit);
}

bool
feed_window_is_short(const Feed *feed, const Window *window)
{
	if (feed_begins_late(feed, window))
		return true;
	if (window->end == WINDOW_PASSING)
		return feed->reset || feed_is_waiting(feed, window);
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
		(feed->reset && window_set_is_partial(set));
}

ResultPage
feed_page(const Feed *feed, const Window *window)
{
	const TopnQuery *query = feed->query;
	int64		offset = offset_in(feed, window);
	uint32		last = feed_last_rank(feed, window);
	ResultPage	page = {.end = rank_end(window, last)};

	/* rows are skipped one by one, unless they are skipped by rank */
	page.skip = query->rank == RANK_WITH_TIES ?
		Min(offset, window_size(window)) :
		rank_end(window, Min(offset, PG_UINT32_MAX));
	if (feed->limit == 0 || page.end < page.skip)
		page.end = page.skip;
	return page;
}

uint64
feed_result_rows(const Feed *feed)
{
	uint64		position = 0;
	uint64		rows = feed->windows->dropped_rows;
	Window	   *window;

	while ((window = window_set_next(feed->windows, &position)) != NULL)
		rows += window->page.end - window->page.skip;
	return rows;
}

uint64
feed_skipped_rows(const Feed *feed)
{
	uint64		position = 0;
	uint64		rows = 0;
	Window	   *window;

	while ((window = window_set_next(feed->windows, &position)) != NULL)
		rows += window->page.skip;
	return rows;
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
		window->page = feed_page(feed, window);
		window_settle(window);
	}
	look_at_windows(feed);
	feed_drop_idle(feed);
}

/* A commit has been applied whose result is not published yet. */
static void
cover(Feed *feed, const CommitInfo *commit)
{
	feed_dirty = true;
	if (feed->covered > 0 && feed->commit.no == commit->no)
		return;
	if (feed->covered++ == 0)
		feed->from = commit->lsn;
	feed->commit = *commit;
}

/* Follow the commit log from here on. */
static void
fall_behind(Feed *feed)
{
	if (!feed->behind)
	{
		feed->behind = true;
		feed->cursor = feed_position->commit.no;
		if (feed->covered == 0)
		{
			feed->commit = feed_position->commit;
			feed->commit.lsn = feed_position->lsn;
		}
	}
	route_note_logger(feed);
	feed_activate(feed);
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

static Batch *
make_reset(Feed *feed)
{
	Batch	   *batch = palloc0(sizeof(Batch));
	uint64		nwindows = window_set_count(feed->windows);
	Window	  **windows = window_set_list(feed->windows);
	uint64		nrows = 0;

	for (uint64 i = 0; i < nwindows; i++)
	{
		ResultPage	page = feed_page(feed, windows[i]);

		nrows += page.end - page.skip;
	}
	batch->rows = palloc_extended(sizeof(Row *) * Max(nrows, 1),
								  MCXT_ALLOC_HUGE);
	if (feed->query->ranks != NIL)
		batch->ranks = palloc_extended(sizeof(int64) * Max(nrows, 1),
									   MCXT_ALLOC_HUGE);
	for (uint64 i = 0; i < nwindows; i++)
	{
		ResultPage	page = feed_page(feed, windows[i]);

		if (batch->ranks)
		{
			int64	   *ranks = rank_page(windows[i], page);

			memcpy(batch->ranks + batch->nrows, ranks,
				   sizeof(int64) * (page.end - page.skip));
			pfree(ranks);
		}
		for (uint32 n = page.skip; n < page.end; n++)
			batch->rows[batch->nrows++] = row_ref(window_nth(windows[i], n));
	}
	pfree(windows);
	feed->resets++;
	return batch;
}

/* Does the window show other rows now, or others of its rows? */
static bool
shows_change(const Feed *feed, const Window *window)
{
	const WindowWork *work = window->work;
	ResultPage	page;

	if (work->nremoved > 0 || work->nadded > 0)
		return true;
	page = feed_page(feed, window);
	return page.skip != window->page.skip || page.end != window->page.end;
}

/* The windows with something to tell, in the order of their groups. */
static Window **
changed_windows(const Feed *feed, int *n)
{
	WindowSet  *set = feed->windows;
	Window	  **windows = NULL;
	int			max = 0;
	dlist_iter	iter;

	*n = 0;
	dlist_foreach(iter, &set->touched)
	{
		WindowWork *work = dlist_container(WindowWork, touched_node, iter.cur);

		if (!shows_change(feed, work->window))
			continue;
		if (*n == max)
		{
			max = Max(16, max * 2);
			windows = windows ?
				repalloc_huge(windows, sizeof(Window *) * max) :
				palloc(sizeof(Window *) * max);
		}
		windows[(*n)++] = work->window;
	}
	if (*n > 1)
		window_sort(set, windows, *n);
	return windows;
}

static Batch *
make_deltas(Feed *feed)
{
	int			nwindows;
	Window	  **windows = changed_windows(feed, &nwindows);
	DeltaScript *script;
	Batch	   *batch = NULL;

	if (nwindows == 0)
		return NULL;			/* as nearly always */
	script = delta_script();
	for (int i = 0; i < nwindows; i++)
		delta_append(script, windows[i], windows[i]->page,
					 feed_page(feed, windows[i]),
					 strcmp(feed->row->ranks, "absolute") == 0);
	pfree(windows);
	if (script->n == 0)
		delta_free(script);
	else
	{
		batch = palloc0(sizeof(Batch));
		batch->script = script;
		feed->deltas += script->n;
	}
	return batch;
}

void
feed_start_interval(Feed *feed)
{
	if (feed->row->throttle_ms > 0)
		feed->due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												feed->row->throttle_ms);
}

/*
 * While a feed retraces what an earlier worker has done, the earlier one's
 * batches count, of which only numbers and positions are known: the same
 * results can have been published in other batches, if rows came from refills
 * at other times.
 */
void
feed_publish(Feed *feed)
{
	MemoryContext caller = MemoryContextSwitchTo(deliver_context());
	Batch	   *batch;

	Assert(!feed_is_short(feed));
	feed_dirty = true;
	if (feed->commit.lsn <= feed->published_lsn)
	{
		/* clients have this result */
		feed->seq = feed->published;
		feed_start_interval(feed);
	}
	else if (feed->covered > 1 && feed->from <= feed->published_lsn)
	{
		/* we cannot tell which one they have */
		feed_note_reset(feed, true);
		feed->from = InvalidXLogRecPtr;
		if (feed_is_short(feed))
		{
			feed->held = false;
			fall_behind(feed);
			MemoryContextSwitchTo(caller);
			return;
		}
	}

	if (feed->commit.lsn <= feed->published_lsn)
		batch = NULL;
	else
		batch = feed->reset ? make_reset(feed) : make_deltas(feed);
	if (batch)
	{
		batch->seq = ++feed->seq;
		batch->commit = feed->commit;
		if (feed->covered > 1)
			batch->from = feed->from;
		feed_start_interval(feed);
		feed->batches++;
		feed->last_lsn = batch->commit.lsn;
		deliver_enqueue(feed, batch);
	}
	if (feed->covered > 1 && feed->row->throttle_ms == 0)
		feed->coalesced += feed->covered - 1;
	feed->reset = false;
	feed->held = false;
	feed->covered = 0;
	feed_settle_windows(feed);
	MemoryContextSwitchTo(caller);
}

/*
 * The same unless the throttle says later: then the commits until that time
 * share a batch.
 */
static void
publish_if_due(Feed *feed)
{
	if (feed->row->throttle_ms > 0 && GetCurrentTimestamp() < feed->due &&
		feed->commit.lsn > feed->published_lsn && !feed_holds_much(feed))
	{
		feed->held = true;
		feed_activate(feed);
	}
	else
		feed_publish(feed);
}

void
feed_publish_error(Feed *feed)
{
	MemoryContext caller = MemoryContextSwitchTo(deliver_context());
	Batch	   *batch = palloc0(sizeof(Batch));

	batch->seq = ++feed->seq;
	batch->commit.lsn = feed_position->lsn;
	batch->commit.time = GetCurrentTimestamp();
	batch->error = pstrdup(feed->error);
	feed->batches++;
	deliver_enqueue(feed, batch);
	MemoryContextSwitchTo(caller);
}

/* ---- changes while decoding ---- */

static void
forget_rows(Feed *feed)
{
	bool		anew = feed_starts_anew(feed);

	/* from what clients have there is no way to what will be read */
	if (anew || window_set_is_partial(feed->windows))
		feed->reset = feed->announced;
	window_set_clear(feed->windows, WINDOW_NOTHING);
	if (anew)
	{
		window_settle(feed->windows->only);
		window_touch(feed->windows->only, NULL);
	}
}

/* Start again from the table: at this commit the rows are not known. */
static void
lose_rows(Feed *feed)
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

	feed->changes++;
	if (change->kind == CHANGE_TRUNCATE &&
		(feed_starts_anew(feed) || window_set_is_partial(feed->windows)))
		feed_note_reset(feed, feed->announced);
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
		lose_rows(feed);
	if (feed_is_short(feed) || feed->recheck)
	{
		feed->held = false;
		fall_behind(feed);
	}
	else
	{
		publish_if_due(feed);
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
	return feed->behind && feed->cursor < feed_position->commit.no;
}

/* At the last commit decoded, where a feed that is late gets later. */
static FeedEvent *
add_event(Feed *feed, FeedEventKind kind)
{
	MemoryContext caller = MemoryContextSwitchTo(feed->context);
	FeedEvent  *event = palloc0(sizeof(FeedEvent));

	event->kind = kind;
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

bool
feed_resync(Feed *feed)
{
	if (feed_has_applied(feed))
		return false;
	if (feed->loaded && is_late(feed))
	{
		add_event(feed, FEED_RESET);
		return false;
	}
	feed_note_reset(feed, true);
	return feed->loaded;
}

bool
feed_move(Feed *feed, int64 offset, int64 limit, bool seen)
{
	if (!seen)
	{
		feed->row->offset = offset;
		feed->row->limit = limit;
	}
	if (feed->loaded ? feed_position->commit.start < feed->applied : seen)
		return false;
	if (is_late(feed))
	{
		FeedEvent  *event = add_event(feed, FEED_MOVE);

		event->offset = offset;
		event->limit = limit;
		return false;
	}
	feed_move_page(feed, offset, limit);
	return feed->loaded;
}

void
feed_recheck(Feed *feed, bool reload)
{
	feed_dirty = true;
	feed->recheck = true;
	if (TransactionIdIsInProgress(feed_position->commit.xid))
	{
		MemoryContext caller = MemoryContextSwitchTo(feed->context);

		feed->unseen = lappend_oid(feed->unseen, feed_position->commit.xid);
		MemoryContextSwitchTo(caller);
	}
	if (feed->error)
		feed->retry_at = Max(feed->barred_until,
							 Min(feed->retry_at,
								 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
															 MIN_BACKOFF_MS)));
	feed_activate(feed);
	if (feed->nreads > 0)
		feed_drop_refill(feed); /* what it reads must not be published */
	if (!feed->loaded)
		return;

	if (reload && is_late(feed))
		add_event(feed, FEED_RELOAD);
	else if (reload)
		feed->lost = true;

	if (!feed->touched && feed->lost)
		feed_commit(feed);
	fall_behind(feed);
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
	if (feed->error)
	{
		feed_forget_error(feed);
		ereport(LOG,
				(errmsg("live_topn subscription \"%s\" is out of error",
						feed->row->name)));
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
	Assert(feed->pending == 0);
	if (feed->reset)
	{
		cover_now(feed);
		checkpoint_add(feed);
		feed_publish(feed);
	}
	else
	{
		feed_settle_windows(feed);
		checkpoint_add(feed);
		deliver_announce(feed);
	}
}

void
feed_settle(Feed *feed)
{
	if (window_set_is_lost(feed->windows))
		return;

	/* from now on no change may be left out, nor be met while decoding */
	if (!feed->query->inert || feed_is_short(feed))
		fall_behind(feed);
	if (feed_is_short(feed))
		return;

	if (!feed->loaded)
	{
		feed->loaded = true;
		recovered(feed);
		publish_first(feed);
		feed->announced = true;
		feed_dirty = true;
	}
	else if (feed->covered > 0)
		publish_if_due(feed);
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
				feed_note_reset(feed, true);
				break;
			case FEED_RELOAD:
				feed->lost = true;
				break;
			case FEED_MOVE:
				feed_move_page(feed, event->offset, event->limit);
				break;
		}
		feed->events = list_delete_first(feed->events);
		pfree(event);
	}

	if (feed->lost)
		lose_rows(feed);
	feed->held = false;
	feed_settle(feed);
	return true;
}
