/*
 * progress.c
 *	  How many rows the query of a refill worker has read so far.
 *
 * The executor counts anyway, for EXPLAIN ANALYZE; a timer looks at its
 * counters while the query runs.
 */
#include "postgres.h"

#include "executor/instrument.h"
#include "nodes/nodeFuncs.h"
#include "progress.h"
#include "storage/ipc.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#define SHOW_MS			500
#define MAX_SCANS		1024	/* of the partitions beyond nothing is counted */

static pg_atomic_uint64 *shown;
static TimeoutId show_timeout;
static double before;			/* rows of the plans before this one */
static Instrumentation *scans[MAX_SCANS];
static volatile int nscans;

static double
rows_read(void)
{
	double		rows = before;

	for (int i = 0; i < nscans; i++)
		rows += scans[i]->ntuples + scans[i]->tuplecount +
			scans[i]->nfiltered1 + scans[i]->nfiltered2;
	return rows;
}

/* A signal handler. */
static void
show(void)
{
	pg_atomic_write_u64(shown, (uint64) rows_read());
}

/* before_shmem_exit: what the timer looks at is going to be freed. */
static void
stop_timer(int code, Datum arg)
{
	disable_timeout(show_timeout, false);
}

void
progress_startup(pg_atomic_uint64 *where)
{
	shown = where;
	show_timeout = RegisterTimeout(USER_TIMEOUT, show);
	before_shmem_exit(stop_timer, (Datum) 0);
}

void
progress_begin(void)
{
	before = 0;
	enable_timeout_every(show_timeout,
						 TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
													 SHOW_MS),
						 SHOW_MS);
}

void
progress_end(void)
{
	disable_timeout(show_timeout, false);
	nscans = 0;
	pg_atomic_write_u64(shown, 0);
}

static bool
add_scans(PlanState *plan, void *arg)
{
	switch (nodeTag(plan))
	{
		case T_SeqScanState:
		case T_IndexScanState:
		case T_IndexOnlyScanState:
		case T_BitmapHeapScanState:
		case T_TidScanState:
		case T_TidRangeScanState:
			if (plan->instrument && nscans < MAX_SCANS)
			{
				scans[nscans] = plan->instrument;
				nscans++;
			}
			break;
		default:
			break;
	}
	return planstate_tree_walker(plan, add_scans, arg);
}

void
progress_watch(PlanState *plan)
{
	if (shown)
		add_scans(plan, NULL);
}

void
progress_forget(void)
{
	double		rows = rows_read();

	nscans = 0;
	before = rows;
}
