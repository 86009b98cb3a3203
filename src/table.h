/*
 * table.h
 *	  A table as it was at a position of the log, and changes of its rows.
 */
#ifndef LIVE_TOPN_TABLE_H
#define LIVE_TOPN_TABLE_H

#include "access/htup.h"
#include "access/tupconvert.h"
#include "executor/tuptable.h"
#include "utils/relcache.h"

/* Values of a tuple; beside them it has a header and a bitmap of nulls. */
#define MAX_ROW_SIZE	(MaxAllocSize - 1024)

/* The rows of a table in the format of one of its ancestors, or its own. */
typedef struct TableView
{
	Oid			relid;			/* the ancestor */
	AttrMap    *map;			/* NULL: the same format */
	TupleTableSlot *slot;		/* in the ancestor's format if there is a map */
} TableView;

/*
 * A table with the columns that it had for a stretch of the log.  Counted
 * references: changes in the commit log keep it alive.
 */
typedef struct Table
{
	Oid			relid;
	int			refs;
	uint64		serial;			/* no other ever has it */
	MemoryContext context;		/* holds all of this */
	TupleDesc	desc;
	TupleTableSlot *slot;
	char		replident;		/* as pg_class.relreplident */
	Bitmapset  *identity;		/* columns of the index that is the identity,
								 * offset as by pull_varattnos */
	int			nviews;
	TableView  *views;			/* itself, then its partitioned ancestors */
} Table;

typedef enum ChangeKind
{
	CHANGE_INSERT,
	CHANGE_UPDATE,
	CHANGE_DELETE,
	CHANGE_TRUNCATE,
	CHANGE_REWRITE				/* ALTER TABLE: rows may have any new values */
} ChangeKind;

typedef struct Change
{
	ChangeKind	kind;
	Table	   *table;
	HeapTuple	old;			/* NULL: none, or an unchanged key */
	bool		old_is_key;		/* only the identity columns of old are set */
	HeapTuple	new;			/* may lack large values, see below */
} Change;

/*
 * Describe a relation that is open under a historic snapshot.  One reference
 * is the caller's.
 */
extern Table *table_describe(Relation relation, MemoryContext parent);

static inline Table *
table_ref(Table *table)
{
	table->refs++;
	return table;
}

extern void table_unref(Table *table);

/*
 * What pg_inherits says below a partitioned table, under a historic snapshot:
 * equal lists if the same tables are its partitions, without a break.
 */
extern List *table_partitions(Oid relid);

/*
 * A hash of what pg_class says of a table, but for its files and statistics; 0
 * if there is none.
 */
extern uint64 table_hash_class(Oid relid);

/* The view in the format of that relation, or NULL. */
extern TableView *table_view(Table *table, Oid relid);

/* A tuple of the table in a slot of the view; valid until the next call. */
extern TupleTableSlot *table_slot(Table *table, TableView *view,
								  HeapTuple tuple);

/*
 * WAL lacks large values that an update left alone: in the new tuple they
 * are TOAST pointers into the table.  Is a value of a slot such a pointer?
 */
static inline bool
value_is_missing(Form_pg_attribute att, Datum value, bool isnull)
{
	return att->attlen == -1 && !isnull &&
		VARATT_IS_EXTERNAL_ONDISK(DatumGetPointer(value));
}

/*
 * The new tuple of a change with missing values filled in from its old tuple:
 * all of them if that is a whole row, those of the identity if it is a key
 * (which WAL has whenever one of its values is out of line).  Returns a tuple
 * in CurrentMemoryContext or change->new itself, also if there would be more
 * than fits into a tuple.
 */
extern HeapTuple change_fill_new(const Change *change);

/*
 * A copy of a decoded tuple that outlives the callback: large values that
 * decoding has put together are copied into it, missing ones stay so.  *flat
 * is in CurrentMemoryContext, which may hold more when we are done, or the
 * tuple itself if there is nothing to do.  False if the values do not fit into
 * a tuple.
 */
extern bool table_flatten_tuple(const Table *table, HeapTuple tuple,
								HeapTuple *flat);

#endif							/* LIVE_TOPN_TABLE_H */
