/*
 * shape.c
 *	  Feeds found by the values of a row.
 *
 * Feeds whose filters can be looked up by the same expressions (predicate.c)
 * and which sort by the same leading column, if that counts, have a shape in
 * common: a hash table by the value that is to be equal, of trees by the range
 * and the boundary (span.c).  A row is first sought in all shapes, which asks for the
 * memory that it needs, and then found: the waits for memory overlap.
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "compat.h"
#include "executor/executor.h"
#include "huge.h"
#include "optimizer/optimizer.h"
#include "predicate.h"
#include "shape.h"
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
#define SH_USE_NONDEFAULT_ALLOCATOR
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static inline void *
values_allocate(values_hash *hash, Size size)
{
	return huge_alloc0(hash->ctx, size);
}

static inline void
values_free(values_hash *hash, void *array)
{
	pfree(array);
}

/* The row that is looked for, by its values. */
typedef struct ShapeSearch
{
	bool		equal_known;
	bool		equal_null;
	uint32		hash;			/* of the value, if it is known and not null */
	SpanProbe	probe;
} ShapeSearch;

typedef struct Shape
{
	dlist_node	node;			/* in the list of a table */
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
	ShapeSearch search;
} Shape;

static ExprContext *econtext;

void
shape_startup(MemoryContext parent)
{
	MemoryContext caller = MemoryContextSwitchTo(parent);

	econtext = CreateStandaloneExprContext();
	MemoryContextSwitchTo(caller);
}

/*
 * The leading column of the order, or NULL: a row beyond the boundary may
 * still raise an error.
 */
static Expr *
leading_expr(const TopnQuery *query)
{
	TargetEntry *column = list_nth_node(TargetEntry, query->targetlist,
										query->sort[0].attno - 1);

	return query->inert_end ? column->expr : NULL;
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
		equal(shape->sort.expr, leading_expr(query)) &&
		(shape->sort.expr == NULL ||
		 (shape->sort_key.sortop == sort->sortop &&
		  shape->sort_key.collation == sort->collation &&
		  shape->sort_key.nulls_first == sort->nulls_first));
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

	if (shape->sort.expr)
	{
		shape->sort_column = *TupleDescAttr(format->desc,
											shape->sort_key.attno - 1);
		row_prepare_sort(&shape->sort_support, &shape->sort_key,
						 &shape->sort_column);
	}
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
make_shape(ShapeList *list, const Predicate *predicate, const Feed *feed)
{
	MemoryContext context = AllocSetContextCreate(list->context,
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
	dlist_push_tail(&list->shapes, &shape->node);
	return shape;
}

static Shape *
find_shape(ShapeList *list, const Predicate *predicate, const Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, &list->shapes)
	{
		Shape	   *shape = dlist_container(Shape, node, iter.cur);

		if (is_of_shape(shape, predicate, feed->query))
			return shape;
	}
	return make_shape(list, predicate, feed);
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

void
shape_join(ShapeList *list, Feed *feed)
{
	MemoryContext scratch = econtext->ecxt_per_tuple_memory;
	MemoryContext caller = MemoryContextSwitchTo(scratch);
	Predicate  *predicate;
	Shape	   *shape;
	uint32	   *hashes;

	ResetExprContext(econtext);
	predicate = predicate_of(template_query(feed->template, feed->params));
	shape = find_shape(list, predicate, feed);
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

void
shape_leave(Feed *feed)
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

void
shape_move(Feed *feed, const SpanBoundary *boundary)
{
	for (int i = 0; i < feed->nspans; i++)
	{
		span_move(&feed->shape->order, &feed->spans[i], boundary);
		note_last_boundary(feed->shape, &feed->spans[i]);
	}
}

/* ---- finding ---- */

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

/* Look at a row's values. */
static void
seek_in_shape(Shape *shape, const Bitmapset *missing)
{
	ShapeSearch *search = &shape->search;
	SpanProbe  *probe = &search->probe;
	Datum		value;

	search->equal_known = evaluate_operand(&shape->equal, missing, &value,
										   &search->equal_null);
	if (search->equal_known && !search->equal_null)
	{
		search->hash =
			DatumGetUInt32(FunctionCall1Coll(&shape->hash_row,
											 shape->predicate.equal_collation,
											 value));
		prefetch(&shape->by_value->data[search->hash &
										shape->by_value->sizemask]);
	}
	probe->y_known = evaluate_operand(&shape->sort, missing, &probe->y,
									  &probe->y_null);
	probe->x_known = evaluate_operand(&shape->range, missing, &probe->x,
									  &probe->x_null);
}

void
shape_seek(ShapeList *list, TupleTableSlot *slot, const Bitmapset *missing)
{
	dlist_iter	iter;

	econtext->ecxt_scantuple = slot;
	dlist_foreach(iter, &list->shapes)
		seek_in_shape(dlist_container(Shape, node, iter.cur), missing);
}

/* The spans of one value that admit the row. */
static void
find_of_value(const Shape *shape, SpanCallback callback)
{
	const ShapeSearch *search = &shape->search;
	const ValueEntry *entry;

	if (search->equal_null)
		return;					/* equality is strict */
	entry = values_lookup(shape->by_value, search->hash);
	if (entry && span_boundary_admits(&shape->order, &entry->last,
									  &search->probe))
		span_find(&shape->order, entry->root, &search->probe, callback);
}

static void
find_of_all_values(const Shape *shape, SpanCallback callback)
{
	values_iterator iterator;
	ValueEntry *entry;

	values_start_iterate(shape->by_value, &iterator);
	while ((entry = values_iterate(shape->by_value, &iterator)) != NULL)
		span_find(&shape->order, entry->root, &shape->search.probe, callback);
}

void
shape_find(const ShapeList *list, SpanCallback callback)
{
	dlist_iter	iter;

	dlist_foreach(iter, unconstify(dlist_head *, &list->shapes))
	{
		const Shape *shape = dlist_container(Shape, node, iter.cur);

		if (shape->by_value == NULL)
			span_find(&shape->order, shape->root, &shape->search.probe,
					  callback);
		else if (shape->search.equal_known)
			find_of_value(shape, callback);
		else
			find_of_all_values(shape, callback);
	}
}
