/*
 * feed.c
 *	  One subscription in the database worker: windows that follow the log.
 *
 * The windows of a feed are exact at its cursor: at the last commit decoded,
 * or, if the feed is behind, at a commit of the log.  A feed falls behind when
 * its window runs short of rows, when its query cannot be evaluated while
 * decoding, and when a catalog change makes us look at the query again; it
 * then goes through the log commit by commit.
 *
 * What is published is always the difference between two exact results.
 * Where a result stays unknown because an old version is (see reconcile.c),
 * the commits in between share one batch.
 *
 * Here feeds come and go.  feed_turn.c gives them their turns, feed_log.c
 * applies commits and publishes results, feed_refill.c and
 * feed_merge.c keep the window supplied with rows, feed_bound.c in its bounds, feed_restart.c takes over from an earlier worker,
 * feed_watch.c gives up expressions that take too long, and feed_lease.c ends
 * subscriptions.
 */
#include "postgres.h"

#include "feed_private.h"
#include "intern.h"
#include "route.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#define FEED_BLOCK_SIZE			(2 * 1024)	/* usually all that it takes */
#define MAX_BACKOFF_MS		60000
#define MAX_GROUP_CUSHION	10

typedef struct FeedEntry
{
	int64		id;
	Feed	   *feed;
} FeedEntry;

CommitLog  *feed_commit_log;
RefillPool *feed_pool;
const LogPosition *feed_position;
bool		feed_dirty;

static MemoryContext feed_context;
static HTAB *feeds;
static int	unresolved;			/* feeds that wait to know their query */
static dlist_head unknown = DLIST_STATIC_INIT(unknown);

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
	intern_startup(feed_context);
	feed_turn_startup();
	feed_watch_startup(feed_context);
	feed_lease_startup();
	template_startup(feed_context);
	feeds = hash_create("live_topn feeds", 64, &ctl,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

bool
feed_must_hold_rows(const Feed *feed)
{
	/* of a query that is not known yet, groups may have bounds */
	return feed->limit == 0 ||
		(feed->query ? feed->query->bound != InvalidAttrNumber :
		 feed->row->grouped);
}

static void
set_page(Feed *feed, int64 offset, int64 limit)
{
	int			cushion = feed->row->cushion;

	feed->offset = offset;
	feed->limit = limit;
	if (cushion < 0 && feed->row->grouped)
		cushion = Max(1, Min(limit / 5, MAX_GROUP_CUSHION));
	if (cushion == 0 && feed_must_hold_rows(feed))
		cushion = 1;
	cushion_set(&feed->cushion, limit == NO_LIMIT ? 0 : cushion);
	if (feed->cushion.tight)
		cushion_tighten(&feed->cushion, feed_must_hold_rows(feed));
}

void
feed_move_page(Feed *feed, int64 offset, int64 limit)
{
	uint64		position = 0;
	Window	   *window;

	set_page(feed, offset, limit);
	if (feed->windows == NULL)
		return;
	while ((window = window_set_next(feed->windows, &position)) != NULL)
		window_touch(window, window_key(window));
	if (feed_page_is_far(feed))
		feed->lost = true;
}

void
feed_leave_unresolved(Feed *feed)
{
	if (!feed->unresolved)
		unresolved++;
	feed->unresolved = true;
}

Feed *
feed_create(const SubscriptionRow *row, bool found)
{
	MemoryContext context = AllocSetContextCreate(feed_context,
												  "live_topn feed",
												  0, FEED_BLOCK_SIZE,
												  ALLOCSET_SMALL_MAXSIZE);
	MemoryContext caller = MemoryContextSwitchTo(context);
	Feed	   *feed = palloc0(sizeof(Feed));
	FeedEntry  *entry;
	bool		exists;

	feed->id = row->id;
	feed->context = context;
	feed->row = catalog_keep_row(row);
	MemoryContextSetIdentifier(context, feed->row->name);
	set_page(feed, row->offset, row->limit);
	feed->published = -1;
	feed->history = history_create();
	feed_start_lease(feed, found ? GetCurrentTimestamp() :
					 feed_position->commit.time);
	feed->replaying = found;
	feed_dirty = true;
	if (!found)
	{
		feed->behind = true;
		feed->cursor = feed_position->commit.no;
		feed_leave_unresolved(feed);
	}
	MemoryContextSwitchTo(caller);

	entry = hash_search(feeds, &feed->id, HASH_ENTER, &exists);
	if (exists)
		elog(ERROR, "subscription " INT64_FORMAT " exists already", feed->id);
	entry->feed = feed;
	dlist_push_tail(&unknown, &feed->template_node);
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

dlist_head *
feed_list_unknown(void)
{
	return &unknown;
}

/* List it with those of its template; or, if NULL, the unknown ones. */
static void
list_with(Feed *feed, Template *template)
{
	if (feed->dropped)
		return;
	dlist_delete(&feed->template_node);
	dlist_push_tail(template ? &template->feeds : &unknown,
					&feed->template_node);
}

void
feed_forget_query(Feed *feed)
{
	Assert(feed->pending == 0);
	route_leave(feed);
	feed_drop_refill(feed);
	cushion_release(&feed->cushion);
	list_with(feed, NULL);
	if (feed->template)
	{
		if (feed->windows && feed->template->shared)
			window_set_free(feed->windows);
		template_free_params(feed->template, feed->params);
		template_release(feed->template);
	}
	feed->template = NULL;
	feed->params = NULL;
	feed->query = NULL;
	feed->format = NULL;
	feed->evaluator = NULL;
	feed->batch_format = NULL;
	feed->windows = NULL;
	feed->forget = false;
}

void
feed_drop_events(Feed *feed)
{
	list_free_deep(feed->events);
	feed->events = NIL;
	feed->behind = false;
	set_page(feed, feed->row->offset, feed->row->limit);
}

void
feed_set_query(Feed *feed, const char *text)
{
	MemoryContext caller;
	Template   *template;

	feed_forget_query(feed);
	resolve(feed);
	caller = MemoryContextSwitchTo(feed->context);
	template = template_acquire(feed->row, text, &feed->params);
	MemoryContextSwitchTo(caller);
	feed->template = template;
	list_with(feed, template);
	feed->query = template->query;
	feed->format = template->format;
	feed->evaluator = template->evaluator;
	feed->batch_format = template->batch_format;
	feed->windows = window_set_create(feed->format, feed->params,
									  template->rows);
	set_page(feed, feed->offset, feed->limit);	/* the cushion */
	route_join(feed);

	feed->full = false;
	feed->full_at = 0;
	feed->unsliced = false;
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
feed_forget_error(Feed *feed)
{
	if (feed->error)
		pfree(feed->error);
	if (feed->hint)
		pfree(feed->hint);
	feed->error = feed->hint = NULL;
}

void
feed_fail(Feed *feed, int sqlerrcode, const char *message, const char *hint)
{
	if (feed->error == NULL || strcmp(feed->error, message) != 0)
	{
		feed_forget_error(feed);
		feed->error = MemoryContextStrdup(feed->context, message);
		if (hint)
			feed->hint = MemoryContextStrdup(feed->context, hint);
		ereport(LOG,
				(errcode(sqlerrcode),
				 errmsg("live_topn subscription \"%s\" is in error: %s",
						feed->row->name, message),
				 hint ? errhint("%s", hint) : 0));
		if (feed->announced && !feed->replaying)
			feed_publish_error(feed);
	}
	feed_dirty = true;
	feed->held = false;
	feed_drop_refill(feed);
	resolve(feed);
	route_leave(feed);
	feed_drop_events(feed);
	feed->forget = true;
	list_with(feed, NULL);
	feed->loaded = false;
	feed->lost = false;
	feed->recheck = false;
	feed->reset = feed->announced;
	feed->covered = 0;
	feed_retry_later(feed);
}

static void
free_feed(Feed *feed)
{
	feed_forget_query(feed);
	history_free(feed->history);
	catalog_release_row(feed->row);
	MemoryContextDelete(feed->context);
}

void
feed_drop(Feed *feed)
{
	hash_search(feeds, &feed->id, HASH_REMOVE, NULL);
	feed_rest(feed);
	feed_stop_lease(feed);
	route_leave(feed);
	resolve(feed);
	dlist_delete(&feed->template_node);
	feed->dropped = true;
	feed_dirty = true;
	if (feed->pending == 0)
		free_feed(feed);
}

void
feed_delivered(Feed *feed)
{
	feed->pending--;
	if (feed->pending > 0)
		return;
	if (feed->dropped)
		free_feed(feed);
	else if (feed->active)
		feed_activate(feed);	/* it may have waited for that */
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

XLogRecPtr
feed_exact_lsn(const Feed *feed)
{
	XLogRecPtr	lsn = feed_position->lsn;

	if (feed->behind)
	{
		LoggedCommit commit;

		if (commit_log_next(feed_commit_log, feed->cursor, InvalidOid,
							&commit))
			lsn = commit.info.start;
		if (feed->events)
			lsn = Min(lsn, ((FeedEvent *) linitial(feed->events))->commit.start);
	}
	return lsn;
}

XLogRecPtr
feed_restart_lsn(const Feed *feed)
{
	XLogRecPtr	lsn = feed_exact_lsn(feed);
	LoggedCommit commit;

	if (feed_needs_log(feed) &&
		commit_log_next(feed_commit_log, feed_floor(feed), InvalidOid,
						&commit))
		lsn = Min(lsn, commit.info.start);
	return lsn;
}

RefillProgress
feed_refill_progress(const Feed *feed)
{
	return refill_progress(feed_pool, feed->ticket);
}

bool
feed_has_applied(const Feed *feed)
{
	return feed->loaded && feed_position->commit.start < feed->applied;
}

bool
feed_is_checking(const Feed *feed)
{
	return (feed->ticket != 0 || feed->answer) && feed->nreads == 0;
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
	/* what was committed since may have ended the error */
	if (feed->error)
		return (!feed->recheck ||
				feed->barred_until > GetCurrentTimestamp()) &&
			(feed->forget || feed->query == NULL) &&
			feed->ticket == 0 && feed->answer == NULL;
	if (feed->replaying || !feed->loaded ||
		(feed->covered > 0 && !feed->held) || feed->recheck ||
		feed_is_checking(feed))
		return false;
	return !feed->behind || feed->cursor == feed_position->commit.no;
}
