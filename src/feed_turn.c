/*
 * feed_turn.c
 *	  Feeds that have something to do, and when they do it.
 *
 * A feed is active while it has not settled: it may be behind, wait for rows
 * or for a time to come, or be in error.  It is ready while feed_advance_all
 * has to look at it; one that waits is not, and whoever brings what it waits
 * for calls feed_activate.  So a turn costs nothing for the others.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "deliver.h"
#include "feed_private.h"
#include "lib/pairingheap.h"
#include "meter.h"
#include "miscadmin.h"
#include "route.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "wakeup.h"

#define STEPS_PER_TURN		1000	/* commits of the log at a time */
#define TURN_MS				100
#define ROUSING_COMMITS		16

static dlist_head active = DLIST_STATIC_INIT(active);
static dlist_head ready = DLIST_STATIC_INIT(ready);
static int	nfresh;				/* ready ones that are fresh */
static int	nrousing;			/* commits since the last turn that have made
								 * others go through the log */
static uint64 last_rousing;		/* the commit before the last of them */
static pairingheap *timers;		/* of feeds with timer_at */

/* The earliest is the first of the heap. */
static int
compare_timers(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	TimestampTz x = pairingheap_const_container(Feed, timer_node, a)->timer_at;
	TimestampTz y = pairingheap_const_container(Feed, timer_node, b)->timer_at;

	return (x < y) - (x > y);
}

void
feed_turn_startup(void)
{
	timers = pairingheap_allocate(compare_timers, NULL);
}

/* ---- activity ---- */

void
feed_activate(Feed *feed)
{
	if (!feed->active)
		dlist_push_tail(&active, &feed->active_node);
	feed->active = true;
	if (!feed->ready)
		dlist_push_tail(&ready, &feed->ready_node);
	feed->ready = true;
	if (!feed->fresh)
		nfresh++;
	feed->fresh = true;
}

void
feed_note_roused(void)
{
	if (nrousing > 0 && last_rousing == feed_position->commit.no)
		return;
	last_rousing = feed_position->commit.no;
	nrousing++;
}

bool
feed_many_roused(void)
{
	return nrousing >= ROUSING_COMMITS;
}

bool
feed_any_fresh(void)
{
	return nfresh > 0;
}

static void
note_look(Feed *feed)
{
	if (feed->fresh)
		nfresh--;
	feed->fresh = false;
}

static void
unready(Feed *feed)
{
	note_look(feed);
	if (feed->ready)
		dlist_delete(&feed->ready_node);
	feed->ready = false;
}

/* Be woken at that time; 0: never. */
static void
set_timer(Feed *feed, TimestampTz at)
{
	if (feed->timer_at == at)
		return;
	if (feed->timer_at != 0)
		pairingheap_remove(timers, &feed->timer_node);
	feed->timer_at = at;
	if (at != 0)
		pairingheap_add(timers, &feed->timer_node);
}

void
feed_rest(Feed *feed)
{
	if (feed->active)
		dlist_delete(&feed->active_node);
	feed->active = false;
	unready(feed);
	set_timer(feed, 0);
}

bool
feed_all_current(void)
{
	dlist_iter	iter;

	/* those that are not active have nothing to do */
	dlist_foreach(iter, &active)
		if (!feed_is_current(dlist_container(Feed, active_node, iter.cur)))
			return false;
	return true;
}

uint64
feed_floor_of_all(void)
{
	uint64		floor = feed_position->commit.no;
	dlist_iter	iter;

	dlist_foreach(iter, &active)
		floor = Min(floor, feed_floor(dlist_container(Feed, active_node,
													  iter.cur)));
	return floor;
}

XLogRecPtr
feed_exact_lsn_of_all(void)
{
	XLogRecPtr	lsn = feed_position->lsn;
	dlist_iter	iter;

	dlist_foreach(iter, &active)
		lsn = Min(lsn, feed_exact_lsn(dlist_container(Feed, active_node,
													  iter.cur)));
	return lsn;
}

/* ---- the turn of a feed ---- */

void
feed_answer(RefillAnswer *answer)
{
	Subscriber *subscriber = subscriber_find(answer->id);
	Feed	   *feed = subscriber ? subscriber->feed : NULL;

	if (feed && feed->ticket == answer->ticket)
	{
		feed->ticket = 0;
		answer->asked_at = feed->asked_at;
		feed->answer = answer;
		feed_activate(feed);
	}
	else
		MemoryContextDelete(answer->context);
}

/* Can the feed not go on before a refill worker has answered? */
static bool
is_blocked(const Feed *feed)
{
	return feed->query == NULL || feed->recheck || feed_is_checking(feed) ||
		!feed->loaded || feed_is_short(feed);
}

/* Must the answer wait for decoding, the cursor, or batches to be out? */
static bool
is_answer_early(const Feed *feed)
{
	if (feed->cursor < feed->merge_at)
		return true;
	if (feed->answer->status == REFILL_CHANGED)
		return feed->pending > 0;
	return feed->answer->status == REFILL_DONE && feed->nreads > 0 &&
		feed_position->lsn < feed->answer->view.lsn;
}

/* Can rows, or a look at the query, be asked for? */
static bool
may_ask(const Feed *feed)
{
	return feed->ticket == 0 && feed->answer == NULL && !feed->waiting &&
		feed->retry_at <= GetCurrentTimestamp();
}

static bool
wants_rows_now(const Feed *feed)
{
	return feed_wants_rows(feed) && may_ask(feed) && !feed_awaits_reload(feed);
}

static bool
can_advance(const Feed *feed)
{
	if (feed->replaying)
		return false;
	if (feed->forget)
		return feed->pending == 0;
	if (feed->resized || (feed->answer && !is_answer_early(feed)))
		return true;
	if (feed->cursor < feed->merge_at)
		return true;
	if (is_blocked(feed))
		return may_ask(feed);
	if (wants_rows_now(feed))
		return true;
	if (feed->behind)
		return true;			/* if only to be so no longer */
	return feed->held && feed->due <= GetCurrentTimestamp();
}

/*
 * Go on until the feed has caught up, waits, or has had its turn.
 */
static void
advance(Feed *feed, const void *arg)
{
	TimestampTz start = GetCurrentTimestamp();

	for (int i = 0; i < STEPS_PER_TURN && can_advance(feed) &&
		 !deliver_is_full(); i++)
	{
		if (i > 0 && TimestampDifferenceExceeds(start, GetCurrentTimestamp(),
												TURN_MS))
			break;
		CHECK_FOR_INTERRUPTS();
		if (feed->forget)
			feed_forget_query(feed);
		else if (feed->answer && !is_answer_early(feed))
			feed_take_answer(feed);
		else if (feed->resized)
			feed_share_resize(feed);
		else if (feed->cursor < feed->merge_at)
		{
			if (!feed_step(feed))
				feed->cursor = feed->merge_at;
		}
		else if (is_blocked(feed))
		{
			if (feed->query == NULL || feed->recheck)
				feed_request_check(feed);
			else if (feed_awaits_reload(feed))
				(void) feed_step(feed);
			else if (!feed_share_rows(feed))
				feed_request_rows(feed);
		}
		else if (wants_rows_now(feed))
			feed_request_rows(feed);
		else if (feed->held && feed->due <= GetCurrentTimestamp())
			feed_publish(feed);
		else if (!feed_step(feed))
		{
			feed->cursor = feed_position->commit.no;
			feed->behind = false;
			feed_pass(feed);
			feed_drop_idle(feed);
		}
	}
}

void
feed_run_safely(Feed *feed, void (*function) (Feed *feed, const void *arg),
				const void *arg)
{
	const SubscriptionRow *row = feed_first(feed)->row;
	MemoryContext caller = CurrentMemoryContext;

	PG_TRY();
	{
		StartTransactionCommand();
		SetUserIdAndSecContext(row->owner, SECURITY_RESTRICTED_OPERATION);
		catalog_apply_settings(row->nsettings, row->settings);
		PushActiveSnapshot(GetTransactionSnapshot());
		feed_watch_begin(feed);
		function(feed, arg);
		feed_watch_end(feed);
		PopActiveSnapshot();
		SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, 0);
		CommitTransactionCommand();
		MemoryContextSwitchTo(caller);
	}
	PG_CATCH();
	{
		ErrorData  *error;

		HOLD_INTERRUPTS();
		feed_watch_end(feed);
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(caller);
		RESUME_INTERRUPTS();
		if (feed->newborn)
			feed_fail(feed->newborn, error->sqlerrcode, error->message,
					  error->hint);
		feed->newborn = NULL;
		if (error->sqlerrcode != ERRCODE_QUERY_CANCELED ||
			!feed_watch_fail(feed))
			feed_fail(feed, error->sqlerrcode, error->message, error->hint);
		FreeErrorData(error);
	}
	PG_END_TRY();
	route_refresh(feed);
}

/* When a feed goes on by itself, unless something happens before; 0: never. */
static TimestampTz
next_time(const Feed *feed)
{
	TimestampTz at = 0;

	if (feed->replaying || feed->forget)
		return 0;
	if (feed->held)
		at = feed->due;
	if ((is_blocked(feed) || feed_wants_rows(feed)) &&
		feed->ticket == 0 && feed->answer == NULL && !feed->waiting &&
		(at == 0 || feed->retry_at < at))
		at = feed->retry_at;
	return at;
}

/* Is there nothing that the feed could go on with, or waits for? */
static bool
has_settled(const Feed *feed)
{
	return !feed->replaying && !feed->behind && !feed->forget && !feed->held &&
		!feed->resized && feed->ticket == 0 && feed->answer == NULL &&
		!is_blocked(feed) && !feed_wants_rows(feed) && !feed_wants_merge(feed);
}

/* Is feed_activate called when a feed that cannot advance can do so? */
static bool
will_be_called(const Feed *feed)
{
	return feed->replaying || feed->forget || feed->answer == NULL ||
		feed->answer->status == REFILL_CHANGED;
}

/* The next turn begins with this feed, which is ready. */
static void
begin_with(Feed *feed)
{
	while (dlist_head_node(&ready) != &feed->ready_node)
		dlist_push_tail(&ready, dlist_pop_head_node(&ready));
}

static void
shrink_stale_cushions(void)
{
	Cushion    *cushion;

	while ((cushion = cushion_next_stale(feed_position->commit.no)) != NULL)
		feed_shrink((Feed *) ((char *) cushion - offsetof(Feed, cushion)));
}

static void
activate_due(void)
{
	TimestampTz now = GetCurrentTimestamp();

	while (!pairingheap_is_empty(timers))
	{
		Feed	   *feed = pairingheap_container(Feed, timer_node,
												 pairingheap_first(timers));

		if (feed->timer_at > now)
			break;
		set_timer(feed, 0);
		feed_activate(feed);
	}
}

/* Returns whether the feed should have another turn at once. */
static bool
take_turn(Feed *feed)
{
	if (can_advance(feed))
	{
		instr_time	start;

		INSTR_TIME_SET_CURRENT(start);
		feed_run_safely(feed, advance, NULL);
		feed->counters.work_time += meter_elapsed(start);
	}
	feed_share_note(feed);
	note_look(feed);
	if (can_advance(feed))
		return true;
	if (has_settled(feed))
		feed_rest(feed);
	else
	{
		set_timer(feed, next_time(feed));
		if (will_be_called(feed))
			unready(feed);
	}
	return false;
}

bool
feed_advance_all(void)
{
	dlist_mutable_iter iter;
	bool		more = false;

	nrousing = 0;
	shrink_stale_cushions();
	activate_due();
	dlist_foreach_modify(iter, &ready)
	{
		Feed	   *feed = dlist_container(Feed, ready_node, iter.cur);

		if (deliver_is_full())
		{
			begin_with(feed);
			return true;
		}
		more |= take_turn(feed);
	}
	return more;
}

long
feed_next_timeout(void)
{
	TimestampTz now = GetCurrentTimestamp();
	long		timeout = -1;

	if (!pairingheap_is_empty(timers))
		timeout = timeout_until(timeout, now,
								pairingheap_container(Feed, timer_node,
													  pairingheap_first(timers))->timer_at);
	if (feed_next_lease_end() != 0)
		timeout = timeout_until(timeout, now, feed_next_lease_end());
	return timeout;
}

static void
flush(Feed *feed, const void *arg)
{
	feed_publish(feed);
}

static void
part(Feed *feed, const void *arg)
{
	feed_share_part(unconstify(void *, arg));
}

void
feed_flush(Subscriber *subscriber)
{
	/* others of the feed are not to have more batches for it */
	if (subscriber->feed->held && subscriber->feed->nsubscribers > 1)
		feed_run_safely(subscriber->feed, part, subscriber);
	if (subscriber->feed->held)
		feed_run_safely(subscriber->feed, flush, NULL);
}

void
feed_flush_all(void)
{
	dlist_iter	iter;

	dlist_foreach(iter, &active)
	{
		Feed	   *feed = dlist_container(Feed, active_node, iter.cur);

		if (feed->held)
			feed_run_safely(feed, flush, NULL);
	}
}
