/*
 * identity.c
 *	  The columns that tell rows of a table apart, and their part in a query.
 *
 * A change in WAL says which row it changed by the replica identity of the
 * table: the key columns of an index, or the whole old row.  With a whole row
 * the primary key still is the better name for it, if it is one at every
 * moment: a deferrable key may have two rows alike until the commit, and rows
 * are matched change by change.
 *
 * The identity columns that a query lacks are appended to its select list and
 * to its ORDER BY before it is rewritten, as if the user had written them.
 *
 * The replica identity of a partitioned table is not inherited: WAL is written
 * for the partitions, each with a replica identity of its own.  So the table
 * at the root says what the identity is, and every partition must log at
 * least that.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/tupdesc.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_index.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/tlist.h"
#include "parser/parse_clause.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"
#include "utils/typcache.h"

#include "compat.h"
#include "flatten.h"
#include "identity.h"

typedef struct Identity
{
	bool		keyless;		/* only the whole row; the rest is unset */
	int			nkeys;
	AttrNumber *attnums;		/* in the order of the index */
	Oid		   *collations;		/* of the index */
	Oid		   *ltops;			/* ascending order ... */
	Oid		   *eqops;			/* ... and the equality that is unique */
} Identity;

/* ----- What identifies the rows of a table ----- */

static char *
qualified_name(Relation rel)
{
	char	   *schema = get_namespace_name(RelationGetNamespace(rel));

	return quote_qualified_identifier(schema, RelationGetRelationName(rel));
}

/*
 * Does the table have a primary key that is no identity, being deferrable?
 */
static bool
has_deferrable_primary_key(Relation rel)
{
	bool		result = false;
	ListCell   *lc;

	foreach(lc, RelationGetIndexList(rel))
	{
		HeapTuple	tuple = SearchSysCache1(INDEXRELID,
											ObjectIdGetDatum(lfirst_oid(lc)));
		Form_pg_index index;

		if (!HeapTupleIsValid(tuple))
			elog(ERROR, "cache lookup failed for index %u", lfirst_oid(lc));
		index = (Form_pg_index) GETSTRUCT(tuple);
		if (index->indisprimary && !index->indimmediate)
			result = true;
		ReleaseSysCache(tuple);
	}
	return result;
}

static void
refuse_table(Relation rel)
{
	const char *detail;
	const char *hint = "ALTER TABLE %s ADD PRIMARY KEY (...), or ALTER TABLE %s REPLICA IDENTITY FULL.";

	switch (rel->rd_rel->relreplident)
	{
		case REPLICA_IDENTITY_NOTHING:
			detail = "Its replica identity is NOTHING.";
			hint = OidIsValid(primary_key_index(rel)) ?
				"ALTER TABLE %s REPLICA IDENTITY DEFAULT, or ALTER TABLE %s REPLICA IDENTITY FULL." :
				"ALTER TABLE %s REPLICA IDENTITY USING INDEX ..., or ALTER TABLE %s REPLICA IDENTITY FULL.";
			break;
		case REPLICA_IDENTITY_INDEX:
			detail = "The index of its replica identity does not exist or is not usable.";
			hint = "ALTER TABLE %s REPLICA IDENTITY USING INDEX ..., or ALTER TABLE %s REPLICA IDENTITY FULL.";
			break;
		default:
			if (has_deferrable_primary_key(rel))
			{
				detail = "Its primary key is deferrable.";
				hint = "ALTER TABLE %s REPLICA IDENTITY USING INDEX ..., or ALTER TABLE %s REPLICA IDENTITY FULL.";
			}
			else
				detail = "It has no primary key.";
	}

	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("table \"%s\" has no identity for its rows",
					RelationGetRelationName(rel)),
			 errdetail("%s", detail),
			 errhint(hint, qualified_name(rel), qualified_name(rel))));
}

/*
 * Refuse a partition whose changes do not tell which row they changed.
 */
static void
check_partition(Relation rel, Relation root, const Identity *identity)
{
	Oid			index_oid;
	Bitmapset  *logged = NULL;

	if (rel->rd_rel->relkind != RELKIND_RELATION)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("partition \"%s\" of table \"%s\" is a foreign table",
						RelationGetRelationName(rel),
						RelationGetRelationName(root)),
				 errhint("Subscribe to partitions that are tables.")));
	if (rel->rd_rel->relpersistence != RELPERSISTENCE_PERMANENT)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("partition \"%s\" of table \"%s\" is not logged",
						RelationGetRelationName(rel),
						RelationGetRelationName(root)),
				 errhint("ALTER TABLE %s SET LOGGED.", qualified_name(rel))));

	if (rel->rd_rel->relreplident == REPLICA_IDENTITY_FULL)
		return;

	if (identity->keyless)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("partition \"%s\" of table \"%s\" has no identity for its rows",
						RelationGetRelationName(rel),
						RelationGetRelationName(root)),
				 errdetail("The identity is the whole row, and its replica identity is not FULL."),
				 errhint("ALTER TABLE %s REPLICA IDENTITY FULL.",
						 qualified_name(rel))));

	index_oid = RelationGetReplicaIndex(rel);
	if (OidIsValid(index_oid))
	{
		Relation	index = index_open(index_oid, AccessShareLock);

		for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); i++)
			logged = bms_add_member(logged,
									index->rd_index->indkey.values[i]);
		index_close(index, AccessShareLock);
	}

	for (int i = 0; i < identity->nkeys; i++)
	{
		char	   *name = get_attname(RelationGetRelid(root),
									   identity->attnums[i], false);

		if (!bms_is_member(get_attnum(RelationGetRelid(rel), name), logged))
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("partition \"%s\" of table \"%s\" has no identity for its rows",
							RelationGetRelationName(rel),
							RelationGetRelationName(root)),
					 errdetail("Its replica identity lacks column \"%s\".",
							   name),
					 errhint("ALTER TABLE %s REPLICA IDENTITY FULL, or USING INDEX ....",
							 qualified_name(rel))));
	}
}

/*
 * The key of an index.  The order is the default one of the column's type;
 * only an operator class with an equality of its own brings its own order.
 */
static void
identity_from_index(Identity *identity, Relation rel, Oid index_oid)
{
	Relation	index = index_open(index_oid, AccessShareLock);
	int			n = IndexRelationGetNumberOfKeyAttributes(index);

	identity->nkeys = n;
	identity->attnums = palloc_array(AttrNumber, n);
	identity->collations = palloc_array(Oid, n);
	identity->ltops = palloc_array(Oid, n);
	identity->eqops = palloc_array(Oid, n);

	for (int i = 0; i < n; i++)
	{
		AttrNumber	attnum = index->rd_index->indkey.values[i];
		Oid			type = TupleDescAttr(RelationGetDescr(rel),
										 attnum - 1)->atttypid;
		TypeCacheEntry *cache = lookup_type_cache(type,
												  TYPECACHE_LT_OPR |
												  TYPECACHE_EQ_OPR);
		Oid			eqop = get_opfamily_member(index->rd_opfamily[i],
											   index->rd_opcintype[i],
											   index->rd_opcintype[i],
											   BTEqualStrategyNumber);

		identity->attnums[i] = attnum;
		identity->collations[i] = index->rd_indcollation[i];
		identity->eqops[i] = eqop;
		identity->ltops[i] = cache->eq_opr == eqop ? cache->lt_opr :
			get_opfamily_member(index->rd_opfamily[i],
								index->rd_opcintype[i],
								index->rd_opcintype[i],
								BTLessStrategyNumber);
		if (!OidIsValid(eqop) || !OidIsValid(identity->ltops[i]))
			elog(ERROR, "index %u has no btree operators for column %d",
				 index_oid, i + 1);
	}
	index_close(index, AccessShareLock);
}

/*
 * The identity of the rows of a table, which is locked.  Locks the partitions
 * in AccessShareLock until the end of the transaction.
 */
static Identity *
choose_identity(Relation rel)
{
	Identity   *identity = palloc0_object(Identity);
	Oid			index_oid;

	if (rel->rd_rel->relreplident == REPLICA_IDENTITY_FULL)
		index_oid = primary_key_index(rel);
	else
	{
		index_oid = RelationGetReplicaIndex(rel);
		if (!OidIsValid(index_oid))
			refuse_table(rel);
	}

	if (OidIsValid(index_oid))
		identity_from_index(identity, rel, index_oid);
	else
		identity->keyless = true;

	if (rel->rd_rel->relkind == RELKIND_PARTITIONED_TABLE)
	{
		List	   *relids = find_all_inheritors(RelationGetRelid(rel),
												 AccessShareLock, NULL);
		ListCell   *lc;

		foreach(lc, relids)
		{
			Relation	part = table_open(lfirst_oid(lc), NoLock);

			if (part->rd_rel->relkind != RELKIND_PARTITIONED_TABLE)
				check_partition(part, rel, identity);
			table_close(part, NoLock);
		}
	}
	return identity;
}

/* ----- The row and its order ----- */

/*
 * Append a column that is not for the client.
 */
static TargetEntry *
append_column(Query *source, Expr *expr, const char *name)
{
	TargetEntry *tle = makeTargetEntry(expr,
									   list_length(source->targetList) + 1,
									   pstrdup(name), true);

	source->targetList = lappend(source->targetList, tle);
	return tle;
}

static void
append_sort(Query *source, TargetEntry *tle, Oid sortop, Oid eqop)
{
	SortGroupClause *clause = makeNode(SortGroupClause);

	clause->tleSortGroupRef = assignSortGroupRef(tle, source->targetList);
	clause->eqop = eqop;
	clause->sortop = sortop;
	clause->nulls_first = false;
	clause->hashable = false;
	source->sortClause = lappend(source->sortClause, clause);
}

/*
 * Where in the order the column is, in a way that tells its values apart like
 * the identity does; -1 if nowhere.
 */
static int
sort_position(Query *source, TargetEntry *tle, Oid eqop)
{
	ListCell   *lc;

	foreach(lc, source->sortClause)
	{
		SortGroupClause *clause = lfirst_node(SortGroupClause, lc);

		if (clause->tleSortGroupRef == tle->ressortgroupref &&
			clause->eqop == eqop)
			return foreach_current_index(lc);
	}
	return -1;
}

/*
 * The column of the row that is a given column of the table.  It is appended
 * if the select list, which flat_columns shows over the table, has none.
 */
static TargetEntry *
find_or_append_column(ParseState *pstate, Oid relid, Query *source,
					  List *flat_columns, AttrNumber attnum, int location)
{
	RangeTblEntry *rte = only_rte(source);
	char	   *name = get_attname(relid, attnum, false);
	AttrNumber	column;
	Oid			type;
	int32		typmod;
	Oid			collation;
	ListCell   *lc;

	foreach(lc, flat_columns)
	{
		TargetEntry *tle = lfirst_node(TargetEntry, lc);

		if (IsA(tle->expr, Var) && ((Var *) tle->expr)->varattno == attnum)
			return list_nth_node(TargetEntry, source->targetList,
								 tle->resno - 1);
	}

	column = find_relation_column(pstate, source, attnum);
	if (!AttributeNumberIsValid(column))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("view \"%s\" cannot be subscribed to",
						get_rel_name(rte->relid)),
				 errdetail("It does not show column \"%s\", by which the rows of table \"%s\" are identified.",
						   name, get_rel_name(relid)),
				 errhint("Add the column to the view."),
				 parser_errposition(pstate, location)));

	get_atttypetypmodcoll(rte->relid, column, &type, &typmod, &collation);
	add_selected_column(source, rte,
						column - FirstLowInvalidHeapAttributeNumber);
	return append_column(source,
						 (Expr *) makeVar(1, column, type, typmod, collation,
										  0),
						 name);
}

/*
 * Without a key all columns are the identity.  The query is ordered by the
 * image of the whole row, an expression that is no column of ours: it comes
 * after them.
 */
static void
append_whole_row(ParseState *pstate, TopnQuery *result, Query *source,
				 List *flat_columns, Relation rel, int location)
{
	RangeTblEntry *rte = only_rte(source);
	TupleDesc	desc = RelationGetDescr(rel);
	List	   *less = list_make2(makeString("pg_catalog"), makeString("*<"));
	List	   *equal = list_make2(makeString("pg_catalog"), makeString("*="));
	TargetEntry *tle;

	if (rte->relkind == RELKIND_VIEW)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("view \"%s\" cannot be subscribed to",
						get_rel_name(rte->relid)),
				 errdetail("Its table \"%s\" has no key.",
						   RelationGetRelationName(rel)),
				 errhint("Add a primary key to the table, or subscribe to the table."),
				 parser_errposition(pstate, location)));

	result->keyless = true;
	result->keys = palloc_array(AttrNumber, desc->natts);
	result->key_attnums = palloc_array(AttrNumber, desc->natts);
	result->key_names = palloc_array(char *, desc->natts);

	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute attr = TupleDescAttr(desc, i);

		if (attr->attisdropped)
			continue;
		tle = find_or_append_column(pstate, result->relid, source,
									flat_columns, attr->attnum, location);
		result->keys[result->nkeys] = tle->resno;
		result->key_attnums[result->nkeys] = attr->attnum;
		result->key_names[result->nkeys] = pstrdup(NameStr(attr->attname));
		result->nkeys++;
	}

	tle = append_column(source, (Expr *) makeWholeRowVar(rte, 1, 0, false),
						RelationGetRelationName(rel));
	append_sort(source, tle,
				OpernameGetOprid(less, RECORDOID, RECORDOID),
				OpernameGetOprid(equal, RECORDOID, RECORDOID));
}

void
append_identity(ParseState *pstate, TopnQuery *result, Query *source,
				List *flat_columns, Relation rel, int location)
{
	Identity   *identity = choose_identity(rel);
	int			last = 0;

	if (identity->keyless)
	{
		append_whole_row(pstate, result, source, flat_columns, rel, location);
		return;
	}

	result->nkeys = identity->nkeys;
	result->keys = palloc_array(AttrNumber, identity->nkeys);
	result->key_attnums = palloc_array(AttrNumber, identity->nkeys);
	result->key_names = palloc_array(char *, identity->nkeys);

	for (int i = 0; i < identity->nkeys; i++)
	{
		AttrNumber	attnum = identity->attnums[i];
		TargetEntry *tle;

		tle = find_or_append_column(pstate, result->relid, source,
									flat_columns, attnum, location);
		result->keys[i] = tle->resno;
		result->key_attnums[i] = attnum;
		result->key_names[i] = get_attname(result->relid, attnum, false);

		/* the index may have a collation of its own */
		if (exprCollation((Node *) tle->expr) != identity->collations[i])
		{
			CollateExpr *collate = makeNode(CollateExpr);

			collate->arg = copyObject(tle->expr);
			collate->collOid = identity->collations[i];
			collate->location = -1;
			tle = tlist_member((Expr *) collate, source->targetList);
			if (tle == NULL)
				tle = append_column(source, (Expr *) collate,
									result->key_names[i]);
		}
		if (sort_position(source, tle, identity->eqops[i]) < 0)
			append_sort(source, tle, identity->ltops[i], identity->eqops[i]);
		last = Max(last, sort_position(source, tle, identity->eqops[i]));
	}

	/* no two rows are equal so far: what follows decides nothing */
	source->sortClause = list_truncate(source->sortClause, last + 1);
}
