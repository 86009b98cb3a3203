/*
 * worker_slot.h
 *	  The array of database workers in shared memory, as launcher.c and
 *	  worker_slot.c share it.  Everybody else uses launcher.h.
 */
#ifndef LIVE_TOPN_WORKER_SLOT_H
#define LIVE_TOPN_WORKER_SLOT_H

#include "launcher.h"
#include "storage/condition_variable.h"
#include "storage/lwlock.h"

typedef struct WorkerArray
{
	LWLock	   *lock;
	pid_t		launcher_pid;	/* 0: not running */
	Latch	   *launcher_latch;
	ConditionVariable gone;		/* some worker's process has ended */
	pg_atomic_uint32 assignments;	/* slots that were given a database */
	int			nslots;
	WorkerSlot	slots[FLEXIBLE_ARRAY_MEMBER];
} WorkerArray;

/* NULL unless the library was preloaded. */
extern WorkerArray *worker_array;

/* In the postmaster: have every backend's commits wake workers. */
extern void worker_slot_register(void);

/* With the lock held: the slot of a database or NULL. */
extern WorkerSlot *worker_slot_find(Oid dboid);

/*
 * With the lock held exclusively: ask for a worker in a database, giving it a
 * slot if it has none.  NULL if no slot is free.
 */
extern WorkerSlot *worker_slot_want(Oid dboid);

/* With the lock held exclusively: a worker has ended, or did not start. */
extern void worker_slot_failed(WorkerSlot *slot, const char *error);

#endif							/* LIVE_TOPN_WORKER_SLOT_H */
