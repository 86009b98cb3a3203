/*
 * query.h
 *	  A subscribed query, analysed: relation, filter, order, identity, limit.
 */
#ifndef LIVE_TOPN_QUERY_H
#define LIVE_TOPN_QUERY_H

#include "nodes/parsenodes.h"
#include "tcop/dest.h"
#include "utils/snapshot.h"

/* One column of the total order, most significant first. */
typedef struct SortKey
{
	AttrNumber	attno;			/* column of the row (position in targetlist) */
	Oid			sortop;			/* btree "less than" or "greater than" */
	Oid			collation;
	bool		nulls_first;
} SortKey;

/*
 * The row of a window has the columns of targetlist: first the select list,
 * then whatever the order and the identity need beyond it (resjunk).
 */
typedef struct TopnQuery
{
	Oid			relid;			/* the table; the root if partitioned */
	List	   *quals;			/* implicitly ANDed, in order of evaluation:
								 * security quals first */
	List	   *targetlist;		/* of TargetEntry, planned expressions over
								 * Vars of varno 1 */
	int			nvisible;		/* columns of the select list */
	int			nsort;
	SortKey    *sort;			/* ORDER BY, then what it lacks of identity */
	int			nkeys;
	AttrNumber *keys;			/* identity: columns of the row ... */
	AttrNumber *key_attnums;	/* ... and of the table */
	char	  **key_names;		/* ... and their names in the table */
	bool		keyless;		/* identity is the whole row: nkeys is 1, and
								 * that column is the whole-row Var */
	int64		limit;			/* N */
	bool		inert;			/* evaluation and comparison can neither fail,
								 * run user code nor look at catalogs */
	Query	   *source;			/* as analysed, not yet rewritten; NULL after
								 * query_from_text */
} TopnQuery;

/*
 * Analyse a query under today's catalogs, as the current user and under the
 * settings in force.  args are the values of $1 ... $nargs as text, NULL
 * meaning null.  Locks the tables of the query in AccessShareLock until the
 * end of the transaction.  The result is in CurrentMemoryContext.
 *
 * Errors: whatever parsing and analysis raise, with a cursor position;
 * ERRCODE_FEATURE_NOT_SUPPORTED for what cannot be subscribed to;
 * ERRCODE_INSUFFICIENT_PRIVILEGE if the current user may not read a column
 * that the query, or the identity, uses.
 */
extern TopnQuery *query_analyze(const char *sql, int nargs, char **args);

/*
 * Read rows of the query in its order, at most limit of them, strictly after
 * the given row (from the beginning if NULL), under the active snapshot.
 * Rows go to dest in the format of query_row_desc.  Returns their number: the
 * relation has no further rows if it is less than limit.  The caller holds
 * locks on the relation and its partitions.
 */
extern uint64 query_read(TopnQuery *query, MinimalTuple after, uint64 limit,
						 DestReceiver *dest);

/* The format of a row: one column per entry of targetlist. */
extern TupleDesc query_row_desc(const TopnQuery *query);

/*
 * The query as text and back, for another process of the same server.  Two
 * queries with the same text mean the same.
 */
extern char *query_to_text(const TopnQuery *query);
extern TopnQuery *query_from_text(const char *text);

#endif							/* LIVE_TOPN_QUERY_H */
