/*
 * worker_slot.c
 *	  The database workers, in shared memory: who wants one, who is one.
 *
 * Every database that has subscriptions, or may have some, owns an entry of
 * the array.  Its life:
 *
 *	  NONE ---want---> WANTED ---launcher---> STARTING ---worker attaches--->
 *		  CREATING_SLOT ---> RUNNING ---retire---> NONE
 *
 * and from every state with a process to FAILED when that ends otherwise, from
 * where the launcher starts it again after a while.  A worker that a command
 * holds out of its database (launcher_hold) goes back to WANTED instead, and
 * is not started before launcher_release.
 *
 * Whether to retire is decided under the lock: "asked" is set by whoever wants
 * a worker, at a time when his subscription is visible to others, and cleared
 * before the worker looks at the table.  So either the worker finds the
 * subscription, or launcher_retire says no.
 *
 * Wake-up: a commit is flushed, then looks whether the worker waits; the
 * worker says that it waits, then looks whether something was flushed.  With a
 * full barrier between the two on both sides, one of them sees the other.
 */
#include "postgres.h"

#include <signal.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "launcher.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "replication/slot.h"
#include "request.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"
#include "waits.h"
#include "worker_slot.h"

/* Entries beyond one per replication slot: databases being looked at. */
#define SPARE_SLOTS			8

/* Back-off between attempts; forgotten after running this long. */
#define RESTART_DELAY_MIN	1000	/* ms */
#define RESTART_DELAY_MAX	60000
#define RAN_WELL_AFTER		60000

/* How long a command waits for a worker to step aside. */
#define GONE_TIMEOUT		10000	/* ms */

WorkerArray *worker_array = NULL;
WorkerSlot *MyWorkerSlot = NULL;

static bool wrote_wal = false;
static bool want_at_commit = false;

static char last_error[WORKER_ERROR_LEN];
static emit_log_hook_type prev_emit_log_hook = NULL;

static Size
worker_array_size(void)
{
	return add_size(offsetof(WorkerArray, slots),
					mul_size(sizeof(WorkerSlot),
							 max_replication_slots + SPARE_SLOTS));
}

void
launcher_shmem_request(void)
{
	RequestAddinShmemSpace(worker_array_size());
	RequestNamedLWLockTranche("live_topn_workers", 1);
}

void
launcher_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	worker_array = ShmemInitStruct("live_topn workers", worker_array_size(),
								   &found);
	if (!found)
	{
		memset(worker_array, 0, worker_array_size());
		worker_array->lock =
			&GetNamedLWLockTranche("live_topn_workers")->lock;
		worker_array->nslots = max_replication_slots + SPARE_SLOTS;
		ConditionVariableInit(&worker_array->gone);
		pg_atomic_init_u32(&worker_array->assignments, 0);
		for (int i = 0; i < worker_array->nslots; i++)
		{
			WorkerSlot *slot = &worker_array->slots[i];

			pg_atomic_init_u32(&slot->waiting, 0);
			pg_atomic_init_u32(&slot->requests, 0);
			pg_atomic_init_u64(&slot->published_lsn, 0);
			pg_atomic_init_u64(&slot->applied_lsn, 0);
			pg_atomic_init_u64(&slot->applied_at, 0);
			pg_atomic_init_u64(&slot->commits, 0);
			pg_atomic_init_u64(&slot->changes, 0);
			pg_atomic_init_u64(&slot->log_entries, 0);
			pg_atomic_init_u64(&slot->log_bytes, 0);
			pg_atomic_init_u64(&slot->refills_active, 0);
		}
	}
	LWLockRelease(AddinShmemInitLock);
}

void
launcher_slot_name(Oid dboid, char *buf)
{
	snprintf(buf, NAMEDATALEN, "live_topn_%u", dboid);
}

/* ---- entries; the lock is held ---- */

WorkerSlot *
worker_slot_find(Oid dboid)
{
	for (int i = 0; i < worker_array->nslots; i++)
	{
		WorkerSlot *slot = &worker_array->slots[i];

		if (slot->dboid == dboid &&
			(slot->state != WORKER_NONE || slot->pid != 0 || slot->holds > 0))
			return slot;
	}
	return NULL;
}

static WorkerSlot *
worker_slot_assign(Oid dboid)
{
	WorkerSlot *slot = worker_slot_find(dboid);

	if (slot != NULL)
		return slot;

	for (int i = 0; i < worker_array->nslots; i++)
	{
		slot = &worker_array->slots[i];
		if (slot->state == WORKER_NONE && slot->pid == 0 && slot->holds == 0)
		{
			slot->dboid = dboid;
			slot->asked = false;
			slot->reconsider = false;
			slot->failures = 0;
			slot->restart_after = 0;
			slot->error[0] = '\0';
			pg_atomic_fetch_add_u32(&worker_array->assignments, 1);
			return slot;
		}
	}
	return NULL;
}

static void
wake_launcher(void)
{
	if (worker_array->launcher_latch != NULL)
		SetLatch(worker_array->launcher_latch);
}

WorkerSlot *
worker_slot_want(Oid dboid)
{
	WorkerSlot *slot = worker_slot_assign(dboid);

	if (slot == NULL)
		return NULL;
	slot->asked = true;
	if (slot->state == WORKER_NONE)
	{
		slot->state = WORKER_WANTED;
		wake_launcher();
	}
	return slot;
}

void
worker_slot_failed(WorkerSlot *slot, const char *error)
{
	TimestampTz now = GetCurrentTimestamp();
	int			delay = RESTART_DELAY_MIN;

	if (slot->running_since != 0 &&
		TimestampDifferenceExceeds(slot->running_since, now, RAN_WELL_AFTER))
		slot->failures = 0;
	for (int i = 0; i < slot->failures && delay < RESTART_DELAY_MAX; i++)
		delay *= 2;
	slot->failures++;
	slot->restart_after =
		TimestampTzPlusMilliseconds(now, Min(delay, RESTART_DELAY_MAX));
	slot->running_since = 0;
	slot->state = WORKER_FAILED;
	strlcpy(slot->error, error, WORKER_ERROR_LEN);
}

/* ---- for backends ---- */

WorkerSlot *
launcher_find(Oid dboid, WorkerSlot *copy)
{
	WorkerSlot *slot;

	LWLockAcquire(worker_array->lock, LW_SHARED);
	slot = worker_slot_find(dboid);
	if (slot != NULL && copy != NULL)
		*copy = *slot;
	LWLockRelease(worker_array->lock);
	return slot;
}

bool
launcher_running(void)
{
	bool		running;

	LWLockAcquire(worker_array->lock, LW_SHARED);
	running = worker_array->launcher_pid != 0;
	LWLockRelease(worker_array->lock);
	return running;
}

int
launcher_slots(WorkerSlot **copies)
{
	int			n = 0;

	*copies = NULL;
	if (worker_array == NULL)
		return 0;
	*copies = palloc(sizeof(WorkerSlot) * worker_array->nslots);
	LWLockAcquire(worker_array->lock, LW_SHARED);
	for (int i = 0; i < worker_array->nslots; i++)
	{
		if (worker_array->slots[i].state != WORKER_NONE)
			(*copies)[n++] = worker_array->slots[i];
	}
	LWLockRelease(worker_array->lock);
	return n;
}

static bool
want_worker(Oid dboid)
{
	bool		ok;

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	ok = worker_slot_want(dboid) != NULL;
	LWLockRelease(worker_array->lock);
	return ok;
}

void
launcher_want_worker(void)
{
	if (worker_array != NULL && !want_worker(MyDatabaseId))
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases use live_topn"),
				 errhint("Increase max_replication_slots (currently %d).",
						 max_replication_slots)));
}

void
launcher_want_worker_at_commit(void)
{
	want_at_commit = true;
}

void
launcher_reconsider(Oid dboid)
{
	WorkerSlot *slot;

	if (worker_array == NULL)
		return;
	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	slot = worker_slot_want(dboid);
	if (slot != NULL)
	{
		slot->reconsider = true;
		slot->restart_after = 0;
		wake_launcher();
	}
	LWLockRelease(worker_array->lock);
}

bool
launcher_hold(Oid dboid)
{
	WorkerSlot *slot;

	if (worker_array == NULL)
		return false;
	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	slot = worker_slot_find(dboid);
	if (slot != NULL)
	{
		slot->holds++;
		if (slot->pid != 0)
			kill(slot->pid, SIGTERM);
	}
	LWLockRelease(worker_array->lock);
	return slot != NULL;
}

void
launcher_wait_gone(Oid dboid)
{
	TimestampTz end = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												  GONE_TIMEOUT);

	ConditionVariablePrepareToSleep(&worker_array->gone);
	for (;;)
	{
		WorkerSlot *slot;
		bool		gone;
		long		timeout;

		LWLockAcquire(worker_array->lock, LW_SHARED);
		slot = worker_slot_find(dboid);
		gone = slot == NULL || slot->pid == 0;
		LWLockRelease(worker_array->lock);

		timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(), end);
		if (gone || timeout <= 0)
			break;
		ConditionVariableTimedSleep(&worker_array->gone, timeout,
									wait_event(WAIT_WORKER_EXIT));
	}
	ConditionVariableCancelSleep();
}

void
launcher_release(Oid dboid)
{
	WorkerSlot *slot;

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	slot = worker_slot_find(dboid);
	if (slot != NULL && slot->holds > 0)
	{
		slot->holds--;
		wake_launcher();
	}
	LWLockRelease(worker_array->lock);
}

/*
 * The slot of this database, without the lock unless slots were given away
 * since the last call.
 */
static WorkerSlot *
my_database_slot(void)
{
	static WorkerSlot *slot = NULL;
	static uint32 seen = 0;
	uint32		assignments;

	assignments = pg_atomic_read_u32(&worker_array->assignments);
	if (assignments != seen)
	{
		slot = launcher_find(MyDatabaseId, NULL);
		seen = assignments;
	}
	return slot;
}

/*
 * A process's latch stays in shared memory when it ends, so the worst that can
 * come of an old pointer is that somebody wakes for nothing.
 */
static void
set_latch(WorkerSlot *slot)
{
	Latch	   *latch = *(Latch *volatile *) &slot->latch;

	if (latch != NULL)
		SetLatch(latch);
}

void
launcher_wake_worker(void)
{
	WorkerSlot *slot = my_database_slot();

	if (slot != NULL)
		set_latch(slot);
}

static void
wake_worker(void)
{
	WorkerSlot *slot = my_database_slot();

	if (slot == NULL)
		return;

	pg_memory_barrier();
	if (pg_atomic_read_u32(&slot->waiting) == 0 ||
		pg_atomic_exchange_u32(&slot->waiting, 0) == 0)
		return;
	set_latch(slot);
}

/*
 * At XACT_EVENT_COMMIT there is no way back: nothing here may raise an error.
 * COMMIT PREPARED has no xid of its own, but its record is WAL written.
 */
static void
launcher_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			wrote_wal = XactLastRecEnd != InvalidXLogRecPtr ||
				TransactionIdIsValid(GetTopTransactionIdIfAny());
			break;
		case XACT_EVENT_COMMIT:
			if (OidIsValid(MyDatabaseId))
			{
				if (want_at_commit)
					(void) want_worker(MyDatabaseId);
				if (wrote_wal)
					wake_worker();
			}
			want_at_commit = false;
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			want_at_commit = false;
			break;
		default:
			break;
	}
}

void
worker_slot_register(void)
{
	RegisterXactCallback(launcher_xact_callback, NULL);
}

/* ---- for the database worker ---- */

/* emit_log_hook: the last error is what the worker will have ended with. */
static void
remember_error(ErrorData *edata)
{
	if (edata->elevel >= ERROR && edata->message != NULL)
	{
		int			len = strlen(edata->message);

		len = pg_mbcliplen(edata->message, len, WORKER_ERROR_LEN - 1);
		memcpy(last_error, edata->message, len);
		last_error[len] = '\0';
	}
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
}

/* on_shmem_exit: after the replication slot was released. */
static void
launcher_detach(int code, Datum arg)
{
	WorkerSlot *slot = MyWorkerSlot;

	if (slot == NULL)
		return;
	MyWorkerSlot = NULL;

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	slot->pid = 0;
	slot->latch = NULL;
	pg_atomic_write_u32(&slot->waiting, 0);
	if (slot->state != WORKER_NONE &&
		(slot->holds > 0 || (code == 0 && slot->state == WORKER_RUNNING)))
	{
		/* told to end: another one may come at once */
		slot->state = WORKER_WANTED;
		slot->running_since = 0;
	}
	else if (slot->state != WORKER_NONE && slot->state != WORKER_WANTED)
		worker_slot_failed(slot, last_error[0] != '\0' ? last_error :
						   slot->error[0] != '\0' ? slot->error :
						   "the worker process ended");
	wake_launcher();
	LWLockRelease(worker_array->lock);

	request_wake(slot->dboid);
	ConditionVariableBroadcast(&worker_array->gone);
}

WorkerSlot *
launcher_attach(void)
{
	WorkerSlot *slot;

	Assert(MyWorkerSlot == NULL);
	if (worker_array == NULL)
		elog(ERROR, "live_topn's shared memory does not exist");

	on_shmem_exit(launcher_detach, (Datum) 0);
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = remember_error;

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	slot = worker_slot_assign(MyDatabaseId);
	if (slot == NULL || slot->pid != 0 || slot->holds > 0)
	{
		if (slot != NULL && slot->pid == 0)
			slot->state = WORKER_WANTED;
		LWLockRelease(worker_array->lock);
		proc_exit(0);
	}
	MyWorkerSlot = slot;
	slot->pid = MyProcPid;
	slot->latch = &MyProc->procLatch;
	slot->state = WORKER_STARTING;
	slot->asked = false;
	slot->running_since = 0;
	pg_atomic_write_u64(&slot->applied_lsn, 0);
	pg_atomic_write_u64(&slot->applied_at, 0);
	pg_atomic_write_u64(&slot->commits, 0);
	pg_atomic_write_u64(&slot->changes, 0);
	pg_atomic_write_u64(&slot->log_entries, 0);
	pg_atomic_write_u64(&slot->log_bytes, 0);
	pg_atomic_write_u64(&slot->refills_active, 0);
	LWLockRelease(worker_array->lock);
	return slot;
}

void
launcher_set_state(WorkerState state)
{
	Assert(MyWorkerSlot != NULL);

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	MyWorkerSlot->state = state;
	if (state == WORKER_RUNNING)
	{
		MyWorkerSlot->error[0] = '\0';
		if (MyWorkerSlot->running_since == 0)
			MyWorkerSlot->running_since = GetCurrentTimestamp();
	}
	wake_launcher();
	LWLockRelease(worker_array->lock);
	request_wake(MyDatabaseId);
}

void
launcher_set_error(const char *message)
{
	int			len = pg_mbcliplen(message, strlen(message),
								   WORKER_ERROR_LEN - 1);

	Assert(MyWorkerSlot != NULL);

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	memcpy(MyWorkerSlot->error, message, len);
	MyWorkerSlot->error[len] = '\0';
	LWLockRelease(worker_array->lock);
}

bool
launcher_retire(void)
{
	bool		retired = false;

	Assert(MyWorkerSlot != NULL);

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	if (MyWorkerSlot->asked)
		MyWorkerSlot->asked = false;
	else
	{
		MyWorkerSlot->state = WORKER_NONE;
		MyWorkerSlot->failures = 0;
		MyWorkerSlot->error[0] = '\0';
		MyWorkerSlot->retirements++;
		retired = true;
	}
	LWLockRelease(worker_array->lock);
	return retired;
}

void
launcher_set_waiting(bool waiting)
{
	pg_atomic_write_u32(&MyWorkerSlot->waiting, waiting ? 1 : 0);
	pg_memory_barrier();
}
