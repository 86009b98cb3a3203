/*
 * query_check.h
 *	  What a subscribed query may not contain.
 */
#ifndef LIVE_TOPN_QUERY_CHECK_H
#define LIVE_TOPN_QUERY_CHECK_H

#include "compat.h"
#include "nodes/parsenodes.h"
#include "parser/parse_node.h"

/* LIMIT and OFFSET together must not be more. */
#define MAX_HELD_ROWS	1000000000

/*
 * All of these raise ERRCODE_FEATURE_NOT_SUPPORTED, with the reason, a cursor
 * position in pstate->p_sourcetext where there is one, and a hint.
 */
extern void check_statement(ParseState *pstate, RawStmt *raw);

extern void check_page(int64 offset, int64 limit);

extern void check_analyzed(ParseState *pstate, Query *query);
extern void check_expression(ParseState *pstate, Node *node);
extern void check_table(ParseState *pstate, const RangeTblEntry *rte,
						int location);

/* The only table of a statement that check_statement accepts; its place. */
extern const RangeVar *table_name(const RawStmt *raw);
extern int	table_location(const RawStmt *raw);

pg_noreturn extern void refuse(ParseState *pstate, int location,
							   const char *message, const char *hint);

#endif							/* LIVE_TOPN_QUERY_CHECK_H */
