/*
 * worker.c
 *	  The database worker: decodes, applies, publishes.
 *
 * A turn of its loop decodes what WAL there is, lets the feeds go on with
 * what refill workers brought, publishes the batches that came of it, and
 * answers requests of backends.  It never waits for a query, a client or a
 * disk; when there is nothing to do it sleeps on its latch.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "answer.h"
#include "apply.h"
#include "catalog.h"
#include "checkpoint.h"
#include "decoder.h"
#include "deliver.h"
#include "launcher.h"
#include "message.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "pool.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "recheck.h"
#include "request.h"
#include "replication/slot.h"
#include "setup.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"
#include "waits.h"
#include "wakeup.h"
#include "worker.h"

#define RECORDS_PER_TURN	2000
#define CONFIRM_MS			5000	/* how often WAL is given back */
#define FLUSH_POLL_MS		5		/* while an asynchronous commit is not
									 * flushed */
#define LOOK_AGAIN_MS		20		/* for a first subscription */
#define SHUTDOWN_MS			2000	/* until windows are saved as they are */
#define PUBLISH_RETRY_MS	1000	/* after publishing failed */

bool		worker_debug_abandon = false;

static RefillPool *pool;
static TimestampTz confirmed_at;
static TimestampTz publish_after;	/* a failure: not before */
static XLogRecPtr replay_end;	/* up to here an earlier worker may have been */
static bool looked_ahead;		/* replay_end is where it really was */
static TimestampTz checkpointed_at;

/*
 * Have the subscriptions dropped whose owners were dropped while there was no
 * worker.  As read_catalog.
 */
static void
drop_orphans(List *rows)
{
	MemoryContext caller = CurrentMemoryContext;
	ListCell   *lc;

	StartTransactionCommand();
	foreach(lc, rows)
	{
		SubscriptionRow *row = lfirst(lc);

		if (!SearchSysCacheExists1(AUTHOID, ObjectIdGetDatum(row->owner)))
			refill_submit_drop(pool, row->id);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	InvalidateSystemCaches();
}

/*
 * The subscriptions, and what the read saw.  Reads with today's catalogs: only
 * before decoding, or the relation cache would mix the times.
 */
static List *
read_catalog(Oid *relid, ReadView *view)
{
	MemoryContext context = CurrentMemoryContext;
	List	   *rows = NIL;

	StartTransactionCommand();
	*relid = catalog_relid();
	if (OidIsValid(*relid))
	{
		Relation	relation = table_open(*relid, AccessShareLock);
		TableScanDesc scan;
		TupleTableSlot *slot = table_slot_create(relation, NULL);
		Snapshot	snapshot;

		PushActiveSnapshot(GetTransactionSnapshot());
		snapshot = GetActiveSnapshot();
		scan = table_beginscan(relation, snapshot, 0, NULL);
		while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
		{
			HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
			MemoryContext caller = MemoryContextSwitchTo(context);

			rows = lappend(rows, catalog_row(tuple,
											 RelationGetDescr(relation)));
			MemoryContextSwitchTo(caller);
		}
		table_endscan(scan);
		ExecDropSingleTupleTableSlot(slot);

		memset(view, 0, sizeof(ReadView));
		view->snapshot.snapshot_type = SNAPSHOT_MVCC;
		view->snapshot.xmin = snapshot->xmin;
		view->snapshot.xmax = snapshot->xmax;
		view->snapshot.xcnt = snapshot->xcnt;
		view->snapshot.xip =
			MemoryContextAlloc(context, sizeof(TransactionId) *
							   Max(snapshot->xcnt, 1));
		if (snapshot->xcnt > 0)
			memcpy(view->snapshot.xip, snapshot->xip,
				   sizeof(TransactionId) * snapshot->xcnt);
		view->lsn = request_insert_point();
		PopActiveSnapshot();
		table_close(relation, AccessShareLock);
	}
	CommitTransactionCommand();
	MemoryContextSwitchTo(context);
	InvalidateSystemCaches();
	return rows;
}

/* End, and leave no slot behind, unless somebody wants us meanwhile. */
static bool
retire(const char *slot_name, bool open)
{
	if (!launcher_retire())
		return false;
	if (open)
		decoder_drop_slot(slot_name);
	else if (decoder_slot_exists(slot_name))
		ReplicationSlotDrop(slot_name, true);
	checkpoint_remove(MyDatabaseId);
	ereport(DEBUG1,
			(errmsg_internal("live_topn worker ends: no subscriptions")));
	return true;
}

/*
 * Give the feeds what was saved of them.  Only an unbroken chain of what was
 * saved and the slot's WAL since then says what clients know.
 */
static void
restore(bool new_slot)
{
	CheckpointState state;
	HASH_SEQ_STATUS status;
	Subscriber *subscriber;

	state = checkpoint_load(new_slot ? PG_UINT64_MAX : decoder_confirmed());
	if (state != (new_slot ? CHECKPOINT_NONE : CHECKPOINT_GOOD))
	{
		subscriber_scan(&status);
		while ((subscriber = subscriber_scan_next(&status)) != NULL)
			feed_lose_history(subscriber, replay_end);
	}
	if (new_slot || state != CHECKPOINT_GOOD)
		checkpoint_save(decoder_confirmed());
	InvalidateSystemCaches();
}

/*
 * Open the slot and the feeds; false if there are no subscriptions.
 */
static bool
start(MemoryContext context, const char *slot_name)
{
	List	   *rows;
	Oid			relid;
	ReadView	view;
	ListCell   *lc;
	bool		new_slot;
	MemoryContext scratch;
	char		activity[NAMEDATALEN + 32];

	scratch = AllocSetContextCreate(context, "live_topn subscriptions",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(scratch);
	while (read_catalog(&relid, &view) == NIL)
	{
		if (retire(slot_name, false))
			return false;

		/* whoever wants us may take a while to commit */
		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 LOOK_AGAIN_MS, wait_event(WAIT_WORKER_MAIN));
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
	MemoryContextSwitchTo(context);
	MemoryContextReset(scratch);

	launcher_set_state(WORKER_CREATING_SLOT);
	snprintf(activity, sizeof(activity), "opening replication slot \"%s\"",
			 slot_name);
	pgstat_report_activity(STATE_RUNNING, activity);
	new_slot = decoder_open(slot_name, &apply_ops);
	MemoryContextSwitchTo(scratch);
	rows = read_catalog(&relid, &view);
	MemoryContextSwitchTo(context);
	pool = refill_pool_create(context);
	drop_orphans(rows);
	apply_startup(context, pool);
	deliver_startup(context);
	history_startup(context);
	apply_set_catalog(relid, &view);
	apply_position()->lsn = decoder_position();
	foreach(lc, rows)
		subscriber_create(lfirst(lc), true);
	MemoryContextDelete(scratch);
	replay_end = request_flush_point();
	pgstat_report_activity(STATE_RUNNING, "reading saved windows");
	restore(new_slot);
	recheck_forget_roles();
	launcher_set_state(WORKER_RUNNING);
	pgstat_report_activity(STATE_RUNNING,
						   "decoding WAL for live_topn subscriptions");
	return true;
}

static bool
is_replaying(void)
{
	return !XLogRecPtrIsInvalid(replay_end);
}

/* From here on the work of an earlier worker is known. */
static void
end_replay(void)
{
	dlist_iter	iter;

	replay_end = InvalidXLogRecPtr;
	checkpointed_at = GetCurrentTimestamp();
	dlist_foreach(iter, &feed_all)
		feed_end_replay(dlist_container(Feed, node, iter.cur));
	feed_change_bound();
}

static void
note_ahead(const char *prefix, const char *data, Size size)
{
	const char *numbers;

	if (size > 0 && data[0] == MESSAGE_PUBLISHED &&
		(numbers = message_numbers(prefix, data, size)) != NULL)
		feed_note_published(numbers);
}

/*
 * A batch that may have been published before waits until we know, which must
 * not be in memory for as long as there is WAL.  So when there are too many,
 * find out from WAL that is not decoded yet what the earlier worker has done.
 * Batches of before the windows were saved are not made, and need not wait.
 */
static void
look_ahead(void)
{
	HASH_SEQ_STATUS status;
	Subscriber *subscriber;
	XLogRecPtr	end = InvalidXLogRecPtr;

	subscriber_scan(&status);
	while ((subscriber = subscriber_scan_next(&status)) != NULL)
		end = Max(end, subscriber->feed->applied);
	if (end > decoder_position())
		return;

	decoder_look_ahead(replay_end, note_ahead);
	deliver_forget_published();
	subscriber_scan(&status);
	while ((subscriber = subscriber_scan_next(&status)) != NULL)
		end = Max(end, subscriber->published_lsn);
	replay_end = Min(replay_end, end);
	looked_ahead = true;
}

/* May more be decoded, as far as batches are concerned that it makes? */
static bool
has_room(void)
{
	if (is_replaying() && !looked_ahead && deliver_is_full())
		look_ahead();
	return is_replaying() || !deliver_is_full();
}

/* Decode for a turn; whether there is more WAL. */
static bool
decode(void)
{
	bool		more = true;

	for (int i = 0; more && i < RECORDS_PER_TURN && has_room() &&
		 !feed_many_roused(); i++)
	{
		CHECK_FOR_INTERRUPTS();
		more = decoder_step();
	}
	decoder_pause();
	apply_position()->lsn = decoder_position();
	if (is_replaying() && apply_position()->lsn >= replay_end)
		end_replay();
	return more;
}

/* Take in what refill workers brought, and hand out what is asked of them. */
static void
poll_refills(void)
{
	RefillAnswer *answer;

	while ((answer = refill_poll(pool)) != NULL)
		feed_answer(answer);
}

/*
 * For tests: end as a crash would, nothing saved, if we are told to end.
 */
static void
maybe_abandon(void)
{
	if (worker_debug_abandon && ShutdownRequestPending)
		proc_exit(0);
}

static void
publish(void)
{
	TimestampTz now;

	if (deliver_pending() == 0 || is_replaying())
		return;
	now = GetCurrentTimestamp();
	if (now < publish_after)
		return;
	checkpoint_flush();
	maybe_abandon();
	if (!deliver_publish())
		publish_after = TimestampTzPlusMilliseconds(now, PUBLISH_RETRY_MS);
}

/* Is nothing to be done before batches are out, which does not work now? */
static bool
is_stuck(void)
{
	return !is_replaying() && deliver_is_full() &&
		GetCurrentTimestamp() < publish_after;
}

/* What others see of us. */
static void
report(void)
{
	pg_atomic_write_u64(&MyWorkerSlot->applied_lsn, apply_position()->lsn);
	pg_atomic_write_u64(&MyWorkerSlot->applied_at,
						apply_position()->commit.time);
	pg_atomic_write_u64(&MyWorkerSlot->commits, apply_position()->commit.no);
	pg_atomic_write_u64(&MyWorkerSlot->changes, apply_changes());
	pg_atomic_write_u64(&MyWorkerSlot->log_entries,
						commit_log_entries(apply_log()));
	pg_atomic_write_u64(&MyWorkerSlot->log_bytes,
						commit_log_bytes(apply_log()));
	pg_atomic_write_u64(&MyWorkerSlot->refills_active, refill_active(pool));
}

/*
 * Save the windows if it is time to, and give back WAL that is not needed to
 * go on from what is saved.
 */
static void
confirm(bool now_or_never)
{
	TimestampTz now = GetCurrentTimestamp();
	int			interval = checkpoint_interval_ms;
	XLogRecPtr	restart;
	bool		saved;

	if (is_replaying() || deliver_pending() > 0 ||
		(!now_or_never &&
		 !TimestampDifferenceExceeds(confirmed_at, now,
									 Min(CONFIRM_MS, interval))))
		return;

	if (feed_any_dirty() && !now_or_never &&
		!TimestampDifferenceExceeds(checkpointed_at, now, interval))
		return;

	if (feed_any_dirty())
		checkpointed_at = now;
	restart = apply_restart_lsn();
	saved = checkpoint_save(decoder_confirmed());
	maybe_abandon();
	if (saved && restart > decoder_confirmed())
		saved = checkpoint_move(restart) || checkpoint_save(restart);
	maybe_abandon();
	if (saved)
		decoder_confirm(restart);
	confirmed_at = now;
}

/* Told to end: are the windows as we want to save them? */
static bool
may_end(void)
{
	static TimestampTz asked_at;
	TimestampTz now = GetCurrentTimestamp();

	if (asked_at == 0)
		asked_at = now;
	return is_replaying() || (feed_all_current() && deliver_pending() == 0) ||
		TimestampDifferenceExceeds(asked_at, now, SHUTDOWN_MS);
}

/*
 * Batches cannot be published and fill the queue: sleep until it is time to
 * try again, or somebody asks us something.
 */
static void
wait_stuck(void)
{
	long		timeout = timeout_until(-1, GetCurrentTimestamp(),
										publish_after);

	(void) WaitLatch(MyLatch,
					 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
					 timeout, wait_event(WAIT_PUBLISH));
	ResetLatch(MyLatch);
}

/*
 * Sleep until somebody sets our latch, unless WAL was flushed since flushed
 * was read.
 */
static void
wait(XLogRecPtr flushed)
{
	static XLogRecPtr committed;	/* WAL written when we were last woken */
	long		timeout = Min(CONFIRM_MS, checkpoint_interval_ms);
	int			events;

	launcher_set_waiting(true);
	if (GetFlushRecPtr(NULL) == flushed)
	{
		timeout = shorter_timeout(timeout, refill_next_timeout(pool));
		timeout = shorter_timeout(timeout, feed_next_timeout());
		timeout = shorter_timeout(timeout, answer_next_timeout());
		if (committed > flushed)
			timeout = FLUSH_POLL_MS;
		if (deliver_pending() > 0)
			timeout = shorter_timeout(timeout, PUBLISH_RETRY_MS);
		if (ShutdownRequestPending)
			timeout = shorter_timeout(timeout, SHUTDOWN_MS / 10);
		events = WaitLatch(MyLatch,
						   WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						   timeout, wait_event(WAIT_WORKER_MAIN));
		if (events & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			committed = GetXLogInsertRecPtr();
		}
	}
	launcher_set_waiting(false);
}

/*
 * The extension was dropped.  It may be there again, with other subscriptions
 * of the same numbers: leave nothing behind, and let another worker look.
 */
static void
start_over(const char *slot_name)
{
	decoder_drop_slot(slot_name);
	checkpoint_remove(MyDatabaseId);
	launcher_set_state(WORKER_WANTED);
}

static void
run(const char *slot_name)
{
	for (;;)
	{
		XLogRecPtr	flushed = GetFlushRecPtr(NULL);
		bool		more;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			int			bound = feed_result_memory_kb;
			int			slice_offset = feed_slice_offset;

			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			if (feed_result_memory_kb != bound)
				feed_change_bound();
			if (feed_slice_offset != slice_offset)
				feed_change_slices();
		}
		AcceptInvalidationMessages();
		recheck_roles();

		more = decode();
		if (apply_catalog_is_gone())
		{
			start_over(slot_name);
			break;
		}
		maybe_abandon();
		publish();
		maybe_abandon();
		poll_refills();
		more |= feed_advance_all();
		if (!is_replaying())
			feed_end_leases();
		publish();
		feed_merge_all();
		maybe_abandon();
		if (!more)
			deliver_flush();
		poll_refills();
		answer_requests();
		apply_trim_log();
		report();
		confirm(false);

		if (ShutdownRequestPending && may_end())
		{
			if (!is_replaying())
				feed_flush_all();
			publish();
			confirm(true);
			launcher_set_state(WORKER_WANTED);	/* no failure */
			break;
		}
		if (is_stuck())
			wait_stuck();
		if (more || feed_any_fresh())
			continue;
		if (subscriber_count() == 0)
		{
			if (retire(slot_name, true))
				break;
			continue;
		}
		pool_trim();
		wait(flushed);
	}
}

void
live_topn_worker_main(Datum main_arg)
{
	MemoryContext context;
	char		slot_name[NAMEDATALEN];

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();

	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(main_arg),
											  InvalidOid, 0);
	launcher_attach();
	launcher_slot_name(MyDatabaseId, slot_name);
	setup_process();
	SetConfigOption("synchronous_commit", "off", PGC_USERSET, PGC_S_OVERRIDE);

	context = AllocSetContextCreate(TopMemoryContext, "live_topn worker",
									ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(context);
	pgstat_report_activity(STATE_RUNNING, "reading live_topn subscriptions");
	if (start(context, slot_name))
	{
		/* from now on we want to end in good order */
		pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
		run(slot_name);
	}
	proc_exit(0);
}
