/*
 * recheck.h
 *	  Feeds whose queries are looked at again, for the catalogs have changed.
 */
#ifndef LIVE_TOPN_RECHECK_H
#define LIVE_TOPN_RECHECK_H

#include "feed.h"
#include "storage/sinval.h"

/* Feeds and tables are looked at as of that position. */
extern void recheck_startup(const LogPosition *position);

/*
 * All queries are looked at with the roles as they are: call it once feeds are
 * restored, as catalog caches are reset before.
 */
extern void recheck_forget_roles(void);

/*
 * What the last commit decoded says of the system catalogs.  Uses memory in
 * CurrentMemoryContext, and may ask for resyncs, see subscriber_changes.h.
 */
extern void recheck_feeds(int n, const SharedInvalidationMessage *messages);

/* Look at the queries again if roles have changed, in any database. */
extern void recheck_roles(void);

#endif							/* LIVE_TOPN_RECHECK_H */
