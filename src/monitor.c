/*
 * monitor.c
 *	  What the views topn_subscriptions, topn_stats and topn_worker show.
 *
 * The views must work when nothing else does: no function here fails or waits
 * long because a worker does not run.
 */
#include "postgres.h"

#include "access/xlog.h"
#include "answer.h"
#include "commands/dbcommands.h"
#include "fmgr.h"
#include "funcapi.h"
#include "launcher.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "replication/slot.h"
#include "request.h"
#include "setup.h"
#include "utils/builtins.h"
#include "utils/pg_lsn.h"
#include "utils/timestamp.h"

PG_FUNCTION_INFO_V1(live_topn_stats);
PG_FUNCTION_INFO_V1(live_topn_workers);

#define STATS_COLUMNS	(NUM_STATS + 2)
#define WORKERS_COLUMNS	14

static Datum
stat_datum(SubscriptionStat stat, int64 value, bool *null)
{
	switch (stat)
	{
		case STAT_REFILL_TIME:
			return Float8GetDatum(value / 1000.0);
		case STAT_WORK_TIME:
			return Float8GetDatum(value / 1000000.0);
		case STAT_LSN:
		case STAT_RESTART_LSN:
			*null = value == 0;
			return LSNGetDatum((XLogRecPtr) value);
		case STAT_LEASE_END:
		case STAT_REFILL_START:
			*null = value == 0;
			return TimestampTzGetDatum(value);
		case STAT_REFILL_PID:
			*null = value == 0;
			return Int32GetDatum((int32) value);
		case STAT_RESULT_ROWS:
			*null = value < 0;	/* rows that are not held are not counted */
			return Int64GetDatum(value);
		default:
			return Int64GetDatum(value);
	}
}

/*
 * One row for each subscription that the worker knows; or one with a null id
 * that says for all of them why there is no worker.
 */
Datum
live_topn_stats(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[STATS_COLUMNS];
	bool		nulls[STATS_COLUMNS];
	RequestArgs args = {.kind = REQUEST_STATS};
	StringInfo	answer;
	const char *why;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	answer = request_try(&args, request_timeout_ms, &why);
	if (answer == NULL)
	{
		memset(nulls, true, sizeof(nulls));
		nulls[NUM_STATS] = false;
		values[NUM_STATS] = CStringGetTextDatum("no worker");
		nulls[NUM_STATS + 1] = false;
		values[NUM_STATS + 1] = CStringGetTextDatum(why);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
		return (Datum) 0;
	}

	n = pq_getmsgint(answer, 4);
	while (n-- > 0)
	{
		const char *text;
		bool		reading = false;

		memset(nulls, false, sizeof(nulls));
		for (int i = 0; i < NUM_STATS; i++)
		{
			int64		value = pq_getmsgint64(answer);

			values[i] = stat_datum(i, value, &nulls[i]);
			reading |= i == STAT_REFILL_PID && value != 0;
		}
		nulls[STAT_REFILL_READ] = !reading;
		text = pq_getmsgrawstring(answer);
		values[NUM_STATS] = CStringGetTextDatum(text);
		text = pq_getmsgrawstring(answer);
		values[NUM_STATS + 1] = CStringGetTextDatum(text);
		nulls[NUM_STATS + 1] = text[0] == '\0';

		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
	}
	return (Datum) 0;
}

static const char *
state_name(WorkerState state)
{
	switch (state)
	{
		case WORKER_NONE:
			return "none";
		case WORKER_WANTED:
			return "wanted";
		case WORKER_STARTING:
			return "starting";
		case WORKER_CREATING_SLOT:
			return "creating slot";
		case WORKER_RUNNING:
			return "running";
		case WORKER_FAILED:
			return "failed";
	}
	return NULL;				/* silence the compiler */
}

/* Another database's messages may be in another encoding. */
static char *
printable(char *text)
{
	if (!pg_verifymbstr(text, strlen(text), true))
	{
		for (char *p = text; *p != '\0'; p++)
		{
			if (IS_HIGHBIT_SET(*p))
				*p = '?';
		}
	}
	return text;
}

/* Three columns: applied lsn, lag in bytes, lag in time. */
static void
progress_columns(WorkerSlot *worker, XLogRecPtr flushed, Datum *values,
				 bool *nulls)
{
	XLogRecPtr	applied = pg_atomic_read_u64(&worker->applied_lsn);
	TimestampTz applied_at = pg_atomic_read_u64(&worker->applied_at);
	Interval   *lag = palloc0(sizeof(Interval));

	if (worker->pid == 0 || applied == InvalidXLogRecPtr)
	{
		nulls[0] = nulls[1] = nulls[2] = true;
		return;
	}
	values[0] = LSNGetDatum(applied);
	values[1] = Int64GetDatum(0);
	if (flushed > applied)
	{
		values[1] = Int64GetDatum(flushed - applied);
		lag->time = Max(GetCurrentTimestamp() - applied_at, 0);
		nulls[2] = applied_at == 0; /* no commit yet */
	}
	values[2] = IntervalPGetDatum(lag);
}

/* How much WAL a replication slot keeps: false if there is none. */
static bool
retained_bytes(const char *slot_name, XLogRecPtr flushed, int64 *bytes)
{
	ReplicationSlot *slot = SearchNamedReplicationSlot(slot_name, true);
	XLogRecPtr	restart;

	if (slot == NULL)
		return false;
	SpinLockAcquire(&slot->mutex);
	restart = slot->data.restart_lsn;
	SpinLockRelease(&slot->mutex);
	*bytes = flushed > restart ? flushed - restart : 0;
	return !XLogRecPtrIsInvalid(restart);
}

Datum
live_topn_workers(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	WorkerSlot *workers;
	char	   *obstacle;
	XLogRecPtr	flushed;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	obstacle = setup_obstacle(NULL);
	n = launcher_slots(&workers);
	if (n == 0)
		return (Datum) 0;
	flushed = RecoveryInProgress() ? InvalidXLogRecPtr : GetFlushRecPtr(NULL);

	for (int i = 0; i < n; i++)
	{
		WorkerSlot *worker = &workers[i];
		Datum		values[WORKERS_COLUMNS] = {0};
		bool		nulls[WORKERS_COLUMNS] = {0};
		char		slot_name[NAMEDATALEN];
		char	   *datname = get_database_name(worker->dboid);
		char	   *error = worker->error;
		int64		retained = 0;

		if (error[0] == '\0')
			error = worker->pid == 0 ? obstacle : NULL;
		launcher_slot_name(worker->dboid, slot_name);

		if (datname != NULL)
			values[0] = DirectFunctionCall1(namein, CStringGetDatum(datname));
		else
			nulls[0] = true;
		values[1] = Int32GetDatum((int32) worker->pid);
		nulls[1] = worker->pid == 0;
		values[2] = DirectFunctionCall1(namein, CStringGetDatum(slot_name));
		values[3] = CStringGetTextDatum(state_name(worker->state));
		if (error != NULL)
			values[4] = CStringGetTextDatum(printable(error));
		else
			nulls[4] = true;

		progress_columns(worker, flushed, &values[5], &nulls[5]);

		values[8] = Int64GetDatum(pg_atomic_read_u64(&worker->commits));
		values[9] = Int64GetDatum(pg_atomic_read_u64(&worker->changes));
		values[10] = Int64GetDatum(pg_atomic_read_u64(&worker->log_entries));
		values[11] = Int64GetDatum(pg_atomic_read_u64(&worker->log_bytes));
		values[12] = Int64GetDatum(pg_atomic_read_u64(&worker->refills_active));
		nulls[13] = !retained_bytes(slot_name, flushed, &retained);
		values[13] = Int64GetDatum(retained);
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values,
							 nulls);
	}
	return (Datum) 0;
}
