/*
 * feed.c
 *	  One subscription in the database worker: a window that follows the log.
 *
 * The window of a feed is exact at its cursor: at the last commit decoded, or,
 * if the feed is behind, at a commit of the log.  A feed falls behind when its
 * window runs short of rows, when its query cannot be evaluated while
 * decoding, and when a catalog change makes us look at the query again; it
 * then goes through the log commit by commit.
 *
 * What is published is always the difference between two exact results.
 * Where a result stays unknown because an old version is (see reconcile.c),
 * the commits in between share one batch.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "deliver.h"
#include "feed.h"
#include "miscadmin.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#define STEPS_PER_TURN		1000	/* commits of the log at a time */
#define READ_AGAIN_MS		10
#define DROP_RETRY_MS		10000
#define MIN_BACKOFF_MS		250
#define MAX_BACKOFF_MS		60000

typedef struct FeedEntry
{
	int64		id;
	Feed	   *feed;
} FeedEntry;

static MemoryContext feed_context;
static HTAB *feeds;
static dlist_head active = DLIST_STATIC_INIT(active);
static CommitLog *log;
static RefillPool *pool;
static const LogPosition *position;
static uint64 generation = 1;
static int	unresolved;			/* feeds that wait to know their query */
static bool dirty;				/* something is not as it was saved */
static TimestampTz next_lease_end;	/* the first to look at; 0: none */

void
feed_startup(MemoryContext parent, CommitLog *commit_log,
			 RefillPool *refill_pool, const LogPosition *log_position)
{
	HASHCTL		ctl = {0};

	feed_context = AllocSetContextCreate(parent, "live_topn feeds",
										 ALLOCSET_DEFAULT_SIZES);
	log = commit_log;
	pool = refill_pool;
	position = log_position;
	ctl.keysize = sizeof(int64);
	ctl.entrysize = sizeof(FeedEntry);
	ctl.hcxt = feed_context;
	feeds = hash_create("live_topn feeds", 64, &ctl,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static void
activate(Feed *feed)
{
	if (!feed->active)
		dlist_push_tail(&active, &feed->active_node);
	feed->active = true;
}

static void
deactivate(Feed *feed)
{
	if (feed->active)
		dlist_delete(&feed->active_node);
	feed->active = false;
}

static SubscriptionRow *
copy_row(const SubscriptionRow *row)
{
	SubscriptionRow *copy = palloc(sizeof(SubscriptionRow));

	*copy = *row;
	copy->name = pstrdup(row->name);
	copy->query = pstrdup(row->query);
	copy->deliver = pstrdup(row->deliver);
	copy->ranks = pstrdup(row->ranks);
	copy->args = palloc(sizeof(char *) * Max(row->nargs, 1));
	for (int i = 0; i < row->nargs; i++)
		copy->args[i] = row->args[i] ? pstrdup(row->args[i]) : NULL;
	copy->settings = palloc(sizeof(char *) * Max(row->nsettings, 1));
	for (int i = 0; i < row->nsettings; i++)
		copy->settings[i] = pstrdup(row->settings[i]);
	return copy;
}

Feed *
feed_create(const SubscriptionRow *row, bool found)
{
	MemoryContext context = AllocSetContextCreate(feed_context,
												  "live_topn feed",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	Feed	   *feed = palloc0(sizeof(Feed));
	FeedEntry  *entry;
	bool		exists;

	feed->id = row->id;
	feed->context = context;
	feed->row = copy_row(row);
	MemoryContextSetIdentifier(context, feed->row->name);
	feed->published = -1;
	feed->history = history_create();
	feed_renew(feed);
	feed->replaying = found;
	dirty = true;
	if (!found)
	{
		feed->behind = true;
		feed->cursor = position->commit.no;
		feed->unresolved = true;
		unresolved++;
	}
	MemoryContextSwitchTo(caller);

	entry = hash_search(feeds, &feed->id, HASH_ENTER, &exists);
	if (exists)
		elog(ERROR, "subscription " INT64_FORMAT " exists already", feed->id);
	entry->feed = feed;
	activate(feed);
	return feed;
}

Feed *
feed_find(int64 id)
{
	FeedEntry  *entry = hash_search(feeds, &id, HASH_FIND, NULL);

	return entry ? entry->feed : NULL;
}

void
feed_scan(HASH_SEQ_STATUS *status)
{
	hash_seq_init(status, feeds);
}

Feed *
feed_scan_next(HASH_SEQ_STATUS *status)
{
	FeedEntry  *entry = hash_seq_search(status);

	return entry ? entry->feed : NULL;
}

long
feed_count(void)
{
	return hash_get_num_entries(feeds);
}

/* Forget the refill under way, and its answer. */
static void
drop_refill(Feed *feed)
{
	if (feed->ticket != 0)
		refill_forget(pool, feed->ticket);
	feed->ticket = 0;
	if (feed->answer)
		MemoryContextDelete(feed->answer->context);
	feed->answer = NULL;
	if (feed->refill_low)
		row_unref(feed->refill_low);
	feed->refill_low = NULL;
}

/* Rows of pending batches live in the query's memory, so none may be left. */
static void
forget_query(Feed *feed)
{
	Assert(feed->pending == 0);
	generation++;
	drop_refill(feed);
	if (feed->evaluator)
		evaluator_free(feed->evaluator);
	if (feed->query_context)
		MemoryContextDelete(feed->query_context);
	feed->query_context = NULL;
	feed->query_text = NULL;
	feed->query = NULL;
	feed->format = NULL;
	feed->evaluator = NULL;
	feed->batch_format = NULL;
	feed->window = NULL;
	feed->forget = false;
}

static void
resolve(Feed *feed)
{
	if (feed->unresolved)
		unresolved--;
	feed->unresolved = false;
}

bool
feed_any_dirty(void)
{
	return dirty;
}

void
feed_clean(void)
{
	dirty = false;
}

bool
feed_any_unresolved(void)
{
	return unresolved > 0;
}

uint64
feed_generation(void)
{
	return generation;
}

static void
free_feed(Feed *feed)
{
	forget_query(feed);
	history_free(feed->history);
	MemoryContextDelete(feed->context);
}

void
feed_drop(Feed *feed)
{
	hash_search(feeds, &feed->id, HASH_REMOVE, NULL);
	deactivate(feed);
	resolve(feed);
	feed->dropped = true;
	dirty = true;
	generation++;
	if (feed->pending == 0)
		free_feed(feed);
}

void
feed_delivered(Feed *feed)
{
	feed->pending--;
	if (feed->dropped && feed->pending == 0)
		free_feed(feed);
}

bool
feed_needs_log(const Feed *feed)
{
	return feed->behind || feed->ticket != 0 || feed->answer;
}

uint64
feed_floor(const Feed *feed)
{
	uint64		floor = PG_UINT64_MAX;

	if (feed->behind)
		floor = feed->cursor;
	if (feed->ticket != 0 || feed->answer)
		floor = Min(floor, feed->kept);
	return floor;
}

const char *
feed_state(const Feed *feed)
{
	if (feed->error)
		return "error";
	if (!feed->loaded)
		return "loading";
	return feed->covered > 0 ? "waiting" : "live";
}

bool
feed_is_current(const Feed *feed)
{
	if (feed->error)
		return true;
	if (!feed->loaded || (feed->covered > 0 && !feed->held) || feed->recheck ||
		(feed->ticket != 0 && feed->refill_limit == 0))
		return false;
	return !feed->behind || feed->cursor == position->commit.no;
}

bool
feed_all_current(void)
{
	dlist_iter	iter;

	/* those that are not active have nothing to do */
	dlist_foreach(iter, &active)
		if (!feed_is_current(dlist_container(Feed, active_node, iter.cur)))
			return false;
	return true;
}

/* ---- results ---- */

/* How many rows the window must hold, at least, to know the result. */
static uint32
needed_rows(const Feed *feed)
{
	return feed->query->offset + feed->query->limit;
}

/* May rows that were not read yet be equal to the last one of the result? */
static bool
has_open_ties(const Feed *feed)
{
	const Window *window = feed->window;
	uint32		needed = needed_rows(feed);

	return feed->query->nties > 0 && feed->query->limit > 0 &&
		window->end == WINDOW_BOUNDED && window_size(window) >= needed &&
		row_compare_prefix(feed->format, window_nth(window, needed - 1),
						   window->high, feed->query->nties) == 0;
}

static bool
is_short(const Feed *feed)
{
	if (feed->window->end == WINDOW_COMPLETE)
		return false;
	return window_size(feed->window) < needed_rows(feed) ||
		has_open_ties(feed);
}

/* The result as ranks in the window, which is not short. */
ResultPage
feed_page(const Feed *feed)
{
	const Window *window = feed->window;
	uint32		size = window_size(window);
	uint32		needed = needed_rows(feed);
	ResultPage	page = {
		.skip = Min(feed->query->offset, size),
		.end = Min(needed, size)
	};

	if (feed->query->nties > 0 && feed->query->limit > 0 && size > needed)
		page.end = window_ties_end(window, window_nth(window, needed - 1),
								   feed->query->nties);
	return page;
}

/* The changes so far are accounted for: this is the result clients know. */
static void
settle_window(Feed *feed)
{
	window_settle(feed->window);
	feed->page = feed_page(feed);
}

/* A commit has been applied whose result is not published yet. */
static void
cover(Feed *feed, const CommitInfo *commit)
{
	dirty = true;
	if (feed->covered > 0 && feed->commit.no == commit->no)
		return;
	if (feed->covered++ == 0)
		feed->from = commit->lsn;
	feed->commit = *commit;
}

/* A result that no commit made: the one at the cursor. */
static void
cover_now(Feed *feed)
{
	feed->covered = 0;
	if (!feed->behind)
	{
		feed->commit = position->commit;
		feed->commit.lsn = position->lsn;
	}
	feed->commit.xid = InvalidTransactionId;
	feed->commit.time = GetCurrentTimestamp();
}

static Batch *
make_reset(Feed *feed)
{
	Batch	   *batch = palloc0(sizeof(Batch));
	ResultPage	page = feed_page(feed);

	batch->nrows = page.end - page.skip;
	batch->rows = palloc_extended(sizeof(Row *) * Max(batch->nrows, 1),
								  MCXT_ALLOC_HUGE);
	for (int i = 0; i < batch->nrows; i++)
		batch->rows[i] = row_ref(window_nth(feed->window, page.skip + i));
	feed->resets++;
	return batch;
}

static Batch *
make_deltas(Feed *feed)
{
	DeltaScript *script;
	Batch	   *batch = NULL;

	if (feed->window->nremoved == 0 && feed->window->nadded == 0)
		return NULL;			/* as nearly always */
	script = delta_script(feed->window, feed->page, feed_page(feed),
						  strcmp(feed->row->ranks, "absolute") == 0);
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

/* The throttle lets the next batch through after its interval. */
static void
start_interval(Feed *feed)
{
	if (feed->row->throttle_ms > 0)
		feed->due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												feed->row->throttle_ms);
}

/*
 * The result is known as of feed->commit: queue what makes it from the one
 * known before.
 *
 * While a feed retraces what an earlier worker has done, the earlier one's
 * batches count, of which only numbers and positions are known: the same
 * results can have been published in other batches, if rows came from refills
 * at other times.
 */
static void
publish(Feed *feed)
{
	MemoryContext caller = MemoryContextSwitchTo(deliver_context());
	Batch	   *batch;

	Assert(!is_short(feed));
	dirty = true;
	if (feed->commit.lsn <= feed->published_lsn)
		feed->seq = feed->published;	/* clients have this result */
	else if (feed->covered > 1 && feed->from <= feed->published_lsn)
	{
		/* we cannot tell which one they have */
		feed->reset = true;
		feed->from = InvalidXLogRecPtr;
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
		start_interval(feed);
		feed->batches++;
		feed->last_lsn = batch->commit.lsn;
		deliver_enqueue(feed, batch);
	}
	if (feed->covered > 1 && feed->row->throttle_ms == 0)
		feed->coalesced += feed->covered - 1;
	feed->reset = false;
	feed->held = false;
	feed->covered = 0;
	settle_window(feed);
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
		feed->commit.lsn > feed->published_lsn)
	{
		feed->held = true;
		activate(feed);
	}
	else
		publish(feed);
}

/* ---- the size of the window ---- */

/*
 * What a refill that is requested now will need of the log: commits after the
 * cursor, and those before it that are still there because its snapshot may
 * miss them, however long they stay invisible.
 */
static void
note_request(Feed *feed)
{
	LoggedCommit *first = commit_log_get(log, 0);

	feed->since = feed->behind ? feed->cursor : position->commit.no;
	feed->kept = first ? Min(feed->since, first->info.no - 1) : feed->since;
}

static void
request_rows(Feed *feed)
{
	Window	   *window = feed->window;
	Row		   *low = window->end == WINDOW_BOUNDED ? window->high : NULL;

	Assert(feed->ticket == 0 && feed->answer == NULL);
	feed->refill_limit = needed_rows(feed) + feed->cushion;
	feed->refill_limit -= Min(feed->refill_limit - 1, window_size(window));
	if (has_open_ties(feed))
		feed->refill_limit = Max(feed->refill_limit, window_size(window));
	feed->refill_low = low ? row_ref(low) : NULL;
	note_request(feed);
	feed->ticket = refill_submit(pool, feed->row, feed->query_text,
								 feed->refill_limit,
								 low ? RowTuple(low) : NULL);
	feed->refills++;
	activate(feed);
}

/*
 * Have the query analysed again, once all that changed it is visible: a commit
 * is decoded before that.
 */
static void
request_check(Feed *feed)
{
	Assert(feed->ticket == 0 && feed->answer == NULL);
	while (feed->unseen != NIL &&
		   !TransactionIdIsInProgress(linitial_oid(feed->unseen)))
		feed->unseen = list_delete_first(feed->unseen);
	if (feed->unseen != NIL)
	{
		feed->retry_at =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(), READ_AGAIN_MS);
		return;
	}

	feed->recheck = false;
	feed->refill_limit = 0;
	note_request(feed);
	feed->ticket = refill_submit(pool, feed->row, feed->query_text, 0, NULL);
	activate(feed);
}

/*
 * Keep the cushion: drop rows far beyond the result, ask for more in time.  A
 * range that a refill will extend keeps its end, unless it grows too large.
 */
static void
balance(Feed *feed)
{
	Window	   *window = feed->window;
	uint64		size = window_size(window);
	uint64		needed = needed_rows(feed);
	uint64		target;
	bool		refilling = feed->ticket != 0 || feed->answer;

	if (!is_short(feed))
	{
		/* where ties end shows in a row that is none */
		needed = Max(needed, feed_page(feed).end);
		needed += feed->query->nties > 0;
	}
	target = needed + feed->cushion;
	if (size > target + feed->cushion &&
		(!refilling || size > 2 * target + 1000) && target > 0)
	{
		if (refilling && feed->refill_limit > 0)
		{
			drop_refill(feed);
			refilling = false;
		}
		if (!refilling)
			window_trim(window, target);
	}
	else if (window->end == WINDOW_BOUNDED && !refilling &&
			 size < needed + (feed->cushion + 1) / 2)
		request_rows(feed);
}

/* ---- changes ---- */

/* Start again from the table: at this commit the rows are not known. */
static void
lose_rows(Feed *feed)
{
	feed->held = false;
	drop_refill(feed);
	window_clear(feed->window);
	feed->lost = false;
}

static void
apply_change(Feed *feed, const Change *change)
{
	feed->changes++;
	if (!evaluator_accepts(feed->evaluator, change))
		feed->lost = feed->recheck = true;
	else if (!feed->lost &&
			 !evaluate_change(feed->evaluator, feed->window, change))
		feed->lost = true;

	/* one transaction can bring any number of rows */
	if (window_size(feed->window) >
		2 * ((uint64) needed_rows(feed) + feed->cushion) + 1000)
		balance(feed);
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

static void
fall_behind(Feed *feed)
{
	if (!feed->behind)
	{
		feed->behind = true;
		feed->cursor = position->commit.no;
		if (feed->covered == 0)
		{
			feed->commit = position->commit;
			feed->commit.lsn = position->lsn;
		}
	}
	activate(feed);
}

void
feed_commit(Feed *feed)
{
	if (!feed->loaded)
		return;

	cover(feed, &position->commit);
	if (feed->lost)
		lose_rows(feed);
	if (is_short(feed) || feed->recheck)
	{
		feed->held = false;
		fall_behind(feed);
	}
	else
	{
		publish_if_due(feed);
		balance(feed);
	}
}

/* At the last commit decoded; a feed that is behind gets there later. */
static void
add_event(Feed *feed, bool reload)
{
	MemoryContext caller = MemoryContextSwitchTo(feed->context);
	FeedEvent  *event = palloc(sizeof(FeedEvent));

	event->commit = position->commit;
	event->reload = reload;
	feed->events = lappend(feed->events, event);
	MemoryContextSwitchTo(caller);
}

void
feed_resync(Feed *feed)
{
	if (!feed->loaded)
		feed->reset = true;
	else if (feed->replaying && position->commit.start < feed->applied)
		return;
	else if (feed->behind)
		add_event(feed, false);
	else
	{
		feed->reset = true;
		cover(feed, &position->commit);
		publish_if_due(feed);
	}
}

void
feed_recheck(Feed *feed, bool reload)
{
	feed->recheck = true;
	if (TransactionIdIsInProgress(position->commit.xid))
	{
		MemoryContext caller = MemoryContextSwitchTo(feed->context);

		feed->unseen = lappend_oid(feed->unseen, position->commit.xid);
		MemoryContextSwitchTo(caller);
	}
	if (feed->error)
		feed->retry_at = Min(feed->retry_at,
							 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														 MIN_BACKOFF_MS));
	activate(feed);
	if (feed->refill_limit > 0)
		drop_refill(feed);		/* what it reads must not be published */
	if (!feed->loaded)
		return;

	if (reload && feed->behind)
		add_event(feed, true);
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

/* The next commit of the log that concerns the feed, or NULL. */
static LoggedCommit *
next_commit(const Feed *feed)
{
	LoggedCommit *commit;

	for (uint64 i = commit_log_after(log, feed->cursor);
		 (commit = commit_log_get(log, i)) != NULL;
		 i++)
	{
		if (commit->info.start >= feed->applied &&
			commit_log_touches(commit, feed->query->relid))
			break;
	}
	return commit;
}

/*
 * At the cursor: is there a result, and is it news?
 */
static void
recovered(Feed *feed)
{
	if (feed->error)
	{
		pfree(feed->error);
		feed->error = NULL;
		ereport(LOG,
				(errmsg("live_topn subscription \"%s\" is out of error",
						feed->row->name)));
	}
	feed->failures = 0;
}

static void
settle(Feed *feed)
{
	if (feed->window->end == WINDOW_NOTHING)
		return;

	/* from now on no change may be left out, nor be met while decoding */
	if (!feed->query->inert || is_short(feed))
		fall_behind(feed);
	if (is_short(feed))
		return;

	if (!feed->loaded)
	{
		feed->loaded = true;
		recovered(feed);
		if (feed->reset)
		{
			cover_now(feed);
			publish(feed);
		}
		else
		{
			settle_window(feed);
			deliver_announce(feed);
		}
		feed->announced = true;
		dirty = true;
	}
	else if (feed->covered > 0)
		publish_if_due(feed);
	else
		settle_window(feed);
	balance(feed);
}

/*
 * Go on to the next commit or event of the log; false if there is none.  The
 * window may be short already: what it holds stays right, and results are
 * published where they are known.
 */
static bool
step(Feed *feed)
{
	LoggedCommit *commit = next_commit(feed);
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
		commit_log_scan(log, commit, feed->query->relid, false, apply_logged,
						feed);
	feed->cursor = info->no;
	if (feed->loaded)
		cover(feed, info);
	else
		feed->commit = *info;
	if (event)
	{
		if (event->reload)
			feed->lost = true;
		else
			feed->reset = true;
		feed->events = list_delete_first(feed->events);
		pfree(event);
	}

	if (feed->lost)
		lose_rows(feed);
	feed->held = false;
	settle(feed);
	return true;
}

/* ---- answers of refill workers ---- */

/* Take over a query from text, with nothing loaded. */
static void
set_query(Feed *feed, const char *text)
{
	MemoryContext caller;

	forget_query(feed);
	resolve(feed);
	feed->query_context = AllocSetContextCreate(feed->context,
												"live_topn feed query",
												ALLOCSET_SMALL_SIZES);
	caller = MemoryContextSwitchTo(feed->query_context);
	feed->query_text = pstrdup(text);
	feed->query = query_from_text(text);
	feed->format = row_format(feed->query, feed->query_context);
	feed->evaluator = evaluator_create(feed->query, feed->format);
	feed->batch_format = batch_format(feed->query, feed->format->desc);
	feed->window = window_create(feed->format, feed->query_context);
	feed->cushion = feed->row->cushion;
	if (feed->cushion < 0)
		feed->cushion = Max(5, Min(feed->query->limit / 5, INT_MAX / 4));
	if (needed_rows(feed) == 0)
		feed->cushion = Max(feed->cushion, 1);
	feed->partitioned =
		get_rel_relkind(feed->query->relid) == RELKIND_PARTITIONED_TABLE;
	MemoryContextSwitchTo(caller);

	feed->loaded = false;
	feed->lost = false;
	feed->held = false;
	feed->covered = 0;
}

static void
retry_later(Feed *feed)
{
	int			shift = Min(feed->failures++, 16);

	feed->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 Min((int64) MIN_BACKOFF_MS << shift,
													 MAX_BACKOFF_MS));
	activate(feed);
}

/*
 * Tell clients that their list is no longer kept.  It is what it was, so
 * last_lsn stays.
 */
static void
publish_error(Feed *feed)
{
	MemoryContext caller = MemoryContextSwitchTo(deliver_context());
	Batch	   *batch = palloc0(sizeof(Batch));

	batch->seq = ++feed->seq;
	batch->commit.lsn = position->lsn;
	batch->commit.time = GetCurrentTimestamp();
	batch->error = pstrdup(feed->error);
	feed->batches++;
	deliver_enqueue(feed, batch);
	MemoryContextSwitchTo(caller);
}

/*
 * The subscription cannot go on as things are.  It is tried again, and starts
 * from the table then.
 */
void
feed_fail(Feed *feed, const char *message)
{
	if (feed->error == NULL || strcmp(feed->error, message) != 0)
	{
		if (feed->error)
			pfree(feed->error);
		feed->error = MemoryContextStrdup(feed->context, message);
		ereport(LOG,
				(errmsg("live_topn subscription \"%s\" is in error: %s",
						feed->row->name, message)));
		if (feed->announced && !feed->replaying)
			publish_error(feed);
	}
	dirty = true;
	feed->held = false;
	drop_refill(feed);
	resolve(feed);
	list_free_deep(feed->events);
	feed->events = NIL;
	feed->forget = true;
	feed->loaded = false;
	feed->lost = false;
	feed->behind = false;
	feed->recheck = false;
	feed->reset = feed->announced;
	feed->covered = 0;
	retry_later(feed);
}

/* The rows of the answer as they were read. */
static Window *
make_read(Feed *feed)
{
	RefillAnswer *answer = feed->answer;
	Window	   *read = window_create(feed->format, feed->query_context);

	if (feed->refill_low)
		read->low = row_ref(feed->refill_low);
	for (int i = 0; i < answer->nrows; i++)
		window_add(read, row_from_tuple(feed->format, answer->rows[i]));
	if (answer->nrows < feed->refill_limit)
		window_set_end(read, WINDOW_COMPLETE, NULL);
	else
		window_set_end(read, WINDOW_BOUNDED,
					   row_from_tuple(feed->format,
									  answer->rows[answer->nrows - 1]));
	window_settle(read);
	return read;
}

/* Append what was read to the window. */
static void
take_rows(Feed *feed, Window *read)
{
	Window	   *window = feed->window;
	uint32		n = window_size(read);
	Row		  **rows = palloc_extended(sizeof(Row *) * Max(n, 1),
									   MCXT_ALLOC_HUGE);
	WindowEnd	end = read->end;
	Row		   *high = read->high ? row_ref(read->high) : NULL;

	for (uint32 i = 0; i < n; i++)
		rows[i] = row_ref(window_nth(read, i));
	window_free(read);
	for (uint32 i = 0; i < n; i++)
		window_add(window, rows[i]);
	window_set_end(window, end, high);
	pfree(rows);
}

/*
 * Merge the rows that came into the window, at its cursor or at the first
 * commit after it where that can be done.
 */
static void
merge(Feed *feed)
{
	for (;;)
	{
		Window	   *window = feed->window;
		Row		   *low = window->end == WINDOW_BOUNDED ? window->high : NULL;
		Window	   *read;
		uint64		later = 0;
		ReconcileResult result;

		/* the range may have ended elsewhere since, or lost its rows */
		if (low != feed->refill_low || window->end == WINDOW_COMPLETE)
			break;

		read = make_read(feed);
		result = reconcile(feed->evaluator, read, &feed->answer->view, log,
						   window, feed->since,
						   feed->behind ? feed->cursor : position->commit.no,
						   &later);
		if (result == RECONCILED)
		{
			feed->refilled_rows += feed->answer->nrows;
			take_rows(feed, read);
			break;
		}

		window_free(read);
		if (result == RECONCILE_READ_AGAIN)
		{
			feed->retry_at =
				TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											READ_AGAIN_MS);
			break;
		}
		while (feed->cursor < later && feed->answer && step(feed))
			;
		if (feed->answer == NULL)
			return;				/* all rows were lost on the way */
	}
	drop_refill(feed);
}

static void
take_dependencies(Feed *feed, const char *text)
{
	MemoryContext caller;

	if (strcmp(feed->query_text, text) == 0)
		return;
	caller = MemoryContextSwitchTo(feed->query_context);
	query_take_dependencies(feed->query, text);
	feed->query_text = pstrdup(text);
	MemoryContextSwitchTo(caller);
}

static void
take_check(Feed *feed)
{
	if (feed->query == NULL || feed->answer->status == REFILL_CHANGED)
	{
		char	   *text = pstrdup(feed->answer->query_text);

		/* clients that knew the result before start anew */
		if (feed->query)
		{
			feed->reset = feed->announced;
			feed->behind = false;
			list_free_deep(feed->events);
			feed->events = NIL;
		}
		set_query(feed, text);
		pfree(text);
	}
	else
	{
		take_dependencies(feed, feed->answer->query_text);
		drop_refill(feed);
		if (!feed->recheck)
			settle(feed);		/* what was held back meanwhile */
	}
	if (feed->loaded)
		feed->failures = 0;
}

static void
take_failure(Feed *feed)
{
	bool		check = feed->refill_limit == 0;

	switch (feed->answer->sqlerrcode)
	{
		case ERRCODE_CONNECTION_FAILURE:
		case ERRCODE_QUERY_CANCELED:
		case ERRCODE_T_R_DEADLOCK_DETECTED:
			ereport(LOG,
					(errmsg("refill of live_topn subscription \"%s\" failed: %s",
							feed->row->name, feed->answer->error)));
			drop_refill(feed);
			feed->recheck = feed->recheck || (check && feed->query);
			retry_later(feed);
			break;
		default:
			feed_fail(feed, feed->answer->error);
	}
}

static void
take_answer(Feed *feed)
{
	if (feed->answer->status == REFILL_FAILED)
		take_failure(feed);
	else if (feed->answer->status == REFILL_CHANGED || feed->refill_limit == 0)
		take_check(feed);
	else
	{
		feed->refill_time += feed->answer->elapsed;
		merge(feed);
		settle(feed);
	}
}

void
feed_answer(RefillAnswer *answer)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		Feed	   *feed = dlist_container(Feed, active_node, iter.cur);

		if (feed->ticket == answer->ticket)
		{
			feed->ticket = 0;
			feed->answer = answer;
			return;
		}
	}
	MemoryContextDelete(answer->context);
}

/* ---- the turn of a feed ---- */

/* Is a refill worker looking at the query itself? */
static bool
is_checking(const Feed *feed)
{
	return (feed->ticket != 0 || feed->answer) && feed->refill_limit == 0;
}

/* Can the feed not go on before a refill worker has answered? */
static bool
is_blocked(const Feed *feed)
{
	return feed->query == NULL || feed->recheck || is_checking(feed) ||
		!feed->loaded || is_short(feed);
}

/* Must the answer wait for decoding, or for batches to be out? */
static bool
is_answer_early(const Feed *feed)
{
	if (feed->answer->status == REFILL_CHANGED)
		return feed->pending > 0;
	return feed->answer->status == REFILL_DONE && feed->refill_limit > 0 &&
		position->lsn < feed->answer->view.lsn;
}

static bool
can_advance(const Feed *feed)
{
	if (feed->replaying)
		return false;
	if (feed->forget)
		return feed->pending == 0;
	if (feed->answer && !is_answer_early(feed))
		return true;
	if (is_blocked(feed))
		return feed->ticket == 0 && feed->answer == NULL &&
			feed->retry_at <= GetCurrentTimestamp();
	if (feed->behind && feed->cursor < position->commit.no)
		return true;
	return feed->held && feed->due <= GetCurrentTimestamp();
}

/*
 * Go on until the feed has caught up, waits, or has had its turn.
 */
static void
advance(Feed *feed, const void *arg)
{
	for (int i = 0; i < STEPS_PER_TURN && can_advance(feed); i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (feed->forget)
			forget_query(feed);
		else if (feed->answer && !is_answer_early(feed))
			take_answer(feed);
		else if (is_blocked(feed))
		{
			if (feed->query == NULL || feed->recheck)
				request_check(feed);
			else
				request_rows(feed);
		}
		else if (feed->held && feed->due <= GetCurrentTimestamp())
			publish(feed);
		else if (!step(feed))
		{
			feed->cursor = position->commit.no;
			feed->behind = !feed->query->inert;
		}
	}
}

/*
 * Do something in a transaction, as the owner and restricted: expressions of
 * the query, and comparison functions of its types, run here.
 */
static void
run_safely(Feed *feed, void (*function) (Feed *feed, const void *arg),
		   const void *arg)
{
	MemoryContext caller = CurrentMemoryContext;

	PG_TRY();
	{
		StartTransactionCommand();
		SetUserIdAndSecContext(feed->row->owner,
							   SECURITY_RESTRICTED_OPERATION);
		catalog_apply_settings(feed->row->nsettings, feed->row->settings);
		PushActiveSnapshot(GetTransactionSnapshot());
		function(feed, arg);
		PopActiveSnapshot();
		SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, 0);
		CommitTransactionCommand();
		MemoryContextSwitchTo(caller);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(caller);
		RESUME_INTERRUPTS();
		feed_fail(feed, error->message);
		FreeErrorData(error);
	}
	PG_END_TRY();
}

bool
feed_advance_all(void)
{
	dlist_mutable_iter iter;
	bool		more = false;

	dlist_foreach_modify(iter, &active)
	{
		Feed	   *feed = dlist_container(Feed, active_node, iter.cur);

		if (can_advance(feed))
			run_safely(feed, advance, NULL);
		if (can_advance(feed))
			more = true;
		else if (!feed->behind && !feed->forget && !feed->held &&
				 feed->ticket == 0 &&
				 feed->answer == NULL && !is_blocked(feed))
			deactivate(feed);
	}
	return more;
}

/* The shorter of a time-out, -1 for none, and the time until then. */
static long
sooner(long timeout, TimestampTz now, TimestampTz then)
{
	long		left = TimestampDifferenceMilliseconds(now, then) + 1;

	return timeout < 0 ? left : Min(timeout, left);
}

long
feed_next_timeout(void)
{
	TimestampTz now = GetCurrentTimestamp();
	long		timeout = -1;
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		Feed	   *feed = dlist_container(Feed, active_node, iter.cur);

		if (feed->retry_at > now)
			timeout = sooner(timeout, now, feed->retry_at);
		if (feed->held)
			timeout = sooner(timeout, now, feed->due);
	}
	if (next_lease_end > 0)
		timeout = sooner(timeout, now, next_lease_end);
	return timeout;
}

void
feed_flush(Feed *feed)
{
	if (feed->held)
		publish(feed);
}

void
feed_flush_all(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
		feed_flush(dlist_container(Feed, active_node, iter.cur));
}

/* ---- leases ---- */

void
feed_renew(Feed *feed)
{
	if (feed->row->lease_ms == 0)
		return;
	feed->lease_end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												  feed->row->lease_ms);
	if (next_lease_end == 0 || feed->lease_end < next_lease_end)
		next_lease_end = feed->lease_end;
}

void
feed_end_leases(void)
{
	TimestampTz now = GetCurrentTimestamp();
	HASH_SEQ_STATUS status;
	Feed	   *feed;

	if (next_lease_end == 0 || now < next_lease_end)
		return;

	next_lease_end = 0;
	feed_scan(&status);
	while ((feed = feed_scan_next(&status)) != NULL)
	{
		if (feed->lease_end == 0)
			continue;
		if (feed->lease_end <= now)
		{
			/* we shall see it go in the log; if not, try again */
			refill_submit_drop(pool, feed->id);
			feed->lease_end = TimestampTzPlusMilliseconds(now,
														  DROP_RETRY_MS);
		}
		if (next_lease_end == 0 || feed->lease_end < next_lease_end)
			next_lease_end = feed->lease_end;
	}
}

/* ---- after a restart ---- */

static void
restore_window(Feed *feed, const void *arg)
{
	const SavedFeed *saved = arg;
	Row		   *high = NULL;

	set_query(feed, saved->query_text);
	for (int64 i = 0; i < saved->nrows; i++)
		window_add(feed->window,
				   row_from_tuple(feed->format, saved->rows[i]));
	if (saved->end == WINDOW_BOUNDED)
		high = row_from_tuple(feed->format, saved->high);
	window_set_end(feed->window, saved->end, high);
	settle_window(feed);
	feed->loaded = true;
	feed->applied = saved->lsn;
	feed->cursor = position->commit.no;

	/* which commits share a throttled batch is known once all is replayed */
	feed->behind = !feed->query->inert || feed->row->throttle_ms > 0;
}

void
feed_restore(Feed *feed, const SavedFeed *saved)
{
	feed->seq = feed->published = saved->seq;
	feed->last_lsn = saved->last_lsn;
	feed->published_lsn = Max(saved->lsn, saved->last_lsn);
	feed->announced = true;
	if (saved->query_text)
		run_safely(feed, restore_window, saved);
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
	start_interval(feed);
	activate(feed);
}
