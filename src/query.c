/*
 * query.c
 *	  SQL text to analysed query: relation, filter, order, identity, limit.
 *
 * A query goes through PostgreSQL's own stages: parse, analysis, rewriting
 * (which brings in row security and opens views), and the preparation of
 * expressions for execution (which inlines SQL functions and folds constants).
 * In between it is made into the row format of query.h: the identity columns
 * that it lacks are appended, before rewriting (identity.c).  So the same
 * query, with a condition for the rows after a given one, can be handed to the
 * planner by keyset.c, and row security, views and privileges are PostgreSQL's
 * work there too.  For those who have no planner, views are flattened.
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/cost.h"
#include "optimizer/optimizer.h"
#include "optimizer/prep.h"
#include "parser/analyze.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "conversion.h"
#include "depend.h"
#include "fingerprint.h"
#include "flatten.h"
#include "groups.h"
#include "identity.h"
#include "inert.h"
#include "query.h"
#include "query_check.h"
#include "query_functions.h"

/*
 * Errors with a position point into the subscribed query, not into the
 * statement that calls us: compare _SPI_error_callback().
 */
static void
query_error_callback(void *arg)
{
	const char *sql = arg;
	int			position = geterrposition();

	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery(sql);
	}
	else
		errcontext("subscribed query \"%s\"", sql);
}

/* ----- Parse and analysis ----- */

static RawStmt *
parse_statement(ParseState *pstate)
{
	const char *sql = pstate->p_sourcetext;
	List	   *statements = pg_parse_query(sql);

	if (statements == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_SYNTAX_ERROR),
				 errmsg("subscribed query is empty")));
	if (list_length(statements) > 1)
	{
		int			location = lsecond_node(RawStmt, statements)->stmt_location;

		while (isspace((unsigned char) sql[location]))
			location++;
		refuse(pstate, location,
			   "more than one statement cannot be subscribed to",
			   "Make one subscription for each query.");
	}
	return linitial_node(RawStmt, statements);
}

typedef struct Arguments
{
	int			count;
	Const	  **values;
	List	   *places;			/* where they are in the text */
} Arguments;

static Node *
substitute_arguments_mutator(Node *node, Arguments *arguments)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Query))
		return (Node *) query_tree_mutator((Query *) node,
										   substitute_arguments_mutator,
										   arguments, 0);
	if (IsA(node, Param) && ((Param *) node)->paramkind == PARAM_EXTERN)
	{
		Param	   *param = (Param *) node;
		Const	   *value;

		Assert(param->paramid >= 1 && param->paramid <= arguments->count);
		value = copyObject(arguments->values[param->paramid - 1]);
		Assert(value->consttype == param->paramtype);
		value->constcollid = param->paramcollid;
		value->location = param->location;
		arguments->places = lappend_int(arguments->places, param->location);
		return (Node *) value;
	}
	return expression_tree_mutator(node, substitute_arguments_mutator,
								   arguments);
}

static void
argument_error_callback(void *arg)
{
	errcontext("value of parameter $%d", *(int *) arg);
}

/*
 * The value of an argument, of the type that analysis has found for it.
 */
static Const *
argument_value(ParseState *pstate, int number, Oid type, char *literal)
{
	Oid			typinput;
	Oid			typioparam;
	int16		typlen;
	bool		typbyval;
	Datum		value;
	ErrorContextCallback callback;

	if (!OidIsValid(type) || type == UNKNOWNOID)
		ereport(ERROR,
				(errcode(ERRCODE_INDETERMINATE_DATATYPE),
				 errmsg("could not determine data type of parameter $%d",
						number)));

	callback.callback = argument_error_callback;
	callback.arg = &number;
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	if (literal != NULL)
		check_time_literal(pstate, type, literal, -1);
	getTypeInputInfo(type, &typinput, &typioparam);
	value = OidInputFunctionCall(typinput, literal, typioparam, -1);

	error_context_stack = callback.previous;

	get_typlenbyval(type, &typlen, &typbyval);
	return makeConst(type, -1, InvalidOid, typlen, value, literal == NULL,
					 typbyval);
}

/*
 * *places are those of arguments in the text; false in *fixed if what values
 * they have depends on the catalogs.
 */
static Query *
analyze_statement(ParseState *pstate, RawStmt *raw, int nargs, char **args,
				  List **places, bool *fixed)
{
	Oid		   *types = NULL;
	int			ntypes = 0;
	Arguments	arguments = {0};
	RawStmt    *written = copyObject(raw);	/* analysis scribbles on raw */
	Query	   *query;

	query = parse_analyze_varparams(raw, pstate->p_sourcetext,
									&types, &ntypes, NULL);
	check_analyzed(pstate, query);
	check_time_literals(pstate, written, query);

	if (ntypes != nargs)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wrong number of arguments for the subscribed query"),
				 errdetail("Expected %d arguments but got %d.",
						   ntypes, nargs)));

	arguments.count = nargs;
	arguments.values = palloc(sizeof(Const *) * nargs);
	*fixed = true;
	for (int i = 0; i < nargs; i++)
	{
		arguments.values[i] = argument_value(pstate, i + 1, types[i], args[i]);
		*fixed &= is_independent_input(types[i]);
	}
	query = query_tree_mutator(query, substitute_arguments_mutator, &arguments,
							   0);
	*places = arguments.places;
	return query;
}

/*
 * The number in LIMIT or OFFSET; -1 if it is null.
 */
static int64
evaluate_count(ParseState *pstate, Node *expression, const char *clause,
			   int sqlerrcode)
{
	Node	   *node = eval_const_expressions(NULL, expression);
	int			location = exprLocation(expression);
	int64		count;

	if (!IsA(node, Const))
		refuse(pstate, location,
			   psprintf("%s of a subscribed query must be a constant or an argument",
						clause),
			   NULL);
	if (((Const *) node)->constisnull)
		return -1;

	count = DatumGetInt64(((Const *) node)->constvalue);
	if (count < 0)
		ereport(ERROR,
				(errcode(sqlerrcode),
				 errmsg("%s must not be negative", clause),
				 parser_errposition(pstate, location)));
	return count;
}

/*
 * LIMIT and OFFSET, which are taken out of the query.
 */
static void
take_limits(ParseState *pstate, Query *query, TopnQuery *result)
{
	int64		count = -1;

	if (query->limitCount)
		count = evaluate_count(pstate, query->limitCount, "LIMIT",
							   ERRCODE_INVALID_ROW_COUNT_IN_LIMIT_CLAUSE);
	if (count < 0 && query->limitOption == LIMIT_OPTION_WITH_TIES)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_ROW_COUNT_IN_LIMIT_CLAUSE),
				 errmsg("row count cannot be null in FETCH FIRST ... WITH TIES clause"),
				 parser_errposition(pstate,
									exprLocation(query->limitCount))));
	result->limit = count < 0 ? NO_LIMIT : count;
	if (query->limitOffset)
		result->offset =
			Max(0, evaluate_count(pstate, query->limitOffset, "OFFSET",
								  ERRCODE_INVALID_ROW_COUNT_IN_RESULT_OFFSET_CLAUSE));
	check_page(result->offset, result->limit);

	if (query->limitOption == LIMIT_OPTION_WITH_TIES)
		result->rank = RANK_WITH_TIES;

	query->limitCount = NULL;
	query->limitOffset = NULL;
	query->limitOption = LIMIT_OPTION_COUNT;
}

/* ----- Privileges ----- */

static void
check_permissions(Query *query)
{
	ListCell   *lc;

	check_query_permissions(query);
	foreach(lc, query->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

		if (rte->rtekind == RTE_SUBQUERY)
			check_permissions(rte->subquery);
	}
}

/* ----- The result ----- */

/*
 * Node trees without locations, so that queries that differ in white space
 * only have the same text.  Reading a location back gives -1.
 */
static void *
without_locations(void *tree)
{
	return tree == NULL ? NULL : stringToNode(nodeToString(tree));
}

static Node *
plan_expression(ParseState *pstate, Query *source, Node *node)
{
	node = fold_current_user(node);
	check_expression(pstate, node);
	check_functions(pstate, source, node, false);
	node = (Node *) expression_planner((Expr *) node);
	check_functions(pstate, source, node, true);
	return node;
}

Cost
query_expression_cost(Node *node)
{
	QualCost	cost;

	cost_qual_eval_node(&cost, node, NULL);
	return cost.per_tuple;
}

/* Before those that cost more, but not before the first n. */
static List *
insert_by_cost(List *quals, int n, Node *qual)
{
	Cost		cost = query_expression_cost(qual);

	while (n < list_length(quals) &&
		   query_expression_cost(list_nth(quals, n)) <= cost)
		n++;
	return list_insert_nth(quals, n, qual);
}

/*
 * The order of evaluation is that of the planner, who begins with what costs
 * least, after inert ones.  Rows that do not satisfy these cannot raise an
 * error then, whether they are looked up by them or not.  They do not reveal
 * anything to anybody, so that they may come even before security quals.
 */
static void
order_quals(TopnQuery *result, List *quals, int nsecurity)
{
	List	   *inert = NIL;
	List	   *others = NIL;
	int			nfirst = 0;
	ListCell   *lc;

	foreach(lc, quals)
	{
		Node	   *qual = lfirst(lc);
		bool		is_security = foreach_current_index(lc) < nsecurity;

		if (is_inert_expression(qual))
			inert = lappend(inert, qual);
		else if (is_security)
			others = list_insert_nth(others, nfirst++, qual);
		else
			others = insert_by_cost(others, nfirst, qual);
	}
	result->ninert = list_length(inert);
	result->quals = list_concat(inert, others);
}

static void
fill_quals(TopnQuery *result, ParseState *pstate, Query *source,
		   const FlatQuery *flat)
{
	List	   *quals = NIL;
	int			nsecurity = 0;
	ListCell   *lc;

	foreach(lc, flat->quals)
	{
		Node	   *qual = plan_expression(pstate, source, lfirst(lc));

		/* as the planner does: what is never true is not evaluated */
		qual = (Node *) canonicalize_qual((Expr *) qual, false);
		quals = list_concat(quals, make_ands_implicit((Expr *) qual));
		if (foreach_current_index(lc) < flat->nsecurity)
			nsecurity = list_length(quals);
	}
	order_quals(result, without_locations(quals), nsecurity);
}

static void
fill_targetlist(TopnQuery *result, ParseState *pstate, Query *source,
				List *columns)
{
	ListCell   *lc;

	if (result->keyless)
		columns = list_truncate(list_copy(columns), list_length(columns) - 1);

	result->targetlist = NIL;
	foreach(lc, columns)
	{
		TargetEntry *column = lfirst_node(TargetEntry, lc);
		Node	   *expr = plan_expression(pstate, source,
										   (Node *) column->expr);
		Oid			type = exprType(expr);

		if (type == RECORDOID || type == RECORDARRAYOID)
			refuse(pstate,
				   exprLocation(list_nth(source->targetList,
										 column->resno - 1)),
				   "values of type record are not supported in a subscribed query",
				   "Cast to a named composite type, or use the fields one by one.");

		result->targetlist = lappend(result->targetlist,
									 makeTargetEntry((Expr *) expr,
													 column->resno,
													 column->resname,
													 column->resjunk));
		if (!column->resjunk)
			result->nvisible++;
	}
	result->targetlist = without_locations(result->targetlist);
}

static void
fill_sort(TopnQuery *result, Query *source)
{
	int			nclauses = list_length(source->sortClause);

	if (result->keyless)
		nclauses--;

	result->nsort = nclauses + (result->keyless ? result->nkeys : 0);
	result->sort = palloc0_array(SortKey, result->nsort);

	for (int i = 0; i < nclauses; i++)
	{
		SortGroupClause *clause = list_nth_node(SortGroupClause,
												source->sortClause, i);
		TargetEntry *tle = get_sortgroupclause_tle(clause, source->targetList);
		SortKey    *key = &result->sort[i];

		key->attno = tle->resno;
		key->sortop = clause->sortop;
		key->collation = exprCollation((Node *) tle->expr);
		key->nulls_first = clause->nulls_first;
	}
	for (int i = nclauses; i < result->nsort; i++)
		result->sort[i].attno = result->keys[i - nclauses];
}

static void
notice_order(const TopnQuery *query)
{
	StringInfoData names;

	if (query->keyless)
	{
		ereport(NOTICE,
				(errmsg("subscribed query has no ORDER BY, ordering by the image of the whole row")));
		return;
	}

	initStringInfo(&names);
	for (int i = 0; i < query->nkeys; i++)
		appendStringInfo(&names, "%s%s", i > 0 ? ", " : "",
						 quote_identifier(query->key_names[i]));
	ereport(NOTICE,
			(errmsg("subscribed query has no ORDER BY, ordering by identity (%s)",
					names.data)));
}

/* Find the table, and from it the identity, which becomes part of the row. */
static void
take_table(TopnQuery *result, ParseState *pstate, Query *source, int location)
{
	int			nordered = list_length(source->sortClause);
	Query	   *rewritten = rewrite_query(source);
	FlatQuery	flat;
	Relation	rel;

	check_permissions(rewritten);
	flat = flatten_query(pstate, rewritten, only_rte(source)->relid, location);
	check_table(pstate, flat.rte, location);
	result->relid = flat.rte->relid;
	result->unranked = nordered == 0 && result->limit == NO_LIMIT &&
		result->offset == 0;
	rel = table_open(result->relid, NoLock);
	append_identity(pstate, result, source, flat.targetlist, rel, location);
	table_close(rel, NoLock);
	if (result->rank != RANK_ROWS)
		result->nties = Min(nordered, list_length(source->sortClause));
}

static TopnQuery *
analyze(const char *sql, int nargs, char **args)
{
	TopnQuery  *result = palloc0_object(TopnQuery);
	ParseState *pstate = make_parsestate(NULL);
	RawStmt    *raw;
	Query	   *source;
	Query	   *rewritten;
	FlatQuery	flat;
	List	   *places;
	bool		fixed;
	bool		ordered;
	int			location;

	pstate->p_sourcetext = sql;
	raw = parse_statement(pstate);
	check_statement(pstate, raw);
	location = table_location(raw);
	find_written_schemas(result, raw);
	source = analyze_statement(pstate, raw, nargs, args, &places, &fixed);
	if (is_grouped(source))
		source = take_groups(pstate, source, result);
	else
		take_limits(pstate, source, result);
	source->queryId = 0;		/* what we run is another query */

	ordered = source->sortClause != NIL;
	take_table(result, pstate, source, location);
	result->source = source;

	/* now that the row is complete, also with the columns of the identity */
	rewritten = rewrite_query(source);
	check_permissions(rewritten);
	result->fingerprint = query_fingerprint(rewritten, places);
	flat = flatten_query(pstate, rewritten, only_rte(source)->relid, location);
	fill_quals(result, pstate, source, &flat);
	fill_targetlist(result, pstate, source, flat.targetlist);
	fill_sort(result, source);
	result->inert = is_inert_query(result);
	result->inert_end = has_inert_end(result);
	result->robust = is_robust_query(result);
	find_dependencies(result, table_name(raw), source, rewritten);
	if (result->functions || !fixed)
		result->fingerprint = 0;

	free_parsestate(pstate);
	if (!ordered && !result->unranked)
		notice_order(result);
	return result;
}

TopnQuery *
query_analyze(const char *sql, int nargs, char **args)
{
	ErrorContextCallback callback;
	bool		pushed = false;
	TopnQuery  *result;

	callback.callback = query_error_callback;
	callback.arg = unconstify(char *, sql);
	callback.previous = error_context_stack;
	error_context_stack = &callback;

	if (!ActiveSnapshotSet())
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		pushed = true;
	}

	result = analyze(sql, nargs, args);

	if (pushed)
		PopActiveSnapshot();
	error_context_stack = callback.previous;
	return result;
}
