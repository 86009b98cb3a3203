/*
 * explain.c
 *	  What would be maintained for a query, for people.
 *
 * Which index serves is asked of the planner, with sorting made unwelcome:
 * what it does with a table that is small today says nothing.
 */
#include "postgres.h"

#include "access/stratnum.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "tcop/tcopprot.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/ruleutils.h"
#include "utils/typcache.h"

#include "all_groups.h"
#include "compat.h"
#include "feed.h"
#include "flatten.h"
#include "predicate.h"
#include "query.h"
#include "tiers.h"

PG_FUNCTION_INFO_V1(live_topn_keyset_queries);
PG_FUNCTION_INFO_V1(live_topn_explain);

/* ----- Arguments ----- */

static int
text_array(ArrayType *array, char ***result)
{
	Datum	   *values;
	bool	   *nulls;
	int			count;

	deconstruct_array(array, TEXTOID, -1, false, TYPALIGN_INT,
					  &values, &nulls, &count);
	*result = palloc_array(char *, count);
	for (int i = 0; i < count; i++)
		(*result)[i] = nulls[i] ? NULL : TextDatumGetCString(values[i]);
	return count;
}

/* Fill in a value that is given as text. */
static void
fill_value(TupleTableSlot *slot, AttrNumber attno, char *value)
{
	Form_pg_attribute attr = TupleDescAttr(slot->tts_tupleDescriptor,
										   attno - 1);
	Oid			typinput;
	Oid			typioparam;

	getTypeInputInfo(attr->atttypid, &typinput, &typioparam);
	slot->tts_values[attno - 1] =
		OidInputFunctionCall(typinput, value, typioparam, attr->atttypmod);
	slot->tts_isnull[attno - 1] = value == NULL;
}

/*
 * A row with values for the partition keys and the sort columns only.
 */
static TupleTableSlot *
boundary_row(TopnQuery *query, ArrayType *array)
{
	TupleDesc	desc = query_row_desc(query);
	TupleTableSlot *slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	int			expected = query->ngroups + query->nsort;
	char	  **values;
	int			count = text_array(array, &values);

	if (count != expected)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("wrong number of values for the boundary"),
				 errdetail("Expected %d values but got %d.",
						   expected, count),
				 query->ngroups > 0 ?
				 errhint("Give the values of the partition keys, then of the columns in ORDER BY, then those of the identity that are not among these.") :
				 errhint("Give the values of the columns in ORDER BY, then those of the identity that are not among these.")));

	ExecStoreAllNullTuple(slot);
	for (int i = 0; i < query->ngroups; i++)
		fill_value(slot, query->groups[i], values[i]);
	for (int i = 0; i < query->nsort; i++)
		fill_value(slot, query->sort[i].attno, values[query->ngroups + i]);
	return slot;
}

/* The query in the first argument, with the values in the second one. */
static TopnQuery *
query_argument(FunctionCallInfo fcinfo)
{
	char	  **args = NULL;
	int			nargs = 0;

	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("query must not be null")));
	if (!PG_ARGISNULL(1))
		nargs = text_array(PG_GETARG_ARRAYTYPE_P(1), &args);
	return query_analyze(text_to_cstring(PG_GETARG_TEXT_PP(0)), nargs, args);
}

/* ----- The queries ----- */

static void
put_query(ReturnSetInfo *rsinfo, Query *query)
{
	Datum		value = CStringGetTextDatum(pg_get_querydef(query, false));
	bool		isnull = false;

	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &value, &isnull);
}

/*
 * live_topn.keyset_queries(query text, args text[], boundary text[])
 *		RETURNS SETOF text
 *
 * The queries by which a subscription would be filled after a row with the
 * given sort columns: what to EXPLAIN when the question is which index serves.
 */
Datum
live_topn_keyset_queries(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TopnQuery  *query = query_argument(fcinfo);
	TupleTableSlot *after = NULL;
	ListCell   *lc;

	if (!PG_ARGISNULL(2))
		after = boundary_row(query, PG_GETARG_ARRAYTYPE_P(2));

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	if (query->ngroups > 0 && after == NULL)
	{
		put_query(rsinfo, query_all_groups(query, 0));
		return (Datum) 0;
	}
	if (query->ngroups > 0)
		query = query_of_group(query, after);
	foreach(lc, make_tiers(query, after, TIERS_AFTER))
	{
		Tier	   *tier = lfirst(lc);

		(void) plan_tier(query, tier, query->limit);
		put_query(rsinfo, tier->query);
	}
	return (Datum) 0;
}

/* ----- The index ----- */

/* How rows can be had in order. */
typedef struct Service
{
	List	   *indexes;		/* OIDs, of each partition one */
	bool		sorts;			/* all rows */
	bool		sorts_ties;		/* those that are equal in the index */
} Service;

static void
add_service(Plan *plan, Service *service)
{
	List	   *children = NIL;
	ListCell   *lc;

	switch (nodeTag(plan))
	{
		case T_IndexScan:
			service->indexes = lappend_oid(service->indexes,
										   ((IndexScan *) plan)->indexid);
			return;
		case T_IndexOnlyScan:
			service->indexes = lappend_oid(service->indexes,
										   ((IndexOnlyScan *) plan)->indexid);
			return;
		case T_IncrementalSort:
			service->sorts_ties = true;
			add_service(plan->lefttree, service);
			return;
		case T_SubqueryScan:
			add_service(((SubqueryScan *) plan)->subplan, service);
			return;
		case T_Append:
			children = ((Append *) plan)->appendplans;
			break;
		case T_MergeAppend:
			children = ((MergeAppend *) plan)->mergeplans;
			break;
		case T_Result:
			/* nothing to read, if it has nothing below */
			if (plan->lefttree == NULL)
				return;
			add_service(plan->lefttree, service);
			return;
		case T_Limit:
			add_service(plan->lefttree, service);
			return;
		default:
			service->sorts = true;
			return;
	}
	foreach(lc, children)
		add_service(lfirst(lc), service);
}

/* What is below the first WindowAgg. */
static Plan *
below_window(Plan *plan)
{
	while (plan != NULL && !IsA(plan, WindowAgg))
		plan = IsA(plan, SubqueryScan) ? ((SubqueryScan *) plan)->subplan :
			plan->lefttree;
	while (plan != NULL && IsA(plan, WindowAgg))
		plan = plan->lefttree;
	return plan;
}

static void
turn_off(const char *setting)
{
	(void) set_config_option(setting, "off", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
}

static Service
service_of(PlannedStmt *stmt, bool grouped)
{
	Service		service = {0};
	Plan	   *plan = stmt->planTree;

	if (grouped)
		plan = below_window(plan);
	if (plan == NULL)
		service.sorts = true;
	else
		add_service(plan, &service);
	return service;
}

/* How the rows of a query can be read from the start. */
static Service
find_service(TopnQuery *query)
{
	int			nestlevel = NewGUCNestLevel();
	Service		service;

	turn_off("enable_seqscan");
	turn_off("enable_bitmapscan");
	turn_off("enable_sort");

	if (query->ngroups > 0)
		service = service_of(pg_plan_query(rewrite_query(query_all_groups(query, 0)),
										   "live_topn keyset query",
										   CURSOR_OPT_NO_SCROLL, NULL),
							 true);
	else
	{
		Tier	   *tier = linitial(make_tiers(query, NULL, TIERS_AFTER));

		service = service_of(plan_tier(query, tier, query->limit), false);
	}
	AtEOXact_GUC(true, nestlevel);
	return service;
}

static char *
service_text(const Service *service)
{
	StringInfoData text;
	ListCell   *lc;

	if (service->sorts || service->indexes == NIL)
		return "none: all rows that satisfy the filter are read and sorted";

	initStringInfo(&text);
	foreach(lc, service->indexes)
		appendStringInfo(&text, "%s%s", text.len > 0 ? ", " : "",
						 quote_identifier(get_rel_name(lfirst_oid(lc))));
	if (service->sorts_ties)
		appendStringInfoString(&text,
							   "; rows that are equal in its columns are sorted");
	return text.data;
}

/* ----- Expressions ----- */

static char *
expression_text(const TopnQuery *query, Node *node)
{
	List	   *context = deparse_context_for(get_rel_name(query->relid),
											  query->relid);

	return deparse_expression(node, context, false, false);
}

static Node *
row_column(const TopnQuery *query, AttrNumber attno)
{
	return (Node *) list_nth_node(TargetEntry, query->targetlist,
								  attno - 1)->expr;
}

/* Without COLLATE, as planned; the sort key has the collation. */
static Node *
without_collation(Node *node)
{
	RelabelType *relabel = (RelabelType *) node;

	return IsA(node, RelabelType) &&
		relabel->resulttype == exprType((Node *) relabel->arg) ?
		(Node *) relabel->arg : node;
}

/* As in CREATE INDEX. */
static void
append_column_key(StringInfo text, const TopnQuery *query, Node *node)
{
	const char *separator = text->len > 0 ? ", " : "";
	char	   *expression = expression_text(query, node);

	if (IsA(node, Var))
		appendStringInfo(text, "%s%s", separator, expression);
	else
		appendStringInfo(text, "%s(%s)", separator, expression);
}

/* As in ORDER BY, or with as_key in CREATE INDEX. */
static void
append_sort_key(StringInfo text, const TopnQuery *query, const SortKey *key,
				bool as_key)
{
	Node	   *node = without_collation(row_column(query, key->attno));
	TypeCacheEntry *cache = lookup_type_cache(exprType(node),
											  TYPECACHE_LT_OPR |
											  TYPECACHE_GT_OPR);
	bool		descending = key->sortop == cache->gt_opr;

	if (as_key)
		append_column_key(text, query, node);
	else
		appendStringInfo(text, "%s%s", text->len > 0 ? ", " : "",
						 expression_text(query, node));
	if (OidIsValid(key->collation) && key->collation != exprCollation(node))
		appendStringInfo(text, " COLLATE %s",
						 generate_collation_name(key->collation));
	if (descending)
		appendStringInfoString(text, " DESC");
	else if (key->sortop != cache->lt_opr && !as_key)
		appendStringInfo(text, " USING %s", get_opname(key->sortop));
	if (key->nulls_first != descending)
		appendStringInfoString(text, key->nulls_first ? " NULLS FIRST" :
							   " NULLS LAST");
}

/* The sort columns before those in image order, which no index has. */
static int
usual_sort_columns(const TopnQuery *query)
{
	return query->keyless ? query->nsort - query->nkeys : query->nsort;
}

static char *
order_text(const TopnQuery *query)
{
	StringInfoData text;
	int			n = usual_sort_columns(query);

	if (query->unranked)
		return "none: rows have no positions";
	initStringInfo(&text);
	for (int i = 0; i < n; i++)
		append_sort_key(&text, query, &query->sort[i], false);
	if (query->keyless)
		appendStringInfo(&text, "%sthe image of the whole row",
						 n > 0 ? ", " : "");
	return text.data;
}

static char *
filter_text(const TopnQuery *query)
{
	if (query->quals == NIL)
		return "none";
	return expression_text(query, (Node *) make_ands_explicit(query->quals));
}

static char *
key_columns(const TopnQuery *query)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < query->nkeys; i++)
		appendStringInfo(&text, "%s%s", i > 0 ? ", " : "",
						 quote_identifier(query->key_names[i]));
	return text.data;
}

static char *
group_columns(const TopnQuery *query)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < query->ngroups; i++)
		appendStringInfo(&text, "%s%s", i > 0 ? ", " : "",
						 expression_text(query,
										 row_column(query, query->groups[i])));
	return text.data;
}

/* ----- The rest ----- */

static char *
identity_text(const TopnQuery *query, Relation rel)
{
	bool		full = rel->rd_rel->relreplident == REPLICA_IDENTITY_FULL;
	Oid			index = full ? primary_key_index(rel) :
		RelationGetReplicaIndex(rel);

	if (query->keyless)
		return "the whole row: the table has no primary key, and REPLICA IDENTITY FULL";
	return psprintf("%s: %s %s%s", key_columns(query),
					index == primary_key_index(rel) ? "the primary key" :
					"the replica identity,",
					quote_identifier(get_rel_name(index)),
					full ? ", with REPLICA IDENTITY FULL" : "");
}

static char *
page_text(const TopnQuery *query)
{
	StringInfoData text;

	initStringInfo(&text);
	if (query->limit == NO_LIMIT)
		appendStringInfoString(&text, "all rows");
	else
		appendStringInfo(&text, INT64_FORMAT " rows", query->limit);
	if (query->offset > 0)
		appendStringInfo(&text, " after " INT64_FORMAT " skipped ones",
						 query->offset);
	if (query->rank == RANK_WITH_TIES)
		appendStringInfoString(&text, ", with ties");
	else if (query->rank == RANK_TIES)
		appendStringInfoString(&text, ", counted as by rank()");
	else if (query->rank == RANK_DENSE)
		appendStringInfoString(&text, ", counted as by dense_rank()");
	if (query->ngroups > 0)
		appendStringInfo(&text, ", of each group by %s", group_columns(query));
	return text.data;
}

/* See route.c. */
static char *
routing_text(TopnQuery *query, Relation rel)
{
	StringInfoData text;
	Predicate  *predicate;

	predicate = predicate_of(query);
	initStringInfo(&text);
	if (query->unranked &&
		rel->rd_rel->relreplident == REPLICA_IDENTITY_FULL)
		appendStringInfoString(&text, "a row as it was, and as it is: by ");
	else
		appendStringInfo(&text,
						 "a row that is held: by %s; one that may enter: by ",
						 query->keyless ? "the whole row" : key_columns(query));
	if (predicate->equal_expr != NULL)
		appendStringInfo(&text, "the value of %s, ",
						 expression_text(query,
										 (Node *) predicate->equal_expr));
	if (predicate->range_expr != NULL)
		appendStringInfo(&text, "the range of %s, ",
						 expression_text(query,
										 (Node *) predicate->range_expr));
	if (query->limit == NO_LIMIT || query->ngroups > 0 || !query->inert_end)
		appendStringInfoString(&text, "the filter");
	else
		appendStringInfo(&text, "the last row held, in the order of %s",
						 expression_text(query,
										 row_column(query,
													query->sort[0].attno)));
	if (!query->inert)
		appendStringInfoString(&text, "; evaluated outside of decoding, as the query may fail, or calls functions that look at catalogs");
	return text.data;
}

/* The index that would serve, NULL if there can be none. */
static char *
index_advice(TopnQuery *query, const char *table)
{
	StringInfoData columns;
	Predicate  *predicate = predicate_of(query);
	int			n = usual_sort_columns(query);

	initStringInfo(&columns);
	for (int i = 0; i < query->ngroups; i++)
	{
		Node	   *node = row_column(query, query->groups[i]);

		append_column_key(&columns, query, node);
	}
	if (query->ngroups == 0 && predicate->nvalues == 1 &&
		predicate->equal_expr != NULL && IsA(predicate->equal_expr, Var))
		append_column_key(&columns, query, (Node *) predicate->equal_expr);
	for (int i = 0; i < n; i++)
		append_sort_key(&columns, query, &query->sort[i], true);

	if (n == 0 || columns.len == 0)
		return NULL;
	return psprintf("CREATE INDEX ON %s (%s): then the first load and refills read only the rows that they need",
					table, columns.data);
}

static void
put_item(ReturnSetInfo *rsinfo, const char *item, const char *detail)
{
	Datum		values[2];
	bool		nulls[2] = {false, false};

	values[0] = CStringGetTextDatum(item);
	values[1] = CStringGetTextDatum(detail);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

static void
put_advice(ReturnSetInfo *rsinfo, TopnQuery *query, const Service *service,
		   Relation rel, const char *table)
{
	bool		full = rel->rd_rel->relreplident == REPLICA_IDENTITY_FULL;
	const char *then = "every commit has a batch of its own, also while rows are missing";
	char	   *advice;

	if (!query->unranked && (service->sorts || service->indexes == NIL))
	{
		advice = index_advice(query, table);
		if (advice != NULL)
			put_item(rsinfo, "advice", advice);
	}
	if (query->keyless)
		put_item(rsinfo, "advice",
				 psprintf("ALTER TABLE %s ADD PRIMARY KEY (...): then an index can serve the whole order, and deltas have a short key",
						  table));
	if (full)
		return;
	if (query->unranked)
		then = "none of the rows is held";
	else if (query->limit == NO_LIMIT && query->offset == 0)
		return;
	else if (query->ngroups == 0 && query->offset >= feed_slice_offset)
		then = psprintf("%s, and the skipped rows are counted instead of held",
						then);
	put_item(rsinfo, "advice",
			 psprintf("ALTER TABLE %s REPLICA IDENTITY FULL: then %s; UPDATE and DELETE write the whole old row to WAL%s",
					  table, then,
					  rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE ?
					  "; partitions need it, too" : ""));
}

/*
 * topn_explain(query text, args text[], OUT item text, OUT detail text)
 *		RETURNS SETOF record
 */
Datum
live_topn_explain(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	TopnQuery  *query = query_argument(fcinfo);
	Relation	rel = table_open(query->relid, NoLock);
	char	   *table =
		quote_qualified_identifier(get_namespace_name(RelationGetNamespace(rel)),
								   RelationGetRelationName(rel));
	Service		service = find_service(query);

	InitMaterializedSRF(fcinfo, 0);
	put_item(rsinfo, "table", table);
	put_item(rsinfo, "identity", identity_text(query, rel));
	put_item(rsinfo, "filter", filter_text(query));
	put_item(rsinfo, "order", order_text(query));
	put_item(rsinfo, "page", page_text(query));
	put_item(rsinfo, "index", query->unranked ? "any: rows need no order" :
			 service_text(&service));
	put_item(rsinfo, "routing", routing_text(query, rel));
	put_advice(rsinfo, query, &service, rel, table);
	table_close(rel, NoLock);
	return (Datum) 0;
}
