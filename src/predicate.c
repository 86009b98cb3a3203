/*
 * predicate.c
 *	  The part of a query's filter by which a row can be looked up.
 *
 * Of the conditions that a filter has, joined by AND, one equality with
 * constants is worth most: expression = constant, or = ANY of a constant
 * array, or such equalities of one expression joined by OR.  Then come the
 * comparisons of one expression with constants, of which the tightest count.
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "access/stratnum.h"
#include "access/transam.h"
#include "catalog/pg_am.h"
#include "catalog/pg_amop.h"
#include "inert.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/optimizer.h"
#include "predicate.h"
#include "utils/array.h"
#include "utils/catcache.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

/* An operator between an expression over the row and a constant. */
typedef struct Comparison
{
	Expr	   *expr;			/* on the left side of ... */
	Oid			operator;
	Oid			collation;
	Const	   *constant;
} Comparison;

/* An expression without casts that change nothing but the type. */
static Expr *
strip_casts(Node *node)
{
	while (IsA(node, RelabelType))
		node = (Node *) ((RelabelType *) node)->arg;
	return (Expr *) node;
}

static bool
is_over_row(Expr *expr)
{
	return !IsA(expr, Const) && contain_var_clause((Node *) expr);
}

/* Is the node a strict comparison of an expression with a constant? */
static bool
read_comparison(Node *node, Comparison *comparison)
{
	List	   *args;
	Expr	   *left,
			   *right;

	if (IsA(node, OpExpr))
	{
		args = ((OpExpr *) node)->args;
		comparison->operator = ((OpExpr *) node)->opno;
		comparison->collation = ((OpExpr *) node)->inputcollid;
	}
	else if (IsA(node, ScalarArrayOpExpr) &&
			 ((ScalarArrayOpExpr *) node)->useOr)
	{
		args = ((ScalarArrayOpExpr *) node)->args;
		comparison->operator = ((ScalarArrayOpExpr *) node)->opno;
		comparison->collation = ((ScalarArrayOpExpr *) node)->inputcollid;
	}
	else
		return false;
	if (list_length(args) != 2)
		return false;

	left = strip_casts(linitial(args));
	right = strip_casts(lsecond(args));
	if (IsA(left, Const) && is_over_row(right) && IsA(node, OpExpr))
	{
		Expr	   *other = left;

		left = right;
		right = other;
		comparison->operator = get_commutator(comparison->operator);
	}
	if (!IsA(right, Const) || !is_over_row(left) ||
		!OidIsValid(comparison->operator) ||
		!op_strict(comparison->operator))
		return false;
	comparison->expr = left;
	comparison->constant = (Const *) right;
	return true;
}

/* ---- equality ---- */

/*
 * Functions of PostgreSQL itself hash values whose equality is inert without
 * a look at anything else.
 */
static bool
can_hash(Oid operator)
{
	RegProcedure left,
				right;

	return get_op_hash_functions(operator, &left, &right) &&
		left < FirstGenbkiObjectId && right < FirstGenbkiObjectId;
}

static void
add_value(Predicate *predicate, Datum value)
{
	predicate->values = predicate->values ?
		repalloc(predicate->values, sizeof(Datum) * (predicate->nvalues + 1)) :
		palloc(sizeof(Datum));
	predicate->values[predicate->nvalues++] = value;
}

static void
add_constants(Predicate *predicate, Node *node, Const *constant)
{
	ArrayType  *array;
	int16		typlen;
	bool		typbyval;
	char		typalign;
	Datum	   *values;
	bool	   *nulls;
	int			n;

	if (constant->constisnull)
		return;
	if (IsA(node, OpExpr))
	{
		add_value(predicate, constant->constvalue);
		return;
	}
	array = DatumGetArrayTypeP(constant->constvalue);
	get_typlenbyvalalign(ARR_ELEMTYPE(array), &typlen, &typbyval, &typalign);
	deconstruct_array(array, ARR_ELEMTYPE(array), typlen, typbyval, typalign,
					  &values, &nulls, &n);
	for (int i = 0; i < n; i++)
		if (!nulls[i])
			add_value(predicate, values[i]);
}

/* Add what an equality says; false if the node is none, or of another kind. */
static bool
add_equality(Predicate *predicate, Node *node)
{
	Comparison	comparison;

	if (IsA(node, BoolExpr) && ((BoolExpr *) node)->boolop == OR_EXPR)
	{
		ListCell   *lc;

		foreach(lc, ((BoolExpr *) node)->args)
			if (!add_equality(predicate, lfirst(lc)))
				return false;
		return true;
	}
	if (IsA(node, BoolExpr) && ((BoolExpr *) node)->boolop == AND_EXPR)
	{
		ListCell   *lc;

		/* as part of an OR: one of the conditions is enough */
		foreach(lc, ((BoolExpr *) node)->args)
			if (add_equality(predicate, lfirst(lc)))
				return true;
		return false;
	}

	if (!read_comparison(node, &comparison))
		return false;
	if (predicate->equal_expr == NULL)
	{
		if (!can_hash(comparison.operator))
			return false;
		predicate->equal_expr = comparison.expr;
		predicate->equal_operator = comparison.operator;
		predicate->equal_collation = comparison.collation;
	}
	else if (predicate->equal_operator != comparison.operator ||
			 predicate->equal_collation != comparison.collation ||
			 !equal(predicate->equal_expr, comparison.expr))
		return false;
	add_constants(predicate, node, comparison.constant);
	return true;
}

/* ---- ranges ---- */

/* The btree family in which an operator compares, and how it does. */
static bool
find_family(Oid operator, Predicate *found, int *strategy)
{
	CatCList   *list = SearchSysCacheList1(AMOPOPID,
										   ObjectIdGetDatum(operator));
	bool		result = false;

	for (int i = 0; i < list->n_members && !result; i++)
	{
		Form_pg_amop amop =
			(Form_pg_amop) GETSTRUCT(&list->members[i]->tuple);

		if (amop->amopmethod != BTREE_AM_OID ||
			amop->amopstrategy == BTEqualStrategyNumber)
			continue;
		found->range_family = amop->amopfamily;
		found->range_type = amop->amoplefttype;
		found->limit_type = amop->amoprighttype;
		*strategy = amop->amopstrategy;
		result = true;
	}
	ReleaseSysCacheList(list);
	return result;
}

/* Can the family compare these types, anywhere? */
static bool
can_compare(Oid family, Oid left, Oid right, Oid collation)
{
	Oid			function = get_opfamily_proc(family, left, right,
											 BTORDER_PROC);

	return OidIsValid(function) && is_inert_function(function, collation);
}

static int
compare_limits(const Predicate *predicate, Datum a, Datum b)
{
	Oid			function = get_opfamily_proc(predicate->range_family,
											 predicate->limit_type,
											 predicate->limit_type,
											 BTORDER_PROC);

	return DatumGetInt32(OidFunctionCall2Coll(function,
											  predicate->range_collation,
											  a, b));
}

static void
add_limit(Predicate *predicate, int strategy, Datum value)
{
	if (strategy == BTLessStrategyNumber ||
		strategy == BTLessEqualStrategyNumber)
	{
		if (!predicate->has_high ||
			compare_limits(predicate, value, predicate->high) < 0)
			predicate->high = value;
		predicate->has_high = true;
	}
	else
	{
		if (!predicate->has_low ||
			compare_limits(predicate, value, predicate->low) > 0)
			predicate->low = value;
		predicate->has_low = true;
	}
}

/* Add what a comparison of the same expression says, or of the first one. */
static void
add_range(Predicate *predicate, Node *node)
{
	Comparison	comparison;
	Predicate	found = {0};
	int			strategy;

	if (!IsA(node, OpExpr) || !read_comparison(node, &comparison) ||
		comparison.constant->constisnull ||
		!find_family(comparison.operator, &found, &strategy) ||
		!can_compare(found.range_family, found.range_type, found.limit_type,
					 comparison.collation) ||
		!can_compare(found.range_family, found.limit_type, found.limit_type,
					 comparison.collation))
		return;

	if (predicate->range_expr == NULL)
	{
		predicate->range_expr = comparison.expr;
		predicate->range_family = found.range_family;
		predicate->range_type = found.range_type;
		predicate->limit_type = found.limit_type;
		predicate->range_collation = comparison.collation;
		predicate->limit_byval = comparison.constant->constbyval;
		predicate->limit_len = comparison.constant->constlen;
	}
	else if (predicate->range_family != found.range_family ||
			 predicate->range_type != found.range_type ||
			 predicate->limit_type != found.limit_type ||
			 predicate->range_collation != comparison.collation ||
			 !equal(predicate->range_expr, comparison.expr))
		return;
	add_limit(predicate, strategy, comparison.constant->constvalue);
}

Predicate *
predicate_of(const TopnQuery *query)
{
	Predicate  *predicate = palloc0(sizeof(Predicate));

	for (int i = 0; i < query->ninert; i++)
	{
		Predicate	equality = {0};

		if (predicate->equal_expr == NULL &&
			add_equality(&equality, list_nth(query->quals, i)))
			*predicate = equality;
	}
	for (int i = 0; i < query->ninert; i++)
		add_range(predicate, list_nth(query->quals, i));
	return predicate;
}
