/*
 * tiers.c
 *	  The queries for the rows after a given row.
 *
 * "After (v1, ..., vm) in the order k1, ..., km" could be one condition with
 * ANDs and ORs, or, if all columns go in the same direction and none is null,
 * a row comparison.  An index serves the second only.  So the rows are read in
 * tiers, one query after the other until there are enough:
 *
 *		k1 = v1 AND ... AND k(m-1) = v(m-1) AND km after vm
 *		...
 *		k1 = v1 AND k2 after v2
 *		k1 after v1
 *
 * The rows of a tier all come before those of the next one, and in each the
 * columns that are fixed need no sorting.  Nulls get tiers of their own: with
 * NULLS LAST, "after" a value is first "k > v" and then "k IS NULL"; with NULLS
 * FIRST, "after" null is "k IS NOT NULL".  Each tier is a conjunction that a
 * btree on the sort columns serves, in whatever direction they are.
 *
 * The planner uses an index to sort only if it has the nulls where ORDER BY
 * wants them, even of a column that has none in this tier or nothing else.  So
 * a tier can be ordered in two ways that mean the same: as the query says, for
 * an index made for the query, and as an index has it that was made without
 * thinking of nulls.
 *
 * Tiers stop where the columns fixed contain the identity: no second row is
 * equal to the first in all of these.  Where the identity is the whole row
 * there may be; rows that are equal to the last one are then read beyond the
 * limit, so that "after" the last one read never misses any of them.  What are
 * many columns in image order to the window is one to the query: the row.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "compat.h"
#include "inert.h"
#include "tiers.h"

/* A sort key as part of queries. */
typedef struct KeysetColumn
{
	Node	   *expr;			/* of the type that the operators take */
	Oid			collation;
	Oid			eqop;
	Oid			ltop;
	Oid			gtop;
	bool		descending;
	bool		nulls_first;
	bool		nullable;
	bool		guarded;		/* see guard */
	Const	   *value;			/* of the boundary */
} KeysetColumn;

/*
 * Give an expression the type that the operators of an operator class take;
 * compare canonicalize_ec_expression().
 */
static Node *
relabel(Node *expr, Oid type, Oid collation)
{
	if (IsPolymorphicType(type) || type == RECORDOID)
		type = exprType(expr);
	if (exprType(expr) == type && exprCollation(expr) == collation)
		return expr;
	return applyRelabelType(expr, type,
							exprType(expr) == type ? exprTypmod(expr) : -1,
							collation, COERCE_IMPLICIT_CAST, -1, false);
}

/*
 * Can the sort column be null?  No, if it is a column declared so.
 */
static bool
is_nullable(TopnQuery *query, AttrNumber attno)
{
	Expr	   *expr = list_nth_node(TargetEntry, query->targetlist,
									 attno - 1)->expr;
	AttrNumber	attnum;
	Relation	rel;
	bool		result;

	while (IsA(expr, RelabelType))
		expr = ((RelabelType *) expr)->arg;
	if (!IsA(expr, Var))
		return true;
	attnum = ((Var *) expr)->varattno;
	if (attnum == InvalidAttrNumber)
		return false;			/* a row that exists */

	rel = table_open(query->relid, NoLock);
	result = !TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attnotnull;
	table_close(rel, NoLock);
	return result;
}

/*
 * Might the planner have a sort column, which can fail, evaluated for rows that
 * the filter excludes?  It begins with what costs least, and puts equalities
 * last among those that cost the same.
 */
static bool
may_precede_filter(const TopnQuery *query, AttrNumber attno)
{
	Node	   *expr = (Node *) list_nth_node(TargetEntry, query->targetlist,
											attno - 1)->expr;
	Cost		cost;
	ListCell   *lc;

	if (is_inert_expression(expr))
		return false;
	cost = query_expression_cost(expr);
	foreach(lc, query->quals)
		if (query_expression_cost(lfirst(lc)) >= cost)
			return true;
	return false;
}

static Oid
family_operator(Oid opfamily, Oid type, int16 strategy)
{
	Oid			result = get_opfamily_member(opfamily, type, type, strategy);

	if (!OidIsValid(result))
		elog(ERROR, "missing operator %d(%u,%u) in opfamily %u",
			 strategy, type, type, opfamily);
	return result;
}

/*
 * The whole row of a table that has no key, put together from its columns.
 */
static Datum
whole_row(TopnQuery *query, TupleTableSlot *after)
{
	Relation	rel = table_open(query->relid, NoLock);
	TupleDesc	desc = RelationGetDescr(rel);
	Datum	   *values = palloc0_array(Datum, desc->natts);
	bool	   *nulls = palloc_array(bool, desc->natts);
	Datum		result;

	memset(nulls, true, desc->natts);
	for (int i = 0; i < query->nkeys; i++)
	{
		int			column = query->key_attnums[i] - 1;

		values[column] = slot_getattr(after, query->keys[i], &nulls[column]);
	}
	result = heap_copy_tuple_as_datum(heap_form_tuple(desc, values, nulls),
									  desc);
	table_close(rel, NoLock);
	return result;
}

/*
 * A column that rows are ordered by, attno of the row, with its value in a row
 * if one is given.
 */
static void
fill_column(KeysetColumn *column, TopnQuery *query, Node *expr,
			AttrNumber attno, Oid sortop, bool nulls_first,
			bool is_whole_row, TupleTableSlot *row)
{
	Oid			opfamily;
	Oid			type;
	OrderStrategy strategy;

	if (!get_ordering_op_properties(sortop, &opfamily, &type, &strategy))
		elog(ERROR, "operator %u is not a valid ordering operator", sortop);

	column->collation = exprCollation(expr);
	column->expr = relabel(expr, type, column->collation);
	column->eqop = family_operator(opfamily, type, BTEqualStrategyNumber);
	column->ltop = family_operator(opfamily, type, BTLessStrategyNumber);
	column->gtop = family_operator(opfamily, type, BTGreaterStrategyNumber);
	column->descending = strategy == STRATEGY_GREATER;
	column->nulls_first = nulls_first;
	column->nullable = !is_whole_row && is_nullable(query, attno);
	column->guarded = !is_whole_row && may_precede_filter(query, attno);

	if (row != NULL)
	{
		Oid			value_type = exprType(expr);
		int16		typlen;
		bool		typbyval;
		bool		isnull = false;
		Datum		value;

		value = is_whole_row ? whole_row(query, row) :
			slot_getattr(row, attno, &isnull);
		get_typlenbyval(value_type, &typlen, &typbyval);
		column->value = makeConst(value_type, -1, column->collation,
								  typlen, value, isnull, typbyval);
		column->value = (Const *) relabel((Node *) column->value, type,
										  column->collation);
	}
}

/* One for each entry of the query's sortClause. */
static KeysetColumn *
keyset_columns(TopnQuery *query, TupleTableSlot *after)
{
	Query	   *source = query->source;
	int			n = list_length(source->sortClause);
	KeysetColumn *columns = palloc0_array(KeysetColumn, n);

	for (int i = 0; i < n; i++)
	{
		SortGroupClause *clause = list_nth_node(SortGroupClause,
												source->sortClause, i);

		fill_column(&columns[i], query,
					get_sortgroupclause_expr(clause, source->targetList),
					query->sort[i].attno, clause->sortop, clause->nulls_first,
					!OidIsValid(query->sort[i].sortop), after);
	}
	return columns;
}

static Node *
compare(const KeysetColumn *column, Oid operator)
{
	return (Node *) make_opclause(operator, BOOLOID, false,
								  (Expr *) copyObject(column->expr),
								  (Expr *) copyObject(column->value),
								  InvalidOid, column->collation);
}

static Node *
null_test(const KeysetColumn *column, NullTestType type)
{
	NullTest   *test = makeNode(NullTest);

	test->arg = (Expr *) copyObject(column->expr);
	test->nulltesttype = type;
	test->argisrow = false;		/* a row of nulls is a value here */
	test->location = -1;
	return (Node *) test;
}

static Node *
equals(const KeysetColumn *column)
{
	return column->value->constisnull ? null_test(column, IS_NULL) :
		compare(column, column->eqop);
}

/* The first n columns are those of the boundary. */
static List *
equal_columns(const KeysetColumn *columns, int n)
{
	List	   *quals = NIL;

	for (int i = 0; i < n; i++)
		quals = lappend(quals, equals(&columns[i]));
	return quals;
}

static Node *
comes_after(const KeysetColumn *column)
{
	return compare(column, column->descending ? column->ltop : column->gtop);
}

/*
 * The sortClause of a tier.  Columns that are equal to a value are left out.
 * Of columns that are null the planner does not know that they are equal, so
 * these stay; in the usual order they go in the direction of the one that the
 * tier really is ordered by, and that one, if it cannot be null, has its nulls
 * where they usually are.
 */
static List *
tier_sort(TopnQuery *query, const KeysetColumn *columns, int nfixed,
		  List *prefix, bool leads_not_null, bool usual)
{
	List	   *clauses = query->source->sortClause;
	List	   *result = NIL;
	bool		descending;

	if (nfixed == list_length(clauses))
		return NIL;
	descending = columns[nfixed].descending;

	for (int i = 0; i < list_length(clauses); i++)
	{
		SortGroupClause *clause = copyObject(list_nth(clauses, i));

		if (i < nfixed && !IsA(list_nth(prefix, i), NullTest))
			continue;
		if (usual && (i < nfixed || (i == nfixed && leads_not_null)))
		{
			clause->sortop = descending ? columns[i].gtop : columns[i].ltop;
			clause->nulls_first = descending;
			set_reverse_sort(clause, descending);
		}
		result = lappend(result, clause);
	}
	return result;
}

/* Evaluate a condition for rows only that satisfy the filter.  No index can. */
static Node *
guard(const KeysetColumn *column, Node *filter, Node *condition)
{
	CaseExpr   *guarded;
	CaseWhen   *when;

	if (filter == NULL || !column->guarded)
		return condition;
	when = makeNode(CaseWhen);
	when->expr = (Expr *) copyObject(filter);
	when->result = (Expr *) condition;
	when->location = -1;
	guarded = makeNode(CaseExpr);
	guarded->casetype = BOOLOID;
	guarded->args = list_make1(when);
	guarded->defresult = (Expr *) makeBoolConst(false, false);
	guarded->location = -1;
	return (Node *) guarded;
}

/*
 * One tier: the first nfixed columns are what the prefix says, which has a
 * qual for each; the next one is what the condition says, if any.
 */
static Tier *
make_tier(TopnQuery *query, const KeysetColumn *columns, int nfixed,
		  List *prefix, Node *condition, bool leads_not_null)
{
	Tier	   *tier = palloc_object(Tier);
	List	   *quals;
	Node	   *filter;
	ListCell   *lc;

	Assert(list_length(prefix) == nfixed);

	tier->query = copyObject(query->source);
	filter = tier->query->jointree->quals;
	quals = list_copy(make_ands_implicit((Expr *) filter));
	foreach(lc, prefix)
		quals = lappend(quals, guard(&columns[foreach_current_index(lc)],
									 filter, lfirst(lc)));
	if (condition != NULL)
		quals = lappend(quals, guard(&columns[nfixed], filter, condition));
	tier->query->jointree->quals =
		quals == NIL ? NULL : (Node *) make_ands_explicit(quals);

	tier->query->sortClause = tier_sort(query, columns, nfixed, prefix,
										leads_not_null, false);
	tier->usual_sort = tier_sort(query, columns, nfixed, prefix,
								 leads_not_null, true);

	foreach(lc, tier->query->targetList)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);

		tle->resjunk = tle->resno > list_length(query->targetlist);
	}
	return tier;
}

/*
 * The tiers of all rows whose first nfixed columns are what the prefix says.
 * If nulls of the next column are where an index in the usual order does not
 * have them, they are a tier of their own.
 */
static List *
tiers_of_all(TopnQuery *query, KeysetColumn *columns, int nfixed, List *prefix)
{
	KeysetColumn *column = &columns[nfixed];
	List	   *nulls;
	List	   *others;

	if (nfixed >= list_length(query->source->sortClause))
		return list_make1(make_tier(query, columns, nfixed, prefix, NULL,
									false));
	if (!column->nullable || column->nulls_first == column->descending)
		return list_make1(make_tier(query, columns, nfixed, prefix, NULL,
									!column->nullable));

	nulls = tiers_of_all(query, columns, nfixed + 1,
						 lappend(list_copy(prefix),
								 null_test(column, IS_NULL)));
	others = list_make1(make_tier(query, columns, nfixed, prefix,
								  null_test(column, IS_NOT_NULL), true));
	return column->nulls_first ? list_concat(nulls, others) :
		list_concat(others, nulls);
}

List *
make_tiers(TopnQuery *query, TupleTableSlot *boundary, TierStart start)
{
	KeysetColumn *columns = keyset_columns(query, boundary);
	int			ncolumns = list_length(query->source->sortClause);
	List	   *tiers = NIL;

	if (boundary == NULL)
		return tiers_of_all(query, columns, 0, NIL);

	if (start == TIERS_FROM)
		tiers = list_make1(make_tier(query, columns, ncolumns,
									 equal_columns(columns, ncolumns), NULL,
									 false));
	for (int nfixed = ncolumns - 1; nfixed >= 0; nfixed--)
	{
		KeysetColumn *column = &columns[nfixed];
		List	   *prefix = equal_columns(columns, nfixed);

		if (!column->value->constisnull)
		{
			tiers = lappend(tiers,
							make_tier(query, columns, nfixed, prefix,
									  comes_after(column), true));
			if (column->nullable && !column->nulls_first)
			{
				prefix = lappend(prefix, null_test(column, IS_NULL));
				tiers = list_concat(tiers,
									tiers_of_all(query, columns, nfixed + 1,
												 prefix));
			}
		}
		else if (column->nulls_first)
			tiers = lappend(tiers,
							make_tier(query, columns, nfixed, prefix,
									  null_test(column, IS_NOT_NULL), true));
	}
	return tiers;
}

TopnQuery *
query_of_group(const TopnQuery *query, TupleTableSlot *row)
{
	TopnQuery  *result = palloc_object(TopnQuery);
	List	   *quals;

	*result = *query;
	result->source = copyObject(query->source);
	quals = make_ands_implicit((Expr *) result->source->jointree->quals);
	for (int i = 0; i < query->ngroups; i++)
	{
		const SortKey *key = &query->group_order[i];
		TargetEntry *tle = list_nth_node(TargetEntry,
										 query->source->targetList,
										 key->attno - 1);
		KeysetColumn column = {0};

		fill_column(&column, result, (Node *) tle->expr, key->attno,
					key->sortop, key->nulls_first, false, row);
		quals = lappend(quals, equals(&column));
	}
	result->source->jointree->quals =
		quals == NIL ? NULL : (Node *) make_ands_explicit(quals);
	return result;
}
