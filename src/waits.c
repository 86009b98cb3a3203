/*
 * waits.c
 *	  What processes wait for, as pg_stat_activity shows it.
 *
 * Before PostgreSQL 17 all of it is "Extension".
 */
#include "postgres.h"

#include "compat.h"
#include "utils/wait_event.h"
#include "waits.h"

static const char *const names[NUM_TOPN_WAIT_EVENTS] = {
	[WAIT_LAUNCHER_MAIN] = "LiveTopnLauncherMain",
	[WAIT_WORKER_MAIN] = "LiveTopnWorkerMain",
	[WAIT_PUBLISH] = "LiveTopnPublish",
	[WAIT_CHECKPOINT_FILE] = "LiveTopnCheckpointFile",
	[WAIT_ANSWER] = "LiveTopnAnswer",
	[WAIT_WORKER_EXIT] = "LiveTopnWorkerExit",
};

uint32
wait_event(TopnWaitEvent event)
{
	static uint32 events[NUM_TOPN_WAIT_EVENTS];

	if (events[event] == 0)
		events[event] = wait_event_new(names[event]);
	return events[event];
}
