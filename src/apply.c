/*
 * apply.c
 *	  Decoded changes to the feeds that they concern.
 *
 * For each table of which changes are decoded there is a watch: whose feeds
 * are concerned, and its description for the commit log.  Changes go straight
 * to the feeds that are at the end of the log; they go to the commit log if
 * some feed is not, or if the transaction is still in the ProcArray, so that a
 * snapshot taken later could miss it.
 */
#include "postgres.h"

#include "access/xact.h"
#include "apply.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "deliver.h"
#include "invalidation.h"
#include "message.h"
#include "meter.h"
#include "postmaster/interrupt.h"
#include "route.h"
#include "storage/ipc.h"
#include "storage/procarray.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

/* In a large commit, after so many evaluations look whether we should end. */
#define WORK_PER_LOOK		100000

/* After so many bytes look again whether a commit is visible. */
#define VISIBILITY_CHECK_BYTES	(64 * 1024)

typedef struct Watch
{
	Oid			relid;
	bool		valid;			/* relids and table are as of now */
	List	   *relids;			/* the table and its ancestors */
	Table	   *table;			/* NULL until a change is to be applied */
	uint64		generation;		/* of routes */
	List	   *routes;			/* those of relids that have feeds */
	uint64		asked;			/* in that commit, whether ... */
	bool		needs_log;		/* ... some feed needs its changes logged */
	uint64		class;			/* see class_changed; 0: not known */

	/* of a partitioned table, see partitions_changed */
	List	   *partitions;		/* as of that commit */
	uint64		looked_at;		/* commit; 0: never */
	bool		changed;		/* by that commit */
} Watch;

/* A change of the table of subscriptions; without rows, a truncation. */
typedef struct CatalogChange
{
	SubscriptionRow *old;
	SubscriptionRow *new;
	bool		move;			/* nothing but the page is another */
	bool		seen;			/* by our read of the table */
} CatalogChange;

static MemoryContext apply_context;
static HTAB *watches;
static CommitLog *commit_log;
static LogPosition position;
static uint64 changes;

static Oid	catalog_table;
static ReadView catalog_view;
static bool catalog_invalidated;
static bool roles_changed;

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
static List *commit_catalog;	/* of CatalogChange */
static List *commit_rewritten;	/* OIDs of tables */
static List *commit_resyncs;	/* of int64 * */
static List *commit_renewals;	/* likewise */
static List *commit_published;	/* of numbers of messages, as text */

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

/*
 * Syscache callback: roles, or who is a member of which.  In the commits that
 * we decode we see that too, but not where it was done in another database.
 */
static void
note_roles(Datum arg, int cacheid, uint32 hashvalue)
{
	roles_changed = true;
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
	commit_log = commit_log_create(apply_context);
	route_startup(apply_context);
	feed_startup(parent, commit_log, pool, &position);
	CacheRegisterRelcacheCallback(invalidate_watches, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHOID, note_roles, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, note_roles, (Datum) 0);
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

void
apply_started(void)
{
	roles_changed = false;
}

void
apply_recheck_roles(void)
{
	dlist_iter	iter;

	if (!roles_changed)
		return;
	roles_changed = false;
	dlist_foreach(iter, &feed_all)
		feed_recheck(dlist_container(Feed, node, iter.cur), false);
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

/* The tables whose feeds see the changes: itself, and ancestors of it. */
static void
find_routes(Watch *watch)
{
	MemoryContext caller = MemoryContextSwitchTo(apply_context);
	ListCell   *lc;

	list_free(watch->routes);
	watch->routes = NIL;
	foreach(lc, watch->relids)
	{
		Route	   *route = route_lookup(lfirst_oid(lc));

		if (route)
			watch->routes = lappend(watch->routes, route);
	}
	watch->generation = route_generation();
	MemoryContextSwitchTo(caller);
}

static Watch *
get_watch(Oid relid)
{
	static Watch *last;
	Watch	   *watch = last;
	bool		found = true;

	if (watch == NULL || watch->relid != relid)
		watch = hash_search(watches, &relid, HASH_ENTER, &found);
	if (!found)
		memset(watch, 0, sizeof(Watch));
	watch->relid = relid;
	last = watch;
	return watch;
}

static Watch *
find_watch(Relation relation)
{
	Oid			relid = RelationGetRelid(relation);
	Watch	   *watch = get_watch(relid);

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
	if (watch->generation != route_generation())
		find_routes(watch);
	if (watch->asked != commits_begun)
	{
		ListCell   *lc;

		if (watch->class == 0 && watch->routes != NIL)
			commit_watch = watch;

		/* while a commit is decoded feeds do not begin to need it */
		watch->asked = commits_begun;
		watch->needs_log = feed_any_unresolved();
		foreach(lc, watch->routes)
			watch->needs_log |= route_needs_log(lfirst(lc));
	}
	return watch;
}

static void
begin_commit(TransactionId xid, XLogRecPtr start)
{
	MemoryContextReset(commit_context);
	commits_begun++;
	commit_feeds = commit_catalog = commit_resyncs = commit_published = NIL;
	commit_rewritten = commit_renewals = NIL;
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

/* What the commit has done to a subscription so far, or NULL. */
static CatalogChange *
find_catalog_change(int64 id)
{
	ListCell   *lc;

	foreach(lc, commit_catalog)
	{
		CatalogChange *change = lfirst(lc);

		if (change->new && change->new->id == id)
			return change;
	}
	return NULL;
}

/*
 * A subscription is made, changed or dropped.  What our read of the table has
 * seen was there already; only feeds that are restored to an earlier time
 * have to move again.
 */
static void
note_catalog_change(const Change *change)
{
	MemoryContext caller;
	TupleDesc	desc = change->table->desc;
	bool		seen = !XLogRecPtrIsInvalid(catalog_view.lsn) &&
	!XidInMVCCSnapshot(commit_xid, &catalog_view.snapshot);
	CatalogChange *noted;
	CatalogChange *before = NULL;
	HeapTuple	new;

	if (seen && change->kind != CHANGE_UPDATE)
		return;
	caller = MemoryContextSwitchTo(commit_context);
	noted = palloc0(sizeof(CatalogChange));
	new = change_fill_new(change);
	noted->seen = seen;
	noted->move = change->old && new &&
		catalog_is_move(change->old, new, desc);
	if (change->old)
		noted->old = catalog_row(change->old, desc);
	if (new)
		noted->new = catalog_row(new, desc);

	/* a commit may move it more than once, and may have made it, too */
	if (noted->move)
		before = find_catalog_change(noted->new->id);
	if (before)
		before->new = noted->new;
	else if (noted->move || !seen)
		commit_catalog = lappend(commit_catalog, noted);
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
	MemoryContext caller;
	Relation	relation;

	if (list_member_oid(commit_rewritten, relid))
		return;
	caller = MemoryContextSwitchTo(commit_context);
	commit_rewritten = lappend_oid(commit_rewritten, relid);
	MemoryContextSwitchTo(caller);

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
			feed->lost || commit_start < feed->applied)
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
			feeds[i]->work_time += METER_RATE * meter_elapsed(start);
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
		!watch->needs_log && !commit_invisible)
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
		if (kind != CHANGE_REWRITE)
			note_catalog_change(&change);
		return;
	}

	foreach(lc, watch->routes)
		route_change(lfirst(lc), &change);
	if (watch->needs_log || commit_invisible)
		log_change(&change, watch->needs_log);
}

static bool
is_requested(const List *requests, int64 id)
{
	ListCell   *lc;

	foreach(lc, requests)
		if (*(int64 *) lfirst(lc) == id)
			return true;
	return false;
}

/* Once in a commit is enough. */
static void
note_request(List **requests, int64 id)
{
	MemoryContext caller;
	int64	   *number;

	if (is_requested(*requests, id))
		return;
	caller = MemoryContextSwitchTo(commit_context);
	number = palloc(sizeof(int64));
	*number = id;
	*requests = lappend(*requests, number);
	MemoryContextSwitchTo(caller);
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
			note_request(data[0] == MESSAGE_RESYNC ? &commit_resyncs :
						 &commit_renewals, id);
	}
	MemoryContextSwitchTo(caller);
}

static void
apply_catalog_change(const CatalogChange *change)
{
	Subscriber *subscriber = change->old ?
		subscriber_find(change->old->id) : NULL;
	int64		seq = 0;
	bool		announced = false;

	if (change->move)
		return;
	if (change->old == NULL && change->new == NULL)
	{
		HASH_SEQ_STATUS status;

		subscriber_scan(&status);
		while ((subscriber = subscriber_scan_next(&status)) != NULL)
			subscriber_drop(subscriber);	/* which a scan allows for the
											 * current one */
	}
	if (subscriber)
	{
		seq = subscriber->seq;
		announced = subscriber->announced;
		subscriber_drop(subscriber);
	}
	if (change->new)
	{
		subscriber = subscriber_create(change->new, false);
		subscriber->seq = seq;
		subscriber->announced = announced;
		subscriber->reset = announced ||
			is_requested(commit_resyncs, subscriber->id);
	}
}

/* ---- changes of the system catalogs ---- */

static void
find_ancestors(Invalidation *invalidation)
{
	ListCell   *lc;

	foreach(lc, invalidation->relids)
	{
		Oid			relid = lfirst_oid(lc);
		Watch	   *watch = hash_search(watches, &relid, HASH_FIND, NULL);

		invalidation->ancestors =
			list_concat_unique_oid(invalidation->ancestors,
								   get_partition_ancestors(relid));
		if (watch)
			invalidation->ancestors =
				list_concat_unique_oid(invalidation->ancestors,
									   watch->relids);
	}
}

/*
 * Have other tables become partitions of a partitioned table, or is it not
 * known?  That brings and takes rows without a change of any.
 */
static bool
partitions_changed(Oid relid)
{
	Watch	   *watch = get_watch(relid);
	List	   *now;

	if (watch->looked_at == position.commit.no)
		return watch->changed;

	now = table_partitions(relid);
	watch->changed = watch->looked_at == 0 || !equal(now, watch->partitions);
	watch->looked_at = position.commit.no;
	if (watch->changed)
	{
		MemoryContext caller = MemoryContextSwitchTo(apply_context);

		list_free(watch->partitions);
		watch->partitions = list_copy(now);
		MemoryContextSwitchTo(caller);
	}
	return watch->changed;
}

/* Is the row of pg_class another than after the commit that was last asked? */
static bool
class_changed(Watch *watch)
{
	uint64		before = watch->class;

	watch->class = table_hash_class(watch->relid);
	return before == 0 || watch->class != before;
}

/*
 * VACUUM, ANALYZE and TRUNCATE change nothing that a query could mean
 * something else by.
 */
static void
leave_out_unchanged(Invalidation *invalidation)
{
	ListCell   *lc;

	foreach(lc, invalidation->relids)
	{
		Oid			relid = lfirst_oid(lc);
		Watch	   *watch = hash_search(watches, &relid, HASH_FIND, NULL);
		uint32		hash = GetSysCacheHashValue1(RELOID,
												 ObjectIdGetDatum(relid));

		if (watch && !class_changed(watch) && !invalidation->more &&
			list_member_int(invalidation->classes, hash))
			invalidation->relids = foreach_delete_current(invalidation->relids,
														  lc);
	}
}

/* The feeds of a template, if it is concerned. */
static void
recheck_template(Template *template, const Invalidation *invalidation)
{
	const TopnQuery *query = template->query;
	bool		table = invalidation_concerns_table(invalidation, query);
	bool		labels = false;
	dlist_iter	iter;
	dlist_iter	subscribers;

	/*
	 * A label was renamed: values that clients know look otherwise now, and
	 * the query may name a label that is no more.
	 */
	if (invalidation->label_names > invalidation->labels)
		labels = query->enums || query->functions;

	if (!table && !labels && !invalidation->names &&
		!invalidation_concerns_query(invalidation, query))
		return;
	dlist_foreach(iter, &template->feeds)
	{
		Feed	   *feed = dlist_container(Feed, template_node, iter.cur);

		if (feed_has_applied(feed))
			continue;
		feed_recheck(feed, table && template->partitioned &&
					 partitions_changed(query->relid));
		if (labels && query->enums)
			dlist_foreach(subscribers, &feed->subscribers)
				note_request(&commit_resyncs,
							 dlist_container(Subscriber, node,
											 subscribers.cur)->id);
	}
}

/*
 * Has a partition come or gone, of whatever table?  Partitioned tables change
 * with theirs.
 */
static bool
concerns_partitions(const Invalidation *invalidation)
{
	ListCell   *lc;

	foreach(lc, invalidation->relids)
		if (get_rel_relkind(lfirst_oid(lc)) == RELKIND_PARTITIONED_TABLE)
			return true;
	return invalidation->tables;
}

static void
recheck_feeds(int n, const SharedInvalidationMessage *messages)
{
	MemoryContext caller = MemoryContextSwitchTo(commit_context);
	Invalidation invalidation = {0};
	bool		partitions;
	dlist_iter	iter;

	for (int i = 0; i < n; i++)
		invalidation_note(&invalidation, &messages[i]);
	if (list_member_oid(invalidation.relids, catalog_table))
		catalog_invalidated = true;
	leave_out_unchanged(&invalidation);
	find_ancestors(&invalidation);

	dlist_foreach(iter, template_list())
		recheck_template(dlist_container(Template, node, iter.cur),
						 &invalidation);
	partitions = !dlist_is_empty(feed_list_unknown()) &&
		concerns_partitions(&invalidation);
	dlist_foreach(iter, feed_list_unknown())
	{
		Feed	   *feed = dlist_container(Feed, template_node, iter.cur);

		if (feed_has_applied(feed))
			continue;
		if (invalidation.names ||
			(feed->error && invalidation_concerns_error(&invalidation)))
			feed_recheck(feed, partitions);
		else if (partitions)
			feed_reload_later(feed);
	}
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
		recheck_feeds(ninvalidations, invalidations);
	else if (commit_watch)
		(void) class_changed(commit_watch);

	/* all that the commit does to a feed makes one batch */
	foreach(lc, commit_catalog)
	{
		CatalogChange *change = lfirst(lc);
		Subscriber *subscriber = change->move ?
			subscriber_find(change->new->id) : NULL;

		if (subscriber && feed_move(subscriber, change->new->offset,
									change->new->limit, change->seen))
			touch(subscriber->feed);
	}
	foreach(lc, commit_resyncs)
	{
		Subscriber *subscriber = subscriber_find(*(int64 *) lfirst(lc));

		if (subscriber && feed_resync(subscriber))
			touch(subscriber->feed);
	}
	foreach(lc, commit_feeds)
	{
		Feed	   *feed = lfirst(lc);
		instr_time	start;

		INSTR_TIME_SET_CURRENT(start);
		feed->touched = false;
		feed_commit(feed);
		route_refresh(feed);
		feed->work_time += meter_elapsed(start);
	}
	foreach(lc, commit_catalog)
		apply_catalog_change(lfirst(lc));
	foreach(lc, commit_renewals)
	{
		Subscriber *subscriber = subscriber_find(*(int64 *) lfirst(lc));

		if (subscriber)
			feed_renew(subscriber, time);
	}
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
