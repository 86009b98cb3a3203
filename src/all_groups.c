/*
 * all_groups.c
 *	  The query for the first rows of all groups.
 *
 *		SELECT ... FROM (SELECT ..., row_number() OVER (PARTITION BY g
 *			ORDER BY k, identity) AS n FROM t WHERE ...) x WHERE n <= 3
 *
 * It is the user's query in its own form again, but numbered in the total
 * order and with a bound of our own.  Of ties there may be more; these are
 * found to be missing, and read like other rows.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/tlist.h"
#include "parser/parse_clause.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "all_groups.h"

static const char number_name[] = "live_topn_number";

/* Number the rows of each group, in an additional column. */
static void
number_rows(const TopnQuery *query, Query *inner)
{
	WindowClause *window = makeNode(WindowClause);
	WindowFunc *number = makeNode(WindowFunc);

	for (int i = 0; i < query->ngroups; i++)
	{
		const SortKey *key = &query->group_order[i];
		TargetEntry *tle = list_nth_node(TargetEntry, inner->targetList,
										 key->attno - 1);
		SortGroupClause *clause = makeNode(SortGroupClause);
		bool		reverse;

		clause->tleSortGroupRef = assignSortGroupRef(tle, inner->targetList);
		clause->sortop = key->sortop;
		clause->eqop = get_equality_op_for_ordering_op(key->sortop, &reverse);
		clause->nulls_first = key->nulls_first;
		clause->hashable = false;
		window->partitionClause = lappend(window->partitionClause, clause);
	}
	window->orderClause = inner->sortClause;
	window->frameOptions = FRAMEOPTION_DEFAULTS;
	window->winref = 1;
	inner->sortClause = NIL;
	inner->windowClause = list_make1(window);
	inner->hasWindowFuncs = true;

	/* equal rows of a keyless table are not parted */
	number->winfnoid = query->keyless ? F_RANK_ : F_ROW_NUMBER;
	number->wintype = INT8OID;
	number->winref = window->winref;
	number->location = -1;
	inner->targetList =
		lappend(inner->targetList,
				makeTargetEntry((Expr *) number,
								list_length(inner->targetList) + 1,
								pstrdup(number_name), false));
}

static Node *
int8_constant(int64 value)
{
	return (Node *) makeConst(INT8OID, -1, InvalidOid, sizeof(int64),
							  Int64GetDatum(value), false, FLOAT8PASSBYVAL);
}

static Node *
int8_operation(char *name, Oid resulttype, Node *left, Node *right)
{
	Oid			opno = OpernameGetOprid(list_make2(makeString("pg_catalog"),
												   makeString(name)),
										INT8OID, INT8OID);

	return (Node *) make_opclause(opno, resulttype, false, (Expr *) left,
								  (Expr *) right, InvalidOid, InvalidOid);
}

/*
 * The condition on the number of a row.  The first row of each group is read in
 * any case: a group that is not there after this has no rows.
 */
static Node *
bound_numbers(const TopnQuery *query, Var *number, int64 beyond)
{
	int64		last = query->offset + query->limit;
	List	   *quals;
	Node	   *within;

	quals = list_make1(int8_operation("<=", BOOLOID, (Node *) number,
									  int8_constant(Max(last + beyond, 1))));
	if (query->bound != InvalidAttrNumber)
	{
		/* a bound may be too large to add to it */
		Node	   *less = int8_operation("-", INT8OID,
										  (Node *) copyObject(number),
										  int8_constant(beyond));

		within = int8_operation(query->bound_exclusive ? "<" : "<=",
								BOOLOID, less,
								(Node *) makeVar(1, query->bound, INT8OID, -1,
												 InvalidOid, 0));

		/* a bound may be null or negative, which means none */
		less = int8_operation("<=", BOOLOID, (Node *) copyObject(number),
							  int8_constant(Max(beyond, 1)));
		quals = lappend(quals,
						make_orclause(list_make2(within, less)));
	}
	return (Node *) make_ands_explicit(quals);
}

/* What is there to be ordered by only has no name. */
static char *
column_name(const TargetEntry *tle)
{
	return pstrdup(tle->resname ? tle->resname : "?column?");
}

Query *
query_all_groups(const TopnQuery *query, int64 beyond)
{
	Query	   *inner = copyObject(query->source);
	Query	   *outer = makeNode(Query);
	RangeTblEntry *rte = makeNode(RangeTblEntry);
	RangeTblRef *ref = makeNode(RangeTblRef);
	List	   *names = NIL;
	ListCell   *lc;

	number_rows(query, inner);
	foreach(lc, inner->targetList)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);

		/* the whole row of a keyless table is there to be ordered by only */
		tle->resjunk = tle->resno > list_length(query->targetlist) &&
			!IsA(tle->expr, WindowFunc);
		names = lappend(names, makeString(column_name(tle)));
	}

	rte->rtekind = RTE_SUBQUERY;
	rte->subquery = inner;
	rte->eref = makeAlias("rows", names);
	rte->alias = makeAlias("rows", NIL);
	rte->inFromCl = true;
	ref->rtindex = 1;

	outer->commandType = CMD_SELECT;
	outer->canSetTag = true;
	outer->rtable = list_make1(rte);
	foreach(lc, query->targetlist)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);

		outer->targetList =
			lappend(outer->targetList,
					makeTargetEntry((Expr *) makeVarFromTargetEntry(1, tle),
									tle->resno, column_name(tle),
									false));
	}
	outer->jointree =
		makeFromExpr(list_make1(ref),
					 bound_numbers(query,
								   makeVar(1, list_length(inner->targetList),
										   INT8OID, -1, InvalidOid, 0),
								   beyond));
	return outer;
}
