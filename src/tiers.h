/*
 * tiers.h
 *	  The queries for the rows after a given row.
 */
#ifndef LIVE_TOPN_TIERS_H
#define LIVE_TOPN_TIERS_H

#include "executor/tuptable.h"
#include "nodes/plannodes.h"
#include "query.h"

typedef struct Tier
{
	Query	   *query;			/* not rewritten, without a limit */
	List	   *usual_sort;		/* sortClause, as a simple index has it */
} Tier;

typedef enum TierStart
{
	TIERS_AFTER,
	TIERS_FROM					/* with those that are equal to the row */
} TierStart;

/*
 * All tiers, in the order in which to read them, for the rows after (or from)
 * the one in the slot, or for all rows if that is NULL.  They live as long as
 * the row.
 */
extern List *make_tiers(TopnQuery *query, TupleTableSlot *boundary,
						TierStart start);

/*
 * Plan a tier for a number of rows, in the better of its two orders, and leave
 * it so; see keyset.c.
 */
extern PlannedStmt *plan_tier(TopnQuery *query, Tier *tier, uint64 limit);

/*
 * The same query over the group only that the row in the slot is of.  Lives as
 * long as the row.
 */
extern TopnQuery *query_of_group(const TopnQuery *query,
								 TupleTableSlot *row);

#endif							/* LIVE_TOPN_TIERS_H */
