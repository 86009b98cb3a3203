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
 *
 * Here feeds come, have their turns, and go.  feed_log.c applies commits and
 * publishes results, feed_refill.c keeps the window supplied with rows, and
 * feed_restart.c takes over from an earlier worker.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "feed_private.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"
#include "wakeup.h"

#define STEPS_PER_TURN		1000	/* commits of the log at a time */
#define PATIENCE_MS			2000	/* when we are to end */
#define WATCH_MS			500		/* how often to look at a query's work */
#define DROP_RETRY_MS		10000
#define MAX_BACKOFF_MS		60000

typedef struct FeedEntry
{
	int64		id;
	Feed	   *feed;
} FeedEntry;

CommitLog  *feed_commit_log;
RefillPool *feed_pool;
const LogPosition *feed_position;
bool		feed_dirty;

int			feed_evaluation_timeout_ms = 10000;

static TimeoutId watch_timeout;
static MemoryContext feed_context;
static HTAB *feeds;
static dlist_head active = DLIST_STATIC_INIT(active);
static uint64 generation = 1;
static int	unresolved;			/* feeds that wait to know their query */
static TimestampTz next_lease_end;	/* the first to look at; 0: none */

static void look_at_watch(void);

void
feed_startup(MemoryContext parent, CommitLog *commit_log,
			 RefillPool *refill_pool, const LogPosition *log_position)
{
	HASHCTL		ctl = {0};

	feed_context = AllocSetContextCreate(parent, "live_topn feeds",
										 ALLOCSET_DEFAULT_SIZES);
	feed_commit_log = commit_log;
	feed_pool = refill_pool;
	feed_position = log_position;
	ctl.keysize = sizeof(int64);
	ctl.entrysize = sizeof(FeedEntry);
	ctl.hcxt = feed_context;
	watch_timeout = RegisterTimeout(USER_TIMEOUT, look_at_watch);
	feeds = hash_create("live_topn feeds", 64, &ctl,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

void
feed_activate(Feed *feed)
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
	feed->row = catalog_copy_row(row);
	MemoryContextSetIdentifier(context, feed->row->name);
	feed->published = -1;
	feed->history = history_create();
	feed_renew(feed);
	feed->replaying = found;
	feed_dirty = true;
	if (!found)
	{
		feed->behind = true;
		feed->cursor = feed_position->commit.no;
		feed->unresolved = true;
		unresolved++;
	}
	MemoryContextSwitchTo(caller);

	entry = hash_search(feeds, &feed->id, HASH_ENTER, &exists);
	if (exists)
		elog(ERROR, "subscription " INT64_FORMAT " exists already", feed->id);
	entry->feed = feed;
	feed_activate(feed);
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

static void
resolve(Feed *feed)
{
	if (feed->unresolved)
		unresolved--;
	feed->unresolved = false;
}

/* Rows of pending batches live in the query's memory, so none may be left. */
static void
forget_query(Feed *feed)
{
	Assert(feed->pending == 0);
	generation++;
	feed_drop_refill(feed);
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

void
feed_set_query(Feed *feed, const char *text)
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
	if (feed_needed_rows(feed) == 0)
		feed->cushion = Max(feed->cushion, 1);
	if (feed->query->limit == NO_LIMIT)
		feed->cushion = 0;
	feed->partitioned =
		get_rel_relkind(feed->query->relid) == RELKIND_PARTITIONED_TABLE;
	MemoryContextSwitchTo(caller);

	feed->loaded = false;
	feed->lost = false;
	feed->held = false;
	feed->covered = 0;
}

void
feed_retry_later(Feed *feed)
{
	int			shift = Min(feed->failures++, 16);

	feed->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 Min((int64) MIN_BACKOFF_MS << shift,
													 MAX_BACKOFF_MS));
	feed_activate(feed);
}

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
			feed_publish_error(feed);
	}
	feed_dirty = true;
	feed->held = false;
	feed_drop_refill(feed);
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
	feed_retry_later(feed);
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
	feed_dirty = true;
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

/* ---- what others ask ---- */

bool
feed_any_dirty(void)
{
	return feed_dirty;
}

void
feed_clean(void)
{
	feed_dirty = false;
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
		((feed->ticket != 0 || feed->answer) && feed->refill_limit == 0))
		return false;
	return !feed->behind || feed->cursor == feed_position->commit.no;
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

/* ---- the turn of a feed ---- */

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
		!feed->loaded || feed_is_short(feed);
}

/* Must the answer wait for decoding, or for batches to be out? */
static bool
is_answer_early(const Feed *feed)
{
	if (feed->answer->status == REFILL_CHANGED)
		return feed->pending > 0;
	return feed->answer->status == REFILL_DONE && feed->refill_limit > 0 &&
		feed_position->lsn < feed->answer->view.lsn;
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
	if (feed->behind && feed->cursor < feed_position->commit.no)
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
			feed_take_answer(feed);
		else if (is_blocked(feed))
		{
			if (feed->query == NULL || feed->recheck)
				feed_request_check(feed);
			else
				feed_request_rows(feed);
		}
		else if (feed->held && feed->due <= GetCurrentTimestamp())
			feed_publish(feed);
		else if (!feed_step(feed))
		{
			feed->cursor = feed_position->commit.no;
			feed->behind = !feed->query->inert;
		}
	}
}

/*
 * While expressions of a query run: end if we are to end, and give up a feed
 * of which a single row takes too long.
 */
static void
look_at_watch(void)
{
	static uint64 seen;
	static int	looks;
	static int	late;

	looks = evaluate_progress == seen ? looks + 1 : 0;
	seen = evaluate_progress;
	late += ShutdownRequestPending;
	if (late * WATCH_MS >= PATIENCE_MS)
	{
		InterruptPending = true;
		ProcDiePending = true;
	}
	else if (feed_evaluation_timeout_ms > 0 &&
			 looks * WATCH_MS >= feed_evaluation_timeout_ms)
	{
		looks = 0;
		InterruptPending = true;
		QueryCancelPending = true;
	}
}

void
feed_run_safely(Feed *feed, void (*function) (Feed *feed, const void *arg),
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
		enable_timeout_every(watch_timeout,
							 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
														 WATCH_MS),
							 WATCH_MS);
		function(feed, arg);
		disable_timeout(watch_timeout, false);
		PopActiveSnapshot();
		SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, 0);
		CommitTransactionCommand();
		MemoryContextSwitchTo(caller);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();
		disable_timeout(watch_timeout, false);
		QueryCancelPending = false;
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
			feed_run_safely(feed, advance, NULL);
		if (can_advance(feed))
			more = true;
		else if (!feed->behind && !feed->forget && !feed->held &&
				 feed->ticket == 0 &&
				 feed->answer == NULL && !is_blocked(feed))
			deactivate(feed);
	}
	return more;
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
			timeout = timeout_until(timeout, now, feed->retry_at);
		if (feed->held)
			timeout = timeout_until(timeout, now, feed->due);
	}
	if (next_lease_end > 0)
		timeout = timeout_until(timeout, now, next_lease_end);
	return timeout;
}

static void
flush(Feed *feed, const void *arg)
{
	feed_publish(feed);
}

void
feed_flush(Feed *feed)
{
	if (feed->held)
		feed_run_safely(feed, flush, NULL);
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
			refill_submit_drop(feed_pool, feed->id);
			feed->lease_end = TimestampTzPlusMilliseconds(now,
														  DROP_RETRY_MS);
		}
		if (next_lease_end == 0 || feed->lease_end < next_lease_end)
			next_lease_end = feed->lease_end;
	}
}
