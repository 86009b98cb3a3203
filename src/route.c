/*
 * route.c
 *	  Which feeds a change concerns.
 *
 * A change concerns a window that holds the old version of the row, and one
 * that the new version may enter.  Who holds a row is found by its identity
 * (holders.c), of which WAL always tells; who holds nothing, by the old
 * version as by the new one, for which it has to be whole.  A row may enter
 * where it satisfies the filter and does not sort after the boundary.  Feeds
 * whose filters can be looked up by the same expressions (predicate.c) and
 * which sort by the same leading column have a shape in common: a hash table
 * by the value that is to be equal, of trees by the range and the boundary
 * (span.c).  So the work for a change does not grow with the number of feeds
 * that it does not concern, but with the number of shapes; and with that of
 * feeds that count rows before their window, which are told of every old
 * version.
 *
 * What is found here may be too much, never too little: each feed found
 * evaluates its filter and compares whole rows.  Everything here is evaluated
 * while decoding, so only inert queries have a shape.  Others follow the log.
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "executor/executor.h"
#include "optimizer/optimizer.h"
#include "predicate.h"
#include "route.h"
#include "utils/datum.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

/* An expression over the rows of the table. */
typedef struct Operand
{
	Expr	   *expr;			/* NULL: none */
	ExprState  *state;
	Bitmapset  *columns;		/* offset as by pull_varattnos */
} Operand;

/*
 * The spans of the feeds that want one value, by its hash; and the last of
 * their boundaries, so that most rows need no look at the spans.
 */
typedef struct ValueEntry
{
	uint32		hash;
	char		status;
	Span	   *root;
	SpanBoundary last;
} ValueEntry;

#define SH_PREFIX values
#define SH_ELEMENT_TYPE ValueEntry
#define SH_KEY_TYPE uint32
#define SH_KEY hash
#define SH_HASH_KEY(tb, key) key
#define SH_EQUAL(tb, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

/* How feeds are looked up. */
typedef struct Shape
{
	dlist_node	node;			/* in Route.shapes */
	MemoryContext context;		/* holds all of this */
	int			nfeeds;
	Predicate	predicate;		/* expressions and operators; no values */
	SortKey		sort_key;
	Operand		equal;
	FmgrInfo	hash_row;		/* of the expression's value */
	FmgrInfo	hash_value;		/* of a constant */
	Operand		range;
	Operand		sort;
	FormData_pg_attribute sort_column;
	SortSupportData sort_support;
	SpanOrder	order;
	values_hash *by_value;		/* if equal has an expression, else ... */
	Span	   *root;
} Shape;

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
static ExprContext *econtext;

/* what route_find has found */
static uint64 search;			/* counts them */
static Feed **found;
static int	nfound;
static int	maxfound;

void
route_startup(MemoryContext parent)
{
	HASHCTL		ctl = {0};
	MemoryContext caller;

	route_context = AllocSetContextCreate(parent, "live_topn routes",
										  ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(Route);
	ctl.hcxt = route_context;
	routes = hash_create("live_topn routes", 64, &ctl,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	caller = MemoryContextSwitchTo(route_context);
	econtext = CreateStandaloneExprContext();
	maxfound = 64;
	found = palloc(sizeof(Feed *) * maxfound);
	MemoryContextSwitchTo(caller);
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

/* ---- shapes ---- */

static Expr *
leading_expr(const TopnQuery *query)
{
	TargetEntry *column = list_nth_node(TargetEntry, query->targetlist,
										query->sort[0].attno - 1);

	return column->expr;
}

static bool
is_of_shape(const Shape *shape, const Predicate *predicate,
			const TopnQuery *query)
{
	const Predicate *mine = &shape->predicate;
	const SortKey *sort = &query->sort[0];

	return equal(mine->equal_expr, predicate->equal_expr) &&
		mine->equal_operator == predicate->equal_operator &&
		mine->equal_collation == predicate->equal_collation &&
		equal(mine->range_expr, predicate->range_expr) &&
		mine->range_family == predicate->range_family &&
		mine->range_type == predicate->range_type &&
		mine->limit_type == predicate->limit_type &&
		mine->range_collation == predicate->range_collation &&
		shape->sort_key.sortop == sort->sortop &&
		shape->sort_key.collation == sort->collation &&
		shape->sort_key.nulls_first == sort->nulls_first &&
		equal(shape->sort.expr, leading_expr(query));
}

/* In CurrentMemoryContext, for as long. */
static void
make_operand(Operand *operand, Expr *expr)
{
	if (expr == NULL)
		return;
	operand->expr = copyObject(expr);
	operand->state = ExecInitExpr(operand->expr, NULL);
	pull_varattnos((Node *) operand->expr, 1, &operand->columns);
}

static void
make_order(Shape *shape, const RowFormat *format)
{
	const Predicate *predicate = &shape->predicate;
	SpanOrder  *order = &shape->order;
	Oid			family = predicate->range_family;

	shape->sort_column = *TupleDescAttr(format->desc,
										shape->sort_key.attno - 1);
	row_prepare_sort(&shape->sort_support, &shape->sort_key,
					 &shape->sort_column);
	order->sort = &shape->sort_support;
	order->ranges = predicate->range_expr != NULL;
	if (!order->ranges)
		return;
	order->collation = predicate->range_collation;
	fmgr_info(get_opfamily_proc(family, predicate->range_type,
								predicate->limit_type, BTORDER_PROC),
			  &order->compare_x);
	fmgr_info(get_opfamily_proc(family, predicate->limit_type,
								predicate->limit_type, BTORDER_PROC),
			  &order->compare_limits);
}

static Shape *
make_shape(Route *route, const Predicate *predicate, const Feed *feed)
{
	MemoryContext context = AllocSetContextCreate(route->context,
												  "live_topn shape",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	Shape	   *shape = palloc0(sizeof(Shape));

	shape->context = context;
	shape->predicate = *predicate;
	shape->sort_key = feed->query->sort[0];
	make_operand(&shape->equal, predicate->equal_expr);
	make_operand(&shape->range, predicate->range_expr);
	make_operand(&shape->sort, leading_expr(feed->query));
	shape->predicate.equal_expr = shape->equal.expr;
	shape->predicate.range_expr = shape->range.expr;
	if (shape->equal.expr)
	{
		Oid			row,
					value;

		if (!get_op_hash_functions(predicate->equal_operator, &row, &value))
			elog(ERROR, "could not find hash functions of operator %u",
				 predicate->equal_operator);
		fmgr_info(row, &shape->hash_row);
		fmgr_info(value, &shape->hash_value);
		shape->by_value = values_create(context, 16, NULL);
	}
	make_order(shape, feed->format);
	MemoryContextSwitchTo(caller);
	dlist_push_tail(&route->shapes, &shape->node);
	return shape;
}

static Shape *
find_shape(Route *route, const Predicate *predicate, const Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, &route->shapes)
	{
		Shape	   *shape = dlist_container(Shape, node, iter.cur);

		if (is_of_shape(shape, predicate, feed->query))
			return shape;
	}
	return make_shape(route, predicate, feed);
}

/* Where the tree of a span begins. */
static Span **
span_root(Shape *shape, const Span *span)
{
	if (shape->by_value == NULL)
		return &shape->root;
	return &values_lookup(shape->by_value, span->hash)->root;
}

/* The tree of the span has changed, or one of its boundaries. */
static void
note_last_boundary(Shape *shape, const Span *span)
{
	ValueEntry *entry;

	if (shape->by_value == NULL)
		return;
	entry = values_lookup(shape->by_value, span->hash);
	if (entry->root == NULL)
		values_delete(shape->by_value, span->hash);
	else
		entry->last = entry->root->top_boundary->boundary;
}

static int
compare_hashes(const void *a, const void *b)
{
	uint32		x = *(const uint32 *) a;
	uint32		y = *(const uint32 *) b;

	return (x > y) - (x < y);
}

/* The hashes of the values, each once; returns their number. */
static int
hash_values(Shape *shape, const Predicate *predicate, uint32 *hashes)
{
	int			n = 0;

	for (int i = 0; i < predicate->nvalues; i++)
		hashes[i] =
			DatumGetUInt32(FunctionCall1Coll(&shape->hash_value,
											 predicate->equal_collation,
											 predicate->values[i]));
	qsort(hashes, predicate->nvalues, sizeof(uint32), compare_hashes);
	for (int i = 0; i < predicate->nvalues; i++)
		if (i == 0 || hashes[i] != hashes[n - 1])
			hashes[n++] = hashes[i];
	return n;
}

static Datum
copy_limit(const Shape *shape, bool has_limit, Datum limit)
{
	const Predicate *predicate = &shape->predicate;

	return has_limit ? datumCopy(limit, predicate->limit_byval,
								 predicate->limit_len) : (Datum) 0;
}

/* A span in a tree of the shape; filled in before. */
static void
add_span(Shape *shape, Span *span)
{
	if (shape->by_value)
	{
		bool		exists;
		ValueEntry *entry = values_insert(shape->by_value, span->hash,
										  &exists);

		if (!exists)
			entry->root = NULL;
	}
	span_insert(&shape->order, span_root(shape, span), span);
	note_last_boundary(shape, span);
}

static void
remove_span(Shape *shape, Span *span)
{
	span_delete(&shape->order, span_root(shape, span), span);
	note_last_boundary(shape, span);
}

static void
join_shape(Route *route, Feed *feed)
{
	MemoryContext scratch = econtext->ecxt_per_tuple_memory;
	MemoryContext caller = MemoryContextSwitchTo(scratch);
	Predicate  *predicate;
	Shape	   *shape;
	uint32	   *hashes;

	ResetExprContext(econtext);
	predicate = predicate_of(template_query(feed->template, feed->params));
	shape = find_shape(route, predicate, feed);
	hashes = palloc(sizeof(uint32) * Max(predicate->nvalues, 1));
	feed->nspans = 1;
	if (shape->by_value)
		feed->nspans = hash_values(shape, predicate, hashes);

	MemoryContextSwitchTo(shape->context);
	feed->spans = palloc0_array(Span, Max(feed->nspans, 1));
	feed->shape = shape;
	shape->nfeeds++;
	for (int i = 0; i < feed->nspans; i++)
	{
		Span	   *span = &feed->spans[i];

		span->feed = feed;
		span->hash = shape->by_value ? hashes[i] : 0;
		span->has_low = predicate->has_low;
		span->has_high = predicate->has_high;
		span->low = copy_limit(shape, span->has_low, predicate->low);
		span->high = copy_limit(shape, span->has_high, predicate->high);
		add_span(shape, span);
	}
	MemoryContextSwitchTo(caller);
}

static void
free_limit(const Shape *shape, bool has_limit, Datum limit)
{
	if (has_limit && !shape->predicate.limit_byval)
		pfree(DatumGetPointer(limit));
}

static void
leave_shape(Feed *feed)
{
	Shape	   *shape = feed->shape;

	if (shape == NULL)
		return;
	for (int i = 0; i < feed->nspans; i++)
	{
		Span	   *span = &feed->spans[i];

		remove_span(shape, span);
		free_limit(shape, span->has_low, span->low);
		free_limit(shape, span->has_high, span->high);
	}
	pfree(feed->spans);
	if (feed->boundary)
		row_unref(feed->boundary);
	feed->boundary = NULL;
	feed->boundary_end = WINDOW_NOTHING;
	feed->spans = NULL;
	feed->shape = NULL;
	if (--shape->nfeeds == 0)
	{
		dlist_delete(&shape->node);
		MemoryContextDelete(shape->context);
	}
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
	if (feed->windows->only && !window_set_is_passing(feed->windows))
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
	for (int i = 0; i < feed->nspans; i++)
	{
		span_move(&feed->shape->order, &feed->spans[i], &boundary);
		note_last_boundary(feed->shape, &feed->spans[i]);
	}
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
		dlist_init(&route->shapes);
		dlist_init(&route->keys);
		dlist_init(&route->counters);
		dlist_init(&route->passers);
		route->nkeyless = 0;
		route->context = AllocSetContextCreate(route_context,
											   "live_topn route",
											   ALLOCSET_DEFAULT_SIZES);
		generation++;
	}
	if (dlist_is_empty(&route->feeds) ||
		dlist_tail_element(Feed, route_node,
						   &route->feeds)->template != feed->template)
		memset(route->fits, 0, sizeof(route->fits));
	feed->route = route;
	dlist_push_tail(&route->feeds, &feed->route_node);
	route_note_logger(feed);
	if (!feed->query->inert)
		return;
	if (!feed->query->keyless)
		join_key(route, feed);
	join_shape(route, feed);
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
	leave_shape(feed);
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
route_note_logger(Feed *feed)
{
	if (feed->route && !feed->logger)
	{
		dlist_push_tail(&feed->route->loggers, &feed->logger_node);
		feed->logger = true;
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
add_holder(void *owner, void *arg)
{
	add_found(owner);
}

static void
add_feed_of_span(Span *span, void *arg)
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

/* Those that hold the old version of the row. */
static void
find_holders(Route *route, const Change *change, TableView *view)
{
	TupleTableSlot *slot = NULL;
	dlist_iter	iter;

	dlist_foreach(iter, &route->keys)
	{
		RouteKey   *key = dlist_container(RouteKey, node, iter.cur);
		uint32		hash = 0;

		if (slot == NULL)
			slot = table_slot(change->table, view,
							  change->old ? change->old : change->new);
		for (int i = 0; i < key->nkeys; i++)
		{
			bool		isnull;
			Datum		value = slot_getattr(slot, key->attnums[i], &isnull);

			hash = row_hash_column(hash, value, isnull, key->typbyval[i],
								   key->typlen[i]);
		}
		holders_find(key->holders, hash, add_holder, NULL);
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

/* The value of an expression; false if it is not known. */
static bool
evaluate_operand(const Operand *operand, const Bitmapset *missing,
				 Datum *value, bool *isnull)
{
	if (operand->expr == NULL || bms_overlap(operand->columns, missing))
		return false;
	*value = ExecEvalExpr(operand->state, econtext, isnull);
	return true;
}

/* The feeds of a shape whose windows a row may enter. */
static void
find_in_shape(Shape *shape, const Bitmapset *missing)
{
	SpanProbe	probe;
	Span	   *root = shape->root;
	const SpanBoundary *last = NULL;
	bool		all_values = false;

	if (shape->by_value)
	{
		Datum		value;
		bool		isnull;

		if (!evaluate_operand(&shape->equal, missing, &value, &isnull))
			all_values = true;
		else if (isnull)
			return;				/* equality is strict */
		else
		{
			ValueEntry *entry;
			uint32		hash =
			DatumGetUInt32(FunctionCall1Coll(&shape->hash_row,
											 shape->predicate.equal_collation,
											 value));

			entry = values_lookup(shape->by_value, hash);
			if (entry == NULL)
				return;
			root = entry->root;
			last = &entry->last;
		}
	}
	probe.y_known = evaluate_operand(&shape->sort, missing, &probe.y,
									 &probe.y_null);
	if (last && !span_boundary_admits(&shape->order, last, &probe))
		return;
	probe.x_known = evaluate_operand(&shape->range, missing, &probe.x,
									 &probe.x_null);
	if (all_values)
	{
		values_iterator iterator;
		ValueEntry *entry;

		values_start_iterate(shape->by_value, &iterator);
		while ((entry = values_iterate(shape->by_value, &iterator)) != NULL)
			span_find(&shape->order, entry->root, &probe, add_feed_of_span,
					  NULL);
	}
	else
		span_find(&shape->order, root, &probe, add_feed_of_span, NULL);
}

/* Those whose windows a row may enter, or may be in. */
static void
find_by_values(Route *route, const Change *change, TableView *view,
			   HeapTuple tuple)
{
	Bitmapset  *missing = NULL;
	dlist_iter	iter;

	if (dlist_is_empty(&route->shapes))
		return;
	econtext->ecxt_scantuple = table_slot(change->table, view, tuple);
	if (HeapTupleHasExternal(tuple))
		missing = find_missing(econtext->ecxt_scantuple);
	dlist_foreach(iter, &route->shapes)
		find_in_shape(dlist_container(Shape, node, iter.cur), missing);
}

int
route_find(Route *route, const Change *change, Feed ***feeds)
{
	search++;
	nfound = 0;
	if (change->kind == CHANGE_TRUNCATE || change->kind == CHANGE_REWRITE ||
		!accepts(route, change))
	{
		dlist_iter	iter;

		dlist_foreach(iter, &route->feeds)
			add_found(dlist_container(Feed, route_node, iter.cur));
	}
	else
	{
		TableView  *view = table_view(change->table, route->relid);
		MemoryContext caller;

		ResetExprContext(econtext);
		caller = MemoryContextSwitchTo(econtext->ecxt_per_tuple_memory);
		if (change->kind != CHANGE_INSERT)
		{
			dlist_iter	iter;

			find_holders(route, change, view);
			dlist_foreach(iter, &route->counters)
				add_found(dlist_container(Feed, counter_node, iter.cur));
			if (!change_has_old(change))
				dlist_foreach(iter, &route->passers)
					add_found(dlist_container(Feed, passer_node, iter.cur));
		}
		if (change->old && !change->old_is_key &&
			(route->nkeyless > 0 || !dlist_is_empty(&route->passers)))
			find_by_values(route, change, view, change->old);
		if (change->new)
			find_by_values(route, change, view, change_fill_new(change));
		MemoryContextSwitchTo(caller);
	}
	*feeds = found;
	return nfound;
}
