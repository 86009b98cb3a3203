/*
 * read.c
 *	  SQL functions that read results: topn_sync, topn_snapshot, topn_rows.
 *
 * They see every change committed before they were called, because the worker
 * answers once it has applied all WAL up to a position taken at the call.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/tupdesc.h"
#include "batch.h"
#include "catalog.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "query.h"
#include "read.h"
#include "request.h"
#include "setup.h"
#include "subscription.h"
#include "tcop/pquery.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "worker.h"

PG_FUNCTION_INFO_V1(live_topn_sync);
PG_FUNCTION_INFO_V1(live_topn_snapshot);
PG_FUNCTION_INFO_V1(live_topn_rows);
PG_FUNCTION_INFO_V1(live_topn_poll);
PG_FUNCTION_INFO_V1(live_topn_wait);

/* An argument that says how long to wait, in milliseconds. */
static int
timeout_argument(FunctionCallInfo fcinfo, int arg)
{
	int64		timeout;

	if (PG_ARGISNULL(arg))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("timeout must not be null")));
	timeout = interval_ms(PG_GETARG_INTERVAL_P(arg));
	if (timeout < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout must not be negative")));
	return (int) Min(timeout, INT_MAX / 2);
}

Datum
live_topn_sync(PG_FUNCTION_ARGS)
{
	int			timeout = timeout_argument(fcinfo, 0);
	RequestArgs args = {.kind = REQUEST_SYNC};
	StringInfo	answer = NULL;

	setup_check();
	args.upto = request_flush_point();
	if (subscription_exists())
		answer = request_call(&args, timeout);
	if (answer == NULL)
		PG_RETURN_LSN(args.upto);
	PG_RETURN_LSN((XLogRecPtr) pq_getmsgint64(answer));
}

/* ---- results ---- */

typedef struct WindowResult
{
	SubscriptionRow *subscription;
	int64		seq;
	XLogRecPtr	lsn;
	TopnQuery  *query;
	TupleDesc	desc;
	int64		nrows;
	StringInfo	rows;			/* at the next row */
} WindowResult;

/*
 * Ask the worker about a subscription, after all that was committed before
 * now; *args needs no more than kind and what goes with it.
 */
static StringInfo
ask(SubscriptionRow *subscription, bool own, RequestArgs *args, int timeout)
{
	StringInfo	answer;

	if (own)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" was made in this transaction",
						subscription->name),
				 errhint("Commit the transaction first.")));
	setup_check();
	args->id = subscription->id;
	args->upto = request_flush_point();
	answer = request_call(args, timeout);
	if (answer == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("subscription \"%s\" was dropped",
						subscription->name)));
	return answer;
}

static WindowResult *
get_result(const char *name)
{
	WindowResult *result = palloc(sizeof(WindowResult));
	RequestArgs args = {.kind = REQUEST_SNAPSHOT};
	StringInfo	answer;
	bool		own;
	int			len;

	result->subscription = subscription_find(name, &own);
	answer = ask(result->subscription, own, &args, request_timeout_ms);
	result->seq = pq_getmsgint64(answer);
	result->lsn = (XLogRecPtr) pq_getmsgint64(answer);
	len = pq_getmsgint(answer, 4);
	result->query = query_from_text(pnstrdup(pq_getmsgbytes(answer, len),
											 len));
	result->desc = query_row_desc(result->query);
	result->nrows = pq_getmsgint64(answer);
	result->rows = answer;
	return result;
}

static char *
name_argument(FunctionCallInfo fcinfo)
{
	if (PG_ARGISNULL(0))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("name must not be null")));
	return text_to_cstring(PG_GETARG_TEXT_PP(0));
}

/* The next of result->nrows rows, in CurrentMemoryContext. */
static MinimalTuple
next_row(WindowResult *result)
{
	int			len = pq_getmsgint(result->rows, 4);
	MinimalTuple tuple = palloc(len);

	pq_copymsgbytes(result->rows, (char *) tuple, len);
	return tuple;
}

/*
 * The result as a JSON array, printed as its owner and under the settings
 * recorded with the subscription.
 */
static text *
result_json(WindowResult *result)
{
	SubscriptionRow *subscription = result->subscription;
	StringInfoData json;
	BatchFormat *format;
	Oid			userid;
	int			sec_context;
	int			nestlevel;

	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(subscription->owner,
						   sec_context | SECURITY_RESTRICTED_OPERATION);
	nestlevel = catalog_apply_settings(subscription->nsettings,
									   subscription->settings);

	format = batch_format(result->query, result->desc);
	initStringInfo(&json);
	appendStringInfoChar(&json, '[');
	for (int64 i = 0; i < result->nrows; i++)
	{
		MinimalTuple tuple = next_row(result);

		CHECK_FOR_INTERRUPTS();
		if (i > 0)
			appendStringInfoChar(&json, ',');
		batch_append_row(&json, format, tuple);
		pfree(tuple);
	}
	appendStringInfoChar(&json, ']');

	AtEOXact_GUC(false, nestlevel);
	SetUserIdAndSecContext(userid, sec_context);
	return cstring_to_text_with_len(json.data, json.len);
}

Datum
live_topn_snapshot(PG_FUNCTION_ARGS)
{
	WindowResult *result = get_result(name_argument(fcinfo));
	Datum		values[3];
	bool		nulls[3] = {false, false, false};
	TupleDesc	desc;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = Int64GetDatum(result->seq);
	values[1] = LSNGetDatum(result->lsn);
	values[2] = PointerGetDatum(result_json(result));
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values,
											 nulls));
}

char *
read_reset_batch(const char *name, int64 *seq)
{
	WindowResult *result = get_result(name);
	text	   *rows = result_json(result);
	CommitInfo	now = {.lsn = result->lsn,.time = GetCurrentTimestamp()};
	StringInfoData batch;

	initStringInfo(&batch);
	batch_append_head(&batch, name, result->seq, &now, InvalidXLogRecPtr);
	appendStringInfoString(&batch, "{\"op\":\"reset\",\"rows\":");
	appendBinaryStringInfo(&batch, VARDATA_ANY(rows), VARSIZE_ANY_EXHDR(rows));
	appendStringInfoString(&batch, "}]}");
	*seq = result->seq;
	return batch.data;
}

/* The column definition list must match the select list. */
static void
check_columns(WindowResult *result, TupleDesc given)
{
	if (given->natts != result->query->nvisible)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("subscription \"%s\" has %d columns, but the column definition list has %d",
						result->subscription->name, result->query->nvisible,
						given->natts)));
	for (int i = 0; i < given->natts; i++)
	{
		Form_pg_attribute is = TupleDescAttr(result->desc, i);
		Form_pg_attribute as = TupleDescAttr(given, i);

		if (is->atttypid != as->atttypid)
			ereport(ERROR,
					(errcode(ERRCODE_DATATYPE_MISMATCH),
					 errmsg("column \"%s\" of the column definition list has type %s, but column \"%s\" of subscription \"%s\" has type %s",
							NameStr(as->attname),
							format_type_be(as->atttypid),
							NameStr(is->attname),
							result->subscription->name,
							format_type_be(is->atttypid))));
	}
}

Datum
live_topn_rows(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	WindowResult *result;
	TupleTableSlot *slot;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	result = get_result(name_argument(fcinfo));
	check_columns(result, rsinfo->setDesc);

	slot = MakeSingleTupleTableSlot(result->desc, &TTSOpsMinimalTuple);
	for (int64 i = 0; i < result->nrows; i++)
	{
		ExecStoreMinimalTuple(next_row(result), slot, true);
		slot_getsomeattrs(slot, result->query->nvisible);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc,
							 slot->tts_values, slot->tts_isnull);
	}
	ExecDropSingleTupleTableSlot(slot);
	return (Datum) 0;
}

/* ---- pull ---- */

/* Arguments after and timeout. */
static RequestArgs
poll_arguments(FunctionCallInfo fcinfo)
{
	RequestArgs args = {.kind = REQUEST_POLL};

	if (PG_ARGISNULL(1))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("after must not be null")));
	args.after = PG_GETARG_INT64(1);
	args.wait_ms = timeout_argument(fcinfo, 2);
	return args;
}

static StringInfo
ask_for_batches(SubscriptionRow *subscription, bool own, RequestArgs *args)
{
	return ask(subscription, own, args,
			   (int) Min((int64) request_timeout_ms + args->wait_ms, INT_MAX));
}

/* The batches of an answer, as a list of text. */
static List *
read_batches(const char *name, StringInfo answer)
{
	int			n = pq_getmsgint(answer, 4);
	List	   *batches = NIL;
	int64		seq;

	/* the client is too far behind, or ahead */
	if (n < 0)
		return list_make1(cstring_to_text(read_reset_batch(name, &seq)));

	while (n-- > 0)
	{
		int			len = pq_getmsgint(answer, 4);
		const char *json = pq_getmsgbytes(answer, len);

		batches = lappend(batches, cstring_to_text_with_len(json, len));
	}
	return batches;
}

Datum
live_topn_poll(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	char	   *name = name_argument(fcinfo);
	RequestArgs args = poll_arguments(fcinfo);
	bool		own;
	SubscriptionRow *subscription = subscription_find(name, &own);
	StringInfo	answer;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	answer = ask_for_batches(subscription, own, &args);
	foreach(lc, read_batches(name, answer))
	{
		Datum		batch = PointerGetDatum(lfirst(lc));
		bool		null = false;

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, &batch,
							 &null);
	}
	return (Datum) 0;
}

static text *
json_array(List *batches)
{
	StringInfoData json;
	ListCell   *lc;

	initStringInfo(&json);
	appendStringInfoChar(&json, '[');
	foreach(lc, batches)
	{
		text	   *batch = lfirst(lc);

		if (json.len > 1)
			appendStringInfoChar(&json, ',');
		appendBinaryStringInfo(&json, VARDATA_ANY(batch),
							   VARSIZE_ANY_EXHDR(batch));
	}
	appendStringInfoChar(&json, ']');
	return cstring_to_text_with_len(json.data, json.len);
}

/*
 * topn_poll for those who wait long: a procedure, which may end its
 * transaction, and so waits without a snapshot or a lock.
 */
Datum
live_topn_wait(PG_FUNCTION_ARGS)
{
	MemoryContext caller = CurrentMemoryContext;
	char	   *name = name_argument(fcinfo);
	RequestArgs args = poll_arguments(fcinfo);
	SubscriptionRow *subscription = subscription_find(name, NULL);
	StringInfo	answer;
	TupleDesc	desc;
	Datum		batches;
	bool		null = false;

	if (fcinfo->context == NULL || !IsA(fcinfo->context, CallContext) ||
		castNode(CallContext, fcinfo->context)->atomic)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("topn_wait cannot run inside a transaction block"),
				 errhint("Use topn_poll there.")));

	/* what has been allocated belongs to the portal, which goes on */
	SPI_connect_ext(SPI_OPT_NONATOMIC);
	SPI_commit();
	MemoryContextSwitchTo(caller);
	answer = ask_for_batches(subscription, false, &args);

	/* the owner may be another by now */
	EnsurePortalSnapshotExists();
	(void) subscription_find(name, NULL);
	batches = PointerGetDatum(json_array(read_batches(name, answer)));
	SPI_finish();

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	return HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), &batches,
											 &null));
}
