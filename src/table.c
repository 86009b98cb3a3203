/*
 * table.c
 *	  A table as it was at a position of the log, and changes of its rows.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/partition.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "common/hashfn.h"
#include "compat.h"
#include "nodes/pg_list.h"
#include "table.h"
#include "utils/datum.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

static void
add_view(Table *table, Oid relid, TupleDesc desc)
{
	TableView  *view = &table->views[table->nviews++];

	view->relid = relid;
	if (desc == NULL)
		view->slot = table->slot;
	else
	{
		view->map = attrmap_by_name(table->desc, desc);
		view->slot = view->map == NULL ? table->slot :
			MakeSingleTupleTableSlot(CreateTupleDescCopy(desc),
									 &TTSOpsVirtual);
	}
}

Table *
table_describe(Relation relation, MemoryContext parent)
{
	static uint64 last_serial = 0;
	MemoryContext context;
	MemoryContext caller;
	Table	   *table;
	List	   *ancestors = NIL;
	ListCell   *lc;

	if (relation->rd_rel->relispartition)
		ancestors = get_partition_ancestors(RelationGetRelid(relation));

	context = AllocSetContextCreate(parent, "live_topn table",
									ALLOCSET_SMALL_SIZES);
	caller = MemoryContextSwitchTo(context);
	table = palloc0(sizeof(Table));
	table->relid = RelationGetRelid(relation);
	table->refs = 1;
	table->serial = ++last_serial;
	table->context = context;
	table->desc = CreateTupleDescCopyConstr(RelationGetDescr(relation));
	table->slot = MakeSingleTupleTableSlot(table->desc, &TTSOpsHeapTuple);
	table->replident = relation->rd_rel->relreplident;
	table->identity = RelationGetIdentityKeyBitmap(relation);
	table->views = palloc0(sizeof(TableView) * (1 + list_length(ancestors)));

	add_view(table, table->relid, NULL);
	foreach(lc, ancestors)
	{
		Relation	ancestor = RelationIdGetRelation(lfirst_oid(lc));

		if (!RelationIsValid(ancestor))
			continue;
		add_view(table, lfirst_oid(lc), RelationGetDescr(ancestor));
		RelationClose(ancestor);
	}
	MemoryContextSwitchTo(caller);
	list_free(ancestors);
	return table;
}

void
table_unref(Table *table)
{
	Assert(table->refs > 0);
	if (--table->refs > 0)
		return;
	for (int i = 0; i < table->nviews; i++)
		if (table->views[i].map)
			ExecDropSingleTupleTableSlot(table->views[i].slot);
	ExecDropSingleTupleTableSlot(table->slot);
	MemoryContextDelete(table->context);
}

/*
 * Each partition is an OID followed by the xid of its row.  One that was
 * detached and attached again in between has another row, and so has one that
 * is being detached concurrently, which queries leave out already.
 */
List *
table_partitions(Oid relid)
{
	List	   *parents = list_make1_oid(relid);
	List	   *result = NIL;
	Relation	inherits = table_open(InheritsRelationId, AccessShareLock);

	for (int i = 0; i < list_length(parents); i++)
	{
		ScanKeyData key;
		SysScanDesc scan;
		HeapTuple	tuple;

		ScanKeyInit(&key, Anum_pg_inherits_inhparent, BTEqualStrategyNumber,
					F_OIDEQ, ObjectIdGetDatum(list_nth_oid(parents, i)));
		scan = systable_beginscan(inherits, InheritsParentIndexId, true, NULL,
								  1, &key);
		while (HeapTupleIsValid(tuple = systable_getnext(scan)))
		{
			Oid			child = ((Form_pg_inherits) GETSTRUCT(tuple))->inhrelid;

			result = lappend_oid(result, child);
			result = lappend_oid(result,
								 HeapTupleHeaderGetRawXmin(tuple->t_data));
			if (get_rel_relkind(child) == RELKIND_PARTITIONED_TABLE)
				parents = lappend_oid(parents, child);
		}
		systable_endscan(scan);
	}
	table_close(inherits, AccessShareLock);
	list_free(parents);
	return result;
}

uint64
table_hash_class(Oid relid)
{
	static const AttrNumber lists[] = {
		Anum_pg_class_relacl, Anum_pg_class_reloptions
	};
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));
	FormData_pg_class class;
	uint64		hash;

	if (!HeapTupleIsValid(tuple))
		return 0;
	memcpy(&class, GETSTRUCT(tuple), CLASS_TUPLE_SIZE);
	class.relfilenode = InvalidOid;
	class.relhasindex = class.relhastriggers = class.relhasrules = false;
	class.relfrozenxid = class.relminmxid = InvalidTransactionId;
	class.relpages = class.relallvisible = 0;
	class.reltuples = 0;
	class_clear_frozen(&class);
	hash = hash_bytes_extended((unsigned char *) &class, CLASS_TUPLE_SIZE, 1);
	for (int i = 0; i < lengthof(lists); i++)
	{
		bool		isnull;
		Datum		list = SysCacheGetAttr(RELOID, tuple, lists[i], &isnull);

		hash = hash_combine64(hash, isnull ? 0 :
							  datum_image_hash(list, false, -1));
	}
	ReleaseSysCache(tuple);
	return hash;
}

TableView *
table_view(Table *table, Oid relid)
{
	for (int i = 0; i < table->nviews; i++)
		if (table->views[i].relid == relid)
			return &table->views[i];
	return NULL;
}

TupleTableSlot *
table_slot(Table *table, TableView *view, HeapTuple tuple)
{
	ExecStoreHeapTuple(tuple, table->slot, false);
	if (view->map == NULL)
		return table->slot;
	return execute_attr_map_slot(view->map, table->slot, view->slot);
}

HeapTuple
change_fill_new(const Change *change)
{
	TupleDesc	desc = change->table->desc;
	Datum	   *values;
	bool	   *nulls;
	bool	   *replace;
	bool		missing = false;
	HeapTuple	result = change->new;

	if (change->new == NULL || change->old == NULL ||
		!HeapTupleHasExternal(change->new))
		return result;

	values = palloc(sizeof(Datum) * desc->natts);
	nulls = palloc(sizeof(bool) * desc->natts);
	replace = palloc0(sizeof(bool) * desc->natts);
	heap_deform_tuple(change->new, desc, values, nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		Datum		value;
		bool		isnull;

		if (!value_is_missing(TupleDescAttr(desc, i), values[i], nulls[i]))
			continue;
		value = heap_getattr(change->old, i + 1, desc, &isnull);
		if (!isnull)			/* as the columns beside a key are */
		{
			values[i] = value;
			replace[i] = missing = true;
		}
	}
	if (missing && heap_compute_data_size(desc, values, nulls) <= MAX_ROW_SIZE)
		result = heap_modify_tuple(change->new, desc, values, nulls, replace);
	pfree(values);
	pfree(nulls);
	pfree(replace);
	return result;
}

bool
table_flatten_tuple(const Table *table, HeapTuple tuple, HeapTuple *flat)
{
	TupleDesc	desc = table->desc;
	Datum	   *values;
	bool	   *nulls;
	bool		changed = false;

	*flat = tuple;
	if (tuple == NULL || !HeapTupleHasExternal(tuple))
		return true;

	values = palloc(sizeof(Datum) * desc->natts);
	nulls = palloc(sizeof(bool) * desc->natts);
	heap_deform_tuple(tuple, desc, values, nulls);
	for (int i = 0; i < desc->natts; i++)
	{
		struct varlena *value = (struct varlena *) DatumGetPointer(values[i]);

		if (TupleDescAttr(desc, i)->attlen == -1 && !nulls[i] &&
			VARATT_IS_EXTERNAL_INDIRECT(value))
		{
			values[i] = PointerGetDatum(detoast_external_attr(value));
			changed = true;
		}
	}
	if (changed)
	{
		if (heap_compute_data_size(desc, values, nulls) > MAX_ROW_SIZE)
			return false;
		*flat = heap_form_tuple(desc, values, nulls);
	}
	return true;
}
