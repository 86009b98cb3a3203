/*
 * waits.h
 *	  What processes wait for, as pg_stat_activity shows it.
 */
#ifndef LIVE_TOPN_WAITS_H
#define LIVE_TOPN_WAITS_H

typedef enum TopnWaitEvent
{
	WAIT_LAUNCHER_MAIN,
	WAIT_WORKER_MAIN,			/* for WAL, or for what else comes */
	WAIT_PUBLISH,				/* until NOTIFY takes batches again */
	WAIT_CHECKPOINT_FILE,		/* windows are written to it */
	WAIT_ANSWER,				/* a backend, for the database worker */
	WAIT_WORKER_EXIT,			/* a backend, for its end */
	NUM_TOPN_WAIT_EVENTS
} TopnWaitEvent;

/* For WaitLatch and the like; may take an LWLock the first time. */
extern uint32 wait_event(TopnWaitEvent event);

#endif							/* LIVE_TOPN_WAITS_H */
