/*
 * fingerprint.c
 *	  What a query says, whatever the values of its arguments are.
 *
 * What the catalogs contribute to the meaning of a text is in the rewritten
 * query: tables, columns, operators and types that its names stand for, the
 * policies and views, and the user.  What follows is done to it by functions of
 * PostgreSQL's own, if it has no others, and to values that come of their text
 * whatever the catalogs are.  So while the rewritten query is the same but for
 * the values, each query made of the text by some values means what it did.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "common/hashfn.h"
#include "fingerprint.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"

static Node *
hide_values_mutator(Node *node, List *places)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Query))
	{
		Query	   *query = query_tree_mutator((Query *) node,
											   hide_values_mutator, places, 0);
		ListCell   *lc;

		/* columns that the query does not use may come and go */
		foreach(lc, query->rtable)
		{
			RangeTblEntry *rte = lfirst_node(RangeTblEntry, lc);

			rte->alias = rte->eref = NULL;
		}
		return (Node *) query;
	}
	if (IsA(node, Const) &&
		list_member_int(places, ((Const *) node)->location))
	{
		Const	   *value = (Const *) copyObject(node);

		value->constvalue = (Datum) 0;
		value->constisnull = true;
		return (Node *) value;
	}
	return expression_tree_mutator(node, hide_values_mutator, places);
}

static uint64
hash_string(const char *string)
{
	return hash_bytes_extended((const unsigned char *) string, strlen(string),
							   0);
}

uint64
query_fingerprint(Query *rewritten, List *places)
{
	List	   *path = fetch_search_path(true);
	uint64		hash;

	hash = hash_string(nodeToString(hide_values_mutator((Node *) rewritten,
														places)));
	hash = hash_combine64(hash, hash_string(GetUserNameFromId(GetUserId(),
															  false)));
	return hash_combine64(hash, hash_string(nodeToString(path)));
}
