/*
 * span.c
 *	  What rows may concern a feed, as intervals of values.
 *
 * A treap by low, in which each node knows the greatest high and the last
 * boundary of its subtree.  A search leaves out subtrees that end too early,
 * one way or the other; a boundary that moves is told to the nodes above,
 * O(log n) of them, and moves none.  A row that concerns no window of a
 * thousand usually costs one comparison at the root.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "span.h"

static int
compare_limits(const SpanOrder *order, Datum a, Datum b)
{
	return DatumGetInt32(FunctionCall2Coll(unconstify(FmgrInfo *,
													  &order->compare_limits),
										   order->collation, a, b));
}

static int
compare_x(const SpanOrder *order, const SpanProbe *probe, Datum limit)
{
	return DatumGetInt32(FunctionCall2Coll(unconstify(FmgrInfo *,
													  &order->compare_x),
										   order->collation, probe->x, limit));
}

/* Does a end before b, by its high? */
static bool
is_lower(const SpanOrder *order, const Span *a, const Span *b)
{
	if (!a->has_high || !b->has_high)
		return a->has_high;
	return compare_limits(order, a->high, b->high) < 0;
}

/* Does a end before b, by its boundary? */
static bool
is_earlier(const SpanOrder *order, const Span *a, const Span *b)
{
	const SpanBoundary *x = &a->boundary;
	const SpanBoundary *y = &b->boundary;

	if (x->end != WINDOW_BOUNDED || y->end != WINDOW_BOUNDED)
		return x->end < y->end;
	return ApplySortComparator(x->datum, x->isnull, y->datum, y->isnull,
							   order->sort) < 0;
}

/* What a node knows of its subtree, from its children. */
static void
pull(const SpanOrder *order, Span *span)
{
	Span	   *children[] = {span->left, span->right};

	span->top_high = span->top_boundary = span;
	for (int i = 0; i < lengthof(children); i++)
	{
		Span	   *child = children[i];

		if (child == NULL)
			continue;
		if (order->ranges && is_lower(order, span->top_high, child->top_high))
			span->top_high = child->top_high;
		if (is_earlier(order, span->top_boundary, child->top_boundary))
			span->top_boundary = child->top_boundary;
	}
}

/* The same for it and all nodes above. */
static void
pull_up(const SpanOrder *order, Span *span)
{
	for (; span; span = span->parent)
		pull(order, span);
}

void
span_move(const SpanOrder *order, Span *span, const SpanBoundary *boundary)
{
	span->boundary = *boundary;
	pull_up(order, span);
}

/* The link that leads to a node. */
static Span **
link_to(Span **root, const Span *span)
{
	if (span->parent == NULL)
		return root;
	return span->parent->left == span ? &span->parent->left :
		&span->parent->right;
}

/* A child takes the place of its parent, which becomes its child. */
static void
rotate_up(const SpanOrder *order, Span **root, Span *child)
{
	Span	   *parent = child->parent;
	Span	  **link = link_to(root, parent);
	Span	   *middle;

	if (parent->left == child)
	{
		middle = child->right;
		parent->left = middle;
		child->right = parent;
	}
	else
	{
		middle = child->left;
		parent->right = middle;
		child->left = parent;
	}
	if (middle)
		middle->parent = parent;
	child->parent = parent->parent;
	parent->parent = child;
	*link = child;
	pull(order, parent);
	pull(order, child);
}

static bool
sorts_before(const SpanOrder *order, const Span *a, const Span *b)
{
	if (!a->has_low || !b->has_low)
		return !a->has_low && b->has_low;
	return compare_limits(order, a->low, b->low) < 0;
}

void
span_insert(const SpanOrder *order, Span **root, Span *span)
{
	Span	  **link = root;
	Span	   *parent = NULL;

	while (*link)
	{
		parent = *link;
		link = sorts_before(order, span, parent) ? &parent->left :
			&parent->right;
	}
	span->left = span->right = NULL;
	span->parent = parent;
	span->priority = pg_prng_uint32(&pg_global_prng_state);
	*link = span;
	while (span->parent && span->parent->priority < span->priority)
		rotate_up(order, root, span);
	pull_up(order, span);
}

void
span_delete(const SpanOrder *order, Span **root, Span *span)
{
	Span	   *child;

	while (span->left && span->right)
		rotate_up(order, root, span->left->priority > span->right->priority ?
				  span->left : span->right);
	child = span->left ? span->left : span->right;
	*link_to(root, span) = child;
	if (child)
		child->parent = span->parent;
	pull_up(order, span->parent);
}

bool
span_boundary_admits(const SpanOrder *order, const SpanBoundary *boundary,
					 const SpanProbe *probe)
{
	if (boundary->end != WINDOW_BOUNDED)
		return boundary->end == WINDOW_COMPLETE;
	return !probe->y_known ||
		ApplySortComparator(probe->y, probe->y_null, boundary->datum,
							boundary->isnull, order->sort) <= 0;
}

static bool
boundary_admits(const SpanOrder *order, const Span *span,
				const SpanProbe *probe)
{
	return span_boundary_admits(order, &span->boundary, probe);
}

static bool
low_admits(const SpanOrder *order, const Span *span, const SpanProbe *probe)
{
	if (!span->has_low || !probe->x_known)
		return true;
	return !probe->x_null && compare_x(order, probe, span->low) >= 0;
}

static bool
high_admits(const SpanOrder *order, const Span *span, const SpanProbe *probe)
{
	if (!span->has_high || !probe->x_known)
		return true;
	return !probe->x_null && compare_x(order, probe, span->high) <= 0;
}

void
span_find(const SpanOrder *order, Span *root, const SpanProbe *probe,
		  SpanCallback callback)
{
	for (Span *span = root; span; span = span->right)
	{
		if (!boundary_admits(order, span->top_boundary, probe) ||
			(order->ranges && !high_admits(order, span->top_high, probe)))
			return;
		if (span->left)
			span_find(order, span->left, probe, callback);
		if (order->ranges && !low_admits(order, span, probe))
			return;				/* nor are those to the right */
		if ((span == span->top_boundary ||
			 boundary_admits(order, span, probe)) &&
			(!order->ranges || high_admits(order, span, probe)))
			callback(span);
	}
}
