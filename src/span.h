/*
 * span.h
 *	  What rows may concern a feed, as intervals of values.
 */
#ifndef LIVE_TOPN_SPAN_H
#define LIVE_TOPN_SPAN_H

#include "fmgr.h"
#include "utils/sortsupport.h"
#include "window.h"

/* How far a feed's window goes, by the leading sort column. */
typedef struct SpanBoundary
{
	WindowEnd	end;
	bool		isnull;
	Datum		datum;			/* if BOUNDED, the caller's */
} SpanBoundary;

/*
 * A span admits a row whose value x lies in [low, high], and which does not
 * sort after a boundary by its leading sort column y.  Spans are nodes of a
 * tree by low.
 */
typedef struct Span
{
	struct Span *left;
	struct Span *right;
	struct Span *parent;
	struct Span *top_high;		/* in this subtree, the one with the ... */
	struct Span *top_boundary;	/* ... greatest high, or last boundary */
	uint32		priority;
	bool		has_low;
	bool		has_high;
	Datum		low;
	Datum		high;
	uint32		hash;			/* for the caller */
	SpanBoundary boundary;
	struct Feed *feed;			/* for the caller */
} Span;

/* How the spans of a tree compare. */
typedef struct SpanOrder
{
	bool		ranges;			/* do spans have low and high? */
	Oid			collation;
	FmgrInfo	compare_x;		/* x with low or high */
	FmgrInfo	compare_limits; /* low and high with each other */
	SortSupport sort;			/* of y */
} SpanOrder;

/* A row: unknown values are admitted everywhere. */
typedef struct SpanProbe
{
	bool		x_known;
	bool		x_null;			/* then only spans without limits admit it */
	Datum		x;
	bool		y_known;
	bool		y_null;
	Datum		y;
} SpanProbe;

extern void span_insert(const SpanOrder *order, Span **root, Span *span);
extern void span_delete(const SpanOrder *order, Span **root, Span *span);

extern void span_move(const SpanOrder *order, Span *span,
					  const SpanBoundary *boundary);

/* Does a row lie at or before the boundary? */
extern bool span_boundary_admits(const SpanOrder *order,
								 const SpanBoundary *boundary,
								 const SpanProbe *probe);

typedef void (*SpanCallback) (Span *span);

/* Call back for each span that admits the row. */
extern void span_find(const SpanOrder *order, Span *root,
					  const SpanProbe *probe, SpanCallback callback);

#endif							/* LIVE_TOPN_SPAN_H */
