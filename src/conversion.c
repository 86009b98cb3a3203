/*
 * conversion.c
 *	  Values as text in a subscribed query.
 *
 * What text stands for a value, and what value for a text, depends on settings
 * that are recorded with a subscription; but also on the time ('now'), and on
 * catalogs (labels of an enum, names of relations).  These are not.
 */
#include "postgres.h"

#include "utils/syscache.h"
#include "miscadmin.h"
#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "nodes/nodeFuncs.h"
#include "parser/parse_coerce.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/typcache.h"

#include "conversion.h"

bool
is_datetime_type(Oid type)
{
	Oid			element;

	type = getBaseType(type);
	if (OidIsValid(element = get_element_type(type)) ||
		OidIsValid(element = get_range_subtype(type)))
		return is_datetime_type(element);
	if (type_is_multirange(type))
		return is_datetime_type(get_multirange_range(type));
	if (OidIsValid(get_typ_typrelid(type)))
	{
		TupleDesc	desc = lookup_rowtype_tupdesc(type, -1);
		bool		result = false;

		for (int i = 0; i < desc->natts && !result; i++)
		{
			Form_pg_attribute attr = TupleDescAttr(desc, i);

			result = !attr->attisdropped && is_datetime_type(attr->atttypid);
		}
		ReleaseTupleDesc(desc);
		return result;
	}
	return type == DATEOID || type == TIMEOID || type == TIMETZOID ||
		type == TIMESTAMPOID || type == TIMESTAMPTZOID;
}

bool
is_trusted_type(Oid type)
{
	HeapTuple	tuple;
	Oid			owner;

	if (type < FirstNormalObjectId)
		return true;
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(type));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for type %u", type);
	owner = ((Form_pg_type) GETSTRUCT(tuple))->typowner;
	ReleaseSysCache(tuple);
	return superuser_arg(owner);
}

bool
is_fixed_conversion(Oid type, bool input)
{
	Oid			base = getBaseType(type);
	Oid			other;
	Oid			funcid;

	/* the checks of a domain are code as well, run by its input function */
	if (input && base != type)
		return false;

	if (OidIsValid(other = get_element_type(base)))
		return is_fixed_conversion(other, input);
	if (!input && !OidIsValid(get_typ_typrelid(base)) &&
		!is_trusted_type(base))
		return false;
	if (OidIsValid(other = get_range_subtype(base)))
		return is_fixed_conversion(other, input);
	if (type_is_multirange(base))
		return is_fixed_conversion(get_multirange_range(base), input);
	if (OidIsValid(get_typ_typrelid(base)))
	{
		TupleDesc	desc = lookup_rowtype_tupdesc(base, -1);
		bool		result = true;

		for (int i = 0; i < desc->natts && result; i++)
		{
			Form_pg_attribute attr = TupleDescAttr(desc, i);

			result = attr->attisdropped ||
				is_fixed_conversion(attr->atttypid, input);
		}
		ReleaseTupleDesc(desc);
		return result;
	}

	if (input)
	{
		Oid			typioparam;

		getTypeInputInfo(base, &funcid, &typioparam);
	}
	else
	{
		bool		varlena;

		/* JSON has its own idea of output: a cast that somebody wrote */
		if (base >= FirstNormalObjectId &&
			find_coercion_pathway(JSONOID, base, COERCION_EXPLICIT,
								  &funcid) == COERCION_PATH_FUNC)
			return false;
		getTypeOutputInfo(base, &funcid, &varlena);
	}

	switch (funcid)
	{
		case F_DATE_OUT:
		case F_TIMESTAMP_OUT:
		case F_TIMESTAMPTZ_OUT:
		case F_INTERVAL_OUT:
		case F_INTERVAL_IN:
			return true;
		default:
			return func_volatile(funcid) == PROVOLATILE_IMMUTABLE;
	}
}

bool
is_independent_input(Oid type)
{
	Oid			element = get_element_type(type);

	if (OidIsValid(element))
		type = element;
	return is_fixed_conversion(type, true) ||
		(is_datetime_type(type) && type < FirstNormalObjectId &&
		 !OidIsValid(get_typ_typrelid(type)));
}

bool
are_fixed_arguments(List *args)
{
	ListCell   *lc;

	foreach(lc, args)
	{
		Node	   *arg = lfirst(lc);

		if (IsA(arg, RowExpr) && ((RowExpr *) arg)->row_typeid == RECORDOID)
		{
			if (!are_fixed_arguments(((RowExpr *) arg)->args))
				return false;
		}
		else if (!is_fixed_conversion(exprType(arg), false))
			return false;
	}
	return true;
}

/*
 * 'now', 'today' and their like became constants when the query was parsed,
 * and would become others the next time.
 */
void
check_time_literal(ParseState *pstate, Oid type, const char *literal,
				   int location)
{
	static const char *const words[] = {"now", "today", "tomorrow", "yesterday"};
	const char *start;
	const char *end;

	if (!is_datetime_type(type))
		return;

	for (start = literal; *start != '\0'; start = end)
	{
		end = start;
		while (isalpha((unsigned char) *end))
			end++;
		for (int i = 0; i < lengthof(words); i++)
		{
			if (end - start == strlen(words[i]) &&
				pg_strncasecmp(start, words[i], end - start) == 0)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("'%s' cannot be used as a time in a subscribed query",
								words[i]),
						 errdetail("Its value changes while the row does not."),
						 errhint("%s", TIME_HINT),
						 parser_errposition(pstate, location)));
		}
		if (end == start)
			end++;
	}
}

typedef struct LiteralCheck
{
	ParseState *pstate;
	Query	   *query;
	A_Const    *literal;
} LiteralCheck;

static bool
analyzed_literal_walker(Node *node, LiteralCheck *check)
{
	if (node == NULL)
		return false;
	if (IsA(node, Const) &&
		((Const *) node)->location == check->literal->location)
		check_time_literal(check->pstate, ((Const *) node)->consttype,
						   check->literal->val.sval.sval,
						   check->literal->location);
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, analyzed_literal_walker,
								 check, 0);
	return expression_tree_walker(node, analyzed_literal_walker, check);
}

static bool
raw_literal_walker(Node *node, LiteralCheck *check)
{
	if (node == NULL)
		return false;
	if (IsA(node, A_Const) && !((A_Const *) node)->isnull &&
		IsA(&((A_Const *) node)->val.node, String))
	{
		check->literal = (A_Const *) node;
		analyzed_literal_walker((Node *) check->query, check);
	}
	return raw_expression_tree_walker(node, raw_literal_walker, check);
}

void
check_time_literals(ParseState *pstate, RawStmt *raw, Query *query)
{
	LiteralCheck check = {pstate, query, NULL};

	raw_literal_walker(raw->stmt, &check);
}
