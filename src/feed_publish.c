/*
 * feed_publish.c
 *	  The result of a feed becomes a batch for each of those who show it.
 *
 * Who shows the same page gets the same deltas, which are made once.
 */
#include "postgres.h"

#include "deliver.h"
#include "feed_private.h"
#include "rank.h"
#include "utils/timestamp.h"

#define MAX_SCRIPTS		16		/* of pages that many show */

static Batch *
make_reset(Subscriber *subscriber)
{
	const Feed *feed = subscriber->feed;
	Batch	   *batch = palloc0(sizeof(Batch));
	uint64		nwindows = window_set_count(feed->windows);
	Window	  **windows = window_set_list(feed->windows);
	uint64		nrows = 0;

	for (uint64 i = 0; i < nwindows; i++)
	{
		ResultPage	page = feed_page(subscriber, windows[i]);

		nrows += page.end - page.skip;
	}
	batch->rows = palloc_extended(sizeof(Row *) * Max(nrows, 1),
								  MCXT_ALLOC_HUGE);
	if (feed->query->ranks != NIL)
		batch->ranks = palloc_extended(sizeof(int64) * Max(nrows, 1),
									   MCXT_ALLOC_HUGE);
	for (uint64 i = 0; i < nwindows; i++)
	{
		ResultPage	page = feed_page(subscriber, windows[i]);

		if (batch->ranks)
		{
			int64	   *ranks = rank_page(windows[i], page);

			memcpy(batch->ranks + batch->nrows, ranks,
				   sizeof(int64) * (page.end - page.skip));
			pfree(ranks);
		}
		for (uint32 n = page.skip; n < page.end; n++)
			batch->rows[batch->nrows++] = row_ref(window_nth(windows[i], n));
	}
	pfree(windows);
	subscriber->resets++;
	return batch;
}

/* Does the window show other rows now, or others of its rows? */
static bool
shows_change(Subscriber *subscriber, Window *window)
{
	const WindowWork *work = window->work;
	const ResultPage *known = feed_known_page(subscriber, window);
	ResultPage	page;

	if (work->nremoved > 0 || work->nadded > 0)
		return true;
	page = feed_page(subscriber, window);
	return page.skip != known->skip || page.end != known->end;
}

/* The windows with something to tell, in the order of their groups. */
static Window **
changed_windows(Subscriber *subscriber, int *n)
{
	WindowSet  *set = subscriber->feed->windows;
	Window	  **windows = NULL;
	int			max = 0;
	dlist_iter	iter;

	*n = 0;
	dlist_foreach(iter, &set->touched)
	{
		WindowWork *work = dlist_container(WindowWork, touched_node, iter.cur);

		if (!shows_change(subscriber, work->window))
			continue;
		if (*n == max)
		{
			max = Max(16, max * 2);
			windows = windows ?
				repalloc_huge(windows, sizeof(Window *) * max) :
				palloc(sizeof(Window *) * max);
		}
		windows[(*n)++] = work->window;
	}
	if (*n > 1)
		window_sort(set, windows, *n);
	return windows;
}

/* The deltas of all windows; NULL if there are none. */
static DeltaScript *
make_script(Subscriber *subscriber)
{
	int			nwindows;
	Window	  **windows = changed_windows(subscriber, &nwindows);
	DeltaScript *script;

	if (nwindows == 0)
		return NULL;			/* as nearly always */
	script = delta_script();
	for (int i = 0; i < nwindows; i++)
		delta_append(script, windows[i],
					 *feed_known_page(subscriber, windows[i]),
					 feed_page(subscriber, windows[i]),
					 strcmp(subscriber->row->ranks, "absolute") == 0);
	pfree(windows);
	if (script->n == 0)
	{
		delta_free(script);
		return NULL;
	}
	return script;
}

/*
 * Scripts made for the result that is being published: who shows the same page
 * gets the same one.
 */
typedef struct Scripts
{
	int			n;
	struct
	{
		int64		offset;
		int64		limit;
		ResultPage	known;
		bool		absolute;
		DeltaScript *script;	/* with a reference; or NULL */
	}			items[MAX_SCRIPTS];
} Scripts;

static DeltaScript *
get_script(Scripts *scripts, Subscriber *subscriber)
{
	bool		absolute = strcmp(subscriber->row->ranks, "absolute") == 0;
	int			i;

	if (subscriber->feed->nsubscribers == 1)
		return make_script(subscriber);
	for (i = 0; i < scripts->n; i++)
		if (scripts->items[i].offset == subscriber->offset &&
			scripts->items[i].limit == subscriber->limit &&
			scripts->items[i].known.skip == subscriber->page.skip &&
			scripts->items[i].known.end == subscriber->page.end &&
			scripts->items[i].absolute == absolute)
			break;
	if (i == scripts->n)
	{
		if (scripts->n == MAX_SCRIPTS)
			return make_script(subscriber);
		scripts->n++;
		scripts->items[i].offset = subscriber->offset;
		scripts->items[i].limit = subscriber->limit;
		scripts->items[i].known = subscriber->page;
		scripts->items[i].absolute = absolute;
		scripts->items[i].script = make_script(subscriber);
	}
	return scripts->items[i].script ?
		delta_ref(scripts->items[i].script) : NULL;
}

static void
release_scripts(Scripts *scripts)
{
	for (int i = 0; i < scripts->n; i++)
		if (scripts->items[i].script)
			delta_free(scripts->items[i].script);
}

static Batch *
make_deltas(Scripts *scripts, Subscriber *subscriber)
{
	DeltaScript *script = get_script(scripts, subscriber);
	Batch	   *batch;

	if (script == NULL)
		return NULL;
	batch = palloc0(sizeof(Batch));
	batch->script = script;
	subscriber->deltas += script->n;
	return batch;
}

static int64
throttle(const Feed *feed)
{
	return feed_first(feed)->row->throttle_ms;
}

void
feed_start_interval(Feed *feed)
{
	if (throttle(feed) > 0)
		feed->due = TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
												throttle(feed));
}

/* Can we not tell which of several results clients have? */
static bool
has_unknown_result(const Subscriber *subscriber)
{
	const Feed *feed = subscriber->feed;

	return feed->covered > 1 && feed->from <= subscriber->published_lsn &&
		feed->commit.lsn > subscriber->published_lsn;
}

/* Then they get a reset; false if there is no such subscriber. */
static bool
note_lost_results(Feed *feed)
{
	bool		lost = false;
	dlist_iter	iter;

	dlist_foreach(iter, &feed->subscribers)
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		if (!has_unknown_result(subscriber))
			continue;
		feed_note_reset(subscriber, true);
		lost = true;
	}
	return lost;
}

/*
 * While a feed retraces what an earlier worker has done, the earlier one's
 * batches count, of which only numbers and positions are known: the same
 * results can have been published in other batches, if rows came from refills
 * at other times.
 */
static void
publish_to(Subscriber *subscriber, Scripts *scripts)
{
	Feed	   *feed = subscriber->feed;
	Batch	   *batch = NULL;

	if (feed->commit.lsn <= subscriber->published_lsn)
	{
		/* clients have this result */
		subscriber->seq = subscriber->published;
		feed_start_interval(feed);
	}
	else
		batch = subscriber->reset ? make_reset(subscriber) :
			make_deltas(scripts, subscriber);

	if (batch)
	{
		batch->seq = ++subscriber->seq;
		batch->commit = feed->commit;
		if (feed->covered > 1 && !has_unknown_result(subscriber))
			batch->from = feed->from;
		feed_start_interval(feed);
		subscriber->batches++;
		subscriber->last_lsn = batch->commit.lsn;
		deliver_enqueue(subscriber, batch);
	}
	if (feed->covered > 1 && throttle(feed) == 0)
		subscriber->coalesced += feed->covered - 1;
	subscriber->reset = false;
}

void
feed_publish(Feed *feed)
{
	MemoryContext caller = MemoryContextSwitchTo(deliver_context());
	Scripts		scripts = {0};
	dlist_iter	iter;

	Assert(!feed_is_short(feed));
	feed_mark_dirty(feed);
	if (note_lost_results(feed) && feed_is_short(feed))
	{
		feed->held = false;
		feed_fall_behind(feed);
		MemoryContextSwitchTo(caller);
		return;
	}
	dlist_foreach(iter, &feed->subscribers)
		publish_to(dlist_container(Subscriber, node, iter.cur), &scripts);
	release_scripts(&scripts);
	feed->held = false;
	feed->covered = 0;
	feed_settle_windows(feed);
	MemoryContextSwitchTo(caller);
}

void
feed_publish_if_due(Feed *feed)
{
	if (throttle(feed) > 0 && GetCurrentTimestamp() < feed->due &&
		feed->commit.lsn > feed_first(feed)->published_lsn &&
		!feed_holds_much(feed))
	{
		feed->held = true;
		feed_activate(feed);
	}
	else
		feed_publish(feed);
}

void
feed_publish_error(Subscriber *subscriber)
{
	MemoryContext caller = MemoryContextSwitchTo(deliver_context());
	Batch	   *batch = palloc0(sizeof(Batch));

	batch->seq = ++subscriber->seq;
	batch->commit.lsn = feed_position->lsn;
	batch->commit.time = GetCurrentTimestamp();
	batch->error = pstrdup(subscriber->feed->error);
	subscriber->batches++;
	deliver_enqueue(subscriber, batch);
	MemoryContextSwitchTo(caller);
}
