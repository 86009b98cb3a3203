/*
 * route.c
 *	  Which feeds a change concerns.
 */
#include "postgres.h"

#include "route.h"
#include "utils/memutils.h"

static HTAB *routes;			/* by relid */
static uint64 generation = 1;

void
route_startup(MemoryContext parent)
{
	HASHCTL		ctl = {0};

	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(Route);
	ctl.hcxt = parent;
	routes = hash_create("live_topn routes", 64, &ctl,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

Route *
route_find(Oid relid)
{
	return hash_search(routes, &relid, HASH_FIND, NULL);
}

uint64
route_generation(void)
{
	return generation;
}

void
route_join(Feed *feed)
{
	bool		found;
	Route	   *route = hash_search(routes, &feed->query->relid, HASH_ENTER,
									&found);

	Assert(feed->route == NULL);
	if (!found)
	{
		dlist_init(&route->feeds);
		dlist_init(&route->loggers);
		generation++;
	}
	feed->route = route;
	dlist_push_tail(&route->feeds, &feed->route_node);
	route_note_logger(feed);
}

void
route_leave(Feed *feed)
{
	Route	   *route = feed->route;

	if (route == NULL)
		return;
	dlist_delete(&feed->route_node);
	if (feed->logger)
		dlist_delete(&feed->logger_node);
	feed->logger = false;
	feed->route = NULL;
	if (dlist_is_empty(&route->feeds))
	{
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
