/*
 * depend.c
 *	  What else than its table a query means something by.
 *
 * Catalog changes that could make a query mean something else are seen in WAL
 * by their invalidation messages; this is which ones to look for.  Whether the
 * meaning did change is then found out by analysing the query again, so what
 * does not show in its expressions is made part of it as a hash.
 *
 * A function in a procedural language may call others; if those are replaced,
 * nobody notices, just as nobody rebuilds an index on the function.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "catalog/namespace.h"
#include "catalog/pg_auth_members.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "common/hashfn.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "utils/catcache.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
#include "utils/typcache.h"
#include "utils/varlena.h"

#include "conversion.h"
#include "depend.h"
#include "flatten.h"

/* ----- Definitions ----- */

static void
add_bytes(TopnQuery *query, const void *data, Size size)
{
	query->definitions =
		hash_combine64(query->definitions,
					   hash_bytes_extended(data, size, 0));
}

static void
add_number(TopnQuery *query, int64 number)
{
	add_bytes(query, &number, sizeof(number));
}

static void
add_attribute(TopnQuery *query, HeapTuple tuple, AttrNumber attnum)
{
	bool		isnull;
	Datum		datum = SysCacheGetAttr(PROCOID, tuple, attnum, &isnull);
	struct varlena *value;

	if (isnull)
		return;
	value = PG_DETOAST_DATUM_PACKED(datum);
	add_number(query, attnum);
	add_bytes(query, VARDATA_ANY(value), VARSIZE_ANY_EXHDR(value));
}

static bool
add_function(Oid funcid, void *context)
{
	TopnQuery  *query = context;
	HeapTuple	tuple;
	Form_pg_proc form;

	if (funcid < FirstNormalObjectId)
		return false;
	tuple = SearchSysCache1(PROCOID, ObjectIdGetDatum(funcid));
	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for function %u", funcid);
	form = (Form_pg_proc) GETSTRUCT(tuple);
	add_number(query, form->prolang);
	add_number(query, form->proisstrict);
	add_attribute(query, tuple, Anum_pg_proc_prosrc);
	add_attribute(query, tuple, Anum_pg_proc_probin);
	add_attribute(query, tuple, Anum_pg_proc_prosqlbody);
	add_attribute(query, tuple, Anum_pg_proc_proconfig);
	ReleaseSysCache(tuple);
	return false;				/* go on */
}

static bool
add_functions_walker(Node *node, TopnQuery *query)
{
	if (node == NULL)
		return false;
	(void) check_functions_in_node(node, add_function, query);
	return expression_tree_walker(node, add_functions_walker, query);
}

static bool
is_replaceable(Oid funcid, void *context)
{
	return funcid >= FirstNormalObjectId;
}

/* Functions, also those that are inlined later. */
static bool
find_function_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (check_functions_in_node(node, is_replaceable, context))
		return true;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, find_function_walker,
								 context, 0);
	return expression_tree_walker(node, find_function_walker, context);
}

/* ----- Functions and operators to come ----- */

/* An argument that is not of the type that is called for? */
static bool
is_converted(Node *arg, Oid type)
{
	if (exprType(arg) != type)
		return true;
	if (IsA(arg, RelabelType))
		return ((RelabelType *) arg)->relabelformat == COERCE_IMPLICIT_CAST;
	return IsA(arg, FuncExpr) &&
		((FuncExpr *) arg)->funcformat == COERCE_IMPLICIT_CAST;
}

/* With an array on its right, if any, what counts is the left. */
static bool
is_operator_exact(Oid operator, List *args, bool array)
{
	Oid			left;
	Oid			right;

	op_input_types(operator, &left, &right);
	if (list_length(args) == 1)
		return !is_converted(linitial(args), right);
	return !is_converted(linitial(args), left) &&
		(array || !is_converted(lsecond(args), right));
}

/*
 * An operator of the catalog that takes just these types is always found
 * first; where something was converted, another one could fit better.  Of
 * functions nobody knows of which type a literal was.
 */
static bool
find_call_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_Query:
			return query_tree_walker((Query *) node, find_call_walker, context,
									 0);
		case T_OpExpr:
		case T_DistinctExpr:
		case T_NullIfExpr:
			if (!is_operator_exact(((OpExpr *) node)->opno,
								   ((OpExpr *) node)->args, false))
				return true;
			break;
		case T_ScalarArrayOpExpr:
			if (!is_operator_exact(((ScalarArrayOpExpr *) node)->opno,
								   ((ScalarArrayOpExpr *) node)->args, true))
				return true;
			break;
		case T_FuncExpr:
			if (((FuncExpr *) node)->funcformat == COERCE_EXPLICIT_CALL)
				return true;
			break;
		case T_WindowFunc:
			if (((WindowFunc *) node)->args != NIL)
				return true;
			break;
		case T_Aggref:
		case T_RowCompareExpr:
			return true;
		default:
			break;
	}
	return expression_tree_walker(node, find_call_walker, context);
}

/* Is the catalog not searched before all others? */
static bool
is_catalog_late(void)
{
	List	   *path = fetch_search_path(true);
	bool		late = linitial_oid(path) != PG_CATALOG_NAMESPACE;

	list_free(path);
	return late;
}

/* ----- Types ----- */

static void add_type(TopnQuery *query, Oid type);

/* The names of a composite type's attributes are in what is published. */
static void
add_composite(TopnQuery *query, Oid type)
{
	Oid			relid = get_typ_typrelid(type);
	TupleDesc	desc;

	if (list_member_oid(query->depends, relid))
		return;
	query->depends = lappend_oid(query->depends, relid);
	desc = lookup_rowtype_tupdesc(type, -1);
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		add_number(query, att->attisdropped ? InvalidOid : att->atttypid);
		if (att->attisdropped)
			continue;
		add_bytes(query, NameStr(att->attname), strlen(NameStr(att->attname)));
		add_type(query, att->atttypid);
	}
	ReleaseTupleDesc(desc);
}

/* What the text of a value depends on. */
static void
add_type(TopnQuery *query, Oid type)
{
	Oid			element = get_element_type(type);

	if (type < FirstNormalObjectId)
		return;
	if (OidIsValid(element))
	{
		add_type(query, element);
		return;
	}
	switch (get_typtype(type))
	{
		case TYPTYPE_DOMAIN:
			add_type(query, getBaseType(type));
			break;
		case TYPTYPE_ENUM:
			query->enums = true;
			break;
		case TYPTYPE_RANGE:
			add_type(query, get_range_subtype(type));
			break;
		case TYPTYPE_MULTIRANGE:
			add_type(query, get_multirange_range(type));
			break;
		case TYPTYPE_COMPOSITE:
			add_composite(query, type);
			break;
	}
}

/* ----- Schemas and roles ----- */

static void
add_name(TopnQuery *query, int cache, Datum key)
{
	query->names = list_append_unique_int(query->names,
										  GetSysCacheHashValue1(cache, key));
}

/* Of a qualified name, all but the last part. */
static void
add_qualifiers(TopnQuery *query, List *names)
{
	ListCell   *lc;

	foreach(lc, names)
		if (IsA(lfirst(lc), String) && lnext(names, lc))
			add_name(query, NAMESPACENAME,
					 CStringGetDatum(strVal(lfirst(lc))));
}

static bool
written_schema_walker(Node *node, TopnQuery *query)
{
	if (node == NULL)
		return false;
	switch (nodeTag(node))
	{
		case T_RangeVar:
			if (((RangeVar *) node)->schemaname)
				add_name(query, NAMESPACENAME,
						 CStringGetDatum(((RangeVar *) node)->schemaname));
			break;
		case T_ColumnRef:
			add_qualifiers(query, ((ColumnRef *) node)->fields);
			break;
		case T_FuncCall:
			add_qualifiers(query, ((FuncCall *) node)->funcname);
			break;
		case T_A_Expr:
			add_qualifiers(query, ((A_Expr *) node)->name);
			break;
		case T_TypeName:
			add_qualifiers(query, ((TypeName *) node)->names);
			break;
		case T_CollateClause:
			add_qualifiers(query, ((CollateClause *) node)->collname);
			break;
		case T_SortBy:
			add_qualifiers(query, ((SortBy *) node)->useOp);
			break;
		default:
			break;
	}
	return raw_expression_tree_walker(node, written_schema_walker, query);
}

void
find_written_schemas(TopnQuery *query, RawStmt *raw)
{
	query->names = NIL;
	(void) written_schema_walker(raw->stmt, query);
}

static void
add_search_path(TopnQuery *query)
{
	List	   *names;
	ListCell   *lc;

	if (!SplitIdentifierString(pstrdup(namespace_search_path), ',', &names))
		elog(ERROR, "invalid list syntax");
	foreach(lc, names)
	{
		char	   *name = lfirst(lc);

		if (strcmp(name, "$user") == 0)
			name = GetUserNameFromId(GetUserId(), false);
		add_name(query, NAMESPACENAME, CStringGetDatum(name));
	}
}

/* The current user, and all that he is a member of. */
static void
add_roles(TopnQuery *query)
{
	List	   *roles = list_make1_oid(GetUserId());

	for (int i = 0; i < list_length(roles); i++)
	{
		Oid			role = list_nth_oid(roles, i);
		CatCList   *list = SearchSysCacheList1(AUTHMEMMEMROLE,
											   ObjectIdGetDatum(role));

		for (int j = 0; j < list->n_members; j++)
		{
			HeapTuple	tuple = &list->members[j]->tuple;
			Oid			other = ((Form_pg_auth_members) GETSTRUCT(tuple))->roleid;

			roles = list_append_unique_oid(roles, other);
		}
		ReleaseSysCacheList(list);
		add_name(query, AUTHOID, ObjectIdGetDatum(role));
	}
}

/* May the text of a value name something, as that of a regclass does? */
static bool
names_something(Oid type)
{
	Oid			element = get_element_type(type);

	return !is_independent_input(type) &&
		get_typtype(OidIsValid(element) ? element : type) != TYPTYPE_ENUM;
}

static bool
find_name_walker(Node *node, void *context)
{
	if (node == NULL)
		return false;
	if (IsA(node, Const) && names_something(((Const *) node)->consttype))
		return true;
	if (IsA(node, Query))
		return query_tree_walker((Query *) node, find_name_walker, context, 0);
	return expression_tree_walker(node, find_name_walker, context);
}

/*
 * Other schemas and roles than these are of no concern: a new one can have no
 * part in the query before a row of pg_auth_members says so, or a name.  But
 * functions may look up anything, and a view is read with its owner's rights.
 */
static void
add_names(TopnQuery *query, Query *source)
{
	add_search_path(query);
	add_roles(query);
	query->any_name = query->functions || query->depends != NIL ||
		find_name_walker((Node *) source, NULL);
}

/* ----- Relations ----- */

/*
 * The views on the way to the table.  Where a view was expanded, its rule's
 * range table (before 16) or its own entry (from 16 on) still names it.
 */
static void
add_views(TopnQuery *query, Query *rewritten)
{
	ListCell   *lc;

	foreach(lc, rewritten->rtable)
	{
		RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

		if (OidIsValid(rte->relid) && rte->relid != query->relid)
			query->depends = list_append_unique_oid(query->depends,
													rte->relid);
		if (rte->rtekind == RTE_SUBQUERY)
			add_views(query, rte->subquery);
	}
}

/*
 * A relation of the same name in a schema that comes first in the search path
 * would be meant from then on.
 */
static void
add_shadows(TopnQuery *query, const RangeVar *relation, Oid relid)
{
	Oid			schema = get_rel_namespace(relid);
	List	   *path;
	ListCell   *lc;

	if (relation->schemaname)
		return;
	path = fetch_search_path(true);
	foreach(lc, path)
	{
		Oid			other = lfirst_oid(lc);
		uint32		hash;

		if (other == schema)
			break;
		hash = GetSysCacheHashValue2(RELNAMENSP,
									 CStringGetDatum(relation->relname),
									 ObjectIdGetDatum(other));
		query->shadows = lappend_int(query->shadows, hash);
	}
	list_free(path);
}

void
find_dependencies(TopnQuery *query, const RangeVar *relation, Query *source,
				  Query *rewritten)
{
	ListCell   *lc;

	query->depends = NIL;
	query->shadows = NIL;
	query->enums = false;
	query->definitions = 0;

	query->functions = !query->inert ||
		find_function_walker((Node *) rewritten, NULL);
	query->calls = is_catalog_late() ||
		find_call_walker((Node *) source, NULL);
	add_views(query, rewritten);
	add_names(query, source);
	add_shadows(query, relation, only_rte(source)->relid);
	add_functions_walker((Node *) query->quals, query);
	add_functions_walker((Node *) query->targetlist, query);
	foreach(lc, query->targetlist)
		add_type(query,
				 exprType((Node *) lfirst_node(TargetEntry, lc)->expr));
}
