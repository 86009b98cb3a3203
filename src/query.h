/*
 * query.h
 *	  A subscribed query, analysed: relation, filter, order, identity, limit.
 */
#ifndef LIVE_TOPN_QUERY_H
#define LIVE_TOPN_QUERY_H

#include "nodes/parsenodes.h"
#include "tcop/dest.h"

/* One column of the total order, most significant first. */
typedef struct SortKey
{
	AttrNumber	attno;			/* column of the row (position in targetlist) */
	Oid			sortop;			/* btree "less than" or "greater than";
								 * InvalidOid: image order, as of record_image
								 * operators (the columns of a keyless table) */
	Oid			collation;
	bool		nulls_first;
} SortKey;

/* The limit of a query without one: more rows than a window can hold. */
#define NO_LIMIT	PG_UINT32_MAX

/* How rows are counted, as offset and limit have it. */
typedef enum RankKind
{
	RANK_ROWS,					/* one by one, as by row_number */
	RANK_WITH_TIES,				/* that, and the ties of the last one */
	RANK_TIES,					/* as by rank */
	RANK_DENSE					/* as by dense_rank */
} RankKind;

/*
 * The row of a window has the columns of targetlist: first the select list,
 * then whatever the order and the identity need beyond it (resjunk).
 */
typedef struct TopnQuery
{
	Oid			relid;			/* the table; the root if partitioned */
	List	   *quals;			/* implicitly ANDed, in order of evaluation:
								 * inert ones, then security quals, then
								 * others by their cost */
	int			ninert;			/* so many of them are inert */
	List	   *targetlist;		/* of TargetEntry, planned expressions over
								 * Vars of varno 1 */
	int			nvisible;		/* columns of the select list */
	int			nsort;
	SortKey    *sort;			/* ORDER BY, then what it lacks of identity */
	int			ngroups;		/* partition keys, see groups.h; 0: the result
								 * is of one group */
	AttrNumber *groups;			/* ... as columns of the row; equal values of
								 * theirs have equal images */
	char	  **group_names;
	SortKey    *group_order;	/* ... in the order in which groups are
								 * listed */
	int			nkeys;
	AttrNumber *keys;			/* identity: columns of the row ... */
	AttrNumber *key_attnums;	/* ... and of the table */
	char	  **key_names;		/* ... and their names in the table */
	bool		keyless;		/* identity is the whole row: keys are all
								 * columns of the table (not dropped) as plain
								 * Vars in attnum order, each of them also a
								 * sort column in image order at the end.
								 * (The database worker may not look up row
								 * types; only the SQL of query_read orders by
								 * t.* USING *< and compares with a whole
								 * row.) */
	int64		offset;			/* rows skipped before the result */
	int64		limit;			/* N, or NO_LIMIT */
	bool		unranked;		/* rows have no positions: no ORDER BY, LIMIT
								 * or OFFSET; sort is the identity */
	RankKind	rank;
	List	   *ranks;			/* of columns of the row, which show it; they
								 * are null in the row itself */
	int			nties;			/* these leading sort columns make ties, which
								 * rank says how to count; else 0 */
	AttrNumber	bound;			/* column of the row with the last rank of its
								 * group; 0: none, beside offset and limit */
	bool		bound_exclusive;	/* or the first one that is not in it */
	bool		inert;			/* evaluation and comparison can neither fail,
								 * run user code nor look at catalogs */
	bool		inert_end;		/* the same of the filter and the leading sort
								 * column, which say that a row is not in a
								 * window */
	bool		robust;			/* expressions can be used again after an
								 * error, comparison is inert */

	/* what else it depends on; see depend.c */
	List	   *depends;		/* OIDs of views, and of composite types'
								 * relations */
	List	   *shadows;		/* hash values (RELNAMENSP) of names that
								 * would be found before that of the relation */
	bool		enums;			/* a column has labels of an enum */
	List	   *names;			/* hash values of schemas (NAMESPACENAME) that
								 * names are looked for in, and of roles
								 * (AUTHOID) whose rights count */
	bool		any_name;		/* others may matter, too */
	bool		functions;		/* a function could be replaced, or look at
								 * what it likes */
	bool		calls;			/* a new one, or an operator, could be meant
								 * instead */
	uint64		definitions;	/* hash of those of functions and types */
	uint64		fingerprint;	/* see fingerprint.c; 0: it says nothing */

	Query	   *source;			/* as analysed, not yet rewritten; NULL after
								 * query_from_text */
} TopnQuery;

/* setting live_topn.allow_procedural_functions */
extern PGDLLIMPORT bool query_allow_procedural;

/*
 * Analyse a query under today's catalogs, as the current user and under the
 * settings in force.  args are the values of $1 ... $nargs as text, NULL
 * meaning null.  Locks the tables of the query in AccessShareLock until the
 * end of the transaction.  The result is in CurrentMemoryContext.  Runs under
 * the active snapshot; without one it takes the transaction's, so call it at
 * READ COMMITTED if a later snapshot is to see more.
 *
 * Errors: whatever parsing and analysis raise, with a cursor position;
 * ERRCODE_FEATURE_NOT_SUPPORTED for what cannot be subscribed to;
 * ERRCODE_INSUFFICIENT_PRIVILEGE if the current user may not read a column
 * that the query, or the identity, uses.
 */
extern TopnQuery *query_analyze(const char *sql, int nargs, char **args);

/* What the planner thinks that evaluating an expression costs for a row. */
extern Cost query_expression_cost(Node *node);

/*
 * Read rows of the query under the active snapshot: with after, those of the
 * group of a row that are strictly after it; else all of the group of that
 * row; in their order, and at most limit of them.  Without a row all are read,
 * of a grouped query the result of each group and limit rows beyond.  Of a
 * keyless table equal rows are not parted, even if that makes more than limit.
 * Rows go to dest in the format of query_row_desc, with large values in line;
 * it is started and shut down once, and left to the caller to destroy.
 * Returns the number of rows: there are no further ones if it is less
 * than limit.  The caller holds locks on the relation and its partitions.
 * Needs source.
 */
extern uint64 query_read(TopnQuery *query, MinimalTuple row, bool after,
						 uint64 limit, DestReceiver *dest);

/*
 * The same from the start, but the first rows, skip - 1 of the limit, do not
 * go to dest.
 */
extern uint64 query_read_skipping(TopnQuery *query, uint64 skip, uint64 limit,
								  DestReceiver *dest);

/* The same in the opposite order, from that row on if it is there. */
extern uint64 query_read_backward(TopnQuery *query, MinimalTuple from,
								  uint64 limit, DestReceiver *dest);

/* The format of a row: one column per entry of targetlist. */
extern TupleDesc query_row_desc(const TopnQuery *query);

/*
 * The query as text and back, for another process of the same server.
 */
extern char *query_to_text(const TopnQuery *query);
extern TopnQuery *query_from_text(const char *text);

/* The fingerprint of the query in such a text. */
extern uint64 query_text_fingerprint(const char *text);

/*
 * The part of such a text that says what the query means, and what comes before
 * it.
 */
extern const char *query_text_of_meaning(const char *text);
extern char *query_dependencies_to_text(const TopnQuery *query);

/*
 * Do two such texts mean the same, whatever they depend on, and whichever of
 * the rows they show?
 */
extern bool query_text_equal(const char *a, const char *b);

/*
 * Let the query, which lives in that context, also depend on what a text does
 * that means the same: one may name a view, or a schema, that the other one
 * does not.  True if there are more now.
 */
extern bool query_add_dependencies(TopnQuery *query, const char *text,
								   MemoryContext context);

#endif							/* LIVE_TOPN_QUERY_H */
