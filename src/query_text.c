/*
 * query_text.c
 *	  An analysed query as text and back.
 *
 * The text is that of a list of nodes, as PostgreSQL keeps views in its
 * catalogs.  It is for another process of the same server: it holds OIDs, and
 * values as they are in memory.  A line before it says what is no part of
 * what the query means: on what it depends, and which of the rows are the
 * result, which topn_move changes.
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

/* A node for a number that does not fit into a list of integers. */
static Const *
make_int64(int64 value)
{
	return makeConst(INT8OID, -1, InvalidOid, sizeof(int64),
					 Int64GetDatum(value), false, FLOAT8PASSBYVAL);
}

static int64
get_int64(void *node)
{
	return DatumGetInt64(castNode(Const, node)->constvalue);
}

static void
append_sort(int n, const SortKey *keys, List **numbers, List **oids)
{
	for (int i = 0; i < n; i++)
	{
		*numbers = lappend_int(*numbers, keys[i].attno);
		*numbers = lappend_int(*numbers, keys[i].nulls_first);
		*oids = lappend_oid(*oids, keys[i].sortop);
		*oids = lappend_oid(*oids, keys[i].collation);
	}
}

/* The same from the next numbers and OIDs on. */
static SortKey *
read_sort(int n, List *numbers, int *number, List *oids, int *oid)
{
	SortKey    *keys = palloc_array(SortKey, n);

	for (int i = 0; i < n; i++)
	{
		keys[i].attno = list_nth_int(numbers, (*number)++);
		keys[i].nulls_first = list_nth_int(numbers, (*number)++);
		keys[i].sortop = list_nth_oid(oids, (*oid)++);
		keys[i].collation = list_nth_oid(oids, (*oid)++);
	}
	return keys;
}

char *
query_dependencies_to_text(const TopnQuery *query)
{
	List	   *dependencies;

	dependencies = list_make5(query->depends, query->shadows,
							  list_make4_int(query->enums, query->functions,
											 query->any_name, query->calls),
							  make_int64(query->offset),
							  make_int64(query->limit));
	dependencies = lappend(dependencies, query->names);
	return psprintf(UINT64_FORMAT " %s\n", query->fingerprint,
					nodeToString(dependencies));
}

char *
query_to_text(const TopnQuery *query)
{
	List	   *numbers;
	List	   *oids = list_make1_oid(query->relid);
	List	   *names = NIL;

	numbers = list_make5_int(query->nvisible, query->keyless, query->inert,
							 query->nsort, query->nkeys);
	numbers = lappend_int(numbers, query->unranked);
	numbers = lappend_int(numbers, query->ninert);
	numbers = lappend_int(numbers, query->inert_end);
	numbers = lappend_int(numbers, query->robust);
	append_sort(query->nsort, query->sort, &numbers, &oids);
	for (int i = 0; i < query->nkeys; i++)
	{
		numbers = lappend_int(numbers, query->keys[i]);
		numbers = lappend_int(numbers, query->key_attnums[i]);
		names = lappend(names, makeString(query->key_names[i]));
	}
	numbers = lappend_int(numbers, query->ngroups);
	append_sort(query->ngroups, query->group_order, &numbers, &oids);
	for (int i = 0; i < query->ngroups; i++)
	{
		numbers = lappend_int(numbers, query->groups[i]);
		names = lappend(names, makeString(query->group_names[i]));
	}
	numbers = lappend_int(numbers, query->rank);
	numbers = lappend_int(numbers, query->bound);
	numbers = lappend_int(numbers, query->bound_exclusive);

	return psprintf("%s%s", query_dependencies_to_text(query),
					nodeToString(list_make5(numbers, oids, names,
											list_make2(make_int64(query->nties),
													   make_int64(query->definitions)),
											list_make3(query->quals,
													   query->targetlist,
													   query->ranks))));
}

uint64
query_text_fingerprint(const char *text)
{
	return strtou64(text, NULL, 10);
}

/* The second line. */
const char *
query_text_of_meaning(const char *text)
{
	return strchr(text, '\n') + 1;
}

bool
query_text_equal(const char *a, const char *b)
{
	return strcmp(query_text_of_meaning(a), query_text_of_meaning(b)) == 0;
}

static void
read_dependencies(TopnQuery *query, const char *text)
{
	char	   *line = pnstrdup(text, query_text_of_meaning(text) - 1 - text);
	List	   *parts = castNode(List, stringToNode(strchr(line, ' ')));

	query->depends = linitial(parts);
	query->shadows = lsecond(parts);
	query->enums = linitial_int(lthird(parts));
	query->functions = lsecond_int(lthird(parts));
	query->any_name = lthird_int(lthird(parts));
	query->calls = lfourth_int(lthird(parts));
	query->offset = get_int64(lfourth(parts));
	query->limit = get_int64(list_nth(parts, 4));
	query->names = list_nth(parts, 5);
	pfree(line);
}

static int
count_dependencies(const TopnQuery *query)
{
	return list_length(query->depends) + list_length(query->shadows) +
		list_length(query->names) + query->enums + query->functions +
		query->any_name + query->calls;
}

bool
query_add_dependencies(TopnQuery *query, const char *text,
					   MemoryContext context)
{
	int			before = count_dependencies(query);
	TopnQuery	more;
	MemoryContext caller;

	read_dependencies(&more, text);
	caller = MemoryContextSwitchTo(context);
	query->depends = list_concat_unique_oid(query->depends, more.depends);
	query->shadows = list_concat_unique_int(query->shadows, more.shadows);
	query->names = list_concat_unique_int(query->names, more.names);
	MemoryContextSwitchTo(caller);
	query->enums |= more.enums;
	query->functions |= more.functions;
	query->any_name |= more.any_name;
	query->calls |= more.calls;
	return count_dependencies(query) > before;
}

TopnQuery *
query_from_text(const char *text)
{
	TopnQuery  *query = palloc0(sizeof(TopnQuery));
	List	   *parts = castNode(List, stringToNode(query_text_of_meaning(text)));
	List	   *numbers = linitial(parts);
	List	   *oids = lsecond(parts);
	List	   *names = lthird(parts);
	List	   *large = lfourth(parts);
	List	   *trees = list_nth_node(List, parts, 4);
	int			number = 0;
	int			oid = 0;

	query->relid = list_nth_oid(oids, oid++);
	query->nvisible = list_nth_int(numbers, number++);
	query->keyless = list_nth_int(numbers, number++);
	query->inert = list_nth_int(numbers, number++);
	query->nsort = list_nth_int(numbers, number++);
	query->nkeys = list_nth_int(numbers, number++);
	query->unranked = list_nth_int(numbers, number++);
	query->ninert = list_nth_int(numbers, number++);
	query->inert_end = list_nth_int(numbers, number++);
	query->robust = list_nth_int(numbers, number++);

	query->sort = read_sort(query->nsort, numbers, &number, oids, &oid);

	query->keys = palloc_array(AttrNumber, query->nkeys);
	query->key_attnums = palloc_array(AttrNumber, query->nkeys);
	query->key_names = palloc_array(char *, query->nkeys);
	for (int i = 0; i < query->nkeys; i++)
	{
		query->keys[i] = list_nth_int(numbers, number++);
		query->key_attnums[i] = list_nth_int(numbers, number++);
		query->key_names[i] = pstrdup(strVal(list_nth(names, i)));
	}

	query->ngroups = list_nth_int(numbers, number++);
	query->group_order = read_sort(query->ngroups, numbers, &number,
								   oids, &oid);
	query->groups = palloc_array(AttrNumber, query->ngroups);
	query->group_names = palloc_array(char *, query->ngroups);
	for (int i = 0; i < query->ngroups; i++)
	{
		query->groups[i] = list_nth_int(numbers, number++);
		query->group_names[i] =
			pstrdup(strVal(list_nth(names, query->nkeys + i)));
	}
	query->rank = list_nth_int(numbers, number++);
	query->bound = list_nth_int(numbers, number++);
	query->bound_exclusive = list_nth_int(numbers, number++);

	query->nties = get_int64(linitial(large));
	query->definitions = get_int64(lsecond(large));
	query->quals = linitial(trees);
	query->targetlist = lsecond(trees);
	query->ranks = lthird(trees);
	query->source = NULL;
	query->fingerprint = query_text_fingerprint(text);
	read_dependencies(query, text);
	return query;
}
