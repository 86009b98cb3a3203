/*
 * all_groups.h
 *	  The query for the first rows of all groups.
 */
#ifndef LIVE_TOPN_ALL_GROUPS_H
#define LIVE_TOPN_ALL_GROUPS_H

#include "query.h"

/*
 * A query, not rewritten, for the rows of the result of each group and as
 * many beyond, in no order.
 */
extern Query *query_all_groups(const TopnQuery *query, int64 beyond);

#endif							/* LIVE_TOPN_ALL_GROUPS_H */
