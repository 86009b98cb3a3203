/*
 * query_text.c
 *	  An analysed query as text and back.
 *
 * The text is that of a list of nodes, as PostgreSQL keeps views in its
 * catalogs.  It is for another process of the same server: it holds OIDs, and
 * values as they are in memory.
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "nodes/nodes.h"
#include "nodes/value.h"

#include "query.h"

TupleDesc
query_row_desc(const TopnQuery *query)
{
	return ExecTypeFromTL(query->targetlist);
}

char *
query_to_text(const TopnQuery *query)
{
	List	   *numbers;
	List	   *oids = list_make1_oid(query->relid);
	List	   *names = NIL;
	Const	   *limit;

	numbers = list_make5_int(query->nvisible, query->keyless, query->inert,
							 query->nsort, query->nkeys);
	for (int i = 0; i < query->nsort; i++)
	{
		SortKey    *key = &query->sort[i];

		numbers = lappend_int(numbers, key->attno);
		numbers = lappend_int(numbers, key->nulls_first);
		oids = lappend_oid(oids, key->sortop);
		oids = lappend_oid(oids, key->collation);
	}
	for (int i = 0; i < query->nkeys; i++)
	{
		numbers = lappend_int(numbers, query->keys[i]);
		numbers = lappend_int(numbers, query->key_attnums[i]);
		names = lappend(names, makeString(query->key_names[i]));
	}
	limit = makeConst(INT8OID, -1, InvalidOid, sizeof(int64),
					  Int64GetDatum(query->limit), false, FLOAT8PASSBYVAL);

	return nodeToString(list_make5(numbers, oids,
								   names, limit,
								   list_make2(query->quals,
											  query->targetlist)));
}

TopnQuery *
query_from_text(const char *text)
{
	TopnQuery  *query = palloc0(sizeof(TopnQuery));
	List	   *parts = castNode(List, stringToNode(text));
	List	   *numbers = linitial(parts);
	List	   *oids = lsecond(parts);
	List	   *names = lthird(parts);
	Const	   *limit = lfourth_node(Const, parts);
	List	   *trees = list_nth_node(List, parts, 4);
	int			number = 0;
	int			oid = 0;

	query->relid = list_nth_oid(oids, oid++);
	query->nvisible = list_nth_int(numbers, number++);
	query->keyless = list_nth_int(numbers, number++);
	query->inert = list_nth_int(numbers, number++);
	query->nsort = list_nth_int(numbers, number++);
	query->nkeys = list_nth_int(numbers, number++);

	query->sort = palloc_array(SortKey, query->nsort);
	for (int i = 0; i < query->nsort; i++)
	{
		SortKey    *key = &query->sort[i];

		key->attno = list_nth_int(numbers, number++);
		key->nulls_first = list_nth_int(numbers, number++);
		key->sortop = list_nth_oid(oids, oid++);
		key->collation = list_nth_oid(oids, oid++);
	}

	query->keys = palloc_array(AttrNumber, query->nkeys);
	query->key_attnums = palloc_array(AttrNumber, query->nkeys);
	query->key_names = palloc_array(char *, query->nkeys);
	for (int i = 0; i < query->nkeys; i++)
	{
		query->keys[i] = list_nth_int(numbers, number++);
		query->key_attnums[i] = list_nth_int(numbers, number++);
		query->key_names[i] = pstrdup(strVal(list_nth(names, i)));
	}

	query->limit = DatumGetInt64(limit->constvalue);
	query->quals = linitial(trees);
	query->targetlist = lsecond(trees);
	query->source = NULL;
	return query;
}
