/*
 * groups.h
 *	  The first rows of each group, as a query says it.
 */
#ifndef LIVE_TOPN_GROUPS_H
#define LIVE_TOPN_GROUPS_H

#include "parser/parse_node.h"
#include "query.h"

/* Does the query, accepted by check_statement, ask for rows of groups? */
extern bool is_grouped(const Query *query);

/*
 * The query for the rows of all groups, in the order within a group; what
 * partitions and bounds them goes into result.  Raises an error if the
 * query cannot be understood so.
 */
extern Query *take_groups(ParseState *pstate, Query *query,
						  TopnQuery *result);

#endif							/* LIVE_TOPN_GROUPS_H */
