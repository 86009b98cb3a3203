/*
 * query_functions.h
 *	  Which functions a subscribed query may call.
 */
#ifndef LIVE_TOPN_QUERY_FUNCTIONS_H
#define LIVE_TOPN_QUERY_FUNCTIONS_H

#include "nodes/parsenodes.h"
#include "parser/parse_node.h"

/*
 * Refuse an expression with functions that the current user may not call or a
 * subscribed query may not contain.  Before planning, only what inlining and
 * folding cannot change is looked at.  source is where to find the cursor
 * position of a function.
 */
extern void check_functions(ParseState *pstate, Query *source, Node *node,
							bool planned);

/* Replace current_user and its like by the name of the current user. */
extern Node *fold_current_user(Node *node);

#endif							/* LIVE_TOPN_QUERY_FUNCTIONS_H */
