/*
 * null_plugin.c
 *	  Logical decoding with empty callbacks: the baseline of bench/decode.sh.
 *
 * An output plugin that outputs nothing, and null_decode(), which decodes a
 * stretch of WAL with it the way live_topn's worker does: in a background
 * worker, through CreateDecodingContext and XLogReadRecord, with no
 * transaction around it.  The slot is not moved, so that the same WAL can be
 * decoded again.
 */
#include "postgres.h"

#include <sys/resource.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlogreader.h"
#include "access/xlogutils.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "portability/instr_time.h"
#include "postmaster/bgworker.h"
#include "replication/decode.h"
#include "replication/logical.h"
#include "replication/output_plugin.h"
#include "replication/slot.h"
#include "storage/dsm.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/pg_lsn.h"

PG_MODULE_MAGIC;

/* The order to the worker, and its answer, in a DSM segment. */
typedef struct NullDecode
{
	Oid			dboid;
	NameData	slot;
	XLogRecPtr	upto;

	bool		done;			/* the rest is valid */
	double		seconds;
	double		cpu;			/* seconds of it that the process computed */
	int64		commits;
	int64		changes;
} NullDecode;

static int64 commits = 0;
static int64 changes = 0;

extern PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *cb);
extern PGDLLEXPORT void null_decode_main(Datum main_arg);

PG_FUNCTION_INFO_V1(null_decode);

/* ---- the output plugin ---- */

static void
null_startup(LogicalDecodingContext *ctx, OutputPluginOptions *options,
			 bool is_init)
{
	options->output_type = OUTPUT_PLUGIN_TEXTUAL_OUTPUT;
}

static void
null_begin(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
}

static void
null_change(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
			Relation relation, ReorderBufferChange *change)
{
	changes++;
}

static void
null_commit(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
			XLogRecPtr commit_lsn)
{
	commits++;
}

void
_PG_output_plugin_init(OutputPluginCallbacks *cb)
{
	cb->startup_cb = null_startup;
	cb->begin_cb = null_begin;
	cb->change_cb = null_change;
	cb->commit_cb = null_commit;
}

/* ---- decoding in a background worker ---- */

static double
cpu_time(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
		(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void
decode(NullDecode *order)
{
	LogicalDecodingContext *ctx;
	instr_time	start;
	instr_time	end;
	double		cpu;

	/* Outside a transaction it would mark this process as a decoding one. */
	StartTransactionCommand();
	MemoryContextSwitchTo(TopMemoryContext);
	ReplicationSlotAcquire(NameStr(order->slot), true);
	ctx = CreateDecodingContext(InvalidXLogRecPtr, NIL, false,
								XL_ROUTINE(.page_read = read_local_xlog_page,
										   .segment_open = wal_segment_open,
										   .segment_close = wal_segment_close),
								NULL, NULL, NULL);
	CommitTransactionCommand();

	XLogBeginRead(ctx->reader, MyReplicationSlot->data.restart_lsn);
	InvalidateSystemCaches();

	cpu = cpu_time();
	INSTR_TIME_SET_CURRENT(start);
	while (ctx->reader->EndRecPtr < order->upto)
	{
		char	   *error = NULL;
		XLogRecord *record = XLogReadRecord(ctx->reader, &error);

		if (error)
			elog(ERROR, "could not read WAL: %s", error);
		if (record)
			LogicalDecodingProcessRecord(ctx, ctx->reader);
		CHECK_FOR_INTERRUPTS();
	}
	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	order->cpu = cpu_time() - cpu;

	FreeDecodingContext(ctx);
	ReplicationSlotRelease();

	order->seconds = INSTR_TIME_GET_DOUBLE(end);
	order->commits = commits;
	order->changes = changes;
	order->done = true;
}

void
null_decode_main(Datum main_arg)
{
	dsm_segment *segment;
	NullDecode *order;

	BackgroundWorkerUnblockSignals();
	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		elog(ERROR, "could not attach to the order");
	dsm_pin_mapping(segment);
	order = dsm_segment_address(segment);
	BackgroundWorkerInitializeConnectionByOid(order->dboid, InvalidOid, 0);
	decode(order);
}

/*
 * null_decode(slot name, upto pg_lsn,
 *			   OUT seconds float8, OUT cpu float8, OUT commits bigint,
 *			   OUT changes bigint)
 */
Datum
null_decode(PG_FUNCTION_ARGS)
{
	BackgroundWorker worker = {0};
	BackgroundWorkerHandle *handle;
	dsm_segment *segment = dsm_create(sizeof(NullDecode), 0);
	NullDecode *order = dsm_segment_address(segment);
	TupleDesc	tupdesc;
	Datum		values[4];
	bool		nulls[4] = {false, false, false, false};
	HeapTuple	tuple;

	if (get_call_result_type(fcinfo, NULL, &tupdesc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	memset(order, 0, sizeof(NullDecode));
	order->dboid = MyDatabaseId;
	order->slot = *PG_GETARG_NAME(0);
	order->upto = PG_GETARG_LSN(1);
	if (order->upto > GetFlushRecPtr(NULL))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("WAL is not flushed up to %X/%X",
						LSN_FORMAT_ARGS(order->upto))));

	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = UInt32GetDatum(dsm_segment_handle(segment));
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, "null_plugin", BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "null_decode_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "null_decode", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "null_decode", BGW_MAXLEN);
	if (!RegisterDynamicBackgroundWorker(&worker, &handle))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no background worker slot is free")));
	if (WaitForBackgroundWorkerShutdown(handle) != BGWH_STOPPED ||
		!order->done)
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("decoding failed"),
				 errdetail("The server log has the reason.")));

	values[0] = Float8GetDatum(order->seconds);
	values[1] = Float8GetDatum(order->cpu);
	values[2] = Int64GetDatum(order->commits);
	values[3] = Int64GetDatum(order->changes);
	tuple = heap_form_tuple(BlessTupleDesc(tupdesc), values, nulls);
	dsm_detach(segment);
	PG_RETURN_DATUM(HeapTupleGetDatum(tuple));
}
