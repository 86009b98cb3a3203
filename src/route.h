/*
 * route.h
 *	  Which feeds a change concerns.
 */
#ifndef LIVE_TOPN_ROUTE_H
#define LIVE_TOPN_ROUTE_H

#include "feed.h"

/* The feeds of one table. */
typedef struct Route
{
	Oid			relid;
	dlist_head	feeds;			/* by their route_node */
	dlist_head	loggers;		/* those that may need its changes logged, by
								 * their logger_node */
} Route;

extern void route_startup(MemoryContext parent);

/* The feeds of a table; NULL if it has none. */
extern Route *route_find(Oid relid);

/* Changes whenever a table gets its first feed or loses its last one. */
extern uint64 route_generation(void);

/* The feed has a query, and so a table; or has it no longer. */
extern void route_join(Feed *feed);
extern void route_leave(Feed *feed);

/*
 * The feed may need the changes of its table logged from now on; it is found
 * out by feed_needs_log when it no longer does.
 */
extern void route_note_logger(Feed *feed);

/* Does some feed of the table need its changes logged? */
extern bool route_needs_log(Route *route);

#endif							/* LIVE_TOPN_ROUTE_H */
