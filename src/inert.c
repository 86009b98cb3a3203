/*
 * inert.c
 *	  Queries that can be evaluated anywhere, and again after an error.
 *
 * Evaluating an expression in general takes a transaction, the identity of the
 * owner, and readiness for errors.  Most queries only compare columns with
 * constants and with each other: they are inert.  Of those that are not, many
 * call no functions but PostgreSQL's own in C, which an error leaves as they
 * were: they are robust.
 */
#include "postgres.h"

#include "access/nbtree.h"
#include "access/transam.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "nodes/nodeFuncs.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

#include "compat.h"
#include "inert.h"

/*
 * Leakproof functions of PostgreSQL itself do not fail, and neither do a few
 * others that are not marked leakproof.  (A leakproof function of somebody
 * else's may be in any language.)  A collation other than the default one and
 * "C" is looked up in pg_collation.
 */
bool
is_inert_function(Oid funcid, Oid collation)
{
	if (OidIsValid(collation) && collation != DEFAULT_COLLATION_OID &&
		collation != C_COLLATION_OID)
		return false;

	switch (funcid)
	{
		case F_NUMERIC_EQ:
		case F_NUMERIC_NE:
		case F_NUMERIC_LT:
		case F_NUMERIC_LE:
		case F_NUMERIC_GT:
		case F_NUMERIC_GE:
		case F_NUMERIC_CMP:
			return true;

			/* OpenSSL may refuse these */
		case F_MD5_TEXT:
		case F_MD5_BYTEA:
		case F_SHA224:
		case F_SHA256:
		case F_SHA384:
		case F_SHA512:
			return false;

		default:
			return funcid < FirstGenbkiObjectId && get_func_leakproof(funcid);
	}
}

static bool
not_inert(Oid funcid, void *context)
{
	return !is_inert_function(funcid, *(Oid *) context);
}

/* Does it keep no state, and need no catalogs, beside its functions? */
static bool
is_plain_node(Node *node)
{
	switch (nodeTag(node))
	{
		case T_List:
		case T_TargetEntry:
		case T_Const:
		case T_BoolExpr:
		case T_BooleanTest:
		case T_RelabelType:
		case T_CaseExpr:
		case T_CaseWhen:
		case T_CaseTestExpr:
		case T_CoalesceExpr:
		case T_ScalarArrayOpExpr:
		case T_FuncExpr:
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			return true;
		case T_Var:
			/* a whole row looks its type up */
			return ((Var *) node)->varattno != InvalidAttrNumber;
		case T_NullTest:
			return !((NullTest *) node)->argisrow;
		default:
			return false;
	}
}

static bool
not_inert_walker(Node *node, void *context)
{
	Oid			collation;

	if (node == NULL)
		return false;
	if (!is_plain_node(node))
		return true;
	if (IsA(node, ScalarArrayOpExpr))
	{
		Node	   *array = lsecond(((ScalarArrayOpExpr *) node)->args);

		/* it looks the element type up */
		if (get_element_type(exprType(array)) >= FirstGenbkiObjectId)
			return true;
	}
	collation = exprInputCollation(node);
	return check_functions_in_node(node, not_inert, &collation) ||
		expression_tree_walker(node, not_inert_walker, context);
}

static bool
is_inert_order(int n, const SortKey *keys)
{
	for (int i = 0; i < n; i++)
	{
		const SortKey *key = &keys[i];
		Oid			opfamily;
		Oid			opcintype;
		OrderStrategy strategy;

		if (!OidIsValid(key->sortop))
			continue;			/* image order */
		if (!get_ordering_op_properties(key->sortop, &opfamily, &opcintype,
										&strategy))
			elog(ERROR, "operator %u is not a valid ordering operator",
				 key->sortop);
		if (!is_inert_function(get_opfamily_proc(opfamily, opcintype,
												 opcintype, BTORDER_PROC),
							   key->collation))
			return false;
	}
	return true;
}

bool
is_inert_expression(Node *node)
{
	return !not_inert_walker(node, NULL);
}

static bool
has_inert_order(const TopnQuery *query)
{
	return is_inert_order(query->nsort, query->sort) &&
		is_inert_order(query->ngroups, query->group_order);
}

bool
is_inert_query(const TopnQuery *query)
{
	return is_inert_expression((Node *) query->quals) &&
		is_inert_expression((Node *) query->targetlist) &&
		has_inert_order(query);
}

bool
has_inert_end(const TopnQuery *query)
{
	TargetEntry *leading = list_nth_node(TargetEntry, query->targetlist,
										 query->sort[0].attno - 1);

	if (query->ngroups > 0)
		return is_inert_query(query);	/* the group says which window */
	return is_inert_expression((Node *) query->quals) &&
		is_inert_expression((Node *) leading->expr) &&
		is_inert_order(1, query->sort);
}

/*
 * A function in another language, or of somebody else's, may leave half-way
 * what it keeps from one call to the next.
 */
static bool
not_robust(Oid funcid, void *context)
{
	HeapTuple	tuple;
	Oid			language;

	if (funcid >= FirstGenbkiObjectId)
		return true;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", funcid);
	language = ((Form_pg_proc) GETSTRUCT(tuple))->prolang;
	ReleaseSysCache(tuple);
	return language != INTERNALlanguageId;
}

static bool
not_robust_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (!is_plain_node(node) && !IsA(node, MinMaxExpr) &&
		!IsA(node, CoerceViaIO))
		return true;
	return check_functions_in_node(node, not_robust, NULL) ||
		expression_tree_walker(node, not_robust_walker, NULL);
}

bool
is_robust_query(const TopnQuery *query)
{
	return has_inert_order(query) &&
		!not_robust_walker((Node *) query->quals, NULL) &&
		!not_robust_walker((Node *) query->targetlist, NULL);
}
