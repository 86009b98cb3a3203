/*
 * groups.c
 *	  The first rows of each group, as a query says it.
 *
 * PostgreSQL has two ways to ask for these,
 *
 *		SELECT ... FROM (SELECT ..., row_number() OVER (PARTITION BY g
 *			ORDER BY k) AS n FROM t WHERE ...) WHERE n <= 3 ORDER BY g, n
 *		SELECT DISTINCT ON (g) ... FROM t WHERE ... ORDER BY g, k
 *
 * and both become SELECT ... FROM t WHERE ... ORDER BY k here, with the
 * partition keys as columns of the row; rank() and dense_rank() only count
 * differently.  The columns that show the rank are null in that query: what
 * they show depends on other rows.
 *
 * Conditions outside of the subquery apply after rows are numbered.  One on
 * the partition keys alone keeps or drops whole groups, so that it can as well
 * apply before.
 *
 * Groups are told apart by the images of their keys.  Types whose equal
 * values may have different images, such as numeric with 1.0 and 1.00, could
 * not be shown to clients without them taking one group for two.
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "catalog/pg_opfamily_d.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "optimizer/tlist.h"
#include "parser/parse_clause.h"
#include "parser/parse_coerce.h"
#include "parser/parse_oper.h"
#include "rewrite/rewriteManip.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"

#include "compat.h"
#include "flatten.h"
#include "groups.h"
#include "query_check.h"

#define HINT_NUMBERING \
	"Use the form SELECT ... FROM (SELECT ..., row_number() OVER (PARTITION BY ... ORDER BY ...) AS n FROM ...) AS x WHERE n <= ...."

typedef struct Grouping
{
	ParseState *pstate;
	TopnQuery  *result;
	Query	   *source;			/* the query for all rows */
	List	   *keys;			/* partition keys, expressions over it */
	List	   *clauses;		/* SortGroupClauses of these */
	WindowFunc *rank;			/* NULL for DISTINCT ON */
	int64		first;			/* ranks in the result */
	int64		last;			/* PG_INT64_MAX: no limit */
} Grouping;

bool
is_grouped(const Query *query)
{
	RangeTblEntry *rte = only_rte((Query *) query);

	return rte->rtekind == RTE_SUBQUERY || query->hasDistinctOn;
}

/* ----- Expressions ----- */

static bool
contains_rank_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, WindowFunc))
		return true;
	return expression_tree_walker(node, contains_rank_walker, context);
}

static bool
contains_rank(Node *node)
{
	return contains_rank_walker(node, NULL);
}

/* Are there columns outside of partition keys? */
static bool
varies_in_group_walker(Node *node, Grouping *grouping)
{
	if (node == NULL || list_member(grouping->keys, node))
		return false;
	if (IsA(node, Var))
		return true;
	return expression_tree_walker(node, varies_in_group_walker, grouping);
}

/* The column of the query that is an expression; it is appended if need be. */
static TargetEntry *
find_or_append(Query *query, Node *expr, const char *name)
{
	TargetEntry *tle = tlist_member((Expr *) expr, query->targetList);

	if (tle == NULL)
	{
		tle = makeTargetEntry((Expr *) copyObject(expr),
							  list_length(query->targetList) + 1,
							  pstrdup(name), true);
		query->targetList = lappend(query->targetList, tle);
	}
	return tle;
}

/* ----- Partition keys ----- */

/* Do equal values of the key look alike in every way? */
static bool
equal_is_image_equal(Node *key, Oid sortop)
{
	Oid			opfamily;
	Oid			opcintype;
	OrderStrategy strategy;
	Oid			proc;

	if (!get_ordering_op_properties(sortop, &opfamily, &opcintype, &strategy))
		elog(ERROR, "operator %u is not a valid ordering operator", sortop);
	/* with a length, values are padded; else blanks at the end do not count */
	if (opcintype == BPCHAROID)
		return exprTypmod(key) >= 0 &&
			get_collation_isdeterministic(exprCollation(key));
	proc = get_opfamily_proc(opfamily, opcintype, opcintype,
							 BTEQUALIMAGE_PROC);
	return OidIsValid(proc) &&
		DatumGetBool(OidFunctionCall1Coll(proc, exprCollation(key),
										  ObjectIdGetDatum(opcintype)));
}

/*
 * What a key is called: as a column of the table or of the subquery, or by
 * its function.
 */
static char *
key_name(Grouping *grouping, Node *key, const List *columns, int number)
{
	RangeTblEntry *rte = only_rte(grouping->source);
	ListCell   *lc;

	if (IsA(key, Var) && ((Var *) key)->varattno > 0)
		return get_attname(rte->relid, ((Var *) key)->varattno, false);
	foreach(lc, columns)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);

		if (!tle->resjunk && equal(tle->expr, key))
			return pstrdup(tle->resname);
	}
	if (IsA(key, FuncExpr))
		return get_func_name(((FuncExpr *) key)->funcid);
	return psprintf("key%d", number);
}

/*
 * The keys as columns of the row.  columns is where names are from.
 */
static void
fill_keys(Grouping *grouping, const List *columns)
{
	TopnQuery  *result = grouping->result;
	int			n = list_length(grouping->keys);

	if (n > INDEX_MAX_KEYS)
		refuse(grouping->pstate, exprLocation(list_nth(grouping->keys,
													   INDEX_MAX_KEYS)),
			   psprintf("more than %d partition keys are not supported in a subscribed query",
						INDEX_MAX_KEYS),
			   NULL);
	result->ngroups = n;
	result->groups = palloc_array(AttrNumber, n);
	result->group_names = palloc_array(char *, n);
	for (int i = 0; i < n; i++)
	{
		Node	   *key = list_nth(grouping->keys, i);
		SortGroupClause *clause = list_nth(grouping->clauses, i);

		if (!equal_is_image_equal(key, clause->sortop))
			refuse(grouping->pstate, exprLocation(key),
				   psprintf("partition key of type %s is not supported in a subscribed query, as equal values may look different",
							format_type_be(exprType(key))),
				   "Cast it, for example to integer or to text.");
		result->group_names[i] = key_name(grouping, key, columns, i + 1);
		result->groups[i] = find_or_append(grouping->source, key,
										   result->group_names[i])->resno;
	}
}

static void
list_key(TopnQuery *result, int position, int key, Node *expr,
		 Oid sortop, bool nulls_first)
{
	SortKey    *sort = &result->group_order[position];

	sort->attno = result->groups[key];
	sort->sortop = sortop;
	sort->collation = exprCollation(expr);
	sort->nulls_first = nulls_first;
}

/*
 * The order of the groups: first as given, then by the other keys.  order has
 * SortGroupClauses, expressions what they order by.  Returns how many of them
 * were keys.
 */
static int
order_keys(Grouping *grouping, List *order, List *expressions)
{
	TopnQuery  *result = grouping->result;
	Bitmapset  *listed = NULL;
	int			n = 0;
	int			taken = 0;

	result->group_order = palloc0_array(SortKey, result->ngroups);
	for (; taken < list_length(order); taken++)
	{
		SortGroupClause *clause = list_nth(order, taken);
		Node	   *expr = list_nth(expressions, taken);
		int			key = 0;

		while (key < result->ngroups &&
			   !equal(list_nth(grouping->keys, key), expr))
			key++;
		if (key == result->ngroups)
			break;
		if (!bms_is_member(key, listed))
			list_key(result, n++, key, expr, clause->sortop,
					 clause->nulls_first);
		listed = bms_add_member(listed, key);
	}
	if (taken < list_length(order) && n < result->ngroups)
		refuse(grouping->pstate, exprLocation(list_nth(expressions, taken)),
			   "a grouped result must be ordered by all partition keys first",
			   "Name the partition keys in ORDER BY, then the rank.");
	for (int key = 0; key < result->ngroups; key++)
	{
		Node	   *expr = list_nth(grouping->keys, key);
		Oid			ltop;

		if (bms_is_member(key, listed))
			continue;
		get_sort_group_operators(exprType(expr), true, false, false,
								 &ltop, NULL, NULL, NULL);
		list_key(result, n++, key, expr, ltop, false);
	}
	return taken;
}

/* ----- DISTINCT ON ----- */

static Query *
take_distinct_on(ParseState *pstate, Query *query, TopnQuery *result)
{
	Grouping	grouping = {.pstate = pstate,.result = result,.source = query};
	List	   *expressions = NIL;
	int			taken;
	ListCell   *lc;

	if (query->limitCount || query->limitOffset)
		refuse(pstate, exprLocation(query->limitCount ? query->limitCount :
									query->limitOffset),
			   "LIMIT and OFFSET with DISTINCT ON are not supported in a subscribed query",
			   "Leave it out, or select by a condition on the partition keys.");

	foreach(lc, query->distinctClause)
	{
		SortGroupClause *clause = lfirst_node(SortGroupClause, lc);

		grouping.keys = lappend(grouping.keys,
								get_sortgroupclause_expr(clause,
														 query->targetList));
		grouping.clauses = lappend(grouping.clauses, clause);
	}
	foreach(lc, query->sortClause)
		expressions = lappend(expressions,
							  get_sortgroupclause_expr(lfirst(lc),
													   query->targetList));
	fill_keys(&grouping, query->targetList);
	taken = order_keys(&grouping, query->sortClause, expressions);
	query->sortClause = list_copy_tail(query->sortClause, taken);
	query->distinctClause = NIL;
	query->hasDistinctOn = false;
	result->limit = 1;
	return query;
}

/* ----- Numbered rows ----- */

static RankKind
rank_kind(ParseState *pstate, const WindowFunc *rank)
{
	switch (rank->winfnoid)
	{
		case F_ROW_NUMBER:
			return RANK_ROWS;
		case F_RANK_:
			return RANK_TIES;
		case F_DENSE_RANK_:
			return RANK_DENSE;
	}
	refuse(pstate, rank->location,
		   psprintf("window function %s is not supported in a subscribed query",
					get_func_name(rank->winfnoid)),
		   "Use row_number, rank or dense_rank.");
	return RANK_ROWS;			/* silence the compiler */
}

/* All conditions must be on the same numbering. */
static void
note_rank(Grouping *grouping, WindowFunc *rank)
{
	grouping->result->rank = rank_kind(grouping->pstate, rank);
	if (grouping->rank && !equal(grouping->rank, rank))
		refuse(grouping->pstate, rank->location,
			   "more than one numbering of rows is not supported in a subscribed query",
			   HINT_NUMBERING);
	grouping->rank = rank;
}

/* The value of a constant bound; false if it is none. */
static bool
constant_bound(Node *bound, int64 *value, bool *isnull)
{
	Const	   *constant = (Const *) eval_const_expressions(NULL, bound);

	if (!IsA(constant, Const))
		return false;
	*isnull = constant->constisnull;
	if (*isnull)
		return true;
	switch (constant->consttype)
	{
		case INT2OID:
			*value = DatumGetInt16(constant->constvalue);
			break;
		case INT4OID:
			*value = DatumGetInt32(constant->constvalue);
			break;
		default:
			*value = DatumGetInt64(constant->constvalue);
	}
	return true;
}

/* A bound that is the same in a group, but not everywhere. */
static void
take_group_bound(Grouping *grouping, int strategy, Node *bound,
				 int location)
{
	ParseState *pstate = grouping->pstate;
	TopnQuery  *result = grouping->result;
	Node	   *number;

	if (grouping->keys == NIL)
		refuse(pstate, location,
			   "bound of a rank must be a constant in a subscribed query without PARTITION BY",
			   NULL);
	if (varies_in_group_walker(bound, grouping))
		refuse(pstate, location,
			   "bound of a rank must be the same in all rows of a group",
			   "Use partition keys, constants and arguments only.");
	if (strategy != BTLessStrategyNumber &&
		strategy != BTLessEqualStrategyNumber)
		refuse(pstate, location,
			   "a bound of a rank that depends on the group must be an upper one",
			   "Compare it with < or <=.");
	if (result->bound != InvalidAttrNumber)
		refuse(pstate, location,
			   "more than one bound of a rank that depends on the group is not supported",
			   "Use least().");
	number = coerce_to_target_type(pstate, bound, exprType(bound), INT8OID, -1,
								   COERCION_IMPLICIT, COERCE_IMPLICIT_CAST,
								   -1);
	result->bound = find_or_append(grouping->source, number, "bound")->resno;
	result->bound_exclusive = strategy == BTLessStrategyNumber;
}

/* A comparison of the rank. */
static void
take_bound(Grouping *grouping, OpExpr *op, int location)
{
	ParseState *pstate = grouping->pstate;
	Oid			opno = op->opno;
	Node	   *rank = linitial(op->args);
	Node	   *bound = llast(op->args);
	int64		value;
	bool		isnull;
	int			strategy;

	if (list_length(op->args) == 2 && !IsA(rank, WindowFunc))
	{
		rank = llast(op->args);
		bound = linitial(op->args);
		opno = get_commutator(opno);
	}
	strategy = OidIsValid(opno) ?
		get_op_opfamily_strategy(opno, INTEGER_BTREE_FAM_OID) : 0;
	if (!IsA(rank, WindowFunc) || contains_rank(bound) || strategy == 0)
		refuse(pstate, location,
			   "condition on the rank is not supported in a subscribed query",
			   "Compare the rank with integers, by <, <=, =, >=, > or BETWEEN.");
	note_rank(grouping, (WindowFunc *) rank);
	if (!constant_bound(bound, &value, &isnull))
	{
		take_group_bound(grouping, strategy, bound, location);
		return;
	}

	if (isnull)
		grouping->last = 0;
	else if (strategy == BTLessStrategyNumber && value == PG_INT64_MIN)
		grouping->last = 0;
	else if (strategy == BTLessStrategyNumber)
		grouping->last = Min(grouping->last, value - 1);
	else if (strategy == BTGreaterStrategyNumber && value == PG_INT64_MAX)
		grouping->last = 0;
	else if (strategy == BTGreaterStrategyNumber)
		grouping->first = Max(grouping->first, value + 1);
	else
	{
		if (strategy != BTGreaterEqualStrategyNumber)
			grouping->last = Min(grouping->last, value);
		if (strategy != BTLessEqualStrategyNumber)
			grouping->first = Max(grouping->first, value);
	}
}

static List *
split_conjunction(Node *node)
{
	List	   *result = NIL;
	ListCell   *lc;

	if (node == NULL)
		return NIL;
	if (!is_andclause(node))
		return list_make1(node);
	foreach(lc, ((BoolExpr *) node)->args)
		result = list_concat(result, split_conjunction(lfirst(lc)));
	return result;
}

/* A condition outside of the subquery, over the table. */
static void
take_condition(Grouping *grouping, Node *qual, int location)
{
	Query	   *source = grouping->source;

	if (!contains_rank(qual))
	{
		if (varies_in_group_walker(qual, grouping))
			refuse(grouping->pstate, location,
				   "a condition outside of the subquery may only be on the rank and the partition keys",
				   "Move it into the subquery, so that it applies before rows are numbered.");
		source->jointree->quals = make_and_qual(source->jointree->quals, qual);
	}
	else if (IsA(qual, OpExpr))
		take_bound(grouping, (OpExpr *) qual, location);
	else
		refuse(grouping->pstate, location,
			   "condition on the rank is not supported in a subscribed query",
			   "Compare the rank with integers, by <, <=, =, >=, > or BETWEEN.");
}

/*
 * All of them: as written, which has the locations, and over the table.  There
 * a column may be a conjunction.
 */
static void
take_conditions(Grouping *grouping, Node *written, Node *quals)
{
	ListCell   *lc;
	ListCell   *lc2;

	if (written && is_andclause(written))
		forboth(lc, ((BoolExpr *) written)->args,
				lc2, ((BoolExpr *) quals)->args)
			take_conditions(grouping, lfirst(lc), lfirst(lc2));
	else
		foreach(lc, split_conjunction(quals))
			take_condition(grouping, lfirst(lc), exprLocation(written));
}

/* First and last rank become offset and limit. */
static void
fill_bounds(Grouping *grouping, Query *outer)
{
	TopnQuery  *result = grouping->result;

	if (grouping->rank == NULL ||
		(grouping->last == PG_INT64_MAX && result->bound == InvalidAttrNumber))
		refuse(grouping->pstate, exprLocation(outer->jointree->quals),
			   "a subquery that numbers rows needs an upper bound of the number in a subscribed query",
			   HINT_NUMBERING);
	result->offset = grouping->first - 1;
	if (grouping->last == PG_INT64_MAX)
		result->limit = MAX_HELD_ROWS - Min(result->offset, MAX_HELD_ROWS);
	else if (grouping->last < grouping->first)
		result->offset = result->limit = 0;
	else
		result->limit = grouping->last - result->offset;
	check_page(result->offset, result->limit);
}

/* The partition and the order of the numbering. */
static void
take_window(Grouping *grouping, Query *inner)
{
	WindowClause *window = NULL;
	Query	   *source = grouping->source;
	ListCell   *lc;

	foreach(lc, inner->windowClause)
	{
		window = lfirst_node(WindowClause, lc);
		if (window->winref == grouping->rank->winref)
			break;
	}
	Assert(window != NULL);

	source->sortClause = NIL;
	foreach(lc, window->orderClause)
	{
		SortGroupClause *clause = copyObject(lfirst(lc));
		Node	   *expr = get_sortgroupclause_expr(clause, inner->targetList);
		TargetEntry *tle = find_or_append(source, expr, "order");

		clause->tleSortGroupRef = assignSortGroupRef(tle, source->targetList);
		source->sortClause = lappend(source->sortClause, clause);
	}
	if (grouping->result->rank != RANK_ROWS && source->sortClause == NIL)
		refuse(grouping->pstate, grouping->rank->location,
			   "rank without ORDER BY is not supported in a subscribed query",
			   "Add ORDER BY to its window, or use row_number.");
}

static void
find_partition(Grouping *grouping, Query *inner)
{
	ListCell   *lc;

	foreach(lc, inner->windowClause)
	{
		WindowClause *window = lfirst_node(WindowClause, lc);
		ListCell   *lc2;

		if (window->winref != grouping->rank->winref)
			continue;
		foreach(lc2, window->partitionClause)
		{
			SortGroupClause *clause = lfirst_node(SortGroupClause, lc2);

			grouping->keys =
				lappend(grouping->keys,
						get_sortgroupclause_expr(clause, inner->targetList));
			grouping->clauses = lappend(grouping->clauses, clause);
		}
	}
}

static bool
find_rank_walker(Node *node, Grouping *grouping)
{
	if (node == NULL)
		return false;
	if (IsA(node, WindowFunc))
	{
		note_rank(grouping, (WindowFunc *) node);
		return false;
	}
	return expression_tree_walker(node, find_rank_walker, grouping);
}

/*
 * The select list over the table: columns that show the rank become null.
 */
static void
fill_columns(Grouping *grouping, List *columns)
{
	List	   *targetlist = NIL;
	ListCell   *lc;

	foreach(lc, columns)
	{
		TargetEntry *tle = copyObject(lfirst_node(TargetEntry, lc));

		if (tle->resjunk)
			continue;
		if (IsA(tle->expr, WindowFunc))
		{
			note_rank(grouping, (WindowFunc *) tle->expr);
			grouping->result->ranks = lappend_int(grouping->result->ranks,
												  tle->resno);
			tle->expr = (Expr *) makeNullConst(INT8OID, -1, InvalidOid);
		}
		else if (contains_rank((Node *) tle->expr))
			refuse(grouping->pstate, exprLocation((Node *) tle->expr),
				   "expressions of a rank are not supported in a subscribed query",
				   "Select the rank itself.");
		tle->ressortgroupref = 0;
		targetlist = lappend(targetlist, tle);
	}
	grouping->source->targetList = targetlist;
}

/*
 * ORDER BY of the outer query: partition keys, and then what is the order
 * within a group anyway.  columns is its select list over the table.
 */
static void
take_order(Grouping *grouping, Query *outer, List *columns)
{
	Query	   *source = grouping->source;
	List	   *expressions = NIL;
	int			taken;
	ListCell   *lc;

	foreach(lc, outer->sortClause)
		expressions = lappend(expressions,
							  get_sortgroupclause_expr(lfirst(lc), columns));
	taken = order_keys(grouping, outer->sortClause, expressions);
	for (int i = taken; i < list_length(outer->sortClause); i++)
	{
		SortGroupClause *clause = list_nth(outer->sortClause, i);
		Node	   *expr = list_nth(expressions, i);
		SortGroupClause *own = NULL;

		if (IsA(expr, WindowFunc) &&
			get_op_opfamily_strategy(clause->sortop, INTEGER_BTREE_FAM_OID) ==
			BTLessStrategyNumber)
		{
			if (grouping->result->rank == RANK_ROWS ||
				i == list_length(outer->sortClause) - 1)
				break;			/* what follows decides nothing */
			continue;
		}
		if (i - taken < list_length(source->sortClause))
			own = list_nth(source->sortClause, i - taken);
		if (own == NULL || own->sortop != clause->sortop ||
			own->nulls_first != clause->nulls_first ||
			!equal(get_sortgroupclause_expr(own, source->targetList), expr))
			refuse(grouping->pstate, exprLocation(expr),
				   "the rows of a group must be ordered by their rank",
				   "Name the partition keys in ORDER BY, then the rank.");
	}
}

static Query *
take_numbered(ParseState *pstate, Query *query, TopnQuery *result)
{
	RangeTblEntry *rte = only_rte(query);
	RangeTblRef *ref = linitial_node(RangeTblRef, query->jointree->fromlist);
	Query	   *inner = rte->subquery;
	Grouping	grouping = {.pstate = pstate,.result = result};
	List	   *columns;
	Node	   *quals;
	ListCell   *lc;

	if (query->limitCount || query->limitOffset)
		refuse(pstate, exprLocation(query->limitCount ? query->limitCount :
									query->limitOffset),
			   "LIMIT and OFFSET over groups are not supported in a subscribed query",
			   "Bound the rows of each group only.");
	if (list_length(inner->rtable) != 1)
		refuse(pstate, -1, "a subscribed query must read one table", NULL);
	check_expression(pstate, (Node *) inner->jointree);
	foreach(lc, inner->targetList)
	{
		Node	   *expr = (Node *) lfirst_node(TargetEntry, lc)->expr;

		if (!IsA(expr, WindowFunc))
			check_expression(pstate, expr);
	}

	grouping.first = 1;
	grouping.last = PG_INT64_MAX;
	grouping.source = copyObject(inner);
	grouping.source->windowClause = NIL;
	grouping.source->hasWindowFuncs = false;

	columns = (List *) replace_vars((Node *) query->targetList, ref->rtindex,
									rte, inner->targetList);
	quals = replace_vars(query->jointree->quals, ref->rtindex, rte,
						 inner->targetList);

	fill_columns(&grouping, columns);
	(void) find_rank_walker(quals, &grouping);
	if (grouping.rank == NULL)
		refuse(pstate, exprLocation(quals),
			   "a subquery that numbers rows needs an upper bound of the number in a subscribed query",
			   HINT_NUMBERING);
	find_partition(&grouping, inner);
	fill_keys(&grouping, inner->targetList);
	take_conditions(&grouping, query->jointree->quals, quals);
	fill_bounds(&grouping, query);
	take_window(&grouping, inner);
	take_order(&grouping, query, columns);
	return grouping.source;
}

Query *
take_groups(ParseState *pstate, Query *query, TopnQuery *result)
{
	if (query->hasDistinctOn)
		return take_distinct_on(pstate, query, result);
	return take_numbered(pstate, query, result);
}
