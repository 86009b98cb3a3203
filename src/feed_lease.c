/*
 * feed_lease.c
 *	  Subscriptions that end by themselves: with a lease, or with a session.
 *
 * When its time has come, a refill worker deletes the row of a subscription,
 * and we see it go in the log, as any other.
 *
 * A lease is counted from the commits that made and renewed it.  A worker that
 * lags ends none that was renewed in time: it decodes first what there is.
 * After a start, clients have some time to come back.
 */
#include "postgres.h"

#include "feed_private.h"
#include "lib/pairingheap.h"
#include "request.h"
#include "session.h"
#include "utils/timestamp.h"

#define DROP_RETRY_MS		10000
#define GRACE_MS			30000	/* after a start */

static pairingheap *leases;		/* by lease_end */
static dlist_head sessions = DLIST_STATIC_INIT(sessions);	
static uint32 ends_seen;		/* of session_ends */
static bool unseen_sessions;	/* there are new ones in the list */
static TimestampTz started_at;
static dlist_head renewed = DLIST_STATIC_INIT(renewed);

/* The earliest is the first of the heap. */
static int
compare_leases(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	TimestampTz x = pairingheap_const_container(Subscriber, lease_node, a)->lease_end;
	TimestampTz y = pairingheap_const_container(Subscriber, lease_node, b)->lease_end;

	return (x < y) - (x > y);
}

void
feed_lease_startup(void)
{
	leases = pairingheap_allocate(compare_leases, NULL);
	started_at = GetCurrentTimestamp();
}

static void
set_lease(Subscriber *subscriber, TimestampTz end)
{
	if (subscriber->lease_end != 0)
		pairingheap_remove(leases, &subscriber->lease_node);
	subscriber->lease_end = end;
	if (end != 0)
		pairingheap_add(leases, &subscriber->lease_node);
}

/* A lease may end then, but not soon after a start. */
static void
set_lease_end(Subscriber *subscriber, TimestampTz end)
{
	int64		grace = Min(subscriber->row->lease_ms, GRACE_MS);

	set_lease(subscriber, Max(end, TimestampTzPlusMilliseconds(started_at, grace)));
}

void
feed_start_lease(Subscriber *subscriber, TimestampTz at)
{
	feed_renew(subscriber, at);
	if (subscriber->row->session != 0)
	{
		dlist_push_tail(&sessions, &subscriber->session_node);
		unseen_sessions = true;
	}
}

void
feed_restore_lease(Subscriber *subscriber, TimestampTz end)
{
	if (subscriber->row->lease_ms > 0 && end != 0)
		set_lease_end(subscriber, end);
}

void
feed_renew(Subscriber *subscriber, TimestampTz at)
{
	if (subscriber->row->lease_ms == 0 || subscriber->orphaned)
		return;
	set_lease_end(subscriber, TimestampTzPlusMilliseconds(at, subscriber->row->lease_ms));
	if (!subscriber->renewed)
		dlist_push_tail(&renewed, &subscriber->renewed_node);
	subscriber->renewed = true;
}

static void
forget_renewal(Subscriber *subscriber)
{
	if (subscriber->renewed)
		dlist_delete(&subscriber->renewed_node);
	subscriber->renewed = false;
}

dlist_head *
feed_list_renewed(void)
{
	return &renewed;
}

void
feed_clean_leases(void)
{
	while (!dlist_is_empty(&renewed))
		forget_renewal(dlist_head_element(Subscriber, renewed_node, &renewed));
}

void
feed_stop_lease(Subscriber *subscriber)
{
	set_lease(subscriber, 0);
	forget_renewal(subscriber);
	if (subscriber->row->session != 0 && !subscriber->orphaned)
		dlist_delete(&subscriber->session_node);
}

TimestampTz
feed_next_lease_end(void)
{
	if (pairingheap_is_empty(leases))
		return 0;
	return pairingheap_container(Subscriber, lease_node,
								 pairingheap_first(leases))->lease_end;
}

/* A subscription ends with its session at once, whatever its lease is. */
static void
end_sessions(void)
{
	uint32		ends = session_ends();
	dlist_mutable_iter iter;

	if (ends == ends_seen && !unseen_sessions)
		return;
	ends_seen = ends;
	unseen_sessions = false;
	dlist_foreach_modify(iter, &sessions)
	{
		Subscriber *subscriber = dlist_container(Subscriber, session_node, iter.cur);

		if (session_is_alive(subscriber->row->session))
			continue;
		dlist_delete(&subscriber->session_node);
		subscriber->orphaned = true;
		set_lease(subscriber, started_at);
	}
}

void
feed_end_leases(void)
{
	static TimestampTz looked_at;	/* 0: not */
	static XLogRecPtr renewed;	/* all renewals before are in WAL up to here */
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz end;

	end_sessions();
	end = feed_next_lease_end();
	if (end == 0 || end > now)
		return;
	if (looked_at == 0)
	{
		looked_at = now;
		renewed = request_flush_point();
	}
	if (feed_position->lsn < renewed)
		return;

	while ((end = feed_next_lease_end()) != 0 && end <= looked_at)
	{
		Subscriber *subscriber = pairingheap_container(Subscriber, lease_node,
												 pairingheap_first(leases));

		/* we shall see it go; if not, try again */
		refill_submit_drop(feed_pool, subscriber->id);
		set_lease(subscriber, TimestampTzPlusMilliseconds(now, DROP_RETRY_MS));
	}
	looked_at = 0;
}
