/*
 * launcher.c
 *	  The background worker that starts the database workers.
 *
 * It starts a worker for every slot of worker_slot.c that wants one, and again
 * after a while when one has failed.  Which databases have subscriptions is
 * known from our logical replication slots, one per database.  But replication
 * slots are lost where a database is cloned or restored, by pg_upgrade and on
 * a promoted standby; so once after its start the launcher also lets a worker
 * look into every other database, one after the other.  A worker that finds no
 * subscriptions retires at once.
 *
 * It runs where WAL can be decoded only: not during recovery (the postmaster
 * starts it at the end of that), nor with a lower wal_level.  Between events
 * it sleeps without a time-out.
 */
#include "postgres.h"

#include <signal.h>

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_database.h"
#include "checkpoint.h"
#include "launcher.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "replication/slot.h"
#include "request.h"
#include "setup.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "waits.h"
#include "worker_slot.h"

#define LIBRARY_NAME		"live_topn"

/* Between attempts while no background worker slot is free. */
#define NO_PROCESS_DELAY	10000	/* ms */

typedef enum DatabaseUse
{
	DATABASE_GONE,				/* or half dropped */
	DATABASE_TEMPLATE,
	DATABASE_CLOSED,			/* allows no connections */
	DATABASE_OPEN
} DatabaseUse;

typedef struct Database
{
	Oid			oid;
	NameData	name;
	DatabaseUse use;
} Database;

/* As long as the process; reset in every turn of the main loop. */
static MemoryContext launcher_context;
static MemoryContext loop_context;

/* One per slot: the process that the launcher registered for it. */
static BackgroundWorkerHandle **handles;

/* Databases to look into, and the one being looked into. */
static List *probes = NIL;
static Oid	probing = InvalidOid;

static bool warned_no_process = false;

void
launcher_register(void)
{
	BackgroundWorker worker;

	worker_slot_register();
	if (IsBinaryUpgrade)
		return;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, LIBRARY_NAME, BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "live_topn_launcher_main", BGW_MAXLEN);
	strlcpy(worker.bgw_name, "live_topn launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "live_topn launcher", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/* ---- databases ---- */

static DatabaseUse
database_use(Form_pg_database form)
{
	if (database_is_invalid_form(form))
		return DATABASE_GONE;
	if (form->datistemplate)
		return DATABASE_TEMPLATE;
	return form->datallowconn ? DATABASE_OPEN : DATABASE_CLOSED;
}

/*
 * All databases.  A scan like that of get_database_list (autovacuum.c): there
 * are no catalog caches to rely on without a database.
 */
static List *
database_list(void)
{
	List	   *result = NIL;
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	rel = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);
		MemoryContext old = MemoryContextSwitchTo(loop_context);
		Database   *database = palloc(sizeof(Database));

		database->oid = form->oid;
		database->name = form->datname;
		database->use = database_use(form);
		result = lappend(result, database);
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	CommitTransactionCommand();
	return result;
}

/* What may be done with a database; its name goes to name. */
static DatabaseUse
database_lookup(Oid dboid, NameData *name)
{
	ListCell   *lc;

	foreach(lc, database_list())
	{
		Database   *database = (Database *) lfirst(lc);

		if (database->oid == dboid)
		{
			*name = database->name;
			return database->use;
		}
	}
	return DATABASE_GONE;
}

/* ---- replication slots ---- */

static bool
is_our_slot(ReplicationSlot *slot)
{
	ReplicationSlotPersistentData data;
	char		name[NAMEDATALEN];
	bool		in_use;

	SpinLockAcquire(&slot->mutex);
	in_use = slot->in_use;
	data = slot->data;
	SpinLockRelease(&slot->mutex);

	if (!in_use || !OidIsValid(data.database) ||
		strcmp(NameStr(data.plugin), LIBRARY_NAME) != 0)
		return false;
	launcher_slot_name(data.database, name);
	return strcmp(NameStr(data.name), name) == 0;
}

/* OIDs of the databases that have a replication slot of ours. */
static List *
databases_with_slot(void)
{
	MemoryContext old = MemoryContextSwitchTo(loop_context);
	List	   *result = NIL;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < max_replication_slots; i++)
	{
		ReplicationSlot *slot = &ReplicationSlotCtl->replication_slots[i];

		if (is_our_slot(slot))
			result = lappend_oid(result, slot->data.database);
	}
	LWLockRelease(ReplicationSlotControlLock);
	MemoryContextSwitchTo(old);
	return result;
}

/* A database that may have no worker must not hold back WAL either. */
static void
drop_replication_slot(Oid dboid)
{
	char		name[NAMEDATALEN];

	if (!list_member_oid(databases_with_slot(), dboid))
		return;
	launcher_slot_name(dboid, name);
	ReplicationSlotDrop(name, true);
	ereport(LOG,
			(errmsg("dropped replication slot \"%s\" because its database is a template",
					name)));
}

/* ---- workers ---- */

static bool
register_worker(int i, Oid dboid, const char *datname)
{
	BackgroundWorker worker;
	MemoryContext old;
	bool		registered;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS |
		BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = ObjectIdGetDatum(dboid);
	worker.bgw_notify_pid = MyProcPid;
	strlcpy(worker.bgw_library_name, LIBRARY_NAME, BGW_MAXLEN);
	strlcpy(worker.bgw_function_name, "live_topn_worker_main", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "live_topn worker", BGW_MAXLEN);
	snprintf(worker.bgw_name, BGW_MAXLEN,
			 "live_topn worker for database %s", datname);

	old = MemoryContextSwitchTo(launcher_context);
	registered = RegisterDynamicBackgroundWorker(&worker, &handles[i]);
	MemoryContextSwitchTo(old);
	return registered;
}

static bool
startable(WorkerSlot *slot)
{
	return (slot->state == WORKER_WANTED || slot->state == WORKER_FAILED) &&
		slot->pid == 0 && slot->holds == 0;
}

/* Back to WORKER_NONE, unless something happened to the slot meanwhile. */
static void
forget_worker(WorkerSlot *slot)
{
	Oid			dboid;

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	if (startable(slot))
	{
		slot->state = WORKER_NONE;
		slot->retirements++;
	}
	dboid = slot->dboid;
	LWLockRelease(worker_array->lock);
	request_wake(dboid);
}

static void
postpone_worker(WorkerSlot *slot, TimestampTz until, const char *error)
{
	Oid			dboid;

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	if (slot->pid == 0 && slot->state != WORKER_NONE)
	{
		slot->state = WORKER_WANTED;
		/* it may have been altered since we looked */
		slot->restart_after = slot->reconsider ? 0 : until;
		strlcpy(slot->error, error, WORKER_ERROR_LEN);
	}
	dboid = slot->dboid;
	LWLockRelease(worker_array->lock);
	request_wake(dboid);
}

static void
no_process_left(WorkerSlot *slot, const char *datname)
{
	char		error[WORKER_ERROR_LEN];

	snprintf(error, sizeof(error),
			 "no background worker slot is free, max_worker_processes is %d",
			 max_worker_processes);
	postpone_worker(slot,
					TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												NO_PROCESS_DELAY),
					error);
	if (!warned_no_process)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("could not start the live_topn worker for database \"%s\": no background worker slot is free",
						datname),
				 errhint("Increase max_worker_processes (currently %d).",
						 max_worker_processes)));
	warned_no_process = true;
}

static void
start_worker(int i, Oid dboid)
{
	WorkerSlot *slot = &worker_array->slots[i];
	NameData	name;
	bool		go;

	switch (database_lookup(dboid, &name))
	{
		case DATABASE_GONE:
			checkpoint_remove(dboid);
			forget_worker(slot);
			return;
		case DATABASE_TEMPLATE:
			drop_replication_slot(dboid);
			forget_worker(slot);
			return;
		case DATABASE_CLOSED:
			postpone_worker(slot, DT_NOEND,
							"the database does not accept connections");
			return;
		case DATABASE_OPEN:
			break;
	}

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	go = startable(slot) && slot->dboid == dboid;
	if (go)
		slot->state = WORKER_STARTING;
	LWLockRelease(worker_array->lock);
	if (!go)
		return;

	if (register_worker(i, dboid, NameStr(name)))
		warned_no_process = false;
	else
		no_process_left(slot, NameStr(name));
}

/* Start what is due; returns when the next one is. */
static TimestampTz
start_workers(void)
{
	TimestampTz next = DT_NOEND;

	for (int i = 0; i < worker_array->nslots; i++)
	{
		WorkerSlot *slot = &worker_array->slots[i];
		bool		start;
		Oid			dboid;
		TimestampTz due;

		LWLockAcquire(worker_array->lock, LW_SHARED);
		start = startable(slot) && handles[i] == NULL;
		dboid = slot->dboid;
		due = slot->restart_after;
		LWLockRelease(worker_array->lock);

		if (start && due <= GetCurrentTimestamp())
		{
			start_worker(i, dboid);

			LWLockAcquire(worker_array->lock, LW_SHARED);
			start = startable(slot);
			due = slot->restart_after;
			LWLockRelease(worker_array->lock);
		}
		if (start)
			next = Min(next, due);
	}
	return next;
}

/* Processes that ended, some of which never got to launcher_attach. */
static void
reap_workers(void)
{
	for (int i = 0; i < worker_array->nslots; i++)
	{
		WorkerSlot *slot = &worker_array->slots[i];
		pid_t		pid;

		if (handles[i] == NULL ||
			GetBackgroundWorkerPid(handles[i], &pid) != BGWH_STOPPED)
			continue;

		pfree(handles[i]);
		handles[i] = NULL;
		LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
		if (slot->state == WORKER_STARTING && slot->pid == 0)
			worker_slot_failed(slot,
							   "the worker process ended before it was connected; see the server log");
		LWLockRelease(worker_array->lock);
	}
}

/* Stop workers of databases that were made templates. */
static void
reconsider_workers(void)
{
	for (int i = 0; i < worker_array->nslots; i++)
	{
		WorkerSlot *slot = &worker_array->slots[i];
		NameData	name;
		bool		reconsider;
		Oid			dboid;

		LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
		reconsider = slot->reconsider && slot->pid != 0;
		slot->reconsider = false;
		dboid = slot->dboid;
		LWLockRelease(worker_array->lock);

		if (reconsider && database_lookup(dboid, &name) == DATABASE_TEMPLATE)
		{
			LWLockAcquire(worker_array->lock, LW_SHARED);
			if (slot->dboid == dboid && slot->pid != 0)
				kill(slot->pid, SIGTERM);
			LWLockRelease(worker_array->lock);
		}
	}
}

/* Send a worker to the next database to look into, if the last is back. */
static void
probe_next(void)
{
	while (OidIsValid(probing) || probes != NIL)
	{
		WorkerSlot *slot;
		bool		wait;

		LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
		if (OidIsValid(probing))
		{
			slot = worker_slot_find(probing);
			wait = slot != NULL &&
				(slot->state == WORKER_NONE ||
				 slot->state == WORKER_STARTING ||
				 (slot->state == WORKER_WANTED &&
				  slot->restart_after < DT_NOEND));
			if (!wait)
				probing = InvalidOid;
		}
		else
		{
			wait = worker_slot_want(linitial_oid(probes)) == NULL;
			if (!wait)
			{
				probing = linitial_oid(probes);
				probes = list_delete_first(probes);
			}
		}
		LWLockRelease(worker_array->lock);
		if (wait)
			return;
	}
}

static void
launcher_exit(int code, Datum arg)
{
	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	worker_array->launcher_pid = 0;
	worker_array->launcher_latch = NULL;
	LWLockRelease(worker_array->lock);
}

/*
 * Take over from a launcher that ended.  A process that this one registered
 * and that is not connected yet may come, or not; start another, of which one
 * will find that it is too late.
 */
static void
take_over(void)
{
	List	   *with_slot = databases_with_slot();
	ListCell   *lc;

	on_shmem_exit(launcher_exit, (Datum) 0);
	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	worker_array->launcher_pid = MyProcPid;
	worker_array->launcher_latch = &MyProc->procLatch;
	for (int i = 0; i < worker_array->nslots; i++)
	{
		WorkerSlot *slot = &worker_array->slots[i];

		if (slot->state == WORKER_STARTING && slot->pid == 0)
			slot->state = WORKER_WANTED;
	}
	foreach(lc, with_slot)
		(void) worker_slot_want(lfirst_oid(lc));
	LWLockRelease(worker_array->lock);

	foreach(lc, database_list())
	{
		Database   *database = (Database *) lfirst(lc);

		if (database->use == DATABASE_OPEN &&
			!list_member_oid(with_slot, database->oid))
		{
			MemoryContext old = MemoryContextSwitchTo(launcher_context);

			probes = lappend_oid(probes, database->oid);
			MemoryContextSwitchTo(old);
		}
	}
}

/* A setting that was in the way may be right now. */
static void
reload_config(void)
{
	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);

	LWLockAcquire(worker_array->lock, LW_EXCLUSIVE);
	for (int i = 0; i < worker_array->nslots; i++)
		worker_array->slots[i].restart_after = 0;
	LWLockRelease(worker_array->lock);
}

void
live_topn_launcher_main(Datum main_arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	setup_application_name();

	if (!XLogLogicalInfoActive())
	{
		ereport(LOG,
				(errmsg("live_topn does nothing because wal_level is \"%s\"",
						GetConfigOption("wal_level", false, false)),
				 errhint("Set wal_level to \"logical\" and restart the server.")));
		proc_exit(0);			/* not again before the server restarts */
	}

	launcher_context = AllocSetContextCreate(TopMemoryContext,
											 "live_topn launcher",
											 ALLOCSET_SMALL_SIZES);
	loop_context = AllocSetContextCreate(launcher_context,
										 "live_topn launcher loop",
										 ALLOCSET_SMALL_SIZES);
	handles = MemoryContextAllocZero(launcher_context,
									 sizeof(BackgroundWorkerHandle *) *
									 worker_array->nslots);
	take_over();

	for (;;)
	{
		TimestampTz next;
		long		timeout = -1;

		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ShutdownRequestPending)
			proc_exit(1);		/* the postmaster is to start it again */
		if (ConfigReloadPending)
			reload_config();

		MemoryContextReset(loop_context);
		reap_workers();
		reconsider_workers();
		probe_next();
		next = start_workers();
		if (next < DT_NOEND)
			timeout = TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
													  next);

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_EXIT_ON_PM_DEATH |
						 (timeout >= 0 ? WL_TIMEOUT : 0),
						 timeout, wait_event(WAIT_LAUNCHER_MAIN));
	}
}
