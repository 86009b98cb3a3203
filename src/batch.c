/*
 * batch.c
 *	  Deltas as JSON.
 *
 * A value is printed by to_json, which is what row_to_json does for the
 * column of a row.  But to_json runs a cast to json where the type has one,
 * and the owner of a type can make one at any time: a type of anybody but a
 * superuser is printed by its output function instead, as without the cast.
 */
#include "postgres.h"

#include "batch.h"
#include "catalog/pg_type.h"
#include "conversion.h"
#include "fmgr.h"
#include "nodes/makefuncs.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datetime.h"
#include "utils/fmgroids.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"

struct BatchFormat
{
	const TopnQuery *query;
	TupleDesc	desc;
	FmgrInfo   *to_text;		/* per column of the row: to apply first, */
	Oid		   *elements;		/* to elements of this type if it is valid */
	FmgrInfo   *to_json;
	char	  **names;			/* of visible columns, as JSON with colon */
	char	  **key_names;
	char	  **group_names;
	Bitmapset  *ranks;			/* columns that show the rank */
};

static char *
json_name(const char *name)
{
	StringInfoData buffer;

	initStringInfo(&buffer);
	escape_json(&buffer, name);
	appendStringInfoChar(&buffer, ':');
	return buffer.data;
}

/* Does to_json, anywhere within the type, meet one that is not trusted? */
static bool
is_safe_json(Oid type)
{
	Oid			base = getBaseType(type);
	Oid			element = get_element_type(base);
	bool		result = true;

	if (OidIsValid(element))
		return is_safe_json(element);
	if (OidIsValid(get_typ_typrelid(base)))
	{
		TupleDesc	desc = lookup_rowtype_tupdesc(base, -1);

		for (int i = 0; i < desc->natts && result; i++)
			result = TupleDescAttr(desc, i)->attisdropped ||
				is_safe_json(TupleDescAttr(desc, i)->atttypid);
		ReleaseTupleDesc(desc);
		return result;
	}
	return is_trusted_type(base);
}

/* Set up a call of to_json for an argument of that type. */
static void
prepare_to_json(FmgrInfo *function, Oid type)
{
	Node	   *arg = (Node *) makeVar(1, 1, type, -1, InvalidOid, 0);

	fmgr_info(F_TO_JSON, function);
	fmgr_info_set_expr((Node *) makeFuncExpr(F_TO_JSON, JSONOID,
											 list_make1(arg), InvalidOid,
											 InvalidOid,
											 COERCE_EXPLICIT_CALL),
					   function);
}

static void
prepare_column(BatchFormat *format, int i)
{
	Oid			type = TupleDescAttr(format->desc, i)->atttypid;
	Oid			base = getBaseType(type);
	Oid			element = get_element_type(base);
	Oid			output;
	bool		varlena;

	if (is_safe_json(type))
	{
		prepare_to_json(&format->to_json[i], type);
		return;
	}
	if (OidIsValid(element))
		base = getBaseType(element);
	if (OidIsValid(get_typ_typrelid(base)) ||
		OidIsValid(get_element_type(base)))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("column \"%s\" has a type with parts that are not owned by a superuser",
						NameStr(TupleDescAttr(format->desc, i)->attname)),
				 errdetail("Their owner could have code of his run when it is printed."),
				 errhint("Convert it to text in a column of the table, or give the types to a superuser.")));
	format->elements[i] = element;
	getTypeOutputInfo(base, &output, &varlena);
	fmgr_info(output, &format->to_text[i]);
	prepare_to_json(&format->to_json[i],
					OidIsValid(element) ? TEXTARRAYOID : TEXTOID);
}

/* The same array with its elements as text. */
static Datum
elements_to_text(Datum array, Oid element, FmgrInfo *to_text)
{
	ArrayType  *values = DatumGetArrayTypeP(array);
	int16		typlen;
	bool		typbyval;
	char		typalign;
	Datum	   *elements;
	bool	   *nulls;
	int			n;

	get_typlenbyvalalign(element, &typlen, &typbyval, &typalign);
	deconstruct_array(values, element, typlen, typbyval, typalign,
					  &elements, &nulls, &n);
	for (int i = 0; i < n; i++)
		if (!nulls[i])
			elements[i] = CStringGetTextDatum(OutputFunctionCall(to_text,
																 elements[i]));
	return PointerGetDatum(construct_md_array(elements, nulls,
											  ARR_NDIM(values),
											  ARR_DIMS(values),
											  ARR_LBOUND(values),
											  TEXTOID, -1, false,
											  TYPALIGN_INT));
}

BatchFormat *
batch_format(const TopnQuery *query, TupleDesc desc)
{
	BatchFormat *format = palloc0(sizeof(BatchFormat));
	ListCell   *lc;

	format->query = query;
	format->desc = desc;
	format->to_text = palloc0(sizeof(FmgrInfo) * desc->natts);
	format->elements = palloc0(sizeof(Oid) * desc->natts);
	format->to_json = palloc0(sizeof(FmgrInfo) * desc->natts);
	format->names = palloc0(sizeof(char *) * Max(query->nvisible, 1));
	format->key_names = palloc0(sizeof(char *) * query->nkeys);

	for (int i = 0; i < desc->natts; i++)
		prepare_column(format, i);
	for (int i = 0; i < query->nvisible; i++)
		format->names[i] = json_name(NameStr(TupleDescAttr(desc, i)->attname));
	for (int i = 0; i < query->nkeys; i++)
		format->key_names[i] = json_name(query->key_names[i]);
	format->group_names = palloc0(sizeof(char *) * Max(query->ngroups, 1));
	for (int i = 0; i < query->ngroups; i++)
		format->group_names[i] = json_name(query->group_names[i]);
	foreach(lc, query->ranks)
		format->ranks = bms_add_member(format->ranks, lfirst_int(lc));
	return format;
}

/* A row as it is shown. */
typedef struct Shown
{
	MinimalTuple tuple;
	int64		rank;			/* 0: the tuple has it where it is shown */
} Shown;

static void
append_value(StringInfo out, BatchFormat *format, Shown shown,
			 AttrNumber attno)
{
	MinimalTuple tuple = shown.tuple;
	HeapTupleData heap;
	Datum		datum;
	bool		isnull;

	if (shown.rank > 0 && bms_is_member(attno, format->ranks))
	{
		appendStringInfo(out, INT64_FORMAT, shown.rank);
		return;
	}
	heap.t_len = tuple->t_len + MINIMAL_TUPLE_OFFSET;
	heap.t_data = (HeapTupleHeader) ((char *) tuple - MINIMAL_TUPLE_OFFSET);
	datum = heap_getattr(&heap, attno, format->desc, &isnull);
	if (isnull)
		appendStringInfoString(out, "null");
	else
	{
		FmgrInfo   *to_text = &format->to_text[attno - 1];
		text	   *json;

		if (OidIsValid(format->elements[attno - 1]))
			datum = elements_to_text(datum, format->elements[attno - 1],
									 to_text);
		else if (OidIsValid(to_text->fn_oid))
			datum = CStringGetTextDatum(OutputFunctionCall(to_text, datum));
		json = DatumGetTextPP(FunctionCall1(&format->to_json[attno - 1],
											datum));
		appendBinaryStringInfo(out, VARDATA_ANY(json),
							   VARSIZE_ANY_EXHDR(json));
		pfree(json);
	}
}

/* An object of n columns; attnos is NULL for the first n of the row. */
static void
append_object(StringInfo out, BatchFormat *format, Shown shown,
			  const char *label, int n, char **names,
			  const AttrNumber *attnos)
{
	appendStringInfo(out, "\"%s\":{", label);
	for (int i = 0; i < n; i++)
	{
		if (i > 0)
			appendStringInfoChar(out, ',');
		appendStringInfoString(out, names[i]);
		append_value(out, format, shown, attnos ? attnos[i] : i + 1);
	}
	appendStringInfoChar(out, '}');
}

/* Which row it is, and in which group. */
static void
append_key(StringInfo out, BatchFormat *format, Shown shown)
{
	const TopnQuery *query = format->query;

	if (query->ngroups > 0)
	{
		append_object(out, format, shown, "group", query->ngroups,
					  format->group_names, query->groups);
		appendStringInfoChar(out, ',');
	}
	append_object(out, format, shown, "key", query->nkeys, format->key_names,
				  query->keys);
}

static void
append_row(StringInfo out, BatchFormat *format, Shown shown,
		   const char *label)
{
	append_object(out, format, shown, label, format->query->nvisible,
				  format->names, NULL);
}

static void
append_reset_row(StringInfo out, BatchFormat *format, Shown shown)
{
	appendStringInfoChar(out, '{');
	append_key(out, format, shown);
	appendStringInfoChar(out, ',');
	append_row(out, format, shown, "row");
	appendStringInfoChar(out, '}');
}

void
batch_append_row(StringInfo out, BatchFormat *format, MinimalTuple tuple)
{
	append_reset_row(out, format, (Shown) {.tuple = tuple});
}

/* The visible columns that differ, if any, as one of the two rows has them. */
static void
append_changed(StringInfo out, BatchFormat *format, const RowFormat *rows,
			   const Delta *delta, const char *label, Shown shown)
{
	bool		any = false;

	for (int i = 0; i < format->query->nvisible; i++)
	{
		if (bms_is_member(i + 1, format->ranks) ?
			delta->old_rank == delta->rank :
			row_column_equal(rows, delta->old, delta->row, i + 1))
			continue;
		if (any)
			appendStringInfoChar(out, ',');
		else
			appendStringInfo(out, ",\"%s\":{", label);
		appendStringInfoString(out, format->names[i]);
		append_value(out, format, shown, i + 1);
		any = true;
	}
	if (any)
		appendStringInfoChar(out, '}');
}

static Shown
shown_before(const Delta *delta)
{
	return (Shown) {RowTuple(delta->old), delta->old_rank};
}

static Shown
shown_after(const Delta *delta)
{
	return (Shown) {RowTuple(delta->row), delta->rank};
}

static void
append_set(StringInfo out, BatchFormat *format, const RowFormat *rows,
		   const Delta *delta, bool old)
{
	if (delta->old == delta->row && delta->old_rank == delta->rank)
		return;
	append_changed(out, format, rows, delta, "set", shown_after(delta));
	if (old)
		append_changed(out, format, rows, delta, "old", shown_before(delta));
}

/* The beginning of a delta, with a position if the row has one. */
static void
append_op(StringInfo out, const char *op, uint32 position)
{
	appendStringInfo(out, "{\"op\":\"%s\",", op);
	if (position > 0)
		appendStringInfo(out, "\"pos\":%u,", position);
}

static void
append_delta(StringInfo out, BatchFormat *format, const RowFormat *rows,
			 const Delta *delta, bool old)
{
	switch (delta->op)
	{
		case DELTA_LEAVE:
			append_op(out, "leave", delta->from);
			append_key(out, format, shown_before(delta));
			if (old)
			{
				appendStringInfoChar(out, ',');
				append_row(out, format, shown_before(delta), "old");
			}
			break;
		case DELTA_MOVE:
			appendStringInfo(out, "{\"op\":\"move\",\"from\":%u,\"to\":%u,",
							 delta->from, delta->to);
			append_key(out, format, shown_after(delta));
			append_set(out, format, rows, delta, old);
			break;
		case DELTA_ENTER:
			append_op(out, "enter", delta->to);
			append_key(out, format, shown_after(delta));
			appendStringInfoChar(out, ',');
			append_row(out, format, shown_after(delta), "row");
			break;
		case DELTA_UPDATE:
			append_op(out, "update", delta->to);
			append_key(out, format, shown_after(delta));
			append_set(out, format, rows, delta, old);
			break;
	}
	appendStringInfoChar(out, '}');
}

void
batch_free(Batch *batch)
{
	if (batch->script)
		delta_free(batch->script);
	for (int i = 0; i < batch->nrows; i++)
		row_unref(batch->rows[i]);
	if (batch->rows)
		pfree(batch->rows);
	if (batch->ranks)
		pfree(batch->ranks);
	if (batch->error)
		pfree(batch->error);
	pfree(batch);
}

Size
batch_bytes(const Batch *batch)
{
	Size		bytes = GetMemoryChunkSpace((void *) batch);

	if (batch->script)
		bytes += delta_bytes(batch->script);
	if (batch->rows)
		bytes += GetMemoryChunkSpace(batch->rows);
	for (int i = 0; i < batch->nrows; i++)
		bytes += row_bytes(batch->rows[i]);
	return bytes;
}

void
batch_append_head(StringInfo out, const char *name, int64 seq,
				  const CommitInfo *commit, XLogRecPtr from)
{
	char		at[MAXDATELEN + 1];
	int			utc = 0;

	JsonEncodeDateTime(at, TimestampTzGetDatum(commit->time), TIMESTAMPTZOID,
					   &utc);
	appendStringInfoString(out, "{\"sub\":");
	escape_json(out, name);
	appendStringInfo(out, ",\"seq\":" INT64_FORMAT ",\"lsn\":\"%X/%X\"",
					 seq, LSN_FORMAT_ARGS(commit->lsn));
	if (!XLogRecPtrIsInvalid(from))
		appendStringInfo(out, ",\"from\":\"%X/%X\"", LSN_FORMAT_ARGS(from));
	if (TransactionIdIsValid(commit->xid))
		appendStringInfo(out, ",\"xid\":%u", commit->xid);
	else
		appendStringInfoString(out, ",\"xid\":null");
	appendStringInfo(out, ",\"at\":\"%s\",\"deltas\":[", at);
}

void
batch_append(StringInfo out, const char *name, const Batch *batch,
			 BatchFormat *format, const RowFormat *rows, bool old)
{
	batch_append_head(out, name, batch->seq, &batch->commit, batch->from);
	if (batch->error)
	{
		appendStringInfoString(out, "],\"error\":");
		escape_json(out, batch->error);
		appendStringInfoChar(out, '}');
		return;
	}
	if (batch->script)
	{
		for (int i = 0; i < batch->script->n; i++)
		{
			if (i > 0)
				appendStringInfoChar(out, ',');
			append_delta(out, format, rows, &batch->script->deltas[i], old);
		}
	}
	else
	{
		appendStringInfoString(out, "{\"op\":\"reset\",\"rows\":[");
		for (int i = 0; i < batch->nrows; i++)
		{
			if (i > 0)
				appendStringInfoChar(out, ',');
			append_reset_row(out, format, (Shown) {
				RowTuple(batch->rows[i]),
				batch->ranks ? batch->ranks[i] : 0
			});
		}
		appendStringInfoString(out, "]}");
	}
	appendStringInfoString(out, "]}");
}
