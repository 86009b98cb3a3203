/*
 * route.c
 *	  Which feeds a change concerns.
 *
 * A change concerns a window that holds the old version of the row, and one
 * that the new version may enter.  Who holds a row is found by its identity
 * (holders.c), of which WAL always tells; who holds nothing, by the old
 * version as by the new one, for which it has to be whole.  A row may enter
 * where it satisfies the filter and does not sort after the boundary: shape.c
 * knows where that may be.  So the work for a change does not grow with the
 * number of feeds that it does not concern, but with the number of shapes; and
 * with that of feeds that count rows before their window, which are told of
 * every old version.
 *
 * What is found here may be too much, never too little: each feed found
 * evaluates its filter and compares whole rows.  Everything here is evaluated
 * while decoding, so it has to be inert: of other queries only that part of the
 * filter counts which is, and a feed that is found goes through the log.
 */
#include "postgres.h"

#include "route.h"
#include "utils/memutils.h"

/* An identity of the table, and who holds rows by it. */
typedef struct RouteKey
{
	dlist_node	node;			/* in Route.keys */
	int			nfeeds;
	int			nkeys;
	AttrNumber	attnums[INDEX_MAX_KEYS];	/* of the table */
	bool		typbyval[INDEX_MAX_KEYS];
	int16		typlen[INDEX_MAX_KEYS];
	Holders    *holders;
	uint32		sought;			/* hash of the row that is looked for */
} RouteKey;

bool		route_debug_check =
#ifdef USE_ASSERT_CHECKING
true;
#else
false;
#endif

static MemoryContext route_context;
static HTAB *routes;			/* by relid */
static uint64 generation = 1;
static uint64 log_generation = 1;
static MemoryContext scratch;	/* for a call of route_find */

/* what route_find has found */
static uint64 search;			/* counts them */
static Feed **found;
static int	nfound;
static int	maxfound;

void
route_startup(MemoryContext parent)
{
	HASHCTL		ctl = {0};

	route_context = AllocSetContextCreate(parent, "live_topn routes",
										  ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(Route);
	ctl.hcxt = route_context;
	routes = hash_create("live_topn routes", 64, &ctl,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	scratch = AllocSetContextCreate(parent, "live_topn row sought",
									ALLOCSET_SMALL_SIZES);
	maxfound = 64;
	found = MemoryContextAlloc(route_context, sizeof(Feed *) * maxfound);
	shape_startup(route_context);
}

Route *
route_lookup(Oid relid)
{
	return hash_search(routes, &relid, HASH_FIND, NULL);
}

uint64
route_generation(void)
{
	return generation;
}

static void
note_counter(Feed *feed, bool counts)
{
	if (counts && !feed->counter)
		dlist_push_tail(&feed->route->counters, &feed->counter_node);
	if (!counts && feed->counter)
		dlist_delete(&feed->counter_node);
	feed->counter = counts;
}

static void
note_passer(Feed *feed, bool passes)
{
	if (passes && !feed->passer)
		dlist_push_tail(&feed->route->passers, &feed->passer_node);
	if (!passes && feed->passer)
		dlist_delete(&feed->passer_node);
	feed->passer = passes;
}

void
route_refresh(Feed *feed)
{
	SpanBoundary boundary = {.end = WINDOW_COMPLETE};
	Row		   *high = NULL;
	Row		   *before = feed->boundary;

	if (feed->shape == NULL)
		return;
	note_counter(feed, feed->windows->counted);
	note_passer(feed, window_set_is_passing(feed->windows) ||
				window_set_is_partial(feed->windows) ||
				(feed->route_key && feed->windows->holders == NULL));
	if (feed->query->inert_end && feed->windows->only &&
		!window_set_is_passing(feed->windows))
	{
		boundary.end = feed->windows->only->end;
		high = feed->windows->only->high;
	}
	if (feed->boundary_end == boundary.end && before == high)
		return;

	feed->boundary_end = boundary.end;
	feed->boundary = high ? row_ref(high) : NULL;
	if (high)
	{
		boundary.datum = high->datum1;
		boundary.isnull = high->null1;
	}
	shape_move(feed, &boundary);
	if (before)
		row_unref(before);
}

/* ---- identities ---- */

static bool
is_key_of(const RouteKey *key, const TopnQuery *query)
{
	return key->nkeys == query->nkeys &&
		memcmp(key->attnums, query->key_attnums,
			   sizeof(AttrNumber) * key->nkeys) == 0;
}

static RouteKey *
find_key(Route *route, const Feed *feed)
{
	const TopnQuery *query = feed->query;
	RouteKey   *key;
	dlist_iter	iter;

	dlist_foreach(iter, &route->keys)
	{
		key = dlist_container(RouteKey, node, iter.cur);
		if (is_key_of(key, query))
			return key;
	}

	key = MemoryContextAllocZero(route->context, sizeof(RouteKey));
	key->nkeys = query->nkeys;
	for (int i = 0; i < query->nkeys; i++)
	{
		Form_pg_attribute att = TupleDescAttr(feed->format->desc,
											  query->keys[i] - 1);

		key->attnums[i] = query->key_attnums[i];
		key->typbyval[i] = att->attbyval;
		key->typlen[i] = att->attlen;
	}
	key->holders = holders_create(route->context);
	dlist_push_tail(&route->keys, &key->node);
	return key;
}

static void
join_key(Route *route, Feed *feed)
{
	feed->route_key = find_key(route, feed);
	feed->route_key->nfeeds++;
	route_take_windows(feed);
}

void
route_take_windows(Feed *feed)
{
	WindowSet  *windows = feed->windows;

	if (feed->route_key && windows->holders == NULL && !feed_passes(feed))
		window_set_watch(windows, feed->route_key->holders, feed);
}

static void
leave_key(Feed *feed)
{
	RouteKey   *key = feed->route_key;

	if (key == NULL)
		return;
	window_set_unwatch(feed->windows);
	feed->route_key = NULL;
	if (--key->nfeeds == 0)
	{
		dlist_delete(&key->node);
		holders_free(key->holders);
		pfree(key);
	}
}

/* ---- feeds come and go ---- */

void
route_join(Feed *feed)
{
	bool		exists;
	Route	   *route = hash_search(routes, &feed->query->relid, HASH_ENTER,
									&exists);

	Assert(feed->route == NULL);
	if (!exists)
	{
		dlist_init(&route->feeds);
		dlist_init(&route->loggers);
		dlist_init(&route->shapes.shapes);
		dlist_init(&route->keys);
		dlist_init(&route->counters);
		dlist_init(&route->passers);
		route->nkeyless = 0;
		route->context = AllocSetContextCreate(route_context,
											   "live_topn route",
											   ALLOCSET_DEFAULT_SIZES);
		route->shapes.context = route->context;
		generation++;
	}
	if (dlist_is_empty(&route->feeds) ||
		dlist_tail_element(Feed, route_node,
						   &route->feeds)->template != feed->template)
		memset(route->fits, 0, sizeof(route->fits));
	feed->route = route;
	dlist_push_tail(&route->feeds, &feed->route_node);
	route_note_logger(feed);
	if (!feed->query->keyless)
		join_key(route, feed);
	shape_join(&route->shapes, feed);
	route->nkeyless += feed->query->keyless;
}

void
route_leave(Feed *feed)
{
	Route	   *route = feed->route;

	if (route == NULL)
		return;
	if (feed->shape && feed->query->keyless)
		route->nkeyless--;
	note_counter(feed, false);
	note_passer(feed, false);
	shape_leave(feed);
	leave_key(feed);
	dlist_delete(&feed->route_node);
	if (feed->logger)
		dlist_delete(&feed->logger_node);
	feed->logger = false;
	feed->route = NULL;
	if (dlist_is_empty(&route->feeds))
	{
		MemoryContextDelete(route->context);
		hash_search(routes, &route->relid, HASH_REMOVE, NULL);
		generation++;
	}
}

void
route_ask_again(void)
{
	log_generation++;
}

uint64
route_log_generation(void)
{
	return log_generation;
}

void
route_note_logger(Feed *feed)
{
	if (feed->route && !feed->logger)
	{
		dlist_push_tail(&feed->route->loggers, &feed->logger_node);
		feed->logger = true;
		route_ask_again();
	}
}

bool
route_needs_log(Route *route)
{
	while (!dlist_is_empty(&route->loggers))
	{
		Feed	   *feed = dlist_head_element(Feed, logger_node,
											  &route->loggers);

		if (feed_needs_log(feed))
			return true;
		dlist_delete(&feed->logger_node);
		feed->logger = false;
	}
	return false;
}

/* ---- finding ---- */

static void
add_found(Feed *feed)
{
	if (feed->found == search)
		return;
	feed->found = search;
	if (nfound == maxfound)
	{
		maxfound *= 2;
		found = repalloc_huge(found, sizeof(Feed *) * (Size) maxfound);
	}
	found[nfound++] = feed;
}

static void
add_holder(void *owner)
{
	add_found(owner);
}

static void
add_feed_of_span(Span *span)
{
	add_found(span->feed);
}

bool
route_has_found(const Feed *feed)
{
	return feed->found == search;
}

/* Can all feeds of the table evaluate changes of that kind? */
static bool
accepts(Route *route, const Change *change)
{
	Table	   *table = change->table;
	TableFit   *fit = &route->fits[table->serial % EVALUATOR_FITS];

	if (fit->serial != table->serial)
	{
		Change		insert = {.kind = CHANGE_INSERT,.table = table};
		Change		delete = {.kind = CHANGE_DELETE,.table = table};
		dlist_iter	iter;

		fit->serial = table->serial;
		fit->types = fit->identity = true;
		dlist_foreach(iter, &route->feeds)
		{
			Feed	   *feed = dlist_container(Feed, route_node, iter.cur);

			fit->types &= evaluator_accepts(feed->evaluator, &insert);
			fit->identity &= evaluator_accepts(feed->evaluator, &delete);
		}
	}
	if (change->kind == CHANGE_UPDATE || change->kind == CHANGE_DELETE)
		return fit->identity;
	return fit->types;
}

/* Look for those that hold the old version of the row: find_holders ends it. */
static void
seek_holders(Route *route, const Change *change, TableView *view)
{
	TupleTableSlot *slot = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &route->keys)
	{
		RouteKey   *key = dlist_container(RouteKey, node, iter.cur);

		if (slot == NULL)
			slot = table_slot(change->table, view,
							  change->old ? change->old : change->new);
		key->sought = 0;
		for (int i = 0; i < key->nkeys; i++)
		{
			bool		isnull;
			Datum		value = slot_getattr(slot, key->attnums[i], &isnull);

			key->sought = row_hash_column(key->sought, value, isnull,
										  key->typbyval[i], key->typlen[i]);
		}
		holders_prefetch(key->holders, key->sought);
	}
}

static void
find_holders(Route *route)
{
	dlist_iter	iter;

	dlist_foreach(iter, &route->keys)
	{
		RouteKey   *key = dlist_container(RouteKey, node, iter.cur);

		holders_find(key->holders, key->sought, add_holder);
	}
}

/* Columns whose values WAL lacks, offset as by pull_varattnos. */
static Bitmapset *
find_missing(TupleTableSlot *slot)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	Bitmapset  *missing = NULL;

	slot_getallattrs(slot);
	for (int i = 0; i < desc->natts; i++)
		if (value_is_missing(TupleDescAttr(desc, i), slot->tts_values[i],
							 slot->tts_isnull[i]))
			missing = bms_add_member(missing, i + 1 -
									 FirstLowInvalidHeapAttributeNumber);
	return missing;
}

/* Look for those whose windows a row may enter, or may be in. */
static void
seek_by_values(Route *route, const Change *change, TableView *view,
			   HeapTuple tuple)
{
	TupleTableSlot *slot = table_slot(change->table, view, tuple);

	shape_seek(&route->shapes, slot,
			   HeapTupleHasExternal(tuple) ? find_missing(slot) : NULL);
}

static void
find_all(Route *route)
{
	dlist_iter	iter;

	dlist_foreach(iter, &route->feeds)
		add_found(dlist_container(Feed, route_node, iter.cur));
}

/* Those that have to be told of old versions of rows that they don't hold. */
static void
find_listeners(Route *route, const Change *change)
{
	dlist_iter	iter;

	dlist_foreach(iter, &route->counters)
		add_found(dlist_container(Feed, counter_node, iter.cur));
	if (!change_has_old(change))
		dlist_foreach(iter, &route->passers)
			add_found(dlist_container(Feed, passer_node, iter.cur));
}

/* All that is sought first waits for memory together. */
static void
find_concerned(Route *route, const Change *change)
{
	TableView  *view = table_view(change->table, route->relid);
	bool		by_values = !dlist_is_empty(&route->shapes.shapes);

	if (change->kind != CHANGE_INSERT)
	{
		seek_holders(route, change, view);
		find_listeners(route, change);
	}
	if (by_values && change->old && !change->old_is_key &&
		(route->nkeyless > 0 || !dlist_is_empty(&route->passers)))
	{
		seek_by_values(route, change, view, change->old);
		shape_find(&route->shapes, add_feed_of_span);
	}
	if (by_values && change->new)
		seek_by_values(route, change, view, change_fill_new(change));
	if (change->kind != CHANGE_INSERT)
		find_holders(route);
	if (by_values && change->new)
		shape_find(&route->shapes, add_feed_of_span);
}

int
route_find(Route *route, const Change *change, Feed ***feeds)
{
	search++;
	nfound = 0;
	if (change->kind == CHANGE_TRUNCATE || change->kind == CHANGE_REWRITE ||
		!accepts(route, change))
		find_all(route);
	else
	{
		MemoryContext caller;

		MemoryContextReset(scratch);
		caller = MemoryContextSwitchTo(scratch);
		find_concerned(route, change);
		MemoryContextSwitchTo(caller);
	}
	*feeds = found;
	return nfound;
}
