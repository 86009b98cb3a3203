/*
 * shape.h
 *	  Feeds found by the values of a row.
 */
#ifndef LIVE_TOPN_SHAPE_H
#define LIVE_TOPN_SHAPE_H

#include "executor/tuptable.h"
#include "feed.h"
#include "span.h"

/* The shapes of the feeds of a table. */
typedef struct ShapeList
{
	MemoryContext context;		/* holds them */
	dlist_head	shapes;
} ShapeList;

extern void shape_startup(MemoryContext parent);

/* The feed is to be found.  Looks up functions: needs a transaction. */
extern void shape_join(ShapeList *list, Feed *feed);
extern void shape_leave(Feed *feed);

/* Its window ends elsewhere now. */
extern void shape_move(Feed *feed, const SpanBoundary *boundary);

/*
 * Look for a row, of which values of some columns may be missing (offset as by
 * pull_varattnos); then call back for each span whose feed it may concern.
 * Values are computed in CurrentMemoryContext, which must stay as it is in
 * between, as the slot must.
 */
extern void shape_seek(ShapeList *list, TupleTableSlot *slot,
					   const Bitmapset *missing);
extern void shape_find(const ShapeList *list, SpanCallback callback);

#endif							/* LIVE_TOPN_SHAPE_H */
