/*
 * route.h
 *	  Which feeds a change concerns.
 */
#ifndef LIVE_TOPN_ROUTE_H
#define LIVE_TOPN_ROUTE_H

#include "shape.h"

/* The feeds of one table. */
typedef struct Route
{
	Oid			relid;
	dlist_head	feeds;			/* by their route_node */
	dlist_head	loggers;		/* those that may need its changes logged, by
								 * their logger_node */
	MemoryContext context;		/* holds what follows */
	ShapeList	shapes;
	dlist_head	keys;			/* of RouteKey */
	int			nkeyless;		/* feeds without a key */
	dlist_head	passers;		/* those that hold nothing, by their
								 * passer_node */
	dlist_head	counters;		/* those that count rows they do not hold, by
								 * their counter_node */
	TableFit	fits[EVALUATOR_FITS];	/* all feeds' together */
} Route;

extern bool route_debug_check;	/* live_topn.debug_check_routing */

extern void route_startup(MemoryContext parent);

/* The feeds of a table; NULL if it has none. */
extern Route *route_lookup(Oid relid);

/* Changes whenever a table gets its first feed or loses its last one. */
extern uint64 route_generation(void);

/*
 * The feed has a query, and so a table, and windows.  Looks up functions:
 * needs a transaction.
 */
extern void route_join(Feed *feed);

/* It has them no longer. */
extern void route_leave(Feed *feed);

/* The feed has another set of windows, or needs to hold its rows. */
extern void route_take_windows(Feed *feed);

/* Its window may begin or end elsewhere now. */
extern void route_refresh(Feed *feed);

/*
 * The feed may need the changes of its table logged from now on; it is found
 * out by feed_needs_log when it no longer does.
 */
extern void route_note_logger(Feed *feed);

/* Does some feed of the table need its changes logged? */
extern bool route_needs_log(Route *route);

/* Changes whenever that may begin, and by a call of route_ask_again. */
extern uint64 route_log_generation(void);
extern void route_ask_again(void);

/*
 * The feeds that a change of the table, or of a partition of it, may concern:
 * of those that are not behind none is left out that it does.  The array is
 * valid until the next call.
 */
extern int	route_find(Route *route, const Change *change, Feed ***feeds);

/* Was the feed among those found last? */
extern bool route_has_found(const Feed *feed);

#endif							/* LIVE_TOPN_ROUTE_H */
