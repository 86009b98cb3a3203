/*
 * feed_share.c
 *	  Subscriptions with equal queries share the rows of one feed.
 *
 * A subscription begins with a feed of its own, at the commit at which it was
 * born.  Once its query is known, the feeds of the same template and the same
 * values form a share.  One of them, the host, has the rows that the others
 * would read.  A new one copies them, and moves them from the host's place in
 * the log to its own as if they had been read from the table (reconcile.c): so
 * its first result is that of its own commit, though no query has run.  While
 * the host itself is reading, they wait for it.
 *
 * When such a feed has caught up and published all, it and the host hold rows
 * of the same relation at the same place of the log.  Then its subscribers
 * pass to the host, and it goes; or the other way round, if it holds more.
 * What subscribers see is the same before and after.
 *
 * With a throttle that is so only for a moment, when held back results come
 * out.  Those with the same throttle form a share of their own, and a new one
 * waits for the time of the host.  A subscriber whose result is read earlier
 * parts from the others.
 *
 * Pages far from the start, which are slices, share only with the same page.
 * One that moves there, or from there, gets a feed of its own.  Of groups, too,
 * all show the same ranks; if the host has dropped some (window_drop.c), a new
 * feed reads its first rows itself.  Results without LIMIT share only among
 * themselves, and sets not at all: they need no rows.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "feed_private.h"
#include "route.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

/* What must be the same, beside the query and its values. */
typedef struct ShareKey
{
	int64		throttle_ms;
	bool		unlimited;		/* results are without LIMIT */
	bool		one_page;		/* all show the same page: that one */
	int64		offset;
	int64		limit;
} ShareKey;

typedef struct Share
{
	uint64		hash;
	struct Share *next;			/* with the same hash */
	ShareKey	key;
	dlist_head	feeds;			/* by their share_node */
	Feed	   *host;			/* NULL: none is loaded */
	Feed	   *reader;			/* reads the first rows; NULL: nobody does */
	dlist_node	turn_node;		/* in had_turn, if noted */
	bool		noted;
} Share;

typedef struct ShareEntry
{
	uint64		hash;
	Share	   *first;
} ShareEntry;

static MemoryContext share_context;
static HTAB *shares;			/* of ShareEntry */
static dlist_head had_turn = DLIST_STATIC_INIT(had_turn);	/* of Share */

void
feed_share_startup(MemoryContext parent)
{
	HASHCTL		ctl = {0};

	share_context = AllocSetContextCreate(parent, "live_topn shares",
										  ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(ShareEntry);
	ctl.hcxt = share_context;
	shares = hash_create("live_topn shares", 64, &ctl,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* ---- who may share ---- */

static ShareKey
key_of(const Subscriber *subscriber)
{
	ShareKey	key = {
		.throttle_ms = subscriber->row->throttle_ms,
		.unlimited = subscriber->limit == NO_LIMIT,
		.one_page = subscriber->offset >= feed_slice_offset ||
		subscriber->feed->query->ngroups > 0
	};

	if (key.one_page)
	{
		key.offset = subscriber->offset;
		key.limit = subscriber->limit;
	}
	return key;
}

static bool
keys_are_equal(const ShareKey *a, const ShareKey *b)
{
	return a->throttle_ms == b->throttle_ms && a->unlimited == b->unlimited &&
		a->one_page == b->one_page && a->offset == b->offset &&
		a->limit == b->limit;
}

static uint64
hash_share(const Feed *feed, const ShareKey *key)
{
	uint64		hash = template_params_hash(feed->template, feed->params);

	hash = hash_combine64(hash, feed->template->hash);
	hash = hash_combine64(hash, key->throttle_ms * 2 + key->unlimited);
	return hash_combine64(hash, key->offset);
}

static bool
may_share(const Feed *feed)
{
	return feed->template && !feed->query->unranked;
}

static bool
is_of_share(const Share *share, const Subscriber *subscriber)
{
	ShareKey	key = key_of(subscriber);

	return keys_are_equal(&share->key, &key);
}

static bool
has_query(const Share *share, const Feed *feed)
{
	const Feed *other = dlist_head_element(Feed, share_node,
										   unconstify(dlist_head *,
													  &share->feeds));

	return template_is_equal(feed->template, other->template) &&
		template_params_equal(feed->template, other->params, feed->params);
}

static Share *
get_share(const Feed *feed)
{
	ShareKey	key = key_of(feed_first(feed));
	uint64		hash = hash_share(feed, &key);
	bool		found;
	ShareEntry *entry = hash_search(shares, &hash, HASH_ENTER, &found);
	Share	   *share;

	if (!found)
		entry->first = NULL;
	for (share = entry->first; share; share = share->next)
		if (keys_are_equal(&share->key, &key) && has_query(share, feed))
			return share;

	share = MemoryContextAllocZero(share_context, sizeof(Share));
	share->hash = hash;
	share->next = entry->first;
	share->key = key;
	dlist_init(&share->feeds);
	entry->first = share;
	return share;
}

static void
free_share(Share *share)
{
	ShareEntry *entry = hash_search(shares, &share->hash, HASH_FIND, NULL);
	Share	  **link;

	for (link = &entry->first; *link != share; link = &(*link)->next)
		;
	*link = share->next;
	if (entry->first == NULL)
		hash_search(shares, &share->hash, HASH_REMOVE, NULL);
	if (share->noted)
		dlist_delete(&share->turn_node);
	pfree(share);
}

/* Let the others look what there is for them now. */
static void
wake_others(Share *share, const Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, &share->feeds)
	{
		Feed	   *other = dlist_container(Feed, share_node, iter.cur);

		if (other == feed)
			continue;
		other->waiting = false;
		feed_activate(other);
	}
}

void
feed_share_leave(Feed *feed)
{
	Share	   *share = feed->share;
	dlist_iter	iter;

	feed->resized = false;
	if (share == NULL)
		return;
	dlist_delete(&feed->share_node);
	feed->share = NULL;
	feed->waiting = false;
	if (dlist_is_empty(&share->feeds))
	{
		free_share(share);
		return;
	}

	if (share->host != feed && share->reader != feed)
		return;
	if (share->reader == feed)
		share->reader = NULL;
	if (share->host == feed)
	{
		share->host = NULL;
		dlist_foreach(iter, &share->feeds)
		{
			Feed	   *other = dlist_container(Feed, share_node, iter.cur);

			if (other->loaded && !other->replaying)
				share->host = other;
		}
	}
	wake_others(share, NULL);
}

/* Is there a page among them that is not of the share? */
static bool
has_to_part(const Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, unconstify(dlist_head *, &feed->subscribers))
		if (!is_of_share(feed->share,
						 dlist_container(Subscriber, node, iter.cur)))
			return true;
	return false;
}

void
feed_share_join(Feed *feed)
{
	if (feed->share && feed->nsubscribers == 1 && has_to_part(feed))
		feed_share_leave(feed);
	if (feed->share == NULL)
	{
		if (!may_share(feed))
			return;
		feed->share = get_share(feed);
		dlist_push_tail(&feed->share->feeds, &feed->share_node);
		if (feed->share->host == NULL && feed->loaded && !feed->replaying)
			feed->share->host = feed;
		feed_activate(feed);
	}
	if (feed->nsubscribers > 1 && has_to_part(feed))
	{
		feed->resized = true;
		feed_activate(feed);
	}
}

static void
join_again(Feed *feed, const void *arg)
{
	feed_share_join(feed);
}

void
feed_change_slices(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &feed_all)
	{
		Feed	   *feed = dlist_container(Feed, node, iter.cur);

		if (feed->share)
			feed_run_safely(feed, join_again, NULL);
	}
}

/* ---- rows for a new one ---- */

void
feed_share_loaded(Feed *feed)
{
	Share	   *share = feed->share;

	if (share == NULL)
		return;
	if (share->reader == feed)
		share->reader = NULL;
	if (share->host == NULL)
		share->host = feed;
	if (share->host == feed)
		wake_others(share, feed);
}

/* Are the rows right? */
static bool
has_rows(const Feed *feed)
{
	return feed->loaded && !feed->replaying && !feed->lost &&
		!feed->recheck && !feed_is_checking(feed) &&
		!feed_awaits_reload(feed) &&
		!window_set_is_lost(feed->windows) &&
		feed_position->lsn >= feed->applied;
}

bool
feed_share_rows(Feed *feed)
{
	Share	   *share = feed->share;
	ReadView	view = {.is_place = true};
	WindowSet  *rows;

	if (share == NULL || feed->loaded || !window_set_is_lost(feed->windows))
		return false;
	if (share->host == NULL)
	{
		feed->waiting = share->reader != NULL && share->reader != feed;
		if (!feed->waiting)
			share->reader = feed;
		return feed->waiting;
	}
	if (!has_rows(share->host) ||
		window_set_is_partial(share->host->windows))
		return false;

	rows = window_set_create(feed->format, feed->params,
							 feed->template->rows);
	window_set_copy_rows(rows, share->host->windows);
	view.place = feed_place(share->host);
	if (feed->merge_at == 0)
		feed->since = feed->kept = feed_place(feed);
	switch (feed_reconcile(feed, rows, &view, NULL))
	{
		case RECONCILED:
			feed_note_full(feed, share->host->full);
			cushion_shift(&feed->cushion, rows->nrows);
			feed_take_first(feed, rows);
			route_take_windows(feed);
			feed_drop_refill(feed);
			feed_settle(feed);
			return true;
		case RECONCILE_LATER:
			window_set_free(rows);
			return true;
		case RECONCILE_READ_AGAIN:
			break;
	}
	window_set_free(rows);
	feed_drop_refill(feed);
	return false;
}

/* ---- merging ---- */

/* Has all been published that is known, so that only rows and pages count? */
static bool
is_at_rest(const Feed *feed)
{
	return has_rows(feed) && feed->covered == 0 &&
		feed_place(feed) == feed_position->commit.no &&
		!feed->held && !feed->resized && feed->unseen == NIL &&
		feed->events == NIL && !feed_is_short(feed);
}

static bool
goes_further(const Window *a, const Window *b)
{
	if (a->end == WINDOW_COMPLETE || b->end == WINDOW_COMPLETE)
		return b->end != WINDOW_COMPLETE;
	return row_compare(a->set->format, a->high, b->high) > 0;
}

/*
 * Of two feeds that followed the same changes, as after a restart, the sum
 * would count them twice; and what clients have seen must not go back.
 */
static void
keep_counters(FeedCounters *counters, const FeedCounters *others)
{
	counters->changes = Max(counters->changes, others->changes);
	counters->refills = Max(counters->refills, others->refills);
	counters->refilled_rows = Max(counters->refilled_rows,
								  others->refilled_rows);
	counters->refill_time = Max(counters->refill_time, others->refill_time);
	counters->work_time = Max(counters->work_time, others->work_time);
}

/* Clients know the result of both feeds, which is the same. */
static void
pass_to(Feed *host, Subscriber *subscriber)
{
	bool		counted = subscriber->feed->windows->counted ||
		host->windows->counted;

	feed_transfer(subscriber, host);
	if (counted)
		subscriber->page = feed_page(subscriber, host->windows->only);
}

/* The texts of those who come may name a view, say, that the others do not. */
static void
add_dependencies(Feed *host, const Feed *feed)
{
	char	   *text;

	if (host->template == feed->template)
		return;
	text = template_text(feed->template, feed->params);
	query_add_dependencies(host->query, text, host->template->context);
	pfree(text);
}

/*
 * Nothing takes memory from when the first subscriber leaves until all show the
 * host, so that no error leaves this half done.  Later errors are the host's
 * own.
 */
static void
merge(Feed *host, const void *arg)
{
	Feed	   *feed = unconstify(void *, arg);

	add_dependencies(host, feed);
	feed_share_leave(feed);
	keep_counters(&host->counters, &feed->counters);
	host->windows->loaded = Max(host->windows->loaded,
								feed->windows->loaded);
	host->due = Max(host->due, feed->due);
	while (feed->nsubscribers > 0)
		pass_to(host, feed_first(feed));
	feed_end(feed);
}

/* It shows other pages now.  Not before the last has come: rows may go. */
static void
settle_host(Feed *host, const void *arg)
{
	window_touch(host->windows->only, NULL);
	Assert(!feed_is_short(host));
	feed_settle_windows(host);
	feed_balance(host);
}

bool
feed_wants_merge(const Feed *feed)
{
	return feed->share && feed->loaded && feed->share->host &&
		feed->share->host != feed;
}

void
feed_share_note(Feed *feed)
{
	Share	   *share = feed->share;

	if (share == NULL || share->noted ||
		(share->host != feed && !feed_wants_merge(feed)) ||
		dlist_head_node(&share->feeds) == dlist_tail_node(&share->feeds))
		return;
	dlist_push_tail(&had_turn, &share->turn_node);
	share->noted = true;
}

/*
 * A throttle holds the host's result back: let a feed publish no sooner, so
 * that both are at rest at the same time.
 */
static void
wait_for_host(Feed *feed)
{
	const Feed *host = feed->share->host;

	if (!host->held || feed->due >= host->due)
		return;
	feed->due = host->due;
	feed_activate(feed);
}

/* Has it rows for all pages of its share?  A slice may begin too late. */
static bool
has_all_pages(const Feed *feed)
{
	return feed->share->key.one_page || !feed->windows->counted;
}

/* Can they become one?  Rows of pending batches live with their template. */
static bool
can_merge(const Feed *host, const Feed *feed)
{
	return feed != host && feed->loaded && !feed->wanted &&
		has_all_pages(host) && has_all_pages(feed) &&
		(feed->pending == 0 || feed->template == host->template) &&
		is_at_rest(host) && is_at_rest(feed);
}

/* Let the one be the host whose windows go furthest. */
static void
choose_host(Feed *host, const void *arg)
{
	Share	   *share = host->share;
	dlist_iter	iter;

	dlist_foreach(iter, &share->feeds)
	{
		Feed	   *feed = dlist_container(Feed, share_node, iter.cur);

		if (can_merge(share->host, feed) && can_merge(feed, share->host) &&
			goes_further(feed->windows->only, share->host->windows->only))
			share->host = feed;
	}
}

static bool
has_guest(const Share *share)
{
	dlist_iter	iter;

	dlist_foreach(iter, unconstify(dlist_head *, &share->feeds))
		if (can_merge(share->host,
					  dlist_container(Feed, share_node, iter.cur)))
			return true;
	return false;
}

static void
merge_share(Share *share)
{
	Feed	   *host = share->host;
	int64		offset;
	int64		limit;
	dlist_mutable_iter iter;

	if (host == NULL)
		return;
	if (!share->key.one_page && has_guest(share))
	{
		feed_run_safely(host, choose_host, NULL);
		if (host->share != share)
			return;				/* after an error */
		host = share->host;
	}
	offset = host->offset;
	limit = host->limit;
	dlist_foreach_modify(iter, &share->feeds)
	{
		Feed	   *feed = dlist_container(Feed, share_node, iter.cur);

		if (can_merge(host, feed))
			feed_run_safely(host, merge, feed);
		else if (feed_wants_merge(feed))
			wait_for_host(feed);
		if (host->share != share)
			return;
	}
	if (host->offset != offset || host->limit != limit)
		feed_run_safely(host, settle_host, NULL);
}

void
feed_merge_all(void)
{
	while (!dlist_is_empty(&had_turn))
	{
		Share	   *share = dlist_head_element(Share, turn_node, &had_turn);

		dlist_delete(&share->turn_node);
		share->noted = false;
		merge_share(share);
	}
}

/* ---- parting ---- */

/* Perhaps less is needed now, or none of what is held. */
static void
settle_again(Feed *feed)
{
	if (feed->loaded && feed_page_is_far(feed))
	{
		feed_give_up_refill(feed);	/* it may be a look at the query */
		feed_lose_rows(feed);
	}
	if (feed->windows->only)
		window_touch(feed->windows->only, NULL);
	if (feed->loaded && !feed->recheck && !feed_is_checking(feed))
		feed_settle(feed);
}

/* Rows for a feed that is split off. */
static void
take_copy(Feed *split, const void *arg)
{
	const Feed *feed = arg;

	/* of rows that are lost, too, there is what clients know of them */
	window_set_copy(split->windows, feed->windows);
	cushion_shift(&split->cushion, split->windows->nrows);
	route_join(split);
	feed_share_join(split);
	settle_again(split);
	route_refresh(split);
}

void
feed_share_part(Subscriber *subscriber)
{
	const Feed *feed = subscriber->feed;

	if (feed_is_checking(feed))
		subscriber->unchecked = true;
	feed_split(subscriber, take_copy, feed);
}

void
feed_share_resize(Feed *feed)
{
	dlist_mutable_iter iter;

	feed->resized = false;
	dlist_foreach_modify(iter, &feed->subscribers)
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		if (feed->nsubscribers > 1 &&
			!is_of_share(feed->share, subscriber))
			feed_share_part(subscriber);
	}
	feed_share_join(feed);		/* if one is left, it may be such a page */
	settle_again(feed);
}
