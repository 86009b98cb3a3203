/*
 * request.c
 *	  Requests of backends to the database worker, and their answers.
 *
 * A request lives in a DSM segment of its own: RequestHeader, then a shm_mq of
 * which the backend is the receiver.  Its handle is announced in the backend's
 * entry of the array, from where the worker takes it.
 *
 * Whatever ends the call (the answer, an error, the end of the process) ends
 * with the backend detaching from the segment.  An on_dsm_detach callback then
 * takes the entry back and leaves a mark in the segment, so a late answer goes
 * to a segment that nobody reads.  If the worker ends first, the queue tells
 * so, and the backend announces a new segment, which the next worker takes.
 *
 * An answer is one message:
 *
 *	  'A' and the answer's bytes, or
 *	  'E', int32 sqlerrcode, string message, string hint (empty: none)
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "catalog/pg_type.h"
#include "compat.h"
#include "fmgr.h"
#include "launcher.h"
#include "lib/ilist.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "request.h"
#include "setup.h"
#include "storage/dsm.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shm_mq.h"
#include "storage/shmem.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#include "waits.h"

#define QUEUE_SIZE			((Size) 65536)

typedef struct RequestHeader
{
	RequestArgs args;
	pg_atomic_uint32 abandoned; /* written by the backend when it leaves */
} RequestHeader;

#define QUEUE_OFFSET		MAXALIGN(sizeof(RequestHeader))

/* A backend's entry; fields are protected by the array's lock. */
typedef struct RequestEntry
{
	Oid			dboid;			/* InvalidOid: no request */
	bool		taken;			/* by the worker */
	dsm_handle	handle;
	Latch	   *latch;			/* of the backend */
} RequestEntry;

typedef struct RequestArray
{
	LWLock	   *lock;
	RequestEntry entries[FLEXIBLE_ARRAY_MEMBER];	/* MaxBackends */
} RequestArray;

static RequestArray *request_array = NULL;

int			request_timeout_ms = 10000;

static Size
request_array_size(void)
{
	return add_size(offsetof(RequestArray, entries),
					mul_size(sizeof(RequestEntry), MaxBackends));
}

void
request_shmem_request(void)
{
	RequestAddinShmemSpace(request_array_size());
	RequestNamedLWLockTranche("live_topn_requests", 1);
}

void
request_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	request_array = ShmemInitStruct("live_topn requests",
									request_array_size(), &found);
	if (!found)
	{
		memset(request_array, 0, request_array_size());
		request_array->lock =
			&GetNamedLWLockTranche("live_topn_requests")->lock;
	}
	LWLockRelease(AddinShmemInitLock);
}

/* ---- for backends ---- */

/*
 * The insert pointer at the very start of a page's contents means the end of
 * the page before: nothing is written behind the header yet, and no record
 * ends there.
 */
XLogRecPtr
request_insert_point(void)
{
	XLogRecPtr	lsn = GetXLogInsertRecPtr();

	if (XLogSegmentOffset(lsn, wal_segment_size) == SizeOfXLogLongPHD)
		lsn -= SizeOfXLogLongPHD;
	else if (lsn % XLOG_BLCKSZ == SizeOfXLogShortPHD)
		lsn -= SizeOfXLogShortPHD;
	return lsn;
}

XLogRecPtr
request_flush_point(void)
{
	XLogRecPtr	lsn = request_insert_point();

	XLogFlush(lsn);
	return lsn;
}

void
request_wake(Oid dboid)
{
	LWLockAcquire(request_array->lock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		RequestEntry *entry = &request_array->entries[i];

		if (entry->dboid == dboid)
			SetLatch(entry->latch);
	}
	LWLockRelease(request_array->lock);
}

/* on_dsm_detach in the backend */
static void
request_withdraw(dsm_segment *seg, Datum arg)
{
	RequestHeader *header = dsm_segment_address(seg);

	LWLockAcquire(request_array->lock, LW_EXCLUSIVE);
	request_array->entries[MyProcNumber].dboid = InvalidOid;
	LWLockRelease(request_array->lock);
	pg_atomic_write_u32(&header->abandoned, 1);
}

/*
 * The segment belongs to CurrentResourceOwner, so that an error detaches from
 * it.
 */
static dsm_segment *
request_announce(const RequestArgs *args, WorkerSlot *slot,
				 shm_mq_handle **mqh)
{
	RequestEntry *entry = &request_array->entries[MyProcNumber];
	dsm_segment *seg;
	RequestHeader *header;
	shm_mq	   *mq;
	Latch	   *latch;

	seg = dsm_create(QUEUE_OFFSET + QUEUE_SIZE, 0);
	header = dsm_segment_address(seg);
	header->args = *args;
	pg_atomic_init_u32(&header->abandoned, 0);
	mq = shm_mq_create((char *) header + QUEUE_OFFSET, QUEUE_SIZE);
	shm_mq_set_receiver(mq, MyProc);
	*mqh = shm_mq_attach(mq, seg, NULL);

	on_dsm_detach(seg, request_withdraw, (Datum) 0);
	LWLockAcquire(request_array->lock, LW_EXCLUSIVE);
	entry->dboid = MyDatabaseId;
	entry->taken = false;
	entry->handle = dsm_segment_handle(seg);
	entry->latch = &MyProc->procLatch;
	LWLockRelease(request_array->lock);

	/* A worker that comes later looks at the array anyway. */
	pg_atomic_fetch_add_u32(&slot->requests, 1);
	latch = *(Latch *volatile *) &slot->latch;
	if (latch != NULL)
		SetLatch(latch);
	return seg;
}

static void
request_leave(dsm_segment *seg, shm_mq_handle *mqh)
{
	shm_mq_detach(mqh);
	dsm_detach(seg);
}

static void
raise_answer_error(StringInfo message)
{
	int			sqlerrcode = pq_getmsgint(message, 4);
	const char *text = pq_getmsgrawstring(message);
	const char *hint = pq_getmsgrawstring(message);

	ereport(ERROR,
			(errcode(sqlerrcode),
			 errmsg("%s", text),
			 hint[0] != '\0' ? errhint("%s", hint) : 0));
}

/* The answer behind its tag; raises the error if it is one. */
static StringInfo
parse_answer(const char *data, Size size)
{
	StringInfo	answer = makeStringInfo();
	char		tag;

	Assert(size > 0);
	tag = data[0];
	appendBinaryStringInfo(answer, data + 1, size - 1);
	if (tag == 'E')
		raise_answer_error(answer);
	return answer;
}

/* Processes whose locks another process waits for, as text; NULL if none. */
static char *
blockers_of(pid_t pid)
{
	Datum		array = DirectFunctionCall1(pg_blocking_pids,
											Int32GetDatum(pid));
	Datum	   *pids;
	int			n;
	StringInfoData text;

	deconstruct_array(DatumGetArrayTypeP(array), INT4OID, sizeof(int32), true,
					  TYPALIGN_INT, &pids, NULL, &n);
	if (n == 0)
		return NULL;
	initStringInfo(&text);
	for (int i = 0; i < n; i++)
	{
		int			blocker = DatumGetInt32(pids[i]);

		if (i > 0)
			appendStringInfoString(&text, ", ");
		if (blocker != 0)
			appendStringInfo(&text, "process %d", blocker);
		else
			appendStringInfoString(&text, "a prepared transaction");
	}
	return text.data;
}

/* What this database's worker is at, as a sentence. */
static char *
explain_worker(WorkerSlot *worker, XLogRecPtr upto)
{
	XLogRecPtr	applied;
	char	   *blockers;

	switch (worker->state)
	{
		case WORKER_NONE:
		case WORKER_WANTED:
			if (worker->error[0] != '\0')
				return psprintf("The worker cannot be started: %s.",
								worker->error);
			if (!launcher_running())
				return psprintf("The live_topn launcher is not running; max_worker_processes (currently %d) may be too low.",
								max_worker_processes);
			return pstrdup("The launcher has not started the worker yet.");
		case WORKER_STARTING:
			return pstrdup("The worker is starting.");
		case WORKER_CREATING_SLOT:
			blockers = blockers_of(worker->pid);
			if (blockers != NULL)
				return psprintf("The worker creates its replication slot and waits for older transactions to end; it is blocked by %s.",
								blockers);
			return pstrdup("The worker creates its replication slot.");
		case WORKER_RUNNING:
			if (worker->error[0] != '\0')
				return psprintf("The worker %s.", worker->error);
			applied = pg_atomic_read_u64(&worker->applied_lsn);
			if (applied < upto)
				return psprintf("The worker has applied WAL up to %X/%X, and is to reach %X/%X.",
								LSN_FORMAT_ARGS(applied),
								LSN_FORMAT_ARGS(upto));
			return pstrdup("The worker waits for rows to be read.");
		case WORKER_FAILED:
			return psprintf("The worker failed: %s.", worker->error);
	}
	return NULL;				/* silence the compiler */
}

/*
 * The worker publishes without waiting for a disk.  What a client goes on from
 * must survive a crash, after which other commits may be in a batch of the same
 * number.  (One that listens begins anew then.)
 */
static void
flush_published(const RequestArgs *args, WorkerSlot *slot)
{
	if (args->kind == REQUEST_SNAPSHOT || args->kind == REQUEST_POLL)
		XLogFlush(pg_atomic_read_u64(&slot->published_lsn));
}

typedef enum CallResult
{
	CALL_ANSWERED,
	CALL_RETIRED,				/* there are no subscriptions */
	CALL_TIMEOUT
} CallResult;

/*
 * One call: announce, wait, and announce again if the worker ends meanwhile.
 * worker is what was last seen of the worker.
 */
static CallResult
call_worker(const RequestArgs *args, int timeout, StringInfo *answer,
			WorkerSlot *worker)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												  timeout);
	WorkerSlot *slot;
	uint32		retirements;
	dsm_segment *seg = NULL;
	shm_mq_handle *mqh = NULL;
	CallResult	result = CALL_TIMEOUT;

	slot = launcher_find(MyDatabaseId, worker);
	if (slot == NULL)
		return CALL_RETIRED;
	retirements = worker->retirements;

	for (;;)
	{
		Size		size;
		void	   *data;
		long		wait;

		if (seg == NULL)
			seg = request_announce(args, slot, &mqh);

		switch (shm_mq_receive(mqh, &size, &data, true))
		{
			case SHM_MQ_SUCCESS:
				*answer = parse_answer(data, size);
				flush_published(args, slot);
				result = CALL_ANSWERED;
				break;
			case SHM_MQ_DETACHED:
				request_leave(seg, mqh);
				seg = NULL;
				continue;
			case SHM_MQ_WOULD_BLOCK:
				break;
		}
		if (result == CALL_ANSWERED)
			break;

		if (launcher_find(MyDatabaseId, worker) != slot ||
			worker->retirements != retirements)
		{
			result = CALL_RETIRED;
			break;
		}
		wait = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);
		if (wait <= 0)
			break;
		if ((worker->state == WORKER_FAILED ||
			 worker->state == WORKER_WANTED) && worker->restart_after > end)
			break;

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 wait, wait_event(WAIT_ANSWER));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}

	if (seg != NULL)
		request_leave(seg, mqh);
	return result;
}

StringInfo
request_call(const RequestArgs *args, int timeout)
{
	StringInfo	answer = NULL;
	WorkerSlot	worker;

	setup_check();
	launcher_want_worker();
	switch (call_worker(args, timeout, &answer, &worker))
	{
		case CALL_ANSWERED:
			return answer;
		case CALL_RETIRED:
			return NULL;
		case CALL_TIMEOUT:
			if (worker.error[0] != '\0' &&
				(worker.state == WORKER_WANTED ||
				 worker.state == WORKER_FAILED))
				ereport(ERROR,
						(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						 errmsg("the live_topn worker of this database is not running"),
						 errdetail_internal("%s",
											explain_worker(&worker, args->upto))));
			ereport(ERROR,
					(errcode(ERRCODE_QUERY_CANCELED),
					 errmsg("time-out while waiting for the live_topn worker"),
					 errdetail_internal("%s", explain_worker(&worker, args->upto))));
	}
	return NULL;				/* silence the compiler */
}

StringInfo
request_try(const RequestArgs *args, int timeout, const char **why)
{
	StringInfo	answer = NULL;
	WorkerSlot	worker;
	bool		exists;

	exists = request_array != NULL && launcher_find(MyDatabaseId, &worker);
	if (exists && worker.state == WORKER_RUNNING &&
		call_worker(args, timeout, &answer, &worker) ==
		CALL_ANSWERED)
		return answer;

	*why = setup_obstacle(NULL);
	if (*why == NULL)
		*why = exists ? explain_worker(&worker, args->upto) :
			"nobody has asked for a worker";
	return NULL;
}

/* ---- for the database worker ---- */

struct RequestPrivate
{
	dlist_node	node;			/* in sending */
	dsm_segment *seg;
	shm_mq_handle *mqh;
	StringInfo	unsent;			/* the whole message */
};

/* Requests that are answered, but not wholly sent. */
static dlist_head sending = DLIST_STATIC_INIT(sending);

static MemoryContext request_context = NULL;

/* The handle of a request not taken yet; false if there is none. */
static bool
take_entry(dsm_handle *handle)
{
	bool		found = false;

	LWLockAcquire(request_array->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MaxBackends && !found; i++)
	{
		RequestEntry *entry = &request_array->entries[i];

		if (entry->dboid == MyDatabaseId && !entry->taken)
		{
			entry->taken = true;
			*handle = entry->handle;
			found = true;
		}
	}
	LWLockRelease(request_array->lock);
	return found;
}

/* A request from its segment, NULL if that is gone. */
static Request *
request_open(dsm_handle handle)
{
	MemoryContext old = MemoryContextSwitchTo(request_context);
	Request    *request = NULL;
	dsm_segment *seg = dsm_attach(handle);

	if (seg != NULL)
	{
		RequestHeader *header = dsm_segment_address(seg);
		shm_mq	   *mq = (shm_mq *) ((char *) header + QUEUE_OFFSET);

		dsm_pin_mapping(seg);
		shm_mq_set_sender(mq, MyProc);

		request = palloc0(sizeof(Request));
		request->args = header->args;
		request->private = palloc0(sizeof(struct RequestPrivate));
		request->private->seg = seg;
		request->private->mqh = shm_mq_attach(mq, seg, NULL);
	}
	MemoryContextSwitchTo(old);
	return request;
}

Request *
request_next(void)
{
	static bool looked = false;
	static uint32 seen;
	uint32		announced = pg_atomic_read_u32(&MyWorkerSlot->requests);
	dsm_handle	handle;

	if (looked && announced == seen)
		return NULL;

	if (request_context == NULL)
		request_context = AllocSetContextCreate(TopMemoryContext,
												"live_topn requests",
												ALLOCSET_DEFAULT_SIZES);
	while (take_entry(&handle))
	{
		Request    *request = request_open(handle);

		if (request != NULL)
			return request;
	}
	looked = true;
	seen = announced;
	return NULL;
}

static void
private_free(struct RequestPrivate *private)
{
	if (private->unsent != NULL)
	{
		pfree(private->unsent->data);
		pfree(private->unsent);
	}
	shm_mq_detach(private->mqh);
	dsm_detach(private->seg);
	pfree(private);
}

void
request_drop(Request *request)
{
	private_free(request->private);
	pfree(request);
}

bool
request_abandoned(Request *request)
{
	RequestHeader *header = dsm_segment_address(request->private->seg);

	return pg_atomic_read_u32(&header->abandoned) != 0;
}

/* True if there is nothing more to do. */
static bool
send_on(struct RequestPrivate *private)
{
	return shm_mq_send(private->mqh, private->unsent->len,
					   private->unsent->data, true,
					   true) != SHM_MQ_WOULD_BLOCK;
}

/* Send what is in request->private->unsent, and free the request. */
static void
request_send(Request *request)
{
	struct RequestPrivate *private = request->private;

	pfree(request);
	if (send_on(private))
		private_free(private);
	else
		dlist_push_tail(&sending, &private->node);
}

void
request_progress(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &sending)
	{
		struct RequestPrivate *private =
		dlist_container(struct RequestPrivate, node, iter.cur);

		if (send_on(private))
		{
			dlist_delete(iter.cur);
			private_free(private);
		}
	}
}

void
request_answer(Request *request, StringInfo answer)
{
	MemoryContext old = MemoryContextSwitchTo(request_context);
	StringInfo	message = makeStringInfo();

	enlargeStringInfo(message, answer->len + 1);
	appendStringInfoChar(message, 'A');
	appendBinaryStringInfo(message, answer->data, answer->len);
	request->private->unsent = message;
	request_send(request);
	MemoryContextSwitchTo(old);
}

void
request_answer_error(Request *request, int sqlerrcode, const char *message,
					 const char *hint)
{
	MemoryContext old = MemoryContextSwitchTo(request_context);
	StringInfo	buf = makeStringInfo();

	appendStringInfoChar(buf, 'E');
	pq_sendint32(buf, sqlerrcode);
	appendBinaryStringInfo(buf, message, strlen(message) + 1);
	if (hint == NULL)
		hint = "";
	appendBinaryStringInfo(buf, hint, strlen(hint) + 1);
	request->private->unsent = buf;
	request_send(request);
	MemoryContextSwitchTo(old);
}
