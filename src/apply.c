/*
 * apply.c
 *	  Decoded changes to the feeds that they concern.
 *
 * Changes go straight to the feeds that are at the end of the log; they go to
 * the commit log if some feed is not, or if the transaction is still in the
 * ProcArray, so that a snapshot taken later could miss it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply.h"
#include "deliver.h"
#include "message.h"
#include "meter.h"
#include "postmaster/interrupt.h"
#include "recheck.h"
#include "route.h"
#include "storage/ipc.h"
#include "storage/procarray.h"
#include "subscriber_changes.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "watch.h"

/* In a large commit, after so many evaluations look whether we should end. */
#define WORK_PER_LOOK		100000

/* After so many bytes look again whether a commit is visible. */
#define VISIBILITY_CHECK_BYTES	(64 * 1024)

static MemoryContext apply_context;
static CommitLog *commit_log;
static LogPosition position;
static uint64 changes;

static Oid	catalog_table;
static ReadView catalog_view;
static bool catalog_invalidated;

/* the commit that is being decoded */
static MemoryContext commit_context;
static uint64 commits_begun;
static TransactionId commit_xid;
static XLogRecPtr commit_start;
static uint64 commit_work;		/* since we looked whether we should end */
static bool commit_invisible;	/* a snapshot taken now could miss it */
static bool commit_logged;		/* some feed needs what has been logged */
static Size commit_checked;		/* bytes logged when visibility was checked */
static Watch *commit_watch;		/* of a table of which class is not known */
static List *commit_feeds;		/* touched */
static List *commit_published;	/* of numbers of messages, as text */

void
apply_startup(MemoryContext parent, RefillPool *pool)
{
	apply_context = AllocSetContextCreate(parent, "live_topn apply",
										  ALLOCSET_DEFAULT_SIZES);
	commit_context = AllocSetContextCreate(apply_context, "live_topn commit",
										   ALLOCSET_DEFAULT_SIZES);
	watch_startup(apply_context);
	commit_log = commit_log_create(apply_context);
	route_startup(apply_context);
	feed_startup(parent, commit_log, pool, &position);
	recheck_startup(&position);
}

void
apply_set_catalog(Oid relid, const ReadView *view)
{
	MemoryContext caller = MemoryContextSwitchTo(apply_context);
	Size		size = sizeof(TransactionId) * view->snapshot.xcnt;

	catalog_table = relid;
	catalog_view = *view;
	catalog_view.snapshot.xip = palloc(Max(size, 1));
	memcpy(catalog_view.snapshot.xip, view->snapshot.xip, size);
	MemoryContextSwitchTo(caller);
}

LogPosition *
apply_position(void)
{
	return &position;
}

CommitLog *
apply_log(void)
{
	return commit_log;
}

uint64
apply_changes(void)
{
	return changes;
}

bool
apply_catalog_is_gone(void)
{
	MemoryContext caller = CurrentMemoryContext;
	bool		gone;

	/* dropping the table invalidates it, but VACUUM does, too */
	if (!catalog_invalidated)
		return false;
	InvalidateSystemCaches();
	StartTransactionCommand();
	gone = catalog_relid() != catalog_table;
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	InvalidateSystemCaches();
	catalog_invalidated = gone;
	return gone;
}

static Watch *
find_watch(Relation relation)
{
	Watch	   *watch = watch_get(RelationGetRelid(relation));

	if (!watch->valid)
		watch_validate(watch, relation);
	if (watch->generation != route_generation())
		watch_find_routes(watch);
	if (watch->class == 0 && watch->routes != NIL)
		commit_watch = watch;
	return watch;
}

/* Does some feed need the changes of a table logged? */
static bool
needs_log(Watch *watch)
{
	ListCell   *lc;

	if (watch->asked == route_log_generation())
		return watch->needs_log;
	watch->asked = route_log_generation();
	watch->needs_log = feed_any_unresolved();
	foreach(lc, watch->routes)
		watch->needs_log |= route_needs_log(lfirst(lc));
	return watch->needs_log;
}

static void
begin_commit(TransactionId xid, XLogRecPtr start)
{
	MemoryContextReset(commit_context);
	commits_begun++;
	route_ask_again();
	subscriber_changes_begin(commit_context);
	commit_feeds = commit_published = NIL;
	commit_watch = NULL;
	commit_xid = xid;
	commit_start = start;
	commit_work = 0;
	commit_invisible = TransactionIdIsInProgress(xid);
	commit_logged = false;
	commit_checked = 0;
	commit_log_begin(commit_log);
}

/* The commit concerns the feed. */
static void
touch(Feed *feed)
{
	MemoryContext caller;

	if (feed->touched)
		return;
	caller = MemoryContextSwitchTo(commit_context);
	feed->touched = true;
	commit_feeds = lappend(commit_feeds, feed);
	MemoryContextSwitchTo(caller);
}

static void
note_catalog_change(const Change *change)
{
	bool		seen = !XLogRecPtrIsInvalid(catalog_view.lsn) &&
	!XidInMVCCSnapshot(commit_xid, &catalog_view.snapshot);

	if (change->kind != CHANGE_REWRITE)
		subscriber_changes_note(change, seen);
}

/*
 * Log a change.  A large commit that is logged for nothing but its being
 * invisible is looked at from time to time.
 */
static void
log_change(const Change *change, bool needed)
{
	commit_logged |= needed;
	if (!commit_logged &&
		commit_log_open_bytes(commit_log) > commit_checked + VISIBILITY_CHECK_BYTES)
	{
		commit_checked = commit_log_open_bytes(commit_log);
		if (!TransactionIdIsInProgress(commit_xid))
		{
			commit_invisible = false;
			commit_log_drop(commit_log);
			commit_log_begin(commit_log);
			return;
		}
	}
	commit_log_append(commit_log, change);
}

static void apply_change(Relation relation, ChangeKind kind, HeapTuple old,
						 HeapTuple new);

/*
 * ALTER TABLE rewrites a table: its rows are inserted into another one that
 * takes its place.  For us that is a single change, which says that rows may
 * have any values now.  (VACUUM FULL and CLUSTER, which keep the values, are
 * not decoded.)
 */
static void
note_rewrite(Oid relid)
{
	Watch	   *watch = watch_get(relid);
	Relation	relation;

	if (watch->rewritten == commits_begun)
		return;
	watch->rewritten = commits_begun;
	relation = RelationIdGetRelation(relid);
	if (RelationIsValid(relation))
	{
		apply_change(relation, CHANGE_REWRITE, NULL, NULL);
		RelationClose(relation);
	}
}

/*
 * For tests: of the feeds that were not found to be concerned by a change, is
 * there none that is?
 */
static void
check_routing(Route *route, const Change *change)
{
	dlist_iter	iter;

	dlist_foreach(iter, &route->feeds)
	{
		Feed	   *feed = dlist_container(Feed, route_node, iter.cur);

		if (route_has_found(feed) || feed->behind || !feed->loaded ||
			feed->lost || !feed->query->inert || commit_start < feed->applied)
			continue;
		if (evaluate_concerns(feed->evaluator, feed->windows, change))
			elog(ERROR, "subscription \"%s\" was not told of a change",
				 feed_first(feed)->row->name);
	}
}

/* Tell the feeds of a table that a change concerns. */
static void
route_change(Route *route, const Change *change)
{
	Feed	  **feeds;
	int			n = route_find(route, change, &feeds);

	if (route_debug_check)
		check_routing(route, change);
	commit_work += n;
	for (int i = 0; i < n; i++)
	{
		bool		timed = meter_samples();
		instr_time	start;

		if (timed)
			INSTR_TIME_SET_CURRENT(start);
		if (feed_change(feeds[i], change, commit_start))
			touch(feeds[i]);
		route_refresh(feeds[i]);
		if (timed)
			feeds[i]->counters.work_time += METER_RATE * meter_elapsed(start);
	}
}

/* A large commit, or one that concerns many, takes a while: are we to end? */
static void
look_whether_to_end(void)
{
	if (++commit_work < WORK_PER_LOOK)
		return;
	commit_work = 0;
	if (ShutdownRequestPending)
		proc_exit(0);			/* we will see this commit again */
}

static void
apply_change(Relation relation, ChangeKind kind, HeapTuple old, HeapTuple new)
{
	Watch	   *watch;
	Change		change;
	bool		needed;
	ListCell   *lc;

	changes++;
	if (OidIsValid(relation->rd_rel->relrewrite))
	{
		note_rewrite(relation->rd_rel->relrewrite);
		return;
	}
	look_whether_to_end();
	watch = find_watch(relation);
	if (watch->relid != catalog_table && watch->routes == NIL &&
		!commit_invisible && !needs_log(watch))
		return;

	if (watch->table == NULL)
		watch->table = table_describe(relation, apply_context);
	change.kind = kind;
	change.table = watch->table;
	change.old = old;
	change.old_is_key = relation->rd_rel->relreplident != REPLICA_IDENTITY_FULL;
	change.new = new;
	if (watch->relid == catalog_table)
	{
		note_catalog_change(&change);
		return;
	}

	foreach(lc, watch->routes)
		route_change(lfirst(lc), &change);
	needed = needs_log(watch);
	if (needed || commit_invisible)
		log_change(&change, needed);
}

static void
note_message(const char *prefix, const char *data, Size size)
{
	MemoryContext caller;
	const char *numbers;
	int64		id;

	if (size == 0 || (data[0] != MESSAGE_RESYNC && data[0] != MESSAGE_RENEW &&
					  data[0] != MESSAGE_PUBLISHED))
		return;

	caller = MemoryContextSwitchTo(commit_context);
	numbers = message_numbers(prefix, data, size);
	if (numbers && data[0] == MESSAGE_PUBLISHED)
		commit_published = lappend(commit_published, (void *) numbers);
	else if (numbers)
	{
		while (message_number(&numbers, &id))
			if (data[0] == MESSAGE_RESYNC)
				subscriber_changes_note_resync(id);
			else
				subscriber_changes_note_renewal(id);
	}
	MemoryContextSwitchTo(caller);
}

static void
note_invalidations(int n, const SharedInvalidationMessage *messages)
{
	MemoryContext caller = MemoryContextSwitchTo(commit_context);

	for (int i = 0; i < n; i++)
		if (messages[i].id == SHAREDINVALRELCACHE_ID &&
			messages[i].rc.relId == catalog_table)
			catalog_invalidated = true;
	recheck_feeds(n, messages);
	MemoryContextSwitchTo(caller);
}

static void
commit(TransactionId xid, XLogRecPtr start, XLogRecPtr end, TimestampTz time,
	   int ninvalidations, const SharedInvalidationMessage *invalidations)
{
	ListCell   *lc;

	position.commit.no++;
	position.commit.xid = xid;
	position.commit.start = start;
	position.commit.lsn = end;
	position.commit.time = time;
	position.lsn = end;
	commit_log_finish(commit_log, &position.commit);
	if (position.lsn >= catalog_view.lsn)
		catalog_view.lsn = InvalidXLogRecPtr;

	/* what may mean something else now is not published before we know */
	if (ninvalidations > 0)
		note_invalidations(ninvalidations, invalidations);
	else if (commit_watch)
		(void) watch_class_changed(commit_watch);

	/* all that the commit does to a feed makes one batch */
	subscriber_changes_apply_pages(touch);
	foreach(lc, commit_feeds)
	{
		Feed	   *feed = lfirst(lc);
		instr_time	start;

		INSTR_TIME_SET_CURRENT(start);
		feed->touched = false;
		feed_commit(feed);
		route_refresh(feed);
		feed->counters.work_time += meter_elapsed(start);
	}
	subscriber_changes_apply(time);
	foreach(lc, commit_published)
		feed_note_published(lfirst(lc));
	if (commit_published != NIL)
		deliver_forget_published();
}

const DecoderOps apply_ops = {
	.begin = begin_commit,
	.change = apply_change,
	.message = note_message,
	.commit = commit,
};

void
apply_trim_log(void)
{
	if (commit_log_entries(commit_log) > 0)
		commit_log_trim(commit_log, feed_floor_of_all());
}

XLogRecPtr
apply_restart_lsn(void)
{
	XLogRecPtr	start = commit_log_start(commit_log);
	XLogRecPtr	lsn = feed_exact_lsn_of_all();

	return XLogRecPtrIsInvalid(start) ? lsn : Min(start, lsn);
}
