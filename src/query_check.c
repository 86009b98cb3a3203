/*
 * query_check.c
 *	  What a subscribed query may not contain.
 *
 * A subscribed query is SELECT, from one table, of its rows one by one.  What
 * the grammar can tell is refused in the raw parse tree, which has the best
 * cursor positions and costs no look at any catalog; the rest (aggregates are
 * function calls to the grammar) in the analysed query; and last, when the
 * views are out of the way, the table itself.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/catalog.h"
#include "catalog/heap.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "nodes/nodeFuncs.h"
#include "utils/rel.h"

#include "query.h"
#include "query_check.h"

/*
 * Raise the error for a construct that cannot be subscribed to.
 */
void
refuse(ParseState *pstate, int location, const char *message,
	   const char *hint)
{
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg_internal("%s", message),
			 hint ? errhint("%s", hint) : 0,
			 parser_errposition(pstate, location)));
	pg_unreachable();
}

static void check_select(ParseState *pstate, SelectStmt *stmt, bool inner);

static bool
window_function_walker(Node *node, void *context)
{
	if (node == NULL || IsA(node, SubLink))
		return false;
	if (IsA(node, FuncCall) && ((FuncCall *) node)->over != NULL)
		return true;
	return raw_expression_tree_walker(node, window_function_walker, context);
}

/* A subquery that numbers the rows of groups may be the top of each. */
static bool
is_numbering(const RangeSubselect *range)
{
	return !range->lateral &&
		window_function_walker((Node *) ((SelectStmt *) range->subquery)->targetList,
							   NULL);
}

/*
 * Refuse what stands in FROM unless it is the name of one relation, or a
 * subquery that numbers its rows.
 */
static void
check_from(ParseState *pstate, List *from, bool inner)
{
	Node	   *item;

	if (from == NIL)
		refuse(pstate, -1, "a subscribed query must read a table", NULL);

	item = linitial(from);
	if (list_length(from) > 1)
		refuse(pstate, exprLocation(lsecond(from)),
			   "joins are not supported in a subscribed query",
			   "Subscribe to one table, and keep in it what the query needs from others.");

	switch (nodeTag(item))
	{
		case T_RangeVar:
			break;
		case T_JoinExpr:
			refuse(pstate, exprLocation(((JoinExpr *) item)->rarg),
				   "joins are not supported in a subscribed query",
				   "Subscribe to one table, and keep in it what the query needs from others.");
			break;
		case T_RangeSubselect:
			{
				RangeSubselect *range = (RangeSubselect *) item;
				SelectStmt *subquery = (SelectStmt *) range->subquery;

				if (inner || !is_numbering(range))
					refuse(pstate, exprLocation((Node *) subquery->targetList),
						   "subqueries are not supported in a subscribed query",
						   "Use a table or a view in FROM, or number the rows of each group by row_number().");
				check_select(pstate, subquery, true);
			}
			break;
		case T_RangeTableSample:
			refuse(pstate, ((RangeTableSample *) item)->location,
				   "TABLESAMPLE is not supported in a subscribed query",
				   "Write a condition in WHERE that selects the rows.");
			break;
		default:
			refuse(pstate, exprLocation(item),
				   "functions in FROM are not supported in a subscribed query",
				   "Use a table or a view in FROM.");
	}
}

static void
check_select(ParseState *pstate, SelectStmt *stmt, bool inner)
{
	bool		grouped = stmt->fromClause != NIL &&
		IsA(linitial(stmt->fromClause), RangeSubselect);

	if (stmt->intoClause != NULL)
		refuse(pstate, exprLocation((Node *) stmt->intoClause),
			   "SELECT INTO cannot be subscribed to", NULL);
	if (stmt->withClause != NULL)
		refuse(pstate, stmt->withClause->location,
			   "WITH is not supported in a subscribed query",
			   "Use a table or a view in FROM.");
	if (stmt->op != SETOP_NONE)
		refuse(pstate, exprLocation((Node *) stmt->rarg->targetList),
			   "UNION, INTERSECT and EXCEPT are not supported in a subscribed query",
			   "Subscribe to each part, or combine them with OR or AND in WHERE.");
	if (stmt->valuesLists != NIL)
		refuse(pstate, exprLocation((Node *) stmt->valuesLists),
			   "VALUES cannot be subscribed to", NULL);
	if (stmt->distinctClause != NIL &&
		(inner || grouped || linitial(stmt->distinctClause) == NULL))
		refuse(pstate, exprLocation((Node *) stmt->distinctClause),
			   "DISTINCT is not supported in a subscribed query",
			   "Select the columns of the primary key, so that no two rows are alike.");
	if (stmt->groupClause != NIL)
		refuse(pstate, exprLocation((Node *) stmt->groupClause),
			   "GROUP BY is not supported in a subscribed query",
			   "Keep the groups in a table of their own, and subscribe to that.");
	if (stmt->havingClause != NULL)
		refuse(pstate, exprLocation(stmt->havingClause),
			   "HAVING is not supported in a subscribed query",
			   "Keep the groups in a table of their own, and subscribe to that.");
	if (stmt->windowClause != NIL && !inner)
		refuse(pstate, exprLocation((Node *) stmt->windowClause),
			   "window functions are not supported in a subscribed query", NULL);

	check_from(pstate, stmt->fromClause, inner);

	if (inner && (stmt->limitCount || stmt->limitOffset))
		refuse(pstate, exprLocation(stmt->limitCount ? stmt->limitCount :
									stmt->limitOffset),
			   "LIMIT and OFFSET in a subquery are not supported in a subscribed query",
			   NULL);
	if (stmt->lockingClause != NIL)
		refuse(pstate, -1,
			   "row locks are not supported in a subscribed query",
			   "Leave out the FOR UPDATE or FOR SHARE clause.");
}

/*
 * Refuse what the grammar can tell.
 */
void
check_statement(ParseState *pstate, RawStmt *raw)
{
	if (!IsA(raw->stmt, SelectStmt))
		refuse(pstate, -1, "only SELECT can be subscribed to",
			   "Pass a query of the form SELECT ... FROM ... WHERE ... ORDER BY ... LIMIT ....");
	check_select(pstate, (SelectStmt *) raw->stmt, false);
}

const RangeVar *
table_name(const RawStmt *raw)
{
	Node	   *item = linitial(((SelectStmt *) raw->stmt)->fromClause);

	if (IsA(item, RangeSubselect))
	{
		SelectStmt *subquery = (SelectStmt *) ((RangeSubselect *) item)->subquery;

		item = linitial(subquery->fromClause);
	}
	return castNode(RangeVar, item);
}

int
table_location(const RawStmt *raw)
{
	return table_name(raw)->location;
}

static bool
check_expression_walker(Node *node, ParseState *pstate)
{
	if (node == NULL)
		return false;

	switch (nodeTag(node))
	{
		case T_SubLink:
			refuse(pstate, exprLocation(node),
				   "subqueries are not supported in a subscribed query",
				   "Keep in the table what the query needs from others.");
			break;
		case T_Aggref:
		case T_GroupingFunc:
			refuse(pstate, exprLocation(node),
				   "aggregate functions are not supported in a subscribed query",
				   "Keep the aggregate in a table of its own, and subscribe to that.");
			break;
		case T_WindowFunc:
			refuse(pstate, exprLocation(node),
				   "window functions are not supported in a subscribed query",
				   "The position of a row is part of what is published.");
			break;
		case T_FuncExpr:
			if (((FuncExpr *) node)->funcretset)
				refuse(pstate, exprLocation(node),
					   "set-returning functions are not supported in a subscribed query",
					   "Select the value that the function is applied to.");
			break;
		case T_OpExpr:
			if (((OpExpr *) node)->opretset)
				refuse(pstate, exprLocation(node),
					   "set-returning functions are not supported in a subscribed query",
					   "Select the value that the operator is applied to.");
			break;
		case T_Var:
			{
				Var		   *var = (Var *) node;
				const FormData_pg_attribute *attr;

				if (var->varattno >= 0)
					break;
				attr = SystemAttributeDefinition(var->varattno);
				refuse(pstate, var->location,
					   psprintf("system column \"%s\" is not supported in a subscribed query",
								NameStr(attr->attname)),
					   "Use columns of the table.");
			}
			break;
		default:
			break;
	}
	return expression_tree_walker(node, check_expression_walker, pstate);
}

void
check_expression(ParseState *pstate, Node *node)
{
	check_expression_walker(node, pstate);
}

void
check_page(int64 offset, int64 limit)
{
	if (offset > MAX_HELD_ROWS ||
		(limit != NO_LIMIT && limit > MAX_HELD_ROWS - offset))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("LIMIT and OFFSET exceed %d rows", MAX_HELD_ROWS)));
}

/*
 * Refuse what shows only in the analysed query.
 */
void
check_analyzed(ParseState *pstate, Query *query)
{
	check_expression(pstate, (Node *) query->targetList);
	check_expression(pstate, (Node *) query->jointree);
	check_expression(pstate, query->limitCount);
	check_expression(pstate, query->limitOffset);

	if (list_length(query->rtable) != 1)
		refuse(pstate, -1, "a subscribed query must read one table", NULL);
}

/*
 * Refuse a table whose changes cannot be followed.  It is locked.
 */
void
check_table(ParseState *pstate, const RangeTblEntry *rte, int location)
{
	Relation	rel = table_open(rte->relid, NoLock);
	const char *name = RelationGetRelationName(rel);
	Oid			own_schema = get_namespace_oid("live_topn", true);
	const char *message = NULL;
	const char *hint = "Subscribe to an ordinary table.";

	switch (rel->rd_rel->relkind)
	{
		case RELKIND_RELATION:
		case RELKIND_PARTITIONED_TABLE:
			break;
		case RELKIND_MATVIEW:
			message = "materialized view \"%s\" cannot be subscribed to";
			hint = "Subscribe to a table or a view.";
			break;
		case RELKIND_FOREIGN_TABLE:
			message = "foreign table \"%s\" cannot be subscribed to";
			hint = "Subscribe in the database that the table is in.";
			break;
		default:
			message = "relation \"%s\" cannot be subscribed to";
	}

	if (message != NULL)
		 /* already found */ ;
	else if (IsCatalogRelation(rel) ||
			 RelationGetNamespace(rel) == PG_CATALOG_NAMESPACE ||
			 IsToastNamespace(RelationGetNamespace(rel)))
		message = "system catalog \"%s\" cannot be subscribed to";
	else if (OidIsValid(own_schema) &&
			 RelationGetNamespace(rel) == own_schema)
		message = "table \"%s\" of live_topn itself cannot be subscribed to";
	else if (rel->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
		message = "temporary table \"%s\" cannot be subscribed to";
	else if (rel->rd_rel->relpersistence == RELPERSISTENCE_UNLOGGED)
	{
		message = "unlogged table \"%s\" cannot be subscribed to";
		hint = "Use ALTER TABLE ... SET LOGGED.";
	}
	else if (rte->tablesample != NULL)
	{
		message = "view over a TABLESAMPLE of table \"%s\" cannot be subscribed to";
		hint = "Subscribe to the table.";
	}
	else if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		if (!rte->inh)
		{
			message = "ONLY cannot be used with partitioned table \"%s\" in a subscribed query";
			hint = "Leave out ONLY.";
		}
	}
	else if (rte->inh &&
			 find_inheritance_children(RelationGetRelid(rel), NoLock) != NIL)
	{
		message = "table \"%s\" with inheritance children cannot be subscribed to";
		hint = "Use ONLY, or make it a partitioned table.";
	}

	if (message != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg(message, name),
				 errhint("%s", hint),
				 parser_errposition(pstate, location)));

	table_close(rel, NoLock);
}
