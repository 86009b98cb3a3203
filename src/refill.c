/*
 * refill.c
 *	  Refill workers: queries of the database worker, run by others.
 *
 * The first half runs in the database worker: the pool.  The second is the
 * refill worker.  What makes a read usable by reconcile.c is the order of
 * its steps: lock the table, take the snapshot, then read the WAL insert
 * position; TRUNCATE and table rewrites are not MVCC-safe, so the lock comes
 * first and is held to the end.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_type.h"
#include "common/pg_prng.h"
#include "executor/spi.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "refill.h"
#include "request.h"
#include "setup.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/lmgr.h"
#include "storage/shm_mq.h"
#include "storage/shm_toc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"

#define REFILL_MAGIC		0x746f706e
#define REFILL_QUEUE_SIZE	(64 * 1024)
#define REFILL_MAX_WORKERS	64
#define REFILL_IDLE_MS		10000	/* then a worker is let go */
#define REFILL_RETRY_MS		1000	/* after one could not be started */
#define REFILL_WARN_MS		60000	/* warn of that so often */

/* Keys in the segment's table of contents. */
#define REFILL_KEY_IN		1
#define REFILL_KEY_OUT		2

/* The first key of the advisory locks of debug_refill_stops. */
#define REFILL_STOP_KEY		1819243378

int			refill_max_workers = 2;
int			refill_timeout_ms = 0;
bool		refill_debug_stops = false;
int			refill_debug_delay = 0;

typedef struct RefillJob
{
	uint64		ticket;
	StringInfoData message;
} RefillJob;

/* One refill worker, as the database worker sees it. */
typedef struct RefillSlot
{
	dsm_segment *segment;		/* NULL: none */
	BackgroundWorkerHandle *handle;
	shm_mq_handle *in;
	shm_mq_handle *out;
	RefillJob  *job;			/* what it works on */
	bool		sent;			/* the whole request */
	RefillAnswer *answer;		/* so far */
	TimestampTz idle_since;
} RefillSlot;

struct RefillPool
{
	MemoryContext context;
	List	   *queue;			/* of RefillJob */
	uint64		last_ticket;
	TimestampTz retry_at;		/* after a start failed */
	TimestampTz warned_at;		/* of that */
	RefillSlot	slots[REFILL_MAX_WORKERS];
};

/*
 * before_shmem_exit: a query that nobody waits for any more would only be in
 * the way, of DROP DATABASE for example.
 */
static void
terminate_workers(int code, Datum arg)
{
	RefillPool *pool = (RefillPool *) DatumGetPointer(arg);

	for (int i = 0; i < REFILL_MAX_WORKERS; i++)
		if (pool->slots[i].handle)
			TerminateBackgroundWorker(pool->slots[i].handle);
}

RefillPool *
refill_pool_create(MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "live_topn refills",
												  ALLOCSET_DEFAULT_SIZES);
	RefillPool *pool = MemoryContextAllocZero(context, sizeof(RefillPool));

	pool->context = context;
	before_shmem_exit(terminate_workers, PointerGetDatum(pool));
	return pool;
}

uint64
refill_submit(RefillPool *pool, const SubscriptionRow *row,
			  const char *known, uint64 limit, MinimalTuple after)
{
	MemoryContext caller = MemoryContextSwitchTo(pool->context);
	RefillJob  *job = palloc0(sizeof(RefillJob));
	StringInfo	message = &job->message;

	job->ticket = ++pool->last_ticket;
	initStringInfo(message);
	pq_sendbyte(message, 'R');
	pq_sendint32(message, row->owner);
	pq_sendint32(message, row->nsettings);
	for (int i = 0; i < row->nsettings; i++)
		pq_sendstring(message, row->settings[i]);
	pq_sendstring(message, row->query);
	pq_sendint32(message, row->nargs);
	for (int i = 0; i < row->nargs; i++)
	{
		pq_sendbyte(message, row->args[i] == NULL);
		if (row->args[i])
			pq_sendstring(message, row->args[i]);
	}
	pq_sendstring(message, known ? known : "");
	pq_sendint64(message, limit);
	if (after)
	{
		pq_sendint32(message, after->t_len);
		pq_sendbytes(message, (char *) after, after->t_len);
	}
	else
		pq_sendint32(message, -1);

	pool->queue = lappend(pool->queue, job);
	MemoryContextSwitchTo(caller);
	return job->ticket;
}

void
refill_submit_drop(RefillPool *pool, int64 id)
{
	MemoryContext caller = MemoryContextSwitchTo(pool->context);
	RefillJob  *job = palloc0(sizeof(RefillJob));

	job->ticket = ++pool->last_ticket;
	initStringInfo(&job->message);
	pq_sendbyte(&job->message, 'X');
	pq_sendint64(&job->message, id);
	pool->queue = lappend(pool->queue, job);
	MemoryContextSwitchTo(caller);
}

static void
free_job(RefillJob *job)
{
	pfree(job->message.data);
	pfree(job);
}

void
refill_forget(RefillPool *pool, uint64 ticket)
{
	ListCell   *lc;

	foreach(lc, pool->queue)
	{
		RefillJob  *job = lfirst(lc);

		if (job->ticket == ticket)
		{
			pool->queue = foreach_delete_current(pool->queue, lc);
			free_job(job);
			return;
		}
	}
	for (int i = 0; i < REFILL_MAX_WORKERS; i++)
		if (pool->slots[i].job && pool->slots[i].job->ticket == ticket)
			pool->slots[i].job->ticket = 0;
}

int
refill_active(const RefillPool *pool)
{
	int			active = list_length(pool->queue);

	for (int i = 0; i < REFILL_MAX_WORKERS; i++)
		active += pool->slots[i].job != NULL;
	return active;
}

/* Start a worker in a free slot; false if there is no room for it. */
static bool
start_worker(RefillPool *pool, RefillSlot *slot)
{
	MemoryContext caller = MemoryContextSwitchTo(pool->context);
	BackgroundWorker worker = {0};
	shm_toc_estimator estimator;
	shm_toc    *toc;
	shm_mq	   *in,
			   *out;
	Size		size;
	bool		started = false;

	shm_toc_initialize_estimator(&estimator);
	shm_toc_estimate_chunk(&estimator, REFILL_QUEUE_SIZE);
	shm_toc_estimate_chunk(&estimator, REFILL_QUEUE_SIZE);
	shm_toc_estimate_keys(&estimator, 2);
	size = shm_toc_estimate(&estimator);

	slot->segment = dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
	if (slot->segment)
	{
		dsm_pin_mapping(slot->segment);
		toc = shm_toc_create(REFILL_MAGIC, dsm_segment_address(slot->segment),
							 size);
		in = shm_mq_create(shm_toc_allocate(toc, REFILL_QUEUE_SIZE),
						   REFILL_QUEUE_SIZE);
		shm_toc_insert(toc, REFILL_KEY_IN, in);
		shm_mq_set_sender(in, MyProc);
		out = shm_mq_create(shm_toc_allocate(toc, REFILL_QUEUE_SIZE),
							REFILL_QUEUE_SIZE);
		shm_toc_insert(toc, REFILL_KEY_OUT, out);
		shm_mq_set_receiver(out, MyProc);

		worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
			BGWORKER_BACKEND_DATABASE_CONNECTION;
		worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
		worker.bgw_restart_time = BGW_NEVER_RESTART;
		strlcpy(worker.bgw_library_name, "live_topn", BGW_MAXLEN);
		strlcpy(worker.bgw_function_name, "live_topn_refill_main", BGW_MAXLEN);
		snprintf(worker.bgw_name, BGW_MAXLEN,
				 "live_topn refill worker for database %u", MyDatabaseId);
		strlcpy(worker.bgw_type, "live_topn refill worker", BGW_MAXLEN);
		worker.bgw_main_arg =
			UInt32GetDatum(dsm_segment_handle(slot->segment));
		memcpy(worker.bgw_extra, &MyDatabaseId, sizeof(Oid));
		worker.bgw_notify_pid = MyProcPid;

		started = RegisterDynamicBackgroundWorker(&worker, &slot->handle);
		if (started)
		{
			slot->in = shm_mq_attach(in, slot->segment, slot->handle);
			slot->out = shm_mq_attach(out, slot->segment, slot->handle);
			slot->idle_since = GetCurrentTimestamp();
		}
		else
		{
			dsm_detach(slot->segment);
			slot->segment = NULL;
		}
	}
	MemoryContextSwitchTo(caller);
	return started;
}

/* The worker ends when it finds that we have detached. */
static void
stop_worker(RefillSlot *slot)
{
	if (slot->job)
		free_job(slot->job);
	if (slot->answer)
		MemoryContextDelete(slot->answer->context);
	dsm_detach(slot->segment);
	pfree(slot->handle);
	memset(slot, 0, sizeof(RefillSlot));
}

static void
append_rows(RefillAnswer *answer, StringInfo message)
{
	MemoryContext caller = MemoryContextSwitchTo(answer->context);

	while (message->cursor < message->len)
	{
		int			len = pq_getmsgint(message, 4);
		MinimalTuple tuple = palloc(len);

		memcpy(tuple, pq_getmsgbytes(message, len), len);
		if (answer->nrows == answer->maxrows)
		{
			answer->maxrows = Max(64, answer->maxrows * 2);
			answer->rows = answer->rows ?
				repalloc_huge(answer->rows,
							  sizeof(MinimalTuple) * answer->maxrows) :
				palloc(sizeof(MinimalTuple) * answer->maxrows);
		}
		answer->rows[answer->nrows++] = tuple;
	}
	MemoryContextSwitchTo(caller);
}

static void
read_done(RefillAnswer *answer, StringInfo message)
{
	Snapshot	snapshot = &answer->view.snapshot;
	MemoryContext caller = MemoryContextSwitchTo(answer->context);

	snapshot->snapshot_type = SNAPSHOT_MVCC;
	snapshot->xmin = pq_getmsgint(message, 4);
	snapshot->xmax = pq_getmsgint(message, 4);
	snapshot->xcnt = pq_getmsgint(message, 4);
	snapshot->xip = palloc(sizeof(TransactionId) * Max(snapshot->xcnt, 1));
	for (uint32 i = 0; i < snapshot->xcnt; i++)
		snapshot->xip[i] = pq_getmsgint(message, 4);
	answer->view.lsn = pq_getmsgint64(message);
	answer->elapsed = pq_getmsgint64(message);
	answer->query_text = pstrdup(pq_getmsgrawstring(message));
	MemoryContextSwitchTo(caller);
}

/* Take in one message; true if the answer is complete. */
static bool
read_message(RefillSlot *slot, char *data, Size len)
{
	RefillAnswer *answer = slot->answer;
	StringInfoData message;

	message.data = data;
	message.len = message.maxlen = len;
	message.cursor = 0;
	switch (pq_getmsgbyte(&message))
	{
		case 'T':
			append_rows(answer, &message);
			return false;
		case 'D':
			answer->status = REFILL_DONE;
			read_done(answer, &message);
			return true;
		case 'C':
			answer->status = REFILL_CHANGED;
			answer->query_text =
				MemoryContextStrdup(answer->context,
									pq_getmsgrawstring(&message));
			return true;
		case 'E':
			answer->status = REFILL_FAILED;
			answer->sqlerrcode = pq_getmsgint(&message, 4);
			answer->error = MemoryContextStrdup(answer->context,
												pq_getmsgrawstring(&message));
			return true;
	}
	elog(ERROR, "unexpected message of a refill worker");
	return false;				/* keep compiler quiet */
}

/* Work on one slot; a complete answer or NULL. */
static RefillAnswer *
poll_slot(RefillPool *pool, RefillSlot *slot)
{
	RefillAnswer *answer = NULL;
	shm_mq_result result = SHM_MQ_SUCCESS;

	if (slot->job == NULL && pool->queue != NIL)
	{
		MemoryContext context = AllocSetContextCreate(pool->context,
													  "live_topn refill answer",
													  ALLOCSET_DEFAULT_SIZES);

		slot->job = linitial(pool->queue);
		pool->queue = list_delete_first(pool->queue);
		slot->sent = false;
		slot->answer = MemoryContextAllocZero(context, sizeof(RefillAnswer));
		slot->answer->context = context;
	}

	if (slot->job && !slot->sent)
	{
		result = shm_mq_send(slot->in, slot->job->message.len,
							 slot->job->message.data, true, true);
		slot->sent = result == SHM_MQ_SUCCESS;
	}
	while (slot->job && slot->sent && result == SHM_MQ_SUCCESS && !answer)
	{
		Size		len;
		void	   *data;

		result = shm_mq_receive(slot->out, &len, &data, true);
		if (result == SHM_MQ_SUCCESS && read_message(slot, data, len))
			answer = slot->answer;
	}

	if (slot->job && result == SHM_MQ_DETACHED)
	{
		answer = slot->answer;
		answer->status = REFILL_FAILED;
		answer->sqlerrcode = ERRCODE_CONNECTION_FAILURE;
		answer->error = MemoryContextStrdup(answer->context,
											"the refill worker ended unexpectedly");
	}
	if (answer)
	{
		answer->ticket = slot->job->ticket;
		slot->answer = NULL;
		free_job(slot->job);
		slot->job = NULL;
		slot->idle_since = GetCurrentTimestamp();
	}
	if (result == SHM_MQ_DETACHED)
		stop_worker(slot);
	return answer;
}

/* At most once in a while. */
static bool
should_warn(RefillPool *pool)
{
	TimestampTz now = GetCurrentTimestamp();

	if (!TimestampDifferenceExceeds(pool->warned_at, now, REFILL_WARN_MS))
		return false;
	pool->warned_at = now;
	return true;
}

RefillAnswer *
refill_poll(RefillPool *pool)
{
	int			workers = 0;

	for (int i = 0; i < REFILL_MAX_WORKERS; i++)
	{
		RefillSlot *slot = &pool->slots[i];
		RefillAnswer *answer;

		if (slot->segment == NULL)
			continue;
		answer = poll_slot(pool, slot);
		if (answer && answer->ticket != 0)
			return answer;
		if (answer)
			MemoryContextDelete(answer->context);
		if (slot->segment && slot->job == NULL &&
			TimestampDifferenceExceeds(slot->idle_since,
									   GetCurrentTimestamp(), REFILL_IDLE_MS))
			stop_worker(slot);
		workers += slot->segment != NULL;
	}

	/* all are busy: start one more for what is queued */
	if (pool->queue != NIL && workers < refill_max_workers &&
		GetCurrentTimestamp() >= pool->retry_at)
	{
		RefillSlot *slot = pool->slots;

		while (slot->segment)
			slot++;
		if (start_worker(pool, slot))
			return refill_poll(pool);
		ereport(workers == 0 && should_warn(pool) ? WARNING : DEBUG1,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start a live_topn refill worker"),
				 errhint("You may need to increase max_worker_processes.")));
		pool->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 REFILL_RETRY_MS);
	}
	return NULL;
}

long
refill_next_timeout(const RefillPool *pool)
{
	TimestampTz now = GetCurrentTimestamp();
	long		timeout = -1;

	if (pool->queue != NIL && pool->retry_at > now)
		timeout = TimestampDifferenceMilliseconds(now, pool->retry_at) + 1;
	for (int i = 0; i < REFILL_MAX_WORKERS; i++)
	{
		const RefillSlot *slot = &pool->slots[i];
		long		left;

		if (slot->segment == NULL || slot->job)
			continue;
		left = TimestampDifferenceMilliseconds(now,
											   TimestampTzPlusMilliseconds(slot->idle_since,
																		   REFILL_IDLE_MS)) + 1;
		timeout = timeout < 0 ? left : Min(timeout, left);
	}
	return timeout;
}

/* ---- the refill worker ---- */

typedef struct RefillTask
{
	SubscriptionRow row;
	const char *known;
	uint64		limit;
	MinimalTuple after;
} RefillTask;

/* A destination that sends rows to the database worker. */
typedef struct RowSender
{
	DestReceiver pub;
	shm_mq_handle *out;
	StringInfoData buffer;
} RowSender;

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

static bool
send_row(TupleTableSlot *slot, DestReceiver *self)
{
	RowSender  *sender = (RowSender *) self;
	MinimalTuple tuple = ExecCopySlotMinimalTuple(slot);

	pq_sendint32(&sender->buffer, tuple->t_len);
	pq_sendbytes(&sender->buffer, (char *) tuple, tuple->t_len);
	pfree(tuple);
	if (sender->buffer.len > REFILL_QUEUE_SIZE / 2)
		flush_rows(sender);
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
 * Lock the table and its partitions, then take the snapshot and the WAL
 * position.  A partition that was attached in between is not locked: again.
 */
static void
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
		list_free(locked);
		list_free(now);
		if (same)
			return;
		PopActiveSnapshot();
	}
}

/* Run one request in the transaction that is open. */
static void
run_task(RefillTask *task, shm_mq_handle *out)
{
	instr_time	start,
				elapsed;
	TopnQuery  *query;
	char	   *text;
	StringInfoData message;
	RowSender	sender = {0};
	Snapshot	snapshot;
	XLogRecPtr	lsn;

	if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(task->row.owner)))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("role with OID %u does not exist", task->row.owner)));
	SetUserIdAndSecContext(task->row.owner, SECURITY_RESTRICTED_OPERATION);
	catalog_apply_settings(task->row.nsettings, task->row.settings);

	/* a commit is visible before others are told what it invalidates */
	if (task->limit == 0)
		InvalidateSystemCaches();

	INSTR_TIME_SET_CURRENT(start);
	debug_stop(0);
	PushActiveSnapshot(GetTransactionSnapshot());
	query = query_analyze(task->row.query, task->row.nargs, task->row.args);
	PopActiveSnapshot();
	text = query_to_text(query);

	initStringInfo(&message);
	if (task->known[0] != '\0' && !query_text_equal(text, task->known))
	{
		pq_sendbyte(&message, 'C');
		pq_sendstring(&message, text);
		send_message(out, &message);
		return;
	}

	lock_and_take_snapshot(query->relid);
	snapshot = GetActiveSnapshot();
	lsn = GetXLogInsertRecPtr();
	debug_stop(2);

	sender.pub.receiveSlot = send_row;
	sender.pub.rStartup = sender_startup;
	sender.pub.rShutdown = sender_nothing;
	sender.pub.rDestroy = sender_nothing;
	sender.pub.mydest = DestNone;
	sender.out = out;
	initStringInfo(&sender.buffer);
	flush_rows(&sender);
	if (task->limit > 0)
		query_read(query, task->after, task->limit, &sender.pub);
	flush_rows(&sender);
	debug_stop(3);

	/* the database worker sees flushed WAL only: don't let it wait */
	request_flush_point();

	INSTR_TIME_SET_CURRENT(elapsed);
	INSTR_TIME_SUBTRACT(elapsed, start);
	pq_sendbyte(&message, 'D');
	pq_sendint32(&message, snapshot->xmin);
	pq_sendint32(&message, snapshot->xmax);
	pq_sendint32(&message, snapshot->xcnt);
	for (uint32 i = 0; i < snapshot->xcnt; i++)
		pq_sendint32(&message, snapshot->xip[i]);
	pq_sendint64(&message, lsn);
	pq_sendint64(&message, INSTR_TIME_GET_MICROSEC(elapsed));
	pq_sendstring(&message, text);
	PopActiveSnapshot();
	send_message(out, &message);
}

/* As the bootstrap superuser, whom the table belongs to or not. */
static void
drop_subscription(int64 id, shm_mq_handle *out)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1] = {Int64GetDatum(id)};
	StringInfoData message;

	SPI_connect();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_execute_with_args("DELETE FROM " CATALOG_SCHEMA "." CATALOG_TABLE
							  " WHERE id OPERATOR(pg_catalog.=) $1",
							  1, types, values, NULL, false,
							  0) != SPI_OK_DELETE)
		elog(ERROR, "could not drop subscription " INT64_FORMAT, id);
	PopActiveSnapshot();
	SPI_finish();

	initStringInfo(&message);
	pq_sendbyte(&message, 'C');
	pq_sendstring(&message, "");
	send_message(out, &message);
}

static RefillTask *
read_task(StringInfo message)
{
	RefillTask *task = palloc0(sizeof(RefillTask));
	SubscriptionRow *row = &task->row;
	int			after_len;

	row->owner = pq_getmsgint(message, 4);
	row->nsettings = pq_getmsgint(message, 4);
	row->settings = palloc(sizeof(char *) * Max(row->nsettings, 1));
	for (int i = 0; i < row->nsettings; i++)
		row->settings[i] = pstrdup(pq_getmsgrawstring(message));
	row->query = pstrdup(pq_getmsgrawstring(message));
	row->nargs = pq_getmsgint(message, 4);
	row->args = palloc0(sizeof(char *) * Max(row->nargs, 1));
	for (int i = 0; i < row->nargs; i++)
		if (pq_getmsgbyte(message) == 0)
			row->args[i] = pstrdup(pq_getmsgrawstring(message));
	task->known = pstrdup(pq_getmsgrawstring(message));
	task->limit = pq_getmsgint64(message);
	after_len = pq_getmsgint(message, 4);
	if (after_len >= 0)
	{
		task->after = palloc(after_len);
		memcpy(task->after, pq_getmsgbytes(message, after_len), after_len);
	}
	return task;
}

/*
 * Run one request; an error becomes the answer.
 */
static void
serve(char *data, Size len, shm_mq_handle *out)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		StringInfoData message = {.data = data,.len = len,.maxlen = len};

		SetCurrentStatementStartTimestamp();
		StartTransactionCommand();
		if (pq_getmsgbyte(&message) == 'X')
			drop_subscription(pq_getmsgint64(&message), out);
		else
		{
			RefillTask *task = read_task(&message);

			XactReadOnly = true;
			pgstat_report_activity(STATE_RUNNING, task->row.query);
			if (refill_timeout_ms > 0)
				enable_timeout_after(STATEMENT_TIMEOUT, refill_timeout_ms);
			run_task(task, out);
			disable_timeout(STATEMENT_TIMEOUT, false);
		}
		SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, 0);
		CommitTransactionCommand();
	}
	PG_CATCH();
	{
		ErrorData  *error;
		StringInfoData message;

		HOLD_INTERRUPTS();
		disable_all_timeouts(false);
		QueryCancelPending = false;
		MemoryContextSwitchTo(context);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(context);
		RESUME_INTERRUPTS();

		initStringInfo(&message);
		pq_sendbyte(&message, 'E');
		pq_sendint32(&message, error->sqlerrcode);
		pq_sendstring(&message, error->message);
		send_message(out, &message);
	}
	PG_END_TRY();
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
