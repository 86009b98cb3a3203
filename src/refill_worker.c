/*
 * refill_worker.c
 *	  The refill worker: runs the requests of a database worker, one by one.
 *
 * What makes a read usable by reconcile.c is the order of its steps: lock the
 * table, take the snapshot, then read the WAL insert position; TRUNCATE and
 * table rewrites are not MVCC-safe, so the lock comes first and is held to the
 * end.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_class.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bswap.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "progress.h"
#include "refill.h"
#include "request.h"
#include "setup.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "storage/shm_toc.h"
#include "storage/sinval.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

/* The first key of the advisory locks of debug_refill_stops. */
#define REFILL_STOP_KEY		1819243378

int			refill_timeout_ms = 0;
bool		refill_debug_stops = false;
int			refill_debug_delay = 0;

typedef struct RefillTask
{
	SubscriptionRow row;
	const char *known;
	Size		room;
	int			nreads;
	RefillRead *reads;
} RefillTask;

/* What the tasks of a transaction have in common. */
typedef struct RefillBatch
{
	bool		begun;			/* owner and settings are in force */
	bool		fresh;			/* catalog caches have been reset */
	Oid			relid;			/* locked before the active snapshot, if valid */
	XLogRecPtr	lsn;			/* WAL position read after that */
	List	   *relids;			/* the relation and its partitions, then */
	uint64		told;			/* messages of invalidation up to then */
	bool		full;			/* old rows are whole in WAL */
} RefillBatch;

/* A destination that sends rows to the database worker. */
typedef struct RowSender
{
	DestReceiver pub;
	shm_mq_handle *out;
	StringInfoData buffer;
	Size		room;			/* bytes that rows may still take */
	uint64		nrows;
} RowSender;

#define CHUNK_SIZE	(REFILL_QUEUE_SIZE / 2) /* of bytes that are sent */

static bool too_large;			/* an error says that there is no room */

static void
send_message(shm_mq_handle *out, StringInfo message)
{
	if (shm_mq_send(out, message->len, message->data, false, true) !=
		SHM_MQ_SUCCESS)
		proc_exit(0);			/* nobody is interested any more */
}

static void
flush_rows(RowSender *sender)
{
	if (sender->buffer.len > 1)
		send_message(sender->out, &sender->buffer);
	resetStringInfo(&sender->buffer);
	pq_sendbyte(&sender->buffer, 'T');
}

static void
send_bytes(RowSender *sender, const char *data, Size size)
{
	while (size > 0)
	{
		Size		n = Min(size, CHUNK_SIZE - sender->buffer.len);

		appendBinaryStringInfo(&sender->buffer, data, n);
		data += n;
		size -= n;
		if (sender->buffer.len == CHUNK_SIZE)
			flush_rows(sender);
	}
}

/* Is there room for one more, of at least that size? */
static void
check_room(RowSender *sender, Size size)
{
	if (window_set_memory_of(size) <= sender->room)
		return;
	too_large = true;
	ereport(ERROR,
			(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
			 errmsg_internal("there is no room for the rows")));
}

static bool
send_row(TupleTableSlot *slot, DestReceiver *self)
{
	RowSender  *sender = (RowSender *) self;
	MinimalTuple tuple;
	uint32		len;

	/* before there is another copy of it */
	slot_getallattrs(slot);
	check_room(sender, heap_compute_data_size(slot->tts_tupleDescriptor,
											  slot->tts_values,
											  slot->tts_isnull));
	tuple = ExecCopySlotMinimalTuple(slot);
	check_room(sender, tuple->t_len);
	sender->room -= window_set_memory_of(tuple->t_len);
	sender->nrows++;
	len = pg_hton32(tuple->t_len);
	send_bytes(sender, (char *) &len, sizeof(len));
	send_bytes(sender, (char *) tuple, tuple->t_len);
	pfree(tuple);
	return true;
}

static void
sender_startup(DestReceiver *self, int operation, TupleDesc desc)
{
}

static void
sender_nothing(DestReceiver *self)
{
}

/*
 * A place where tests can hold or slow us.
 */
static void
debug_stop(int n)
{
	if (refill_debug_stops)
	{
		Datum		key = Int32GetDatum(REFILL_STOP_KEY);

		DirectFunctionCall2(pg_advisory_lock_shared_int4, key,
							Int32GetDatum(n));
		DirectFunctionCall2(pg_advisory_unlock_shared_int4, key,
							Int32GetDatum(n));
	}
	if (refill_debug_delay > 0)
	{
		pg_usleep(pg_prng_uint64_range(&pg_global_prng_state, 0,
									   refill_debug_delay) * 1000);
		CHECK_FOR_INTERRUPTS();
	}
}

/*
 * Lock the table and its partitions, which are returned, then take the
 * snapshot.  A partition that was attached in between is not locked: again.
 */
static List *
lock_and_take_snapshot(Oid relid)
{
	for (;;)
	{
		List	   *locked = find_all_inheritors(relid, AccessShareLock, NULL);
		List	   *now;
		bool		same;

		debug_stop(1);
		PushActiveSnapshot(GetTransactionSnapshot());
		now = find_all_inheritors(relid, NoLock, NULL);
		same = list_difference_oid(now, locked) == NIL;
		list_free(now);
		if (same)
			return locked;
		list_free(locked);
		PopActiveSnapshot();
	}
}

/* Have the table and all its partitions REPLICA IDENTITY FULL? */
static bool
has_old_rows(Oid relid)
{
	List	   *relids = find_all_inheritors(relid, NoLock, NULL);
	ListCell   *lc;

	foreach(lc, relids)
	{
		HeapTuple	tuple = SearchSysCache1(RELOID,
											ObjectIdGetDatum(lfirst_oid(lc)));
		Form_pg_class class = (Form_pg_class) GETSTRUCT(tuple);
		bool		full = class->relkind == RELKIND_PARTITIONED_TABLE ||
			class->relreplident == REPLICA_IDENTITY_FULL;

		ReleaseSysCache(tuple);
		if (!full)
			return false;
	}
	return true;
}

/*
 * Read from one row on.  Where there are not so many, read the last one.
 * Returns which one it is.
 */
static uint64
read_skipping(TopnQuery *query, const RefillRead *read, DestReceiver *dest)
{
	uint64		n = query_read_skipping(query, read->skip, read->limit, dest);

	if (n >= read->skip)
		return read->skip;
	if (n > 0)
		query_read_skipping(query, n, n, dest);
	return n;
}

/*
 * Have an active snapshot under which the relation can be read.  It is newer
 * than all requests of the batch, so they can share it.
 */
static void
prepare_to_read(RefillBatch *batch, Oid relid)
{
	MemoryContext caller;

	if (batch->relid == relid)
		return;
	if (OidIsValid(batch->relid))
		PopActiveSnapshot();
	caller = MemoryContextSwitchTo(TopTransactionContext);
	batch->told = SharedInvalidMessageCounter;
	batch->relids = lock_and_take_snapshot(relid);
	MemoryContextSwitchTo(caller);
	batch->relid = relid;
	batch->full = has_old_rows(relid);
	batch->lsn = request_insert_point();
}

/*
 * A query goes by the catalogs as they are now, not as of its snapshot.  What
 * was read with other ones is of no use, which shows when the database worker
 * comes to the commit that changed them: let it go there first.
 */
static void
wait_for_catalog_changes(RefillBatch *batch)
{
	List	   *now = find_all_inheritors(batch->relid, NoLock, NULL);

	AcceptInvalidationMessages();
	if (SharedInvalidMessageCounter != batch->told ||
		list_difference_oid(now, batch->relids) != NIL)
		batch->lsn = request_insert_point();
	batch->told = SharedInvalidMessageCounter;
	list_free(now);
}

/* Returns how many rows it has sent. */
static uint64
read_all(RefillTask *task, const RefillBatch *batch, TopnQuery *query,
		 uint64 *skipped, shm_mq_handle *out)
{
	RowSender	sender = {0};

	sender.pub.receiveSlot = send_row;
	sender.pub.rStartup = sender_startup;
	sender.pub.rShutdown = sender_nothing;
	sender.pub.rDestroy = sender_nothing;
	sender.pub.mydest = DestNone;
	sender.out = out;
	sender.room = task->room;
	initStringInfo(&sender.buffer);
	flush_rows(&sender);
	for (int i = 0; i < task->nreads; i++)
	{
		RefillRead *read = &task->reads[i];

		if (read->start == REFILL_BACKWARD)
			query_read_backward(query, read->row, read->limit, &sender.pub);
		else if (read->skip > 0 && batch->full)
			*skipped = read_skipping(query, read, &sender.pub);
		else
			query_read(query, read->row, read->start == REFILL_AFTER,
					   read->limit, &sender.pub);
	}
	flush_rows(&sender);
	return sender.nrows;
}

static void
send_done(const RefillBatch *batch, instr_time start, uint64 nrows,
		  uint64 skipped, const char *text, shm_mq_handle *out)
{
	Snapshot	snapshot = GetActiveSnapshot();
	StringInfoData message;
	instr_time	elapsed;

	INSTR_TIME_SET_CURRENT(elapsed);
	INSTR_TIME_SUBTRACT(elapsed, start);
	initStringInfo(&message);
	pq_sendbyte(&message, 'D');
	pq_sendint64(&message, nrows);
	pq_sendint32(&message, snapshot->xmin);
	pq_sendint32(&message, snapshot->xmax);
	pq_sendint32(&message, snapshot->xcnt);
	for (uint32 i = 0; i < snapshot->xcnt; i++)
		pq_sendint32(&message, snapshot->xip[i]);
	pq_sendint64(&message, batch->lsn);
	pq_sendint64(&message, INSTR_TIME_GET_MICROSEC(elapsed));
	pq_sendint64(&message, skipped);
	pq_sendbyte(&message, batch->full);
	pq_sendstring(&message, text);
	send_message(out, &message);
}

static void
send_text(char kind, const char *text, shm_mq_handle *out)
{
	StringInfoData message;

	initStringInfo(&message);
	pq_sendbyte(&message, kind);
	if (text)
		pq_sendstring(&message, text);
	send_message(out, &message);
}

/* Run one request in the transaction that is open. */
static void
run_task(RefillTask *task, RefillBatch *batch, shm_mq_handle *out)
{
	instr_time	start;
	TopnQuery  *query;
	char	   *text;
	uint64		nrows;
	uint64		skipped = 0;

	if (!batch->begun)
	{
		if (!SearchSysCacheExists1(AUTHOID,
								   ObjectIdGetDatum(task->row.owner)))
		{
			send_text('O', NULL, out);
			return;
		}
		SetUserIdAndSecContext(task->row.owner, SECURITY_RESTRICTED_OPERATION);
		catalog_apply_settings(task->row.nsettings, task->row.settings);
		batch->begun = true;
	}

	/* a commit is visible before others are told what it invalidates */
	if (!batch->fresh && (task->nreads == 0 || task->known[0] == '\0'))
	{
		InvalidateSystemCaches();
		batch->fresh = true;
	}

	INSTR_TIME_SET_CURRENT(start);
	debug_stop(0);
	PushActiveSnapshot(GetTransactionSnapshot());
	query = query_analyze(task->row.query, task->row.nargs, task->row.args);
	PopActiveSnapshot();
	text = query_to_text(query);
	if (task->known[0] != '\0' && !query_text_equal(text, task->known))
	{
		send_text('C', text, out);
		return;
	}

	prepare_to_read(batch, query->relid);
	debug_stop(2);
	nrows = read_all(task, batch, query, &skipped, out);
	if (task->nreads > 0)
	{
		wait_for_catalog_changes(batch);
		debug_stop(3);
	}

	/* the database worker sees flushed WAL only: don't let it wait */
	XLogFlush(batch->lsn);
	send_done(batch, start, nrows, skipped, text, out);
}

/* As the bootstrap superuser, whom the table belongs to or not. */
static void
drop_subscription(int64 id, shm_mq_handle *out)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1] = {Int64GetDatum(id)};

	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_execute_with_args("DELETE FROM " CATALOG_SCHEMA "." CATALOG_TABLE
							  " WHERE id OPERATOR(pg_catalog.=) $1",
							  1, types, values, NULL, false,
							  0) != SPI_OK_DELETE)
		elog(ERROR, "could not drop subscription " INT64_FORMAT, id);
	PopActiveSnapshot();
	SPI_finish();
	send_text('C', "", out);
}

static RefillTask *
read_task(StringInfo message)
{
	RefillTask *task = palloc0(sizeof(RefillTask));
	SubscriptionRow *row = &task->row;

	row->owner = pq_getmsgint(message, 4);
	row->nsettings = pq_getmsgint(message, 4);
	row->settings = palloc(sizeof(char *) * Max(row->nsettings, 1));
	for (int i = 0; i < row->nsettings; i++)
		row->settings[i] = pstrdup(pq_getmsgrawstring(message));
	row->query = pstrdup(pq_getmsgrawstring(message));
	row->name = pstrdup(pq_getmsgrawstring(message));
	row->nargs = pq_getmsgint(message, 4);
	row->args = palloc0(sizeof(char *) * Max(row->nargs, 1));
	for (int i = 0; i < row->nargs; i++)
		if (pq_getmsgbyte(message) == 0)
			row->args[i] = pstrdup(pq_getmsgrawstring(message));
	task->known = pstrdup(pq_getmsgrawstring(message));
	task->room = pq_getmsgint64(message);
	task->nreads = pq_getmsgint(message, 4);
	task->reads = palloc0(sizeof(RefillRead) * Max(task->nreads, 1));
	for (int i = 0; i < task->nreads; i++)
	{
		RefillRead *read = &task->reads[i];
		int			len;

		read->limit = pq_getmsgint64(message);
		len = pq_getmsgint(message, 4);
		if (len >= 0)
		{
			read->row = palloc(len);
			memcpy(read->row, pq_getmsgbytes(message, len), len);
		}
		read->start = pq_getmsgbyte(message);
		read->skip = pq_getmsgint64(message);
	}
	return task;
}

/* What for, and the query. */
static void
report_activity(const RefillTask *task)
{
	const char *what = "looking for more rows of";
	char	   *text;

	if (task->nreads == 0)
		what = "analyzing";
	else if (task->reads[0].row == NULL)
		what = "loading";
	text = psprintf("%s live_topn subscription \"%s\": %s", what,
					task->row.name, task->row.query);
	pgstat_report_activity(STATE_RUNNING, text);
	pfree(text);
}

static void
run_request(StringInfo message, RefillBatch *batch, shm_mq_handle *out)
{
	RefillTask *task;

	if (pq_getmsgbyte(message) == 'X')
	{
		pgstat_report_activity(STATE_RUNNING,
							   "dropping a live_topn subscription");
		drop_subscription(pq_getmsgint64(message), out);
		return;
	}
	task = read_task(message);
	XactReadOnly = true;
	report_activity(task);
	progress_begin();
	if (refill_timeout_ms > 0)
		enable_timeout_after(STATEMENT_TIMEOUT, refill_timeout_ms);
	run_task(task, batch, out);
	disable_timeout(STATEMENT_TIMEOUT, false);
	progress_end();
}

/*
 * Run requests from *done on, and count them there: all in one transaction, up
 * to one that fails, whose answer is the error.
 */
static void
run_batch(StringInfo requests, int n, volatile int *done, shm_mq_handle *out)
{
	MemoryContext context = CurrentMemoryContext;
	MemoryContext task_context = AllocSetContextCreate(context,
													   "live_topn task",
													   ALLOCSET_DEFAULT_SIZES);
	RefillBatch batch = {0};
	volatile TimestampTz start = 0;	/* of a request */

	too_large = false;
	PG_TRY();
	{
		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		while (*done < n)
		{
			CHECK_FOR_INTERRUPTS();
			MemoryContextSwitchTo(task_context);
			start = GetCurrentTimestamp();
			run_request(&requests[*done], &batch, out);
			(*done)++;
			MemoryContextReset(task_context);
		}
		if (OidIsValid(batch.relid))
			PopActiveSnapshot();
		SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, 0);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;
		StringInfoData message;

		HOLD_INTERRUPTS();
		disable_all_timeouts(false);
		progress_end();
		QueryCancelPending = false;
		if (*done == n)
			PG_RE_THROW();		/* all are answered */
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(context);
		RESUME_INTERRUPTS();
		if (error->sqlerrcode == ERRCODE_QUERY_CANCELED &&
			refill_timeout_ms > 0 &&
			TimestampDifferenceExceeds(start, GetCurrentTimestamp(),
									   refill_timeout_ms))
			error->message = psprintf("the query took longer than live_topn.refill_timeout (%s)",
									  GetConfigOptionByName("live_topn.refill_timeout",
															NULL, false));

		initStringInfo(&message);
		pq_sendbyte(&message, too_large ? 'L' : 'E');
		if (!too_large)
		{
			pq_sendint32(&message, error->sqlerrcode);
			pq_sendstring(&message, error->message);
			pq_sendstring(&message, error->hint ? error->hint : "");
		}
		send_message(out, &message);
		(*done)++;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	MemoryContextDelete(task_context);
}

static void
serve(char *data, Size len, shm_mq_handle *out)
{
	StringInfoData message = {.data = data,.len = len,.maxlen = len};
	int			n = pq_getmsgint(&message, 4);
	StringInfo	requests = palloc(sizeof(StringInfoData) * n);
	volatile int done = 0;

	for (int i = 0; i < n; i++)
	{
		int			size = pq_getmsgint(&message, 4);

		requests[i] = (StringInfoData) {
			.data = unconstify(char *, pq_getmsgbytes(&message, size)),
			.len = size,
			.maxlen = size
		};
	}
	while (done < n)
		run_batch(requests, n, &done, out);
}

void
live_topn_refill_main(Datum main_arg)
{
	Oid			dboid;
	dsm_segment *segment;
	shm_toc    *toc;
	shm_mq	   *in,
			   *out;
	shm_mq_handle *in_handle,
			   *out_handle;
	MemoryContext context;

	memcpy(&dboid, MyBgworkerEntry->bgw_extra, sizeof(Oid));
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();

	segment = dsm_attach(DatumGetUInt32(main_arg));
	if (segment == NULL)
		proc_exit(0);			/* the database worker has gone */
	dsm_pin_mapping(segment);
	toc = shm_toc_attach(REFILL_MAGIC, dsm_segment_address(segment));
	in = shm_toc_lookup(toc, REFILL_KEY_IN, false);
	out = shm_toc_lookup(toc, REFILL_KEY_OUT, false);
	shm_mq_set_receiver(in, MyProc);
	shm_mq_set_sender(out, MyProc);
	in_handle = shm_mq_attach(in, segment, NULL);
	out_handle = shm_mq_attach(out, segment, NULL);

	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);
	setup_process();
	progress_startup(shm_toc_lookup(toc, REFILL_KEY_PROGRESS, false));

	context = AllocSetContextCreate(TopMemoryContext, "live_topn request",
									ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		Size		len;
		void	   *data;

		MemoryContextSwitchTo(context);
		MemoryContextReset(context);
		pgstat_report_activity(STATE_IDLE, NULL);
		if (shm_mq_receive(in_handle, &len, &data, false) != SHM_MQ_SUCCESS)
			break;
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		AcceptInvalidationMessages();
		serve(data, len, out_handle);
	}
	proc_exit(0);
}
