/*
 * launcher.h
 *	  Which databases have a worker, and how backends wake it.
 */
#ifndef LIVE_TOPN_LAUNCHER_H
#define LIVE_TOPN_LAUNCHER_H

#include "access/xlogdefs.h"
#include "port/atomics.h"
#include "storage/latch.h"
#include "utils/timestamp.h"

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
 * launcher's lock, except that the worker alone writes the atomics.
 */
typedef struct WorkerSlot
{
	Oid			dboid;			/* InvalidOid: free */
	WorkerState state;
	pid_t		pid;			/* 0: no process */
	Latch	   *latch;			/* of that process */
	int			failures;		/* in a row, for back-off */
	TimestampTz restart_after;
	char		error[256];		/* why it failed, or cannot be started */

	pg_atomic_uint32 waiting;	/* it sleeps: a commit must set the latch */

	/* statistics of the running worker */
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

/* The slot of a database, NULL if it never had a worker.  Takes the lock. */
extern WorkerSlot *launcher_find(Oid dboid);

/* ---- for the database worker ---- */

/*
 * Become this database's worker: called once connected.  Exits the process
 * if there already is one.  The slot is given back when the process ends, as
 * WORKER_FAILED with the error unless launcher_retire came first.
 */
extern WorkerSlot *launcher_attach(void);
extern void launcher_set_state(WorkerState state);
extern void launcher_set_error(const char *message);

/*
 * No subscription is left: give the slot up.  False if somebody asked for a
 * worker meanwhile; then go on.
 */
extern bool launcher_retire(void);

/* Around a wait: true while a commit must set the latch. */
extern void launcher_set_waiting(bool waiting);

/* Name of the logical slot of a database; buf has NAMEDATALEN bytes. */
extern void launcher_slot_name(Oid dboid, char *buf);

#endif							/* LIVE_TOPN_LAUNCHER_H */
