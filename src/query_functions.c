/*
 * query_functions.c
 *	  Which functions a subscribed query may call.
 *
 * The result of a subscription must be a function of the table alone: the same
 * row has to give the same values today, in another process, and when WAL is
 * read again after a crash.  So functions must be immutable; of the stable ones
 * those may be called that depend on nothing but settings, since those are
 * recorded with the subscription (TimeZone, DateStyle, IntervalStyle,
 * extra_float_digits, bytea_output, search_path).  They are listed here.
 *
 * Formatting by lc_time, lc_numeric or lc_monetary is not among them, and not
 * every conversion from or to text: see conversion.c.
 *
 * Evaluation runs in processes that others share.  A function that never ends
 * would stop everyone, so functions in procedural languages, and functions in
 * SQL that the planner does not inline, are left to superusers.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_language.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/formatting.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "compat.h"
#include "conversion.h"
#include "query.h"
#include "query_functions.h"

typedef struct FunctionCheck
{
	ParseState *pstate;
	Query	   *source;
	bool		planned;
	Node	   *node;			/* the call being checked */
} FunctionCheck;

bool		query_allow_procedural = false;

static bool check_functions_walker(Node *node, FunctionCheck *check);

/* ----- Where is it? ----- */

typedef struct CallSearch
{
	NodeTag		tag;
	Oid			funcid;
	int			location;
} CallSearch;

static bool
same_function(Oid funcid, void *context)
{
	return funcid == ((CallSearch *) context)->funcid;
}

static bool
find_call_walker(Node *node, CallSearch *search)
{
	if (node == NULL)
		return false;
	if (nodeTag(node) == search->tag)
	{
		bool		found;

		if (IsA(node, SQLValueFunction))
			found = ((SQLValueFunction *) node)->op == search->funcid;
		else
			found = check_functions_in_node(node, same_function, search);

		if (found)
		{
			search->location = exprLocation(node);
			return true;
		}
	}
	return expression_tree_walker(node, find_call_walker, search);
}

/*
 * The location of a call in the query as written.  The location that a planned
 * node has may be one in the body of an inlined function.
 */
static int
find_call(FunctionCheck *check, NodeTag tag, Oid funcid)
{
	CallSearch	search = {tag, funcid, -1};

	if (!find_call_walker((Node *) check->source->targetList, &search))
		find_call_walker(check->source->jointree->quals, &search);
	return search.location;
}

static void
refuse_call(FunctionCheck *check, NodeTag tag, Oid funcid, const char *name,
			const char *reason, const char *hint)
{
	int			location = find_call(check, tag, funcid);

	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("%s cannot be used in a subscribed query", name),
			 location >= 0 ? errdetail("%s", reason) :
			 errdetail("%s It is used by a view, a row-level security policy, a domain or an SQL function.",
					   reason),
			 errhint("%s", hint),
			 parser_errposition(check->pstate, location)));
}

static const char *const immutable_hint =
"Use immutable functions of the columns only.";

/* ----- Stable functions ----- */

/*
 * Is the second argument a format that does not ask for what a locale says?
 */
static bool
is_fixed_format(List *args, const char *const *localized)
{
	Const	   *format = lsecond(args);
	char	   *upper;

	if (!IsA(format, Const))
		return false;
	if (format->constisnull)
		return true;

	upper = TextDatumGetCString(format->constvalue);
	upper = asc_toupper(upper, strlen(upper));
	for (; *localized != NULL; localized++)
	{
		if (strstr(upper, *localized) != NULL)
			return false;
	}
	return true;
}

/*
 * Does a stable function depend on recorded settings only, called like this?
 */
static bool
is_fixed_function(Oid funcid, List *args)
{
	static const char *const time_localized[] = {"TM", NULL};
	static const char *const number_localized[] = {"D", "G", "L", NULL};

	switch (funcid)
	{
			/* TimeZone */
		case F_DATE_TIMESTAMPTZ:
		case F_TIME_TIMESTAMPTZ:
		case F_TIMETZ_TIMESTAMPTZ:
		case F_TIMESTAMP_TIMESTAMPTZ:
		case F_TIMESTAMPTZ_DATE:
		case F_TIMESTAMPTZ_DATE_TIME:
		case F_TIMESTAMPTZ_TIMESTAMP:
		case F_TIMESTAMPTZ_PL_INTERVAL:
		case F_TIMESTAMPTZ_MI_INTERVAL:
		case F_DATE_TRUNC_TEXT_TIMESTAMPTZ:
		case F_DATE_TRUNC_TEXT_TIMESTAMPTZ_TEXT:
		case F_DATE_PART_TEXT_TIMESTAMPTZ:
		case F_EXTRACT_TEXT_TIMESTAMPTZ:
		case F_MAKE_TIMESTAMPTZ_INT4_INT4_INT4_INT4_INT4_FLOAT8:
		case F_MAKE_TIMESTAMPTZ_INT4_INT4_INT4_INT4_INT4_FLOAT8_TEXT:
		case F_TO_TIMESTAMP_TEXT_TEXT:
		case F_TO_DATE:
		case F_DATE_EQ_TIMESTAMPTZ:
		case F_DATE_NE_TIMESTAMPTZ:
		case F_DATE_LT_TIMESTAMPTZ:
		case F_DATE_LE_TIMESTAMPTZ:
		case F_DATE_GT_TIMESTAMPTZ:
		case F_DATE_GE_TIMESTAMPTZ:
		case F_DATE_CMP_TIMESTAMPTZ:
		case F_TIMESTAMPTZ_EQ_DATE:
		case F_TIMESTAMPTZ_NE_DATE:
		case F_TIMESTAMPTZ_LT_DATE:
		case F_TIMESTAMPTZ_LE_DATE:
		case F_TIMESTAMPTZ_GT_DATE:
		case F_TIMESTAMPTZ_GE_DATE:
		case F_TIMESTAMPTZ_CMP_DATE:
		case F_TIMESTAMP_EQ_TIMESTAMPTZ:
		case F_TIMESTAMP_NE_TIMESTAMPTZ:
		case F_TIMESTAMP_LT_TIMESTAMPTZ:
		case F_TIMESTAMP_LE_TIMESTAMPTZ:
		case F_TIMESTAMP_GT_TIMESTAMPTZ:
		case F_TIMESTAMP_GE_TIMESTAMPTZ:
		case F_TIMESTAMP_CMP_TIMESTAMPTZ:
		case F_TIMESTAMPTZ_EQ_TIMESTAMP:
		case F_TIMESTAMPTZ_NE_TIMESTAMP:
		case F_TIMESTAMPTZ_LT_TIMESTAMP:
		case F_TIMESTAMPTZ_LE_TIMESTAMP:
		case F_TIMESTAMPTZ_GT_TIMESTAMP:
		case F_TIMESTAMPTZ_GE_TIMESTAMP:
		case F_TIMESTAMPTZ_CMP_TIMESTAMP:
		case F_JSONB_PATH_EXISTS_TZ:
		case F_JSONB_PATH_MATCH_TZ:
		case F_JSONB_PATH_QUERY_ARRAY_TZ:
		case F_JSONB_PATH_QUERY_FIRST_TZ:
			return true;

			/* ... and lc_time, if the format asks for it */
		case F_TO_CHAR_INTERVAL_TEXT:
		case F_TO_CHAR_TIMESTAMP_TEXT:
		case F_TO_CHAR_TIMESTAMPTZ_TEXT:
			return is_fixed_format(args, time_localized);

			/* lc_numeric and lc_monetary, if the format asks for them */
		case F_TO_CHAR_INT4_TEXT:
		case F_TO_CHAR_INT8_TEXT:
		case F_TO_CHAR_FLOAT4_TEXT:
		case F_TO_CHAR_FLOAT8_TEXT:
		case F_TO_CHAR_NUMERIC_TEXT:
		case F_TO_NUMBER:
			return is_fixed_format(args, number_localized);

			/* what the output of the arguments depends on */
		case F_CONCAT:
		case F_CONCAT_WS:
		case F_FORMAT_TEXT:
		case F_FORMAT_TEXT_ANY:
		case F_ARRAY_TO_STRING_ANYARRAY_TEXT:
		case F_ARRAY_TO_STRING_ANYARRAY_TEXT_TEXT:
		case F_TO_JSON:
		case F_TO_JSONB:
		case F_ROW_TO_JSON_RECORD:
		case F_ROW_TO_JSON_RECORD_BOOL:
		case F_ARRAY_TO_JSON_ANYARRAY:
		case F_ARRAY_TO_JSON_ANYARRAY_BOOL:
		case F_JSON_BUILD_ARRAY_:
		case F_JSON_BUILD_ARRAY_ANY:
		case F_JSON_BUILD_OBJECT_:
		case F_JSON_BUILD_OBJECT_ANY:
		case F_JSONB_BUILD_ARRAY_:
		case F_JSONB_BUILD_ARRAY_ANY:
		case F_JSONB_BUILD_OBJECT_:
		case F_JSONB_BUILD_OBJECT_ANY:
			return are_fixed_arguments(args);

		default:
			return false;
	}
}

/* ----- The check ----- */

static List *
call_arguments(Node *node)
{
	switch (nodeTag(node))
	{
		case T_FuncExpr:
			return ((FuncExpr *) node)->args;
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			return ((OpExpr *) node)->args;
		case T_ScalarArrayOpExpr:
			return ((ScalarArrayOpExpr *) node)->args;
		default:
			return NIL;
	}
}

static const char *
stable_function_hint(Oid funcid)
{
	switch (funcid)
	{
		case F_NOW:
		case F_STATEMENT_TIMESTAMP:
		case F_TRANSACTION_TIMESTAMP:
			return TIME_HINT;
		case F_TO_CHAR_INTERVAL_TEXT:
		case F_TO_CHAR_TIMESTAMP_TEXT:
		case F_TO_CHAR_TIMESTAMPTZ_TEXT:
			return "Use a constant format without TM, which asks for lc_time.";
		case F_TO_CHAR_INT4_TEXT:
		case F_TO_CHAR_INT8_TEXT:
		case F_TO_CHAR_FLOAT4_TEXT:
		case F_TO_CHAR_FLOAT8_TEXT:
		case F_TO_CHAR_NUMERIC_TEXT:
		case F_TO_NUMBER:
			return "Use a constant format without D, G and L, which ask for lc_numeric and lc_monetary.";
		default:
			return immutable_hint;
	}
}

static bool
check_function(Oid funcid, void *context)
{
	FunctionCheck *check = context;
	HeapTuple	tuple;
	Form_pg_proc proc;
	AclResult	aclresult;
	bool		final;

	aclresult = function_aclcheck(funcid, GetUserId(), ACL_EXECUTE);
	if (aclresult != ACLCHECK_OK)
		aclcheck_error(aclresult, OBJECT_FUNCTION, get_func_name(funcid));

	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", funcid);
	proc = (Form_pg_proc) GETSTRUCT(tuple);

	/* a function in SQL may become something else by planning */
	final = check->planned || proc->prolang != SQLlanguageId;

	if (final && proc->provolatile == PROVOLATILE_VOLATILE)
		refuse_call(check, nodeTag(check->node), funcid,
					psprintf("function %s", format_procedure(funcid)),
					"It is volatile: its result may change while the row does not.",
					immutable_hint);

	if (final &&
		proc->prolang != INTERNALlanguageId &&
		proc->prolang != ClanguageId &&
		!query_allow_procedural && !superuser_arg(proc->proowner))
		refuse_call(check, nodeTag(check->node), funcid,
					psprintf("function %s", format_procedure(funcid)),
					proc->prolang == SQLlanguageId ?
					"It is an SQL function that is not inlined, and could stop other subscriptions." :
					"It is written in a procedural language, and could stop other subscriptions.",
					"Let a superuser own the function, or set live_topn.allow_procedural_functions.");

	if (check->planned && proc->provolatile == PROVOLATILE_STABLE &&
		!is_fixed_function(funcid, call_arguments(check->node)))
		refuse_call(check, nodeTag(check->node), funcid,
					psprintf("function %s", format_procedure(funcid)),
					"It is stable, not immutable: its result may change while the row does not.",
					stable_function_hint(funcid));

	ReleaseSysCache(tuple);
	return false;
}

static void
check_value_function(FunctionCheck *check, SQLValueFunction *func)
{
	static const char *const names[] = {
		[SVFOP_CURRENT_DATE] = "CURRENT_DATE",
		[SVFOP_CURRENT_TIME] = "CURRENT_TIME",
		[SVFOP_CURRENT_TIME_N] = "CURRENT_TIME",
		[SVFOP_CURRENT_TIMESTAMP] = "CURRENT_TIMESTAMP",
		[SVFOP_CURRENT_TIMESTAMP_N] = "CURRENT_TIMESTAMP",
		[SVFOP_LOCALTIME] = "LOCALTIME",
		[SVFOP_LOCALTIME_N] = "LOCALTIME",
		[SVFOP_LOCALTIMESTAMP] = "LOCALTIMESTAMP",
		[SVFOP_LOCALTIMESTAMP_N] = "LOCALTIMESTAMP",
		[SVFOP_SESSION_USER] = "SESSION_USER",
		[SVFOP_CURRENT_CATALOG] = "CURRENT_CATALOG",
		[SVFOP_CURRENT_SCHEMA] = "CURRENT_SCHEMA",
	};

	if (func->op == SVFOP_SESSION_USER || func->op == SVFOP_CURRENT_CATALOG ||
		func->op == SVFOP_CURRENT_SCHEMA)
		refuse_call(check, T_SQLValueFunction, func->op, names[func->op],
					"It belongs to a session, and a subscription has none.",
					"Use CURRENT_USER for the owner of the subscription, or pass a value as an argument of the query.");
	refuse_call(check, T_SQLValueFunction, func->op, names[func->op],
				"Its value changes while the row does not.", TIME_HINT);
}

static void
check_conversion(FunctionCheck *check, CoerceViaIO *node)
{
	Oid			source = exprType((Node *) node->arg);
	Oid			target = node->resulttype;
	Oid			funcid;
	Oid			typioparam;
	bool		varlena;
	bool		input_fixed = is_fixed_conversion(target, true);

	if (input_fixed && is_fixed_conversion(source, false))
		return;

	if (input_fixed)
		getTypeOutputInfo(source, &funcid, &varlena);
	else
		getTypeInputInfo(target, &funcid, &typioparam);

	refuse_call(check, T_CoerceViaIO, funcid,
				psprintf("conversion of type %s to %s",
						 format_type_be(source), format_type_be(target)),
				"Its result may change while the row does not.",
				!input_fixed && is_datetime_type(target) ?
				"Use to_timestamp or to_date with a format; a conversion would understand 'now'." :
				immutable_hint);
}

/*
 * The checks of a domain are part of an expression that converts to it.
 */
static void
check_domain(FunctionCheck *check, Oid type)
{
	DomainConstraintRef *ref = palloc(sizeof(DomainConstraintRef));
	ListCell   *lc;

	InitDomainConstraintRef(type, ref, CurrentMemoryContext, false);
	foreach(lc, ref->constraints)
	{
		DomainConstraintState *constraint = lfirst(lc);

		check_functions_walker((Node *) constraint->check_expr, check);
	}
}

static bool
check_functions_walker(Node *node, FunctionCheck *check)
{
	if (node == NULL)
		return false;

	switch (nodeTag(node))
	{
		case T_SQLValueFunction:
			check_value_function(check, (SQLValueFunction *) node);
			break;
		case T_NextValueExpr:
			refuse_call(check, T_NextValueExpr, InvalidOid, "a sequence",
						"It is volatile: its result may change while the row does not.",
						immutable_hint);
			break;
		case T_CoerceViaIO:
			if (check->planned)
				check_conversion(check, (CoerceViaIO *) node);
			break;
		case T_CoerceToDomain:
			check_domain(check, ((CoerceToDomain *) node)->resulttype);
			break;
		default:
			check->node = node;
			check_functions_in_node(node, check_function, check);
	}
	return expression_tree_walker(node, check_functions_walker, check);
}

void
check_functions(ParseState *pstate, Query *source, Node *node, bool planned)
{
	FunctionCheck check = {pstate, source, planned, NULL};

	check_functions_walker(node, &check);
}

static Node *
fold_current_user_mutator(Node *node, void *context)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, SQLValueFunction))
	{
		SQLValueFunction *func = (SQLValueFunction *) node;

		if (func->op == SVFOP_CURRENT_USER || func->op == SVFOP_USER ||
			func->op == SVFOP_CURRENT_ROLE)
		{
			Name		name = palloc0(NAMEDATALEN);

			namestrcpy(name, GetUserNameFromId(GetUserId(), false));
			return (Node *) makeConst(NAMEOID, -1, C_COLLATION_OID,
									  NAMEDATALEN, NameGetDatum(name),
									  false, false);
		}
	}
	return expression_tree_mutator(node, fold_current_user_mutator, context);
}

Node *
fold_current_user(Node *node)
{
	return fold_current_user_mutator(node, NULL);
}
