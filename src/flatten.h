/*
 * flatten.h
 *	  A query over views as one over their table.
 */
#ifndef LIVE_TOPN_FLATTEN_H
#define LIVE_TOPN_FLATTEN_H

#include "nodes/parsenodes.h"
#include "parser/parse_node.h"

/* A rewritten query without its views: over one table, which has varno 1. */
typedef struct FlatQuery
{
	RangeTblEntry *rte;
	List	   *targetlist;		/* of TargetEntry */
	List	   *quals;			/* implicitly ANDed, in order */
	int			nsecurity;		/* so many of them have to come first */
} FlatQuery;

/* The rewritten query; the one given stays as it is. */
extern Query *rewrite_query(Query *query);

/* What a query over one relation reads from. */
extern RangeTblEntry *only_rte(Query *query);

/*
 * Flatten a rewritten query, which is scribbled on.  Raises an error if a view
 * is not simple enough; location is where the query names the relation.
 */
extern FlatQuery flatten_query(ParseState *pstate, Query *query, Oid relation,
							   int location);

/*
 * The column of the relation of a query, not rewritten, that is a given column
 * of its table.  InvalidAttrNumber if it is a view that does not show it.
 */
extern AttrNumber find_relation_column(ParseState *pstate, Query *source,
									   AttrNumber attnum);

#endif							/* LIVE_TOPN_FLATTEN_H */
