/*
 * launcher.h
 *	  Which databases have a worker, and how backends wake it.
 */
#ifndef LIVE_TOPN_LAUNCHER_H
#define LIVE_TOPN_LAUNCHER_H

#include "port/atomics.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

#define WORKER_ERROR_LEN	256

typedef enum WorkerState
{
	WORKER_NONE,				/* nobody wants one */
	WORKER_WANTED,				/* the launcher is to start it */
	WORKER_STARTING,			/* registered, not yet in the database */
	WORKER_CREATING_SLOT,		/* waits for older transactions to end */
	WORKER_RUNNING,
	WORKER_FAILED				/* ended with an error; started again later */
} WorkerState;

/*
 * One database's worker, in shared memory.  Fields are protected by the
 * launcher's lock, except the atomics and that commits read latch without it.
 * An entry is free if its state is WORKER_NONE and pid and holds are 0.
 */
typedef struct WorkerSlot
{
	Oid			dboid;
	WorkerState state;
	pid_t		pid;			/* 0: no process */
	Latch	   *latch;			/* of that process */
	pg_atomic_uint32 waiting;	/* it sleeps: a commit must set the latch */
	pg_atomic_uint32 requests;	/* counts requests announced to it */

	int			holds;			/* commands that keep the worker out */
	bool		asked;			/* for a worker, since it last looked */
	bool		reconsider;		/* may the database have a worker at all? */
	uint32		retirements;	/* counts launcher_retire */
	int			failures;		/* in a row, for back-off */
	TimestampTz running_since;	/* 0: did not get so far */
	TimestampTz restart_after;
	char		error[WORKER_ERROR_LEN];	/* why it failed, or cannot be
											 * started */

	/* end of the last commit that published; not before it in a new worker */
	pg_atomic_uint64 published_lsn;

	/* statistics of the running worker, written by it alone */
	pg_atomic_uint64 applied_lsn;
	pg_atomic_uint64 applied_at;	/* commit time of the last applied commit */
	pg_atomic_uint64 commits;
	pg_atomic_uint64 changes;
	pg_atomic_uint64 log_entries;
	pg_atomic_uint64 log_bytes;
	pg_atomic_uint64 refills_active;
} WorkerSlot;

/* ---- for every process ---- */

extern void launcher_shmem_request(void);	/* in shmem_request_hook */
extern void launcher_shmem_startup(void);	/* in shmem_startup_hook */
extern void launcher_register(void);	/* the launcher and the XactCallback */

/* ---- for backends ---- */

/* Ask for a worker in this database, now; does not wait. */
extern void launcher_want_worker(void);

/* Ask again when this transaction has committed. */
extern void launcher_want_worker_at_commit(void);

/* Wake the worker of this database, if it runs. */
extern void launcher_wake_worker(void);

/* The slot of a database, NULL if it has none; copied to *copy if given. */
extern WorkerSlot *launcher_find(Oid dboid, WorkerSlot *copy);

/* Copies of all slots in use, palloc'd; returns their number. */
extern int	launcher_slots(WorkerSlot **copies);

/* Is the launcher there to start workers? */
extern bool launcher_running(void);

/*
 * Tell a database's worker to end, and keep it out until launcher_release.
 * False if the database has none; then there is nothing to release.
 */
extern bool launcher_hold(Oid dboid);

/*
 * Wait until the process has ended and its replication slot is free, but not
 * for ever.
 */
extern void launcher_wait_gone(Oid dboid);
extern void launcher_release(Oid dboid);

/* A database was made or altered: should it have a worker? */
extern void launcher_reconsider(Oid dboid);

/* ---- for the database worker ---- */

/* Set by launcher_attach. */
extern WorkerSlot *MyWorkerSlot;

/*
 * Become this database's worker: called once connected.  Exits the process
 * if there already is one.  The slot is given back when the process ends, as
 * WORKER_FAILED with the last error it logged, unless launcher_retire came
 * first.
 */
extern WorkerSlot *launcher_attach(void);
extern void launcher_set_state(WorkerState state);
extern void launcher_set_error(const char *message);

/*
 * No subscription is left: give the slot up.  False if somebody asked for a
 * worker meanwhile; then look again (decode all WAL up to now, or read the
 * table), and if there still is none, call again.
 */
extern bool launcher_retire(void);

/* Around a wait: true while a commit must set the latch. */
extern void launcher_set_waiting(bool waiting);

/* Name of the logical slot of a database; buf has NAMEDATALEN bytes. */
extern void launcher_slot_name(Oid dboid, char *buf);

extern PGDLLEXPORT void live_topn_launcher_main(Datum main_arg);

#endif							/* LIVE_TOPN_LAUNCHER_H */
