/*
 * flatten.c
 *	  A query over views as one over their table.
 *
 * PostgreSQL's rewriter puts the query of a view in place of the view, and the
 * policies of row security beside a table.  The planner takes it from there
 * for itself.  Whoever evaluates a query on rows from WAL has only the rows of
 * the table: here the columns of a view are replaced by what they stand for,
 * and its condition is put before that of the query.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_class.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "parser/parsetree.h"
#include "rewrite/rewriteHandler.h"
#include "rewrite/rewriteManip.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"
#include "flatten.h"

Query *
rewrite_query(Query *query)
{
	List	   *queries = QueryRewrite(copyObject(query));

	if (list_length(queries) != 1)
		elog(ERROR, "unexpected rewrite result");
	return linitial_node(Query, queries);
}

RangeTblEntry *
only_rte(Query *query)
{
	RangeTblRef *ref = linitial_node(RangeTblRef, query->jointree->fromlist);

	return rt_fetch(ref->rtindex, query->rtable);
}

static bool
is_simple_view(const Query *query)
{
	return query->commandType == CMD_SELECT &&
		query->setOperations == NULL &&
		query->cteList == NIL &&
		query->groupClause == NIL &&
		query->groupingSets == NIL &&
		query->havingQual == NULL &&
		query->sortClause == NIL &&
		query->distinctClause == NIL &&
		query->limitOffset == NULL &&
		query->limitCount == NULL &&
		query->rowMarks == NIL &&
		!query->hasAggs &&
		!query->hasWindowFuncs &&
		!query->hasTargetSRFs &&
		!query->hasSubLinks &&
		list_length(query->jointree->fromlist) == 1 &&
		IsA(linitial(query->jointree->fromlist), RangeTblRef);
}

/*
 * Put what a query reads from in its place, down to the table.  Quals keep the
 * order in which they have to be evaluated: row security of the table, then
 * each view's, then the query's own.
 */
FlatQuery
flatten_query(ParseState *pstate, Query *query, Oid relation,
			  int location)
{
	RangeTblRef *ref = linitial_node(RangeTblRef, query->jointree->fromlist);
	RangeTblEntry *rte = rt_fetch(ref->rtindex, query->rtable);
	List	   *own_quals;
	FlatQuery	result;

	if (rte->securityQuals != NIL &&
		checkExprHasSubLink((Node *) rte->securityQuals))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("row-level security policies with subqueries are not supported in a subscribed query"),
				 errdetail("Table \"%s\" has such a policy.",
						   get_rel_name(rte->relid)),
				 errhint("Subscribe as a role that bypasses row-level security, or keep in the table what the policy needs."),
				 parser_errposition(pstate, location)));

	if (rte->rtekind == RTE_SUBQUERY && is_simple_view(rte->subquery))
	{
		List	   *columns;
		Node	   *quals = query->jointree->quals;

		result = flatten_query(pstate, rte->subquery, relation,
							   location);
		if (rte->security_barrier)
			result.nsecurity = list_length(result.quals);
		columns = result.targetlist;
		result.targetlist = (List *)
			replace_vars((Node *) query->targetList, ref->rtindex, rte,
						 columns);
		quals = replace_vars(quals, ref->rtindex, rte, columns);
		own_quals = make_ands_implicit((Expr *) quals);
	}
	else if (rte->rtekind == RTE_RELATION)
	{
		result.rte = rte;
		result.quals = rte->securityQuals;
		result.nsecurity = list_length(result.quals);
		result.targetlist = query->targetList;
		own_quals = make_ands_implicit((Expr *) query->jointree->quals);
		ChangeVarNodes((Node *) result.targetlist, ref->rtindex, 1, 0);
		ChangeVarNodes((Node *) result.quals, ref->rtindex, 1, 0);
		ChangeVarNodes((Node *) own_quals, ref->rtindex, 1, 0);
	}
	else
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("view \"%s\" cannot be subscribed to",
						get_rel_name(relation)),
				 errdetail("Only views of one table, with a select list and WHERE, are supported."),
				 errhint("Subscribe to the tables of the view."),
				 parser_errposition(pstate, location)));

	result.quals = list_concat_copy(result.quals, own_quals);
	return result;
}

AttrNumber
find_relation_column(ParseState *pstate, Query *source, AttrNumber attnum)
{
	RangeTblEntry *rte = only_rte(source);
	AttrNumber	result = InvalidAttrNumber;
	Query	   *probe;
	Relation	rel;
	FlatQuery	flat;
	ListCell   *lc;

	if (rte->relkind != RELKIND_VIEW)
		return attnum;

	/* open the view with a query for nothing but its columns */
	probe = copyObject(source);
	probe->targetList = NIL;
	probe->sortClause = NIL;
	probe->jointree->quals = NULL;
	rel = table_open(rte->relid, NoLock);
	for (int i = 1; i <= RelationGetNumberOfAttributes(rel); i++)
	{
		Form_pg_attribute attr = TupleDescAttr(RelationGetDescr(rel), i - 1);
		Var		   *var = makeVar(1, i, attr->atttypid, attr->atttypmod,
								  attr->attcollation, 0);

		probe->targetList = lappend(probe->targetList,
									makeTargetEntry((Expr *) var, i, NULL,
													false));
	}
	table_close(rel, NoLock);

	flat = flatten_query(pstate, rewrite_query(probe), rte->relid, -1);
	foreach(lc, flat.targetlist)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);

		if (IsA(tle->expr, Var) && ((Var *) tle->expr)->varattno == attnum)
		{
			result = tle->resno;
			break;
		}
	}
	return result;
}
