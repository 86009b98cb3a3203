/*
 * feed_refill.c
 *	  The rows of a feed's window: how many, and how they get there.
 *
 * A feed has at most one request under way, to read the rows beyond some of its
 * windows or, with none, to have its query analysed (feed_check.c).  What
 * becomes of the answer is in feed_merge.c.
 */
#include "postgres.h"

#include "feed_private.h"
#include "route.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#define MAX_READS			64	/* windows in a refill */
#define MIN_LOOK_AGAIN_MS	10
#define MAX_LOOK_AGAIN		7	/* times that it is doubled */

/* ---- requests ---- */

/*
 * What a refill that is requested now will need of the log: commits after the
 * cursor, and those before it that its snapshot may miss, however long they
 * stay invisible.
 */
static void
note_request(Feed *feed)
{
	feed->since = feed_place(feed);
	feed->kept = commit_log_visible_upto(feed_commit_log, feed->since);
}

static void
free_read(FeedRead *read)
{
	if (read->key)
		row_unref(read->key);
	if (read->low)
		row_unref(read->low);
}

/* How many rows the window should get beyond those that it has. */
static uint64
missing_rows(const Feed *feed, const Window *window)
{
	uint32		size = window_size(window);
	uint64		limit = feed_last_rank(feed, window);

	limit += window->end == WINDOW_BOUNDED ? feed->cushion.band.fill :
		cushion_rows(&feed->cushion);
	limit -= Min(limit - 1, size);

	/* nobody knows how many ties there are */
	if (feed->query->rank != RANK_ROWS && feed_window_is_short(feed, window))
		limit = Max(limit, feed->cushion.tight ? size / 8 + 1 : size);
	return limit;
}

/* How many rows the window should hold, beside the cushion. */
static uint64
wanted_rows(const Feed *feed, const Window *window)
{
	uint64		wanted = feed_last_rank(feed, window);

	if (!feed_window_is_short(feed, window))
	{
		/* where ties end shows in a row that is none */
		wanted = Max(wanted, feed_reach_page(feed, window).end);
		wanted += feed->query->nties > 0;
	}
	return wanted;
}

/* Should it have more rows after the page? */
static bool
is_thin_behind(const Feed *feed, const Window *window)
{
	return window->end == WINDOW_BOUNDED &&
		window_size(window) < wanted_rows(feed, window) +
		feed->cushion.band.low;
}

static void
note_read(Feed *feed, const Window *window)
{
	FeedRead   *read = &feed->reads[feed->nreads++];
	Row		   *key = window_key(window);

	memset(read, 0, sizeof(FeedRead));
	read->key = key ? row_ref(key) : NULL;
	if (feed_begins_late(feed, window) ||
		(feed_is_thin_ahead(feed, window) && !is_thin_behind(feed, window)))
	{
		read->backward = true;
		read->low = row_ref(window->low);
		/* the last one is where the window begins then */
		read->limit = feed_missing_ahead(feed, window) + 1;
		return;
	}
	read->low = window->end == WINDOW_BOUNDED ? row_ref(window->high) : NULL;
	read->limit = window->end == WINDOW_PASSING ?
		feed_rows_to_revive(feed, window) : missing_rows(feed, window);
}

/* Note the windows that need rows, the most urgent ones first. */
static void
note_needy(Feed *feed, WindowNeed need)
{
	dlist_iter	iter;

	dlist_foreach(iter, &feed->windows->needy[need])
	{
		if (feed->nreads == MAX_READS)
			break;
		note_read(feed, dlist_container(WindowWork, need_node,
										iter.cur)->window);
	}
}

void
feed_submit(Feed *feed, Subscriber *asker, int nreads, const RefillRead *reads)
{
	char	   *known = feed->template ?
	template_text(feed->template, feed->params) : NULL;

	note_request(feed);
	feed->asker = asker;
	feed->asked_at = feed_catalog_changes;
	feed->ticket = refill_submit(feed_pool, asker->row, known,
								 nreads > 0 ? feed_room(feed) : 0, nreads,
								 reads);
	if (known)
		pfree(known);
}

static void
plan_cushion(Feed *feed, bool now)
{
	CushionUse	use = {
		.needed = feed_must_hold_rows(feed) ? 0 : feed_needed_rows(feed)
	};

	if (feed->windows)
	{
		use.rows = feed->windows->nrows;
		use.bytes = window_set_bytes(feed->windows);
	}

	now |= feed_relax(feed);
	cushion_plan(&feed->cushion, feed_position->commit.no, &use, now);
}

/* At least one is read, in which the range ends, though LIMIT 0 needs none. */
static void
note_read_from_start(Feed *feed, uint64 skip)
{
	uint64		limit = cushion_rows(&feed->cushion);

	if (!feed_first(feed)->row->grouped)
		limit = Max(limit + feed_needed_rows(feed), skip + 1);
	feed->reads[feed->nreads++] = (FeedRead) {
		.everything = true,
		.skip = skip,
		.limit = limit
	};
}

void
feed_request_rows(Feed *feed)
{
	WindowSet  *set = feed->windows;
	RefillRead	reads[MAX_READS];

	Assert(feed->ticket == 0 && feed->answer == NULL && feed->nreads == 0);
	plan_cushion(feed, true);
	feed->reads = MemoryContextAlloc(feed->context, sizeof(FeedRead) *
									 (set->only ? 1 : MAX_READS));
	if (window_set_is_lost(set) || window_set_is_passing(set) ||
		feed_reads_all_groups(feed))
		note_read_from_start(feed, feed_slice_skip(feed));
	else
	{
		(void) feed_is_short(feed);		/* looks at them */
		note_needy(feed, NEED_RESULT);
		note_needy(feed, NEED_CUSHION);
	}
	for (int i = 0; i < feed->nreads; i++)
	{
		FeedRead   *read = &feed->reads[i];

		reads[i].limit = read->limit;
		reads[i].row = read->low ? RowTuple(read->low) :
			read->key ? RowTuple(read->key) : NULL;
		reads[i].start = read->backward ? REFILL_BACKWARD :
			read->low ? REFILL_AFTER : REFILL_GROUP;
		reads[i].skip = read->skip;
	}
	feed_submit(feed, feed_first(feed), feed->nreads, reads);
	cushion_ask(&feed->cushion, feed_position->commit.no);
	feed->counters.refills++;
	route_note_logger(feed);
	feed_activate(feed);
}

void
feed_look_again_later(Feed *feed)
{
	int			shift = Min(feed->looks++, MAX_LOOK_AGAIN);

	feed->retry_at =
		TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
									MIN_LOOK_AGAIN_MS << shift);
}

void
feed_request_first_rows(Feed *feed)
{
	RefillRead	read = {0};

	feed_leave_unresolved(feed);
	plan_cushion(feed, true);
	feed->reads = MemoryContextAlloc(feed->context, sizeof(FeedRead));
	note_read_from_start(feed, 0);
	read.limit = feed->reads[0].limit;
	feed_submit(feed, feed_first(feed), 1, &read);
	cushion_ask(&feed->cushion, feed_position->commit.no);
	feed->counters.refills++;
}

/* Does what is read still continue what is held? */
static bool
is_wanted(const Feed *feed, const FeedRead *read)
{
	const Window *window;

	if (read->everything)
		return window_set_is_lost(feed->windows) || feed_wants_rows(feed) ||
			(window_set_is_passing(feed->windows) &&
			 feed_needs_reset(feed)) ||
			feed_reads_all_groups(feed);
	if (read->backward)
		return feed->windows->counted &&
			feed->windows->only->low == read->low;
	window = read->key ? window_set_find(feed->windows, read->key) :
		feed->windows->only;
	if (window && window->end == WINDOW_PASSING)
		return read->low == NULL;
	return window != NULL && window->end == WINDOW_BOUNDED &&
		window->high == read->low;
}

/* Are rows on the way that continue the window? */
static bool
is_refilling(const Feed *feed, const Window *window)
{
	for (int i = 0; i < feed->nreads; i++)
		if (feed->reads[i].low && !feed->reads[i].backward &&
			feed->reads[i].low == window->high)
			return true;
	return false;
}

bool
feed_keep_wanted_reads(Feed *feed)
{
	int			kept = 0;

	for (int i = 0; i < feed->nreads; i++)
	{
		FeedRead   *read = &feed->reads[i];

		if (is_wanted(feed, read))
			feed->reads[kept++] = *read;
		else
			free_read(read);
	}
	feed->nreads = kept;
	return kept > 0;
}

static void
free_answer(RefillAnswer *answer)
{
	for (uint64 i = 0; answer->rows && i < answer->nrows; i++)
		if (answer->rows[i])
			row_unref(answer->rows[i]);
	MemoryContextDelete(answer->context);
}

void
feed_drop_refill(Feed *feed)
{
	feed_end_check(feed, CHECK_ABANDONED, false);
	feed_leave_check(feed);
	if (feed->ticket != 0)
		refill_forget(feed_pool, feed->ticket);
	feed->ticket = 0;
	feed->asker = NULL;
	if (feed->answer)
		free_answer(feed->answer);
	feed->answer = NULL;
	feed->merge_at = 0;
	for (int i = 0; i < feed->nreads; i++)
		free_read(&feed->reads[i]);
	if (feed->reads)
		pfree(feed->reads);
	feed->reads = NULL;
	feed->nreads = 0;
}

WindowNeed
feed_window_need(const Feed *feed, const Window *window)
{
	if (feed_window_is_short(feed, window))
		return NEED_RESULT;
	if (is_thin_behind(feed, window) || feed_is_thin_ahead(feed, window) ||
		(window->set->only && feed_wants_rows(feed)))
		return NEED_CUSHION;
	return NEED_NOTHING;
}

void
feed_trim(Feed *feed, Window *window)
{
	uint64		size;
	uint64		wanted;
	const CushionBand *band = &feed->cushion.band;

	if (window->end == WINDOW_PASSING)
		return;
	if (feed->nreads == 0 || !feed->reads[0].backward)
		feed_trim_ahead(feed, window);
	size = window_size(window);
	wanted = wanted_rows(feed, window);
	if (size <= wanted + band->high || wanted + band->high == 0 ||
		(size <= 2 * (wanted + band->fill) + 1000 &&
		 is_refilling(feed, window)))
		return;
	feed_mark_dirty(feed);
	window_trim(window, wanted + band->high);
	cushion_shift(&feed->cushion, (int64) window_size(window) - size);
	if (feed->nreads > 0 && !feed_keep_wanted_reads(feed))
		feed_drop_refill(feed);
}

void
feed_balance(Feed *feed)
{
	WindowSet  *set = feed->windows;

	plan_cushion(feed, false);
	if (feed->ticket == 0 && feed->answer == NULL &&
		!feed_awaits_reload(feed) &&
		(feed_is_short(feed) || !dlist_is_empty(&set->needy[NEED_CUSHION])) &&
		feed->retry_at <= GetCurrentTimestamp())
		feed_request_rows(feed);
}

static void
trim_all(Feed *feed, const void *arg)
{
	uint64		position = 0;
	Window	   *window;

	while ((window = window_set_next(feed->windows, &position)) != NULL)
		window_touch(window, window_key(window));
	feed_settle_windows(feed);
	feed_balance(feed);
}

void
feed_shrink(Feed *feed)
{
	plan_cushion(feed, true);

	/* others will come to it when they settle */
	if (feed->loaded && !feed->replaying && !feed->held &&
		feed->covered == 0 && !feed_is_checking(feed) && !feed->recheck &&
		feed->windows->nrows >
		feed_needed_rows(feed) + feed->cushion.band.high)
		feed_run_safely(feed, trim_all, NULL);
}
