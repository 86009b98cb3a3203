/*
 * row.h
 *	  Rows of a window: format, order, identity.
 */
#ifndef LIVE_TOPN_ROW_H
#define LIVE_TOPN_ROW_H

#include "access/htup_details.h"
#include "pool.h"
#include "query.h"
#include "utils/sortsupport.h"

/*
 * A row: one chunk of memory, counted references.  What it is linked by, the
 * size and the hash belong to the windows that hold the row (window.c,
 * key_map.c), as do fresh and holding.  datum1 is the leading sort column,
 * pointing into the tuple if it is passed by reference.
 *
 * The tuple's own padding is put to use.
 */
typedef struct Row
{
	struct Row *left;
	struct Row *right;
	struct Row *next;			/* in the same bucket of a KeyMap */
	Datum		datum1;
	uint32		size;			/* rows in the subtree */
	uint32		hash;			/* of the identity, while in a KeyMap */
	uint32		holding;		/* in WindowSet.holders */
	uint32		refs:31;
	uint32		null1:1;

	/* a MinimalTuple begins here */
	uint32		tuple_len;
	int32		fresh;			/* in WindowWork.added; -1: not in it */
	uint16		place;			/* in a Pool */
} Row;

#define ROW_HEADER	offsetof(Row, tuple_len)

#define RowTuple(row) \
	((MinimalTuple) ((char *) (row) + ROW_HEADER))

typedef struct RowFormat
{
	const TopnQuery *query;
	TupleDesc	desc;
	SortSupportData *sort;		/* query->nsort of them */
	SortSupportData *group_sort;	/* query->ngroups of them */
	Pool	   *rows;			/* where rows live */
} RowFormat;

/*
 * How to compare a column, of which att outlives ssup.  Allocates in
 * CurrentMemoryContext; needs a transaction.
 */
extern void row_prepare_sort(SortSupport ssup, const SortKey *key,
							 Form_pg_attribute att);

/*
 * The format of a query's rows, in CurrentMemoryContext.  Looks up operators:
 * needs a transaction.  Rows go to a pool in the context given.
 */
extern RowFormat *row_format(const TopnQuery *query, MemoryContext rows);

/* A new row with one reference.  Out-of-line values are copied into it. */
extern Row *row_form(RowFormat *format, const Datum *values,
					 const bool *nulls);
extern Row *row_from_tuple(RowFormat *format, MinimalTuple tuple);

static inline Row *
row_ref(Row *row)
{
	row->refs++;
	return row;
}

extern void row_unref(Row *row);

/* A column; by-reference values point into the row. */
extern Datum row_get(const RowFormat *format, const Row *row,
					 AttrNumber attno, bool *isnull);

/* The order within a group, total unless the table is keyless. */
extern int	row_compare(const RowFormat *format, const Row *a, const Row *b);

/* The same by the first n sort columns only. */
extern int	row_compare_prefix(const RowFormat *format, const Row *a,
							   const Row *b, int n);

/* Compare a value of the leading sort column with that of a row. */
static inline int
row_compare_leading(const RowFormat *format, Datum datum, bool isnull,
					const Row *row)
{
	return ApplySortComparator(datum, isnull, row->datum1, row->null1,
							   &format->sort[0]);
}

/* Is the column the same in both rows, byte for byte? */
extern bool row_column_equal(const RowFormat *format, const Row *a,
							 const Row *b, AttrNumber attno);

/* Are all columns? */
extern bool row_equal(const Row *a, const Row *b);

/* Columns of a row; and a hash and a comparison of them as images. */
extern void row_get_columns(const RowFormat *format, const Row *row, int n,
							const AttrNumber *attnos, Datum *values,
							bool *nulls);
extern uint32 row_hash_columns(const RowFormat *format, int n,
							   const AttrNumber *attnos, const Datum *values,
							   const bool *nulls);

/* One column more: what row_hash_columns does. */
extern uint32 row_hash_column(uint32 hash, Datum value, bool isnull,
							  bool typbyval, int16 typlen);
extern bool row_columns_are(const RowFormat *format, const Row *row, int n,
							const AttrNumber *attnos, const Datum *values,
							const bool *nulls);

/* The identity of a row; keys has query->nkeys entries. */
static inline void
row_get_key(const RowFormat *format, const Row *row, Datum *keys, bool *nulls)
{
	row_get_columns(format, row, format->query->nkeys, format->query->keys,
					keys, nulls);
}

static inline uint32
row_hash_key(const RowFormat *format, const Datum *keys, const bool *nulls)
{
	return row_hash_columns(format, format->query->nkeys, format->query->keys,
							keys, nulls);
}

static inline bool
row_key_is(const RowFormat *format, const Row *row, const Datum *keys,
		   const bool *nulls)
{
	return row_columns_are(format, row, format->query->nkeys,
						   format->query->keys, keys, nulls);
}

/* The group of a row; values has query->ngroups entries. */
static inline void
row_get_group(const RowFormat *format, const Row *row, Datum *values,
			  bool *nulls)
{
	row_get_columns(format, row, format->query->ngroups,
					format->query->groups, values, nulls);
}

static inline uint32
row_hash_group(const RowFormat *format, const Datum *values,
			   const bool *nulls)
{
	return row_hash_columns(format, format->query->ngroups,
							format->query->groups, values, nulls);
}

static inline bool
row_group_is(const RowFormat *format, const Row *row, const Datum *values,
			 const bool *nulls)
{
	return row_columns_are(format, row, format->query->ngroups,
						   format->query->groups, values, nulls);
}

/* The order of the groups of two rows. */
extern int	row_compare_groups(const RowFormat *format, const Row *a,
							   const Row *b);

/*
 * Bytes of memory that a row takes, or would of a tuple of that length; and
 * those it would take in a table.
 */
extern Size row_bytes(const Row *row);
extern Size row_bytes_of(Size tuple_len);

static inline Size
row_own_bytes(const Row *row)
{
	return row->tuple_len + MINIMAL_TUPLE_OFFSET;
}

#endif							/* LIVE_TOPN_ROW_H */
