/*
 * watch.c
 *	  Tables of which changes are decoded, and whose feeds see them.
 *
 * A watch is made when a table is first seen in the log, and kept: a table
 * that nobody has subscribed to is passed over by one look at it.
 */
#include "postgres.h"

#include "catalog/partition.h"
#include "route.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "watch.h"

static MemoryContext watch_context;
static HTAB *watches;

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
watch_startup(MemoryContext parent)
{
	HASHCTL		ctl = {0};

	watch_context = AllocSetContextCreate(parent, "live_topn watches",
										  ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(Watch);
	ctl.hcxt = watch_context;
	watches = hash_create("live_topn watches", 64, &ctl,
						  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(invalidate_watches, (Datum) 0);
}

Watch *
watch_find(Oid relid)
{
	return hash_search(watches, &relid, HASH_FIND, NULL);
}

Watch *
watch_get(Oid relid)
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

void
watch_validate(Watch *watch, Relation relation)
{
	MemoryContext caller;

	if (watch->table)
		table_unref(watch->table);
	watch->table = NULL;
	list_free(watch->relids);
	watch->relids = NIL;

	caller = MemoryContextSwitchTo(watch_context);
	watch->relids = list_make1_oid(watch->relid);
	if (relation->rd_rel->relispartition)
		watch->relids = list_concat(watch->relids,
									get_partition_ancestors(watch->relid));
	MemoryContextSwitchTo(caller);
	watch->generation = 0;
	watch->valid = true;
}

void
watch_find_routes(Watch *watch)
{
	MemoryContext caller = MemoryContextSwitchTo(watch_context);
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

bool
watch_class_changed(Watch *watch)
{
	uint64		before = watch->class;

	watch->class = table_hash_class(watch->relid);
	return before == 0 || watch->class != before;
}

bool
watch_partitions_changed(Oid relid, uint64 commit_no)
{
	Watch	   *watch = watch_get(relid);
	List	   *now;

	if (watch->looked_at == commit_no)
		return watch->changed;

	now = table_partitions(relid);
	watch->changed = watch->looked_at == 0 || !equal(now, watch->partitions);
	watch->looked_at = commit_no;
	if (watch->changed)
	{
		MemoryContext caller = MemoryContextSwitchTo(watch_context);

		list_free(watch->partitions);
		watch->partitions = list_copy(now);
		MemoryContextSwitchTo(caller);
	}
	return watch->changed;
}
