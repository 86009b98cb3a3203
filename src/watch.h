/*
 * watch.h
 *	  Tables of which changes are decoded, and whose feeds see them.
 */
#ifndef LIVE_TOPN_WATCH_H
#define LIVE_TOPN_WATCH_H

#include "nodes/pg_list.h"
#include "table.h"

typedef struct Watch
{
	Oid			relid;
	bool		valid;			/* relids and table are as of now */
	List	   *relids;			/* the table and its ancestors */
	Table	   *table;			/* NULL until a change is to be applied */
	uint64		generation;		/* of routes */
	List	   *routes;			/* those of relids that have feeds */
	uint64		asked;			/* see route_log_generation, whether ... */
	bool		needs_log;		/* ... some feed needs its changes logged */
	uint64		rewritten;		/* by that commit, see note_rewrite */
	uint64		class;			/* see watch_class_changed; 0: not known */

	/* of a partitioned table, see watch_partitions_changed */
	List	   *partitions;		/* as of that commit */
	uint64		looked_at;		/* commit; 0: never */
	bool		changed;		/* by that commit */
} Watch;

extern void watch_startup(MemoryContext parent);

/* That of a table; watch_find returns NULL if it was never asked for. */
extern Watch *watch_get(Oid relid);
extern Watch *watch_find(Oid relid);

/* Forget what was known of the table itself, and find it out again. */
extern void watch_validate(Watch *watch, Relation relation);

/* Look up the routes of relids. */
extern void watch_find_routes(Watch *watch);

/* Is the row of pg_class another than after the commit that was last asked? */
extern bool watch_class_changed(Watch *watch);

/*
 * Have, by the commit of that number, other tables become partitions of a
 * partitioned table, or is it not known?  That brings and takes rows without a
 * change of any.
 */
extern bool watch_partitions_changed(Oid relid, uint64 commit_no);

#endif							/* LIVE_TOPN_WATCH_H */
