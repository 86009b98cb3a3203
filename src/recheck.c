/*
 * recheck.c
 *	  Feeds whose queries are looked at again, for the catalogs have changed.
 *
 * The invalidation messages of a commit say what it may have changed of the
 * system catalogs.  A query that is concerned may mean something else now, or
 * nothing: refill workers analyse it, and no result is published meanwhile.
 */
#include "postgres.h"

#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "invalidation.h"
#include "recheck.h"
#include "subscriber_changes.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "watch.h"

#define MAX_ROLES	64			/* that we remember */

static const LogPosition *position;

/* Of roles that have changed, hash values of AUTHOID; or any have. */
static uint32 changed_roles[MAX_ROLES];
static int	nchanged_roles;
static bool members_changed;

/*
 * Syscache callback: roles, or who is a member of which.  In the commits that
 * we decode we see that too, but not where it was done in another database.
 */
static void
note_roles(Datum arg, int cacheid, uint32 hashvalue)
{
	if (cacheid == AUTHOID && hashvalue != 0 && nchanged_roles < MAX_ROLES)
		changed_roles[nchanged_roles++] = hashvalue;
	else
		members_changed = true;
}

void
recheck_startup(const LogPosition *log_position)
{
	position = log_position;
	CacheRegisterSyscacheCallback(AUTHOID, note_roles, (Datum) 0);
	CacheRegisterSyscacheCallback(AUTHMEMROLEMEM, note_roles, (Datum) 0);
}

void
recheck_forget_roles(void)
{
	nchanged_roles = 0;
	members_changed = false;
}

static void
find_ancestors(Invalidation *invalidation)
{
	ListCell   *lc;

	foreach(lc, invalidation->relids)
	{
		Oid			relid = lfirst_oid(lc);
		Watch	   *watch = watch_find(relid);

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
		Watch	   *watch = watch_find(relid);
		uint32		hash = GetSysCacheHashValue1(RELOID,
												 ObjectIdGetDatum(relid));

		if (watch && !watch_class_changed(watch) && !invalidation->more &&
			list_member_int(invalidation->classes, hash))
			invalidation->relids = foreach_delete_current(invalidation->relids,
														  lc);
	}
}

/* Is a restored feed already further than the commit? */
static bool
has_seen(const Feed *feed, const Invalidation *invalidation)
{
	return !invalidation->live && feed_has_applied(feed);
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

	if (!table && !labels &&
		!invalidation_concerns_query(invalidation, query))
		return;
	dlist_foreach(iter, &template->feeds)
	{
		Feed	   *feed = dlist_container(Feed, template_node, iter.cur);

		if (has_seen(feed, invalidation))
			continue;
		feed_recheck(feed, table && template->partitioned &&
					 watch_partitions_changed(query->relid,
											  position->commit.no));
		if (labels && query->enums)
			dlist_foreach(subscribers, &feed->subscribers)
				subscriber_changes_note_resync(dlist_container(Subscriber,
															   node,
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
recheck(const Invalidation *invalidation)
{
	bool		error = invalidation_concerns_error(invalidation);
	bool		partitions;
	dlist_iter	iter;

	feed_catalog_changes++;
	dlist_foreach(iter, template_list())
		recheck_template(dlist_container(Template, node, iter.cur),
						 invalidation);
	partitions = !dlist_is_empty(feed_list_unknown()) &&
		concerns_partitions(invalidation);
	dlist_foreach(iter, feed_list_unknown())
	{
		Feed	   *feed = dlist_container(Feed, template_node, iter.cur);

		if (has_seen(feed, invalidation))
			continue;
		if (feed->error && error)
			feed_recheck(feed, partitions);
		else if (partitions)
			feed_reload_later(feed);
	}
}

void
recheck_feeds(int n, const SharedInvalidationMessage *messages)
{
	Invalidation invalidation = {0};

	for (int i = 0; i < n; i++)
		invalidation_note(&invalidation, &messages[i]);
	leave_out_unchanged(&invalidation);
	find_ancestors(&invalidation);
	recheck(&invalidation);
}

void
recheck_roles(void)
{
	Invalidation invalidation = {.live = true,.members = members_changed};

	for (int i = 0; i < nchanged_roles; i++)
		invalidation.names = lappend_int(invalidation.names,
										 changed_roles[i]);
	recheck_forget_roles();
	if (invalidation_has_names(&invalidation))
		recheck(&invalidation);
	list_free(invalidation.names);
}
