/*
 * apply.c
 *	  Decoded changes to the feeds that they concern.
 *
 * For each table of which changes are decoded there is a watch: which feeds
 * it has, and its description for the commit log.  Changes go straight to
 * the feeds that are at the end of the log; they go to the commit log if some
 * feed is not, or if the transaction is still in the ProcArray, so that a
 * snapshot taken later could miss it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply.h"
#include "catalog/partition.h"
#include "lib/stringinfo.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/procarray.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "worker.h"

/* In a large commit, look so often whether we should end. */
#define CHANGES_PER_LOOK	100000

/* After so many bytes look again whether a commit is visible. */
#define VISIBILITY_CHECK_BYTES	(64 * 1024)

typedef struct Watch
{
	Oid			relid;
	bool		valid;			/* relids and table are as of now */
	List	   *relids;			/* the table and its ancestors */
	Table	   *table;			/* NULL until a change is to be applied */
	uint64		generation;		/* of feeds */
	List	   *feeds;
} Watch;

/* A change of the table of subscriptions. */
typedef struct CatalogChange
{
	SubscriptionRow *old;
	SubscriptionRow *new;
} CatalogChange;

static MemoryContext apply_context;
static HTAB *watches;
static CommitLog *log;
static LogPosition position;
static uint64 changes;

static Oid	catalog_table;
static ReadView catalog_view;
static bool catalog_invalidated;

/* the commit that is being decoded */
static MemoryContext commit_context;
static TransactionId commit_xid;
static XLogRecPtr commit_start;
static uint64 commit_changes;
static bool commit_invisible;	/* a snapshot taken now could miss it */
static bool commit_logged;		/* some feed needs what has been logged */
static Size commit_checked;		/* bytes logged when visibility was checked */
static List *commit_feeds;		/* touched */
static List *commit_catalog;	/* of CatalogChange */
static List *commit_resyncs;	/* of int64 * */
static List *commit_published;	/* of int64[2]: id, seq */

/*
 * Relcache callback: a table, or all of them, may have changed.  It may be in
 * use, so it is only marked.
 */
static void
invalidate_watches(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS status;
	Watch	   *watch;

	hash_seq_init(&status, watches);
	while ((watch = hash_seq_search(&status)) != NULL)
		if (relid == InvalidOid || list_member_oid(watch->relids, relid))
			watch->valid = false;
}

void
apply_startup(MemoryContext parent, RefillPool *pool)
{
	HASHCTL		ctl = {0};

	apply_context = AllocSetContextCreate(parent, "live_topn apply",
										  ALLOCSET_DEFAULT_SIZES);
	commit_context = AllocSetContextCreate(apply_context, "live_topn commit",
										   ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(Watch);
	ctl.hcxt = apply_context;
	watches = hash_create("live_topn watches", 64, &ctl,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	log = commit_log_create(apply_context);
	feed_startup(parent, log, pool, &position);
	CacheRegisterRelcacheCallback(invalidate_watches, (Datum) 0);
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
	return log;
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
	StartTransactionCommand();
	gone = catalog_relid() != catalog_table;
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	InvalidateSystemCaches();
	catalog_invalidated = gone;
	return gone;
}

/* The feeds of a table, or of an ancestor of it. */
static void
find_feeds(Watch *watch)
{
	MemoryContext caller = MemoryContextSwitchTo(apply_context);
	HASH_SEQ_STATUS status;
	Feed	   *feed;

	list_free(watch->feeds);
	watch->feeds = NIL;
	feed_scan(&status);
	while ((feed = feed_scan_next(&status)) != NULL)
		if (feed->query && !feed->forget &&
			list_member_oid(watch->relids, feed->query->relid))
			watch->feeds = lappend(watch->feeds, feed);
	watch->generation = feed_generation();
	MemoryContextSwitchTo(caller);
}

static Watch *
find_watch(Relation relation)
{
	static Watch *last;
	Oid			relid = RelationGetRelid(relation);
	Watch	   *watch = last;
	bool		found = true;

	if (watch == NULL || watch->relid != relid)
		watch = hash_search(watches, &relid, HASH_ENTER, &found);
	if (!found)
		memset(watch, 0, sizeof(Watch));
	watch->relid = relid;
	last = watch;

	if (!watch->valid)
	{
		MemoryContext caller;

		if (watch->table)
			table_unref(watch->table);
		watch->table = NULL;
		list_free(watch->relids);
		watch->relids = NIL;

		caller = MemoryContextSwitchTo(apply_context);
		watch->relids = list_make1_oid(relid);
		if (relation->rd_rel->relispartition)
			watch->relids = list_concat(watch->relids,
										get_partition_ancestors(relid));
		MemoryContextSwitchTo(caller);
		watch->generation = 0;
		watch->valid = true;
	}
	if (watch->generation != feed_generation())
		find_feeds(watch);
	return watch;
}

static void
begin_commit(TransactionId xid, XLogRecPtr start)
{
	MemoryContextReset(commit_context);
	commit_feeds = commit_catalog = commit_resyncs = commit_published = NIL;
	commit_xid = xid;
	commit_start = start;
	commit_changes = 0;
	commit_invisible = TransactionIdIsInProgress(xid);
	commit_logged = false;
	commit_checked = 0;
	commit_log_begin(log);
}

/* A subscription is made, changed or dropped. */
static void
note_catalog_change(Relation relation, HeapTuple old, HeapTuple new)
{
	MemoryContext caller;
	CatalogChange *change;

	if (!XLogRecPtrIsInvalid(catalog_view.lsn) &&
		!XidInMVCCSnapshot(commit_xid, &catalog_view.snapshot))
		return;					/* was there when we read the table */

	caller = MemoryContextSwitchTo(commit_context);
	change = palloc0(sizeof(CatalogChange));
	if (old)
		change->old = catalog_row(old, RelationGetDescr(relation));
	if (new)
		change->new = catalog_row(new, RelationGetDescr(relation));
	commit_catalog = lappend(commit_catalog, change);
	MemoryContextSwitchTo(caller);
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
		commit_log_open_bytes(log) > commit_checked + VISIBILITY_CHECK_BYTES)
	{
		commit_checked = commit_log_open_bytes(log);
		if (!TransactionIdIsInProgress(commit_xid))
		{
			commit_invisible = false;
			commit_log_drop(log);
			commit_log_begin(log);
			return;
		}
	}
	commit_log_append(log, change);
}

static void
apply_change(Relation relation, ChangeKind kind, HeapTuple old, HeapTuple new)
{
	Watch	   *watch = find_watch(relation);
	bool		unresolved = feed_any_unresolved();
	bool		needed = unresolved;
	Change		change;
	ListCell   *lc;

	changes++;
	if (++commit_changes % CHANGES_PER_LOOK == 0 && ShutdownRequestPending)
		proc_exit(0);			/* we will see this commit again */
	if (watch->relid == catalog_table)
	{
		if (kind == CHANGE_TRUNCATE)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s.%s\" was truncated",
							CATALOG_SCHEMA, CATALOG_TABLE)));
		note_catalog_change(relation, old, new);
		return;
	}
	if (watch->feeds == NIL && !unresolved && !commit_invisible)
		return;

	if (watch->table == NULL)
		watch->table = table_describe(relation, apply_context);
	change.kind = kind;
	change.table = watch->table;
	change.old = old;
	change.old_is_key = relation->rd_rel->relreplident != REPLICA_IDENTITY_FULL;
	change.new = new;

	foreach(lc, watch->feeds)
	{
		Feed	   *feed = lfirst(lc);

		needed |= feed_needs_log(feed);
		if (feed_change(feed, &change, commit_start) && !feed->touched)
		{
			MemoryContext caller = MemoryContextSwitchTo(commit_context);

			feed->touched = true;
			commit_feeds = lappend(commit_feeds, feed);
			MemoryContextSwitchTo(caller);
		}
	}
	if (needed || commit_invisible)
		log_change(&change, needed);
}

static void
note_message(const char *prefix, const char *data, Size size)
{
	StringInfoData message;
	MemoryContext caller;
	char		kind;

	if (strcmp(prefix, MESSAGE_PREFIX) != 0 || size == 0)
		return;
	message.data = unconstify(char *, data);
	message.len = message.maxlen = size;
	message.cursor = 0;
	kind = pq_getmsgbyte(&message);

	caller = MemoryContextSwitchTo(commit_context);
	while (message.len - message.cursor >= sizeof(int64))
	{
		int64	   *numbers = palloc0(2 * sizeof(int64));

		numbers[0] = pq_getmsgint64(&message);
		if (kind == MESSAGE_RESYNC)
			commit_resyncs = lappend(commit_resyncs, numbers);
		else if (kind == MESSAGE_PUBLISHED &&
				 message.len - message.cursor >= sizeof(int64))
		{
			numbers[1] = pq_getmsgint64(&message);
			commit_published = lappend(commit_published, numbers);
		}
	}
	MemoryContextSwitchTo(caller);
}

static void
apply_catalog_change(const CatalogChange *change)
{
	Feed	   *feed = change->old ? feed_find(change->old->id) : NULL;
	int64		seq = 0;

	if (feed)
	{
		seq = feed->seq;
		feed_drop(feed);
	}
	if (change->new)
		feed_create(change->new, change->old != NULL)->seq = seq;
}

/* Catalog changes of this commit under the queries of feeds. */
static void
apply_invalidation(const SharedInvalidationMessage *message)
{
	HASH_SEQ_STATUS status;
	Feed	   *feed;

	if (message->id == SHAREDINVALRELCACHE_ID)
	{
		Oid			relid = message->rc.relId;
		Watch	   *watch = hash_search(watches, &relid, HASH_FIND, NULL);
		List	   *relids = watch ? watch->relids : NIL;

		if (relid == catalog_table && OidIsValid(relid))
			catalog_invalidated = true;
		feed_scan(&status);
		while ((feed = feed_scan_next(&status)) != NULL)
			if (relid == InvalidOid || feed->error ||
				(feed->query && (feed->query->relid == relid ||
								 list_member_oid(relids, feed->query->relid))))
				feed_recheck(feed);
	}
	else if (message->id == PROCOID || message->id == AUTHMEMROLEMEM ||
			 message->id == AUTHMEMMEMROLE || message->id == AUTHOID)
	{
		feed_scan(&status);
		while ((feed = feed_scan_next(&status)) != NULL)
			if (message->id != PROCOID || feed->error ||
				(feed->query && !feed->query->inert))
				feed_recheck(feed);
	}
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
	commit_log_finish(log, &position.commit);
	if (position.lsn >= catalog_view.lsn)
		catalog_view.lsn = InvalidXLogRecPtr;

	foreach(lc, commit_feeds)
	{
		Feed	   *feed = lfirst(lc);

		feed->touched = false;
		feed_commit(feed);
	}
	foreach(lc, commit_catalog)
		apply_catalog_change(lfirst(lc));
	foreach(lc, commit_resyncs)
	{
		Feed	   *feed = feed_find(*(int64 *) lfirst(lc));

		if (feed)
			feed_resync(feed);
	}
	foreach(lc, commit_published)
	{
		int64	   *numbers = lfirst(lc);
		Feed	   *feed = feed_find(numbers[0]);

		if (feed)
			feed_was_published(feed, numbers[1]);
	}
	for (int i = 0; i < ninvalidations; i++)
		apply_invalidation(&invalidations[i]);
}

const DecoderOps apply_ops = {
	.begin = begin_commit,
	.change = apply_change,
	.message = note_message,
	.commit = commit,
};

static uint64
floor_of_feeds(void)
{
	HASH_SEQ_STATUS status;
	Feed	   *feed;
	uint64		floor = position.commit.no;

	feed_scan(&status);
	while ((feed = feed_scan_next(&status)) != NULL)
		floor = Min(floor, feed_floor(feed));
	return floor;
}

void
apply_trim_log(void)
{
	if (commit_log_entries(log) > 0)
		commit_log_trim(log, floor_of_feeds());
}

XLogRecPtr
apply_restart_lsn(void)
{
	LoggedCommit *first = commit_log_get(log, 0);

	return first ? first->info.start : position.lsn;
}
