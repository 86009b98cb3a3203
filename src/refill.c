/*
 * refill.c
 *	  Refill workers, as the database worker sees them.
 *
 * This is their pool, in the database worker; refill_worker.c is what they do.
 */
#include "postgres.h"

#include "launcher.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "port/pg_bswap.h"
#include "postmaster/bgworker.h"
#include "refill.h"
#include "refill_queue.h"
#include "storage/dsm.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "storage/shm_toc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "wakeup.h"

#define REFILL_MAX_WORKERS	65		/* one more than may read */
#define REFILL_IDLE_MS		10000	/* then a worker is let go */
#define REFILL_RETRY_MS		1000	/* after one could not be started */
#define REFILL_VAIN_MS		200		/* a query nobody wants may run so long */
#define REFILL_SLOW_MS		500		/* one that takes so long is slow */
#define WHY_LEN				128
#define REFILL_WARN_MS		60000	/* warn of that so often */

/* One refill worker, as the database worker sees it. */
typedef struct RefillSlot
{
	dsm_segment *segment;		/* NULL: none */
	BackgroundWorkerHandle *handle;
	shm_mq_handle *in;
	shm_mq_handle *out;
	pg_atomic_uint64 *progress;
	RefillJob  *job;			/* what it works on, and what is next */
	StringInfoData request;		/* all of that, as it is sent */
	bool		sent;			/* the whole request */
	RefillAnswer *answer;		/* so far */
	TimestampTz idle_since;
} RefillSlot;

struct RefillPool
{
	MemoryContext context;
	RefillQueue *queue;
	TimestampTz retry_at;		/* after a start failed */
	TimestampTz warned_at;		/* of that */
	bool		complains;		/* in topn_worker.error */
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
	pool->queue = refill_queue_create(context);
	before_shmem_exit(terminate_workers, PointerGetDatum(pool));
	return pool;
}

uint64
refill_submit(RefillPool *pool, const SubscriptionRow *row,
			  const char *known, Size room, int nreads,
			  const RefillRead *reads)
{
	bool		urgent = nreads > 0 && reads[0].row != NULL;
	RefillJob  *job = refill_queue_add(pool->queue, row->owner, row->id,
									   nreads > 0 ? REFILL_READ : REFILL_CHECK,
									   urgent);
	StringInfo	message = &job->message;

	pq_sendbyte(message, 'R');
	pq_sendint32(message, row->owner);
	pq_sendint32(message, row->nsettings);
	for (int i = 0; i < row->nsettings; i++)
		pq_sendstring(message, row->settings[i]);
	pq_sendstring(message, row->query);
	job->alike = message->len;
	pq_sendstring(message, row->name);
	pq_sendint32(message, row->nargs);
	for (int i = 0; i < row->nargs; i++)
	{
		pq_sendbyte(message, row->args[i] == NULL);
		if (row->args[i])
			pq_sendstring(message, row->args[i]);
	}
	pq_sendstring(message, known ? known : "");
	pq_sendint64(message, room);
	pq_sendint32(message, nreads);
	for (int i = 0; i < nreads; i++)
	{
		MinimalTuple tuple = reads[i].row;

		pq_sendint64(message, reads[i].limit);
		pq_sendint32(message, tuple ? (int32) tuple->t_len : -1);
		if (tuple)
			pq_sendbytes(message, (char *) tuple, tuple->t_len);
		pq_sendbyte(message, reads[i].start);
		pq_sendint64(message, reads[i].skip);
	}

	return job->ticket;
}

void
refill_submit_drop(RefillPool *pool, int64 id)
{
	RefillJob  *job = refill_queue_add(pool->queue, InvalidOid, id,
									   REFILL_CHECK, false);

	pq_sendbyte(&job->message, 'X');
	pq_sendint64(&job->message, id);
}

void
refill_forget(RefillPool *pool, uint64 ticket)
{
	refill_queue_forget(pool->queue, ticket);
}

bool
refill_reads_at_once(const RefillPool *pool)
{
	TimestampTz now = GetCurrentTimestamp();

	for (int i = 0; i < REFILL_MAX_WORKERS; i++)
	{
		const RefillJob *job = pool->slots[i].job;

		if (job && job->kind == REFILL_READ &&
			TimestampDifferenceExceeds(job->started_at, now, REFILL_SLOW_MS))
			return false;
	}
	return true;
}

/* Be ready for the answer to the job at hand. */
static void
expect_answer(RefillPool *pool, RefillSlot *slot)
{
	MemoryContext context = AllocSetContextCreate(pool->context,
												  "live_topn refill answer",
												  ALLOCSET_DEFAULT_SIZES);

	slot->answer = MemoryContextAllocZero(context, sizeof(RefillAnswer));
	slot->answer->context = context;
}

/* The job at hand is done; go on to the next one of its batch. */
static void
end_job(RefillPool *pool, RefillSlot *slot)
{
	slot->answer = NULL;
	slot->job = refill_queue_end(pool->queue, slot->job);
	if (slot->job)
		expect_answer(pool, slot);
}

RefillProgress
refill_progress(const RefillPool *pool, uint64 ticket)
{
	RefillProgress progress = {0};

	for (int i = 0; ticket != 0 && i < REFILL_MAX_WORKERS; i++)
	{
		const RefillSlot *slot = &pool->slots[i];

		if (slot->job == NULL || slot->job->ticket != ticket)
			continue;
		if (GetBackgroundWorkerPid(slot->handle, &progress.pid) == BGWH_STARTED)
		{
			progress.started_at = slot->job->started_at;
			progress.rows = pg_atomic_read_u64(slot->progress);
		}
		break;
	}
	return progress;
}

int
refill_active(const RefillPool *pool)
{
	int			active = refill_queue_length(pool->queue);

	for (int i = 0; i < REFILL_MAX_WORKERS; i++)
		for (const RefillJob *job = pool->slots[i].job; job; job = job->next)
			active++;
	return active;
}

/* What to send for a batch. */
static void
make_request(RefillSlot *slot)
{
	resetStringInfo(&slot->request);
	pq_sendint32(&slot->request, slot->job->batch_size);
	for (RefillJob *job = slot->job; job; job = job->next)
	{
		pq_sendint32(&slot->request, job->message.len);
		pq_sendbytes(&slot->request, job->message.data, job->message.len);
	}
}

/*
 * A segment, or NULL and why there is none, which is no reason to end.
 */
static dsm_segment *
create_segment(Size size, char *why)
{
	MemoryContext caller = CurrentMemoryContext;
	ResourceOwner before = CurrentResourceOwner;
	ResourceOwner owner = ResourceOwnerCreate(before, "live_topn segment");
	dsm_segment *volatile segment = NULL;

	CurrentResourceOwner = owner;
	PG_TRY();
	{
		segment = dsm_create(size, DSM_CREATE_NULL_IF_MAXSEGMENTS);
		if (segment)
			dsm_pin_mapping(segment);
		else
			strlcpy(why, "too many dynamic shared memory segments", WHY_LEN);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		strlcpy(why, error->message, WHY_LEN);
		FreeErrorData(error);
	}
	PG_END_TRY();
	CurrentResourceOwner = before;
	ResourceOwnerRelease(owner, RESOURCE_RELEASE_BEFORE_LOCKS,
						 segment != NULL, false);
	ResourceOwnerDelete(owner);
	return segment;
}

/* Start a worker in a free slot; false, and why, if there is no room for it. */
static bool
start_worker(RefillPool *pool, RefillSlot *slot, char *why)
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
	shm_toc_estimate_chunk(&estimator, sizeof(pg_atomic_uint64));
	shm_toc_estimate_keys(&estimator, 3);
	size = shm_toc_estimate(&estimator);

	slot->segment = create_segment(size, why);
	if (slot->segment)
	{
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
		slot->progress = shm_toc_allocate(toc, sizeof(pg_atomic_uint64));
		pg_atomic_init_u64(slot->progress, 0);
		shm_toc_insert(toc, REFILL_KEY_PROGRESS, slot->progress);

		worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
			BGWORKER_BACKEND_DATABASE_CONNECTION;
		worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
		worker.bgw_restart_time = BGW_NEVER_RESTART;
		strlcpy(worker.bgw_library_name, "live_topn", BGW_MAXLEN);
		strlcpy(worker.bgw_function_name, "live_topn_refill_main", BGW_MAXLEN);
		snprintf(worker.bgw_name, BGW_MAXLEN,
				 "live_topn refill worker%s",
				 strstr(MyBgworkerEntry->bgw_name, " for database "));
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
			initStringInfo(&slot->request);
			slot->idle_since = GetCurrentTimestamp();
		}
		else
		{
			dsm_detach(slot->segment);
			slot->segment = NULL;
			snprintf(why, WHY_LEN,
					 "no background worker slot is free, max_worker_processes is %d",
					 max_worker_processes);
		}
	}
	MemoryContextSwitchTo(caller);
	return started;
}

/* The worker ends when it finds that we have detached. */
static void
stop_worker(RefillPool *pool, RefillSlot *slot)
{
	if (slot->answer)
		MemoryContextDelete(slot->answer->context);
	slot->answer = NULL;
	if (slot->job)
		refill_queue_put_back(pool->queue, slot->job);
	pfree(slot->request.data);
	dsm_detach(slot->segment);
	pfree(slot->handle);
	memset(slot, 0, sizeof(RefillSlot));
}

static void
append_chunk(RefillAnswer *answer, StringInfo message)
{
	Size		size = message->len - message->cursor;
	RefillChunk *chunk = MemoryContextAlloc(answer->context,
											offsetof(RefillChunk, data) + size);

	chunk->next = NULL;
	chunk->size = size;
	memcpy(chunk->data, pq_getmsgbytes(message, size), size);
	if (answer->chunks)
		answer->last_chunk->next = chunk;
	else
		answer->chunks = chunk;
	answer->last_chunk = chunk;
}

static void
take_bytes(RefillAnswer *answer, char *to, Size size)
{
	while (size > 0)
	{
		RefillChunk *chunk = answer->chunks;
		Size		n;

		if (chunk == NULL)
			elog(ERROR, "a refill worker has sent too little");
		n = Min(size, chunk->size - answer->used);
		memcpy(to, chunk->data + answer->used, n);
		to += n;
		size -= n;
		answer->used += n;
		if (answer->used == chunk->size)
		{
			answer->chunks = chunk->next;
			answer->used = 0;
			pfree(chunk);
		}
	}
}

MinimalTuple
refill_next_row(RefillAnswer *answer)
{
	uint32		len;
	MinimalTuple tuple;

	take_bytes(answer, (char *) &len, sizeof(len));
	len = pg_ntoh32(len);
	tuple = palloc(len);
	take_bytes(answer, (char *) tuple, len);
	return tuple;
}

static void
read_done(RefillAnswer *answer, StringInfo message)
{
	Snapshot	snapshot = &answer->view.snapshot;
	MemoryContext caller = MemoryContextSwitchTo(answer->context);

	answer->nrows = pq_getmsgint64(message);
	snapshot->snapshot_type = SNAPSHOT_MVCC;
	snapshot->xmin = pq_getmsgint(message, 4);
	snapshot->xmax = pq_getmsgint(message, 4);
	snapshot->xcnt = pq_getmsgint(message, 4);
	snapshot->xip = palloc(sizeof(TransactionId) * Max(snapshot->xcnt, 1));
	for (uint32 i = 0; i < snapshot->xcnt; i++)
		snapshot->xip[i] = pq_getmsgint(message, 4);
	answer->view.lsn = pq_getmsgint64(message);
	answer->elapsed = pq_getmsgint64(message);
	answer->skipped = pq_getmsgint64(message);
	answer->full = pq_getmsgbyte(message);
	answer->query_text = pstrdup(pq_getmsgrawstring(message));
	MemoryContextSwitchTo(caller);
}

/* Take in one message; true if the answer is complete. */
static bool
read_message(RefillSlot *slot, char *data, Size len)
{
	RefillAnswer *answer = slot->answer;
	StringInfoData message;
	const char *hint;

	message.data = data;
	message.len = message.maxlen = len;
	message.cursor = 0;
	switch (pq_getmsgbyte(&message))
	{
		case 'T':
			append_chunk(answer, &message);
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
		case 'L':
			answer->status = REFILL_TOO_LARGE;
			return true;
		case 'O':
			answer->status = REFILL_ORPHANED;
			return true;
		case 'E':
			answer->status = REFILL_FAILED;
			answer->sqlerrcode = pq_getmsgint(&message, 4);
			answer->error = MemoryContextStrdup(answer->context,
												pq_getmsgrawstring(&message));
			hint = pq_getmsgrawstring(&message);
			if (hint[0] != '\0')
				answer->hint = MemoryContextStrdup(answer->context, hint);
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

	if (slot->job == NULL &&
		(slot->job = refill_queue_next(pool->queue)) != NULL)
	{
		make_request(slot);
		slot->sent = false;
		expect_answer(pool, slot);
	}

	if (slot->job && !slot->sent)
	{
		result = shm_mq_send(slot->in, slot->request.len, slot->request.data,
							 true, true);
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
		answer->id = slot->job->id;
		end_job(pool, slot);
		slot->idle_since = GetCurrentTimestamp();
	}
	if (result == SHM_MQ_DETACHED)
		stop_worker(pool, slot);
	return answer;
}

/* No query can run: show that, and warn once in a while. */
static void
complain(RefillPool *pool, const char *why)
{
	TimestampTz now = GetCurrentTimestamp();
	char	   *text = psprintf("cannot read rows: %s", why);

	launcher_set_error(text);
	pfree(text);
	pool->complains = true;
	if (!TimestampDifferenceExceeds(pool->warned_at, now, REFILL_WARN_MS))
		return;
	pool->warned_at = now;
	ereport(WARNING,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("could not start a live_topn refill worker: %s", why)));
}

/* Does it go on with a query that nobody wants any more? */
static bool
is_in_vain(const RefillSlot *slot)
{
	return slot->job && slot->job->ticket == 0 &&
		TimestampDifferenceExceeds(slot->job->started_at,
								   GetCurrentTimestamp(), REFILL_VAIN_MS);
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
		if (slot->segment && is_in_vain(slot))
		{
			TerminateBackgroundWorker(slot->handle);
			stop_worker(pool, slot);
		}
		if (slot->segment && slot->job == NULL &&
			TimestampDifferenceExceeds(slot->idle_since,
									   GetCurrentTimestamp(), REFILL_IDLE_MS))
			stop_worker(pool, slot);
		workers += slot->segment != NULL;
	}

	/* all are busy: start one more for what may run */
	if (refill_queue_has_next(pool->queue) && workers <= refill_max_workers &&
		GetCurrentTimestamp() >= pool->retry_at)
	{
		RefillSlot *slot = pool->slots;
		char		why[WHY_LEN];

		while (slot->segment)
			slot++;
		if (start_worker(pool, slot, why))
		{
			if (pool->complains)
				launcher_set_error("");
			pool->complains = false;
			return refill_poll(pool);
		}
		if (workers == 0)
			complain(pool, why);
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

	if (refill_queue_length(pool->queue) > 0 && pool->retry_at > now)
		timeout = timeout_until(timeout, now, pool->retry_at);
	for (int i = 0; i < REFILL_MAX_WORKERS; i++)
	{
		const RefillSlot *slot = &pool->slots[i];
		TimestampTz end = TimestampTzPlusMilliseconds(slot->idle_since,
													  REFILL_IDLE_MS);

		if (slot->segment && slot->job == NULL)
			timeout = timeout_until(timeout, now, end);
		if (slot->job && slot->job->ticket == 0)
			timeout = timeout_until(timeout, now,
									TimestampTzPlusMilliseconds(slot->job->started_at,
																REFILL_VAIN_MS));
	}
	return timeout;
}
