/*
 * feed.c
 *	  The windows of a query, which follow the log, for those who subscribed.
 *
 * The windows of a feed are exact at its cursor: at the last commit decoded,
 * or, if the feed is behind, at a commit of the log.  A feed falls behind when
 * its window runs short of rows, when something concerns it that cannot be
 * evaluated while decoding, and when a catalog change makes us look at the
 * query again; it then goes through the log commit by commit.
 *
 * What is published is always the difference between two exact results.
 * Where a result stays unknown because an old version is (see reconcile.c),
 * the commits in between share one batch.
 *
 * Here feeds come and go.  feed_turn.c gives them their turns, feed_log.c
 * applies commits, feed_publish.c publishes results, feed_refill.c and
 * feed_merge.c keep the window supplied with rows, feed_bound.c in its bounds,
 * feed_check.c looks whether the query is still what it was, and
 * feed_joint_check.c for many at once, feed_share.c has subscriptions with equal
 * queries share a feed, feed_restart.c takes over from an earlier worker,
 * feed_watch.c gives up expressions that take too long, feed_lease.c ends
 * subscriptions, and feed_state.c says how far a feed is.
 */
#include "postgres.h"

#include "access/xact.h"
#include "feed_private.h"
#include "intern.h"
#include "route.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#define FEED_BLOCK_SIZE			(2 * 1024)	/* usually all that it takes */
#define MAX_BACKOFF_MS		60000
#define MAX_GROUP_CUSHION	10

CommitLog  *feed_commit_log;
RefillPool *feed_pool;
const LogPosition *feed_position;

dlist_head	feed_all = DLIST_STATIC_INIT(feed_all);

static MemoryContext feed_context;
static int	unresolved;			/* feeds that wait to know their query */
static dlist_head unknown = DLIST_STATIC_INIT(unknown);
static dlist_head dirty = DLIST_STATIC_INIT(dirty);

void
feed_startup(MemoryContext parent, CommitLog *commit_log,
			 RefillPool *refill_pool, const LogPosition *log_position)
{
	feed_context = AllocSetContextCreate(parent, "live_topn feeds",
										 ALLOCSET_DEFAULT_SIZES);
	feed_commit_log = commit_log;
	feed_pool = refill_pool;
	feed_position = log_position;
	intern_startup(feed_context);
	feed_turn_startup();
	feed_watch_startup(feed_context);
	feed_lease_startup();
	feed_share_startup(parent);
	feed_joint_check_startup(parent);
	subscriber_startup(parent);
	template_startup(feed_context);
}

bool
feed_must_hold_rows(const Feed *feed)
{
	/* of a query that is not known yet, groups may have bounds */
	return feed->limit == 0 ||
		(feed->query ? feed->query->bound != InvalidAttrNumber :
		 feed_first(feed)->row->grouped);
}

/* ---- what is not as it was saved ---- */

void
feed_mark_dirty(Feed *feed)
{
	if (!feed->dirty)
		dlist_push_tail(&dirty, &feed->dirty_node);
	feed->dirty = true;
}

void
feed_mark_clean(Feed *feed)
{
	if (feed->dirty)
		dlist_delete(&feed->dirty_node);
	feed->dirty = false;
}

void
feed_clean(void)
{
	while (!dlist_is_empty(&dirty))
		feed_mark_clean(dlist_head_element(Feed, dirty_node, &dirty));
	feed_clean_leases();
}

dlist_head *
feed_list_dirty(void)
{
	return &dirty;
}

bool
feed_any_dirty(void)
{
	return !dlist_is_empty(&dirty) || !dlist_is_empty(feed_list_renewed());
}

/* ---- subscribers and their pages ---- */

static void
extend_reach(Feed *feed, const Subscriber *subscriber)
{
	if (feed_reach(subscriber->offset, subscriber->limit) <=
		feed_reach(feed->offset, feed->limit))
		return;
	feed->offset = subscriber->offset;
	feed->limit = subscriber->limit;
}

/*
 * The cushion is what the subscriptions say: the largest, or adaptive if one
 * leaves it to us.
 */
static void
set_cushion(Feed *feed)
{
	const SubscriptionRow *row = feed_first(feed)->row;
	int			cushion = row->cushion;
	dlist_iter	iter;

	if (feed->nsubscribers > 1)
	{
		dlist_foreach(iter, &feed->subscribers)
		{
			int			other = dlist_container(Subscriber, node,
												iter.cur)->row->cushion;

			cushion = cushion < 0 || other < 0 ? -1 : Max(cushion, other);
			if (cushion < 0)
				break;
		}
	}
	if (cushion < 0 && row->grouped)
		cushion = Max(1, Min(feed->limit / 5, MAX_GROUP_CUSHION));
	if (cushion == 0 && feed_must_hold_rows(feed))
		cushion = 1;
	cushion_set(&feed->cushion, feed->limit == NO_LIMIT ? 0 : cushion);
	if (feed->cushion.tight)
		cushion_tighten(&feed->cushion, feed_must_hold_rows(feed));
}

/*
 * Find the page that reaches furthest, which none does further than most, -1
 * if that is not known.
 */
static void
find_reach(Feed *feed, int64 most)
{
	dlist_iter	iter;

	feed->offset = feed_first(feed)->offset;
	feed->limit = feed_first(feed)->limit;
	dlist_foreach(iter, &feed->subscribers)
	{
		if (feed_reach(feed->offset, feed->limit) == most)
			break;
		extend_reach(feed, dlist_container(Subscriber, node, iter.cur));
	}
}

static void
set_page(Subscriber *subscriber, int64 offset, int64 limit)
{
	subscriber->offset = offset;
	subscriber->limit = limit;
	feed_mark_dirty(subscriber->feed);
	find_reach(subscriber->feed, -1);
	set_cushion(subscriber->feed);
}

void
feed_move_page(Subscriber *subscriber, int64 offset, int64 limit)
{
	Feed	   *feed = subscriber->feed;
	uint64		position = 0;
	Window	   *window;

	set_page(subscriber, offset, limit);
	if (feed->windows == NULL)
		return;
	while ((window = window_set_next(feed->windows, &position)) != NULL)
		window_touch(window, window_key(window));
	feed_share_join(feed);
	if (feed_page_is_far(feed))
		feed->lost = true;
}

void
feed_leave_unresolved(Feed *feed)
{
	if (!feed->unresolved)
		unresolved++;
	feed->unresolved = true;
}

static void
attach(Subscriber *subscriber, Feed *feed)
{
	subscriber->feed = feed;
	dlist_push_tail(&feed->subscribers, &subscriber->node);
	feed->pending += subscriber->pending;
	feed_mark_dirty(feed);
	if (feed->nsubscribers++ == 0)
	{
		feed->offset = subscriber->offset;
		feed->limit = subscriber->limit;
		set_cushion(feed);
	}
	else
	{
		extend_reach(feed, subscriber);
		if (subscriber->row->cushion != feed_first(feed)->row->cushion)
			set_cushion(feed);
	}
}

/* Forget events of his. */
static void
drop_events_of(Feed *feed, const Subscriber *subscriber)
{
	ListCell   *lc;

	foreach(lc, feed->events)
	{
		FeedEvent  *event = lfirst(lc);

		if (event->subscriber != subscriber)
			continue;
		pfree(event);
		feed->events = foreach_delete_current(feed->events, lc);
	}
}

/* Events that concern him, copied. */
static List *
copy_events_of(const Feed *feed, const Subscriber *subscriber)
{
	List	   *copy = NIL;
	ListCell   *lc;

	foreach(lc, feed->events)
	{
		FeedEvent  *event = lfirst(lc);

		if (event->subscriber == subscriber || event->subscriber == NULL)
		{
			copy = lappend(copy, palloc(sizeof(FeedEvent)));
			memcpy(llast(copy), event, sizeof(FeedEvent));
		}
	}
	return copy;
}

/* He shows the feed no longer. */
static void
detach(Subscriber *subscriber)
{
	Feed	   *feed = subscriber->feed;
	int64		before;

	dlist_delete(&subscriber->node);
	if (--feed->nsubscribers == 0)
		return;
	feed->wanted = feed->unwieldy = false;	/* perhaps by him alone */
	if (feed->asker == subscriber)
	{
		feed_give_up_refill(feed);
		feed_activate(feed);
	}
	before = feed_reach(feed->offset, feed->limit);
	if (feed_reach(subscriber->offset, subscriber->limit) == before)
		find_reach(feed, before);
	if (feed->nsubscribers == 1)
	{
		set_cushion(feed);
		if (feed->share)
			feed_share_join(feed);
	}
	if (feed->share && (feed->nsubscribers == 1 ||
						feed_reach(feed->offset, feed->limit) < before))
	{
		feed->resized = true;
		feed_activate(feed);
	}
}

/* He shows another feed; events stay where they are.  This cannot fail. */
static void
move(Subscriber *subscriber, Feed *feed)
{
	subscriber->feed->pending -= subscriber->pending;
	detach(subscriber);
	attach(subscriber, feed);
}

void
feed_transfer(Subscriber *subscriber, Feed *feed)
{
	drop_events_of(subscriber->feed, subscriber);
	move(subscriber, feed);
}

static Feed *
make_feed(void)
{
	MemoryContext context = AllocSetContextCreate(feed_context,
												  "live_topn feed",
												  0, FEED_BLOCK_SIZE,
												  ALLOCSET_SMALL_MAXSIZE);
	Feed	   *feed = MemoryContextAllocZero(context, sizeof(Feed));

	feed->context = context;
	dlist_init(&feed->subscribers);
	dlist_push_tail(&feed_all, &feed->node);
	dlist_push_tail(&unknown, &feed->template_node);
	return feed;
}

void
feed_create(Subscriber *subscriber, bool found)
{
	Feed	   *feed = make_feed();

	attach(subscriber, feed);
	feed->replaying = found;
	if (!found)
	{
		feed->behind = true;
		feed->cursor = feed_position->commit.no;
		feed_leave_unresolved(feed);
	}
	feed_activate(feed);
}

static void
resolve(Feed *feed)
{
	if (feed->unresolved)
		unresolved--;
	feed->unresolved = false;
}

bool
feed_any_unresolved(void)
{
	return unresolved > 0;
}

dlist_head *
feed_list_unknown(void)
{
	return &unknown;
}

/* List it with those of its template; or, if NULL, the unknown ones. */
static void
list_with(Feed *feed, Template *template)
{
	if (feed->nsubscribers == 0)
		return;					/* it has ended */
	dlist_delete(&feed->template_node);
	dlist_push_tail(template ? &template->feeds : &unknown,
					&feed->template_node);
}

void
feed_forget_query(Feed *feed)
{
	Assert(feed->pending == 0);
	route_leave(feed);
	feed_share_leave(feed);
	feed_drop_refill(feed);
	cushion_release(&feed->cushion);
	list_with(feed, NULL);
	if (feed->template)
	{
		if (feed->windows && feed->template->shared)
			window_set_free(feed->windows);
		template_free_params(feed->template, feed->params);
		template_release(feed->template);
	}
	feed->template = NULL;
	feed->params = NULL;
	feed->query = NULL;
	feed->format = NULL;
	feed->evaluator = NULL;
	feed->batch_format = NULL;
	feed->windows = NULL;
	feed->forget = false;
}

void
feed_drop_events(Feed *feed)
{
	dlist_iter	iter;

	list_free_deep(feed->events);
	feed->events = NIL;
	feed->behind = false;
	dlist_foreach(iter, &feed->subscribers)
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		subscriber->offset = subscriber->row->offset;
		subscriber->limit = subscriber->row->limit;
	}
	find_reach(feed, -1);
	set_cushion(feed);
}

/* The query is that of a template, of which the feed has a reference. */
static void
set_template(Feed *feed, Template *template)
{
	feed->template = template;
	list_with(feed, template);
	feed->query = template->query;
	feed->format = template->format;
	feed->evaluator = template->evaluator;
	feed->batch_format = template->batch_format;
	feed->windows = window_set_create(feed->format, feed->params,
									  template->rows);
}

void
feed_set_query(Feed *feed, const char *text)
{
	MemoryContext caller;
	Template   *template;

	feed_forget_query(feed);
	feed_mark_dirty(feed);
	resolve(feed);
	caller = MemoryContextSwitchTo(feed->context);
	template = template_acquire(feed_first(feed)->row, text, &feed->params);
	MemoryContextSwitchTo(caller);
	set_template(feed, template);
	set_cushion(feed);
	route_join(feed);
	feed_share_join(feed);

	feed->full = false;
	feed->full_at = 0;
	feed->unsliced = false;
	feed->loaded = false;
	feed->lost = false;
	feed->held = false;
	feed->covered = 0;
}

/* What a feed takes with it that is split off for a subscriber, but rows. */
static void
inherit(Feed *split, Feed *feed, const Subscriber *subscriber)
{
	/* outside of a transaction it is made to fail */
	char	   *text = feed->template && IsTransactionState() ?
	template_text(feed->template, feed->params) : NULL;
	MemoryContext caller = MemoryContextSwitchTo(split->context);

	split->events = copy_events_of(feed, subscriber);
	split->unseen = list_copy(feed->unseen);
	if (feed->error)
		split->error = pstrdup(feed->error);
	if (feed->hint)
		split->hint = pstrdup(feed->hint);
	if (feed->template && feed->template->shared)
		set_template(split, template_share(feed->template, feed->params,
										   &split->params));
	else if (text)
		set_template(split, template_acquire(subscriber->row, text,
											 &split->params));
	MemoryContextSwitchTo(caller);
	split->recheck = subscriber->unchecked;
	split->replaying = feed->replaying;
	split->full = feed->full;
	split->full_at = feed->full_at;
	split->unsliced = feed->unsliced;
	split->behind = feed->behind;
	split->cursor = feed->cursor;
	split->loaded = feed->loaded;
	split->applied = feed->applied;
	split->covered = feed->covered;
	split->from = feed->from;
	split->commit = feed->commit;
	split->held = feed->held;
	split->due = feed->due;
	split->barred_until = feed->barred_until;
	split->failures = feed->failures;
	split->counters = feed->counters;
}

void
feed_split(Subscriber *subscriber,
		   void (*make) (Feed *split, const void *arg), const void *arg)
{
	Feed	   *feed = subscriber->feed;
	Feed	   *split = make_feed();

	Assert(feed->nsubscribers > 1);
	move(subscriber, split);
	feed->newborn = split;
	inherit(split, feed, subscriber);
	drop_events_of(feed, subscriber);
	feed_activate(split);
	make(split, arg);
	feed->newborn = NULL;
}

void
feed_retry_later(Feed *feed)
{
	int			shift = Min(feed->failures++, 16);

	feed->retry_at = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												 Min((int64) MIN_BACKOFF_MS << shift,
													 MAX_BACKOFF_MS));
	feed_activate(feed);
}

void
feed_forget_error(Feed *feed)
{
	if (feed->error)
		pfree(feed->error);
	if (feed->hint)
		pfree(feed->hint);
	feed->error = feed->hint = NULL;
}

void
feed_start_anew(Feed *feed)
{
	dlist_iter	iter;

	dlist_foreach(iter, &feed->subscribers)
		dlist_container(Subscriber, node, iter.cur)->unchecked = false;
	feed_note_resets(feed);
	feed_mark_dirty(feed);
	feed->held = false;
	feed_drop_refill(feed);
	resolve(feed);
	route_leave(feed);
	feed_share_leave(feed);
	feed_drop_events(feed);
	feed->forget = true;
	list_with(feed, NULL);
	feed->loaded = false;
	feed->lost = false;
	feed->recheck = false;
	feed->covered = 0;
}

void
feed_fail(Feed *feed, int sqlerrcode, const char *message, const char *hint)
{
	dlist_iter	iter;

	if (feed->error == NULL || strcmp(feed->error, message) != 0)
	{
		feed_forget_error(feed);
		feed->error = MemoryContextStrdup(feed->context, message);
		if (hint)
			feed->hint = MemoryContextStrdup(feed->context, hint);
		dlist_foreach(iter, &feed->subscribers)
		{
			Subscriber *subscriber = dlist_container(Subscriber, node,
													 iter.cur);

			ereport(LOG,
					(errcode(sqlerrcode),
					 errmsg("live_topn subscription \"%s\" is in error: %s",
							subscriber->row->name, message),
					 hint ? errhint("%s", hint) : 0));
			if (subscriber->announced && !feed->replaying)
				feed_publish_error(subscriber);
		}
	}
	feed_start_anew(feed);
	feed_retry_later(feed);
}

static void
fail(Feed *feed, const void *arg)
{
	const ErrorData *error = arg;

	feed_fail(feed, error->sqlerrcode, error->message, error->hint);
}

void
feed_fail_subscriber(Subscriber *subscriber, const ErrorData *error)
{
	if (subscriber->feed->nsubscribers > 1)
		feed_split(subscriber, fail, error);
	else
		fail(subscriber->feed, error);
}

static void
free_feed(Feed *feed)
{
	feed_forget_query(feed);
	MemoryContextDelete(feed->context);
}

void
feed_end(Feed *feed)
{
	Assert(feed->nsubscribers == 0);
	dlist_delete(&feed->node);
	feed_mark_clean(feed);
	feed_end_check(feed, CHECK_ABANDONED, false);
	feed_leave_check(feed);
	feed_rest(feed);
	route_leave(feed);
	feed_share_leave(feed);
	cushion_release(&feed->cushion);
	resolve(feed);
	dlist_delete(&feed->template_node);
	if (feed->pending == 0)
		free_feed(feed);
}

void
feed_leave(Subscriber *subscriber)
{
	Feed	   *feed = subscriber->feed;

	drop_events_of(feed, subscriber);
	detach(subscriber);
	if (feed->nsubscribers == 0)
		feed_end(feed);
}

void
feed_note_pending(Subscriber *subscriber)
{
	subscriber->pending++;
	subscriber->feed->pending++;
}

void
feed_delivered(Subscriber *subscriber)
{
	Feed	   *feed = subscriber->feed;

	feed->pending--;
	if (--subscriber->pending == 0 && subscriber->dropped)
		subscriber_free(subscriber);
	if (feed->pending > 0)
		return;
	if (feed->nsubscribers == 0)
		free_feed(feed);
	else if (feed->active)
		feed_activate(feed);	/* it may have waited for that */
}
