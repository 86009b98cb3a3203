/*
 * feed_check.c
 *	  Does the query of a feed mean what it did, for all who show it?
 *
 * Refill workers analyse it again, when the catalogs have changed.  Equal
 * queries may come of different texts, which name different things: one of
 * them can fail, or become another query, without the others.  So each text is
 * looked at, and those who have it get feeds of their own where it is no
 * longer what the others are.
 */
#include "postgres.h"

#include "feed_private.h"
#include "route.h"
#include "utils/memutils.h"

/* Somebody whose text may mean something else, or NULL. */
static Subscriber *
find_unchecked(const Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, unconstify(dlist_head *, &feed->subscribers))
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		if (subscriber->unchecked)
			return subscriber;
	}
	return NULL;
}

/* Mark those who have the same text as a subscriber. */
static void
mark_text(Feed *feed, const Subscriber *subscriber, bool unchecked)
{
	dlist_iter	iter;

	dlist_foreach(iter, &feed->subscribers)
	{
		Subscriber *other = dlist_container(Subscriber, node, iter.cur);

		if (other == subscriber || subscriber_same_text(other, subscriber))
			other->unchecked = unchecked;
	}
}

void
feed_note_fingerprint(Feed *feed, const Subscriber *subscriber,
					  const char *text)
{
	uint64		fingerprint = query_text_fingerprint(text);
	dlist_iter	iter;

	dlist_foreach(iter, &feed->subscribers)
	{
		Subscriber *other = dlist_container(Subscriber, node, iter.cur);

		if (other == subscriber || subscriber_same_text(other, subscriber))
			other->fingerprint = fingerprint;
	}
}

void
feed_uncheck_text(Feed *feed, const Subscriber *subscriber)
{
	feed_mark_dirty(feed);
	mark_text(feed, subscriber, true);
	feed->recheck = feed->query && find_unchecked(feed);
}

void
feed_give_up_refill(Feed *feed)
{
	if (feed_is_checking(feed))
		feed_uncheck_text(feed, feed->asker);
	feed_drop_refill(feed);
}

void
feed_look_again(Feed *feed, uint64 asked_at)
{
	dlist_iter	iter;

	if (asked_at == feed_catalog_changes)
		return;
	dlist_foreach(iter, &feed->subscribers)
		dlist_container(Subscriber, node, iter.cur)->unchecked = true;
	feed->recheck = true;
}

/*
 * A query that is looked at for the first time is read at the same time,
 * unless that may take long: what a query is about should be known soon, since
 * until then the changes of all tables are logged.  How a page far from the
 * start is best read depends on the query, and so does how few rows can do; a
 * set may need no rows, and another feed may have those of a query that
 * somebody else has subscribed to.
 */
static bool
can_read_at_once(const Feed *feed)
{
	return feed->query == NULL && feed->nsubscribers == 1 &&
		feed->limit < NO_LIMIT && feed->offset < feed_slice_offset &&
		!feed->cushion.tight &&
		!subscriber_has_equals(feed_first(feed)) &&
		refill_reads_at_once(feed_pool);
}

/* A text means what it did. */
static void
go_on(Feed *feed)
{
	feed_mark_dirty(feed);
	if (!feed->recheck)
		feed_settle(feed);		/* what was held back meanwhile */
	if (feed->loaded)
		feed->failures = 0;
}

void
feed_request_check(Feed *feed)
{
	Subscriber *subscriber;

	Assert(feed->ticket == 0 && feed->answer == NULL);
	feed_mark_dirty(feed);
	feed->unseen = commit_log_drop_seen(feed->unseen);
	if (feed->unseen != NIL)
	{
		feed_look_again_later(feed);
		return;
	}

	subscriber = find_unchecked(feed);
	if (subscriber && feed_follow_check(feed, subscriber))
	{
		feed->recheck = find_unchecked(feed) != NULL;
		if (feed->check == NULL)
			go_on(feed);
		return;
	}
	if (subscriber == NULL)
		subscriber = feed_first(feed);
	mark_text(feed, subscriber, false);
	feed->looks = 0;
	feed->recheck = find_unchecked(feed) != NULL;
	if (can_read_at_once(feed))
		feed_request_first_rows(feed);
	else
	{
		feed_submit(feed, subscriber, 0, NULL);
		feed_lead_check(feed, subscriber);
	}
	route_note_logger(feed);
	feed_activate(feed);
}

/* Is the text that was analysed that of some subscribers only? */
static bool
concerns_some(const Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, unconstify(dlist_head *, &feed->subscribers))
		if (!subscriber_same_text(dlist_container(Subscriber, node, iter.cur),
								  feed->asker))
			return true;
	return false;
}

/* Clients that knew the result before start anew. */
static void
take_query(Feed *feed, const void *arg)
{
	const RefillAnswer *answer = arg;

	if (feed->query)
	{
		feed_note_resets(feed);
		feed_drop_events(feed);
	}
	feed_set_query(feed, answer->query_text);
	feed_note_fingerprint(feed, feed_first(feed), answer->query_text);
	feed_note_full(feed, answer->full);
	feed_look_again(feed, answer->asked_at);
	feed_start_passing(feed);
}

static void
fail(Feed *feed, const void *arg)
{
	const RefillAnswer *answer = arg;

	feed_fail(feed, answer->sqlerrcode, answer->error, answer->hint);
}

/*
 * What the answer says of a text is true for those who have it; the others go
 * on as they were.
 */
static void
take_of_text(Feed *feed, void (*function) (Feed *feed, const void *arg))
{
	RefillAnswer *answer = feed->answer;
	Subscriber *asker = feed->asker;
	dlist_mutable_iter iter;

	/* it outlives the refill */
	feed->answer = NULL;
	feed_mark_dirty(feed);
	MemoryContextSetParent(answer->context, CurTransactionContext);
	if (!concerns_some(feed))
		function(feed, answer);
	else
	{
		dlist_foreach_modify(iter, &feed->subscribers)
		{
			Subscriber *subscriber = dlist_container(Subscriber, node,
													 iter.cur);

			if (subscriber != asker && subscriber_same_text(subscriber, asker))
				feed_split(subscriber, function, answer);
		}
		feed_split(asker, function, answer);
		if (feed->query && !feed->recheck)
			feed_settle(feed);	/* what was held back meanwhile */
	}
	MemoryContextDelete(answer->context);
}

void
feed_take_check(Feed *feed)
{
	if (feed->query == NULL || feed->answer->status == REFILL_CHANGED)
	{
		take_of_text(feed, take_query);
		if (feed->loaded)
			feed->failures = 0;
	}
	else
	{
		bool		same = query_text_fingerprint(feed->answer->query_text) ==
		feed->asker->fingerprint;

		if (query_add_dependencies(feed->query, feed->answer->query_text,
								   feed->template->context))
			feed->template->depends_at = feed_catalog_changes;

		/* what it turns out to depend on may have changed since */
		if (feed->asked_at < feed->template->depends_at)
		{
			feed_give_up_refill(feed);
			return;
		}
		feed_end_check(feed, same ? CHECK_CONFIRMED : CHECK_REFUTED,
					   feed->answer->full);
		feed_note_fingerprint(feed, feed->asker, feed->answer->query_text);
		feed_note_full(feed, feed->answer->full);
		feed_drop_refill(feed);
		go_on(feed);
	}
}

void
feed_take_failure(Feed *feed)
{
	switch (feed->answer->sqlerrcode)
	{
		case ERRCODE_CONNECTION_FAILURE:
		case ERRCODE_QUERY_CANCELED:
		case ERRCODE_T_R_DEADLOCK_DETECTED:
			ereport(LOG,
					(errmsg("refill of live_topn subscription \"%s\" failed: %s",
							feed->asker->row->name, feed->answer->error)));
			feed_give_up_refill(feed);
			feed_retry_later(feed);
			break;
		default:
			take_of_text(feed, fail);
	}
}

/*
 * Roles belong to the whole server: a subscription does not keep its owner from
 * being dropped, and goes with him.  We shall see that in the log; if not, we
 * try again.
 */
void
feed_drop_orphans(Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, &feed->subscribers)
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		ereport(LOG,
				(errmsg("live_topn subscription \"%s\" is dropped because its owner was",
						subscriber->row->name)));
		refill_submit_drop(feed_pool, subscriber->id);
	}
	feed_fail(feed, ERRCODE_UNDEFINED_OBJECT,
			  "its owner does not exist any more", NULL);
}
