/*
 * row.c
 *	  Rows of a window: format, order, identity.
 *
 * Identities are compared as images, byte for byte.  That is exact: WAL
 * names the old row of an update whenever the image of its key has changed
 * (heap_update compares images), and all other sources give us the image
 * that is in the table.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "common/hashfn.h"
#include "fmgr.h"
#include "port/pg_bitutils.h"
#include "compat.h"
#include "row.h"
#include "utils/datum.h"

/*
 * Comparator of one column in image order, as in record_image_cmp.
 */
static int
compare_image(Datum x, Datum y, SortSupport ssup)
{
	Form_pg_attribute att = (Form_pg_attribute) ssup->ssup_extra;

	if (att->attbyval)
		return (x > y) - (x < y);
	if (att->attlen > 0)
		return memcmp(DatumGetPointer(x), DatumGetPointer(y), att->attlen);

	if (att->attlen == -1)
	{
		struct varlena *a = PG_DETOAST_DATUM_PACKED(x);
		struct varlena *b = PG_DETOAST_DATUM_PACKED(y);
		Size		alen = VARSIZE_ANY_EXHDR(a);
		Size		blen = VARSIZE_ANY_EXHDR(b);
		int			result;

		result = memcmp(VARDATA_ANY(a), VARDATA_ANY(b), Min(alen, blen));
		if (result == 0)
			result = (alen > blen) - (alen < blen);
		if ((Pointer) a != DatumGetPointer(x))
			pfree(a);
		if ((Pointer) b != DatumGetPointer(y))
			pfree(b);
		return result;
	}

	return strcmp(DatumGetCString(x), DatumGetCString(y));
}

void
row_prepare_sort(SortSupport ssup, const SortKey *key, Form_pg_attribute att)
{
	memset(ssup, 0, sizeof(SortSupportData));
	ssup->ssup_cxt = CurrentMemoryContext;
	ssup->ssup_collation = key->collation;
	ssup->ssup_nulls_first = key->nulls_first;
	ssup->ssup_attno = key->attno;
	if (OidIsValid(key->sortop))
		PrepareSortSupportFromOrderingOp(key->sortop, ssup);
	else
	{
		ssup->comparator = compare_image;
		ssup->ssup_extra = att;
	}
}

static SortSupportData *
sort_support(const RowFormat *format, int n, const SortKey *keys)
{
	SortSupportData *result = palloc0(sizeof(SortSupportData) * n);

	for (int i = 0; i < n; i++)
	{
		const SortKey *key = &keys[i];

		row_prepare_sort(&result[i], key,
						 TupleDescAttr(format->desc, key->attno - 1));
	}
	return result;
}

RowFormat *
row_format(const TopnQuery *query, MemoryContext rows)
{
	RowFormat  *format = palloc0(sizeof(RowFormat));

	format->query = query;
	format->desc = query_row_desc(query);
	format->rows = pool_create(rows);
	format->sort = sort_support(format, query->nsort, query->sort);
	format->group_sort = sort_support(format, query->ngroups,
									  query->group_order);
	return format;
}

static void
row_set_leading(RowFormat *format, Row *row)
{
	bool		isnull;

	row->datum1 = row_get(format, row, format->query->sort[0].attno, &isnull);
	row->null1 = isnull;
}

Row *
row_form(RowFormat *format, const Datum *values, const bool *nulls)
{
	int			natts = format->desc->natts;
	Datum	   *copy = palloc(sizeof(Datum) * natts);
	MinimalTuple tuple;
	Row		   *row;

	for (int i = 0; i < natts; i++)
	{
		copy[i] = values[i];
		if (!nulls[i] && TupleDescAttr(format->desc, i)->attlen == -1 &&
			VARATT_IS_EXTERNAL(DatumGetPointer(values[i])) &&
			!VARATT_IS_EXTERNAL_EXPANDED(DatumGetPointer(values[i])))
			copy[i] = PointerGetDatum(
									  detoast_external_attr((struct varlena *)
															DatumGetPointer(values[i])));
	}

	tuple = form_minimal_tuple(format->desc, copy, (bool *) nulls);
	row = row_from_tuple(format, tuple);
	pfree(tuple);
	pfree(copy);
	return row;
}

Row *
row_from_tuple(RowFormat *format, MinimalTuple tuple)
{
	uint16		place;
	Row		   *row = pool_alloc(format->rows, ROW_HEADER + tuple->t_len,
								 &place);

	StaticAssertStmt(ROW_HEADER == MAXALIGN(ROW_HEADER),
					 "tuples must be aligned");
	StaticAssertStmt(offsetof(Row, place) + sizeof(row->place) <=
					 ROW_HEADER + offsetof(MinimalTupleData, t_infomask2),
					 "padding of tuples is too small");
	memset(row, 0, ROW_HEADER);
	memcpy(RowTuple(row), tuple, tuple->t_len);
	row->size = 1;
	row->refs = 1;
	row->fresh = -1;
	row->place = place;
	row_set_leading(format, row);
	return row;
}

void
row_unref(Row *row)
{
	Assert(row->refs > 0);
	if (--row->refs == 0)
		pool_free(row, row->place);
}

Datum
row_get(const RowFormat *format, const Row *row, AttrNumber attno,
		bool *isnull)
{
	MinimalTuple tuple = RowTuple(row);
	HeapTupleData heap;

	heap.t_len = tuple->t_len + MINIMAL_TUPLE_OFFSET;
	heap.t_data = (HeapTupleHeader) ((char *) tuple - MINIMAL_TUPLE_OFFSET);
	return heap_getattr(&heap, attno, format->desc, isnull);
}

static int
compare_column(const RowFormat *format, const Row *a, const Row *b,
			   SortSupport ssup)
{
	bool		anull,
				bnull;
	Datum		adatum = row_get(format, a, ssup->ssup_attno, &anull);
	Datum		bdatum = row_get(format, b, ssup->ssup_attno, &bnull);

	return ApplySortComparator(adatum, anull, bdatum, bnull, ssup);
}

int
row_compare_prefix(const RowFormat *format, const Row *a, const Row *b, int n)
{
	int			result;

	result = row_compare_leading(format, a->datum1, a->null1, b);
	for (int i = 1; result == 0 && i < n; i++)
		result = compare_column(format, a, b, &format->sort[i]);
	return result;
}

int
row_compare_groups(const RowFormat *format, const Row *a, const Row *b)
{
	int			result = 0;

	for (int i = 0; result == 0 && i < format->query->ngroups; i++)
		result = compare_column(format, a, b, &format->group_sort[i]);
	return result;
}

int
row_compare(const RowFormat *format, const Row *a, const Row *b)
{
	return row_compare_prefix(format, a, b, format->query->nsort);
}

bool
row_column_equal(const RowFormat *format, const Row *a, const Row *b,
				 AttrNumber attno)
{
	Form_pg_attribute att = TupleDescAttr(format->desc, attno - 1);
	bool		anull,
				bnull;
	Datum		adatum = row_get(format, a, attno, &anull);
	Datum		bdatum = row_get(format, b, attno, &bnull);

	if (anull || bnull)
		return anull && bnull;
	return datum_image_eq(adatum, bdatum, att->attbyval, att->attlen);
}

bool
row_equal(const Row *a, const Row *b)
{
	/* what is before that is not of the tuple, but for its length */
	const Size	start = offsetof(MinimalTupleData, t_infomask2);

	return a->tuple_len == b->tuple_len &&
		memcmp((char *) RowTuple(a) + start, (char *) RowTuple(b) + start,
			   a->tuple_len - start) == 0;
}

void
row_get_columns(const RowFormat *format, const Row *row, int n,
				const AttrNumber *attnos, Datum *values, bool *nulls)
{
	for (int i = 0; i < n; i++)
		values[i] = row_get(format, row, attnos[i], &nulls[i]);
}

uint32
row_hash_column(uint32 hash, Datum value, bool isnull, bool typbyval,
				int16 typlen)
{
	hash = pg_rotate_left32(hash, 1);
	if (isnull)
		return hash;
	if (typbyval)
		return hash ^ murmurhash32((uint32) value ^ (uint32) (value >> 32));
	return hash ^ datum_image_hash(value, typbyval, typlen);
}

uint32
row_hash_columns(const RowFormat *format, int n, const AttrNumber *attnos,
				 const Datum *values, const bool *nulls)
{
	uint32		hash = 0;

	for (int i = 0; i < n; i++)
	{
		Form_pg_attribute att = TupleDescAttr(format->desc, attnos[i] - 1);

		hash = row_hash_column(hash, values[i], nulls[i], att->attbyval,
							   att->attlen);
	}
	return hash;
}

bool
row_columns_are(const RowFormat *format, const Row *row, int n,
				const AttrNumber *attnos, const Datum *values,
				const bool *nulls)
{
	for (int i = 0; i < n; i++)
	{
		Form_pg_attribute att = TupleDescAttr(format->desc, attnos[i] - 1);
		bool		isnull;
		Datum		datum = row_get(format, row, attnos[i], &isnull);

		if (isnull != nulls[i])
			return false;
		if (!isnull &&
			!datum_image_eq(datum, values[i], att->attbyval, att->attlen))
			return false;
	}
	return true;
}

Size
row_bytes(const Row *row)
{
	return row_bytes_of(row->tuple_len);
}

Size
row_bytes_of(Size tuple_len)
{
	return pool_chunk_bytes(ROW_HEADER + tuple_len);
}
