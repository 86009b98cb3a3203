/*
 * feed_merge.c
 *	  What refill workers have answered goes into the windows of a feed.
 */
#include "postgres.h"

#include "feed_private.h"
#include "route.h"
#include "utils/memutils.h"

/*
 * The rows of the answer, in the format of windows, instead of what was sent.
 * They stay with the answer: it may be merged in vain.
 */
static void
take_rows(Feed *feed)
{
	RefillAnswer *answer = feed->answer;

	if (answer->rows)
		return;
	answer->rows = MemoryContextAllocExtended(answer->context,
											  sizeof(Row *) *
											  Max(answer->nrows, 1),
											  MCXT_ALLOC_HUGE |
											  MCXT_ALLOC_ZERO);
	for (uint64 i = 0; i < answer->nrows; i++)
	{
		MinimalTuple tuple = refill_next_row(answer);

		evaluate_progress++;
		answer->rows[i] = row_from_tuple(feed->format, tuple);
		pool_note_freed(tuple->t_len);
		pfree(tuple);
	}
}

/* Where the range of a window ends that was read up to a limit. */
static void
set_read_end(Window *window, uint64 limit)
{
	uint32		size = window_size(window);

	if (size < limit)
		window_set_end(window, WINDOW_COMPLETE, NULL);
	else
		window_set_end(window, WINDOW_BOUNDED,
					   row_ref(window_nth(window, size - 1)));
}

/* The same of rows that were read towards the start. */
static WindowSet *
make_read_backward(Feed *feed, WindowSet *read)
{
	RefillAnswer *answer = feed->answer;
	uint64		n = answer->nrows;

	if (n >= feed->reads[0].limit)
		read->only->low = row_ref(answer->rows[--n]);
	for (uint64 i = 0; i < n; i++)
		window_set_load(read, row_ref(answer->rows[i]));
	window_set_end(read->only, WINDOW_BOUNDED, row_ref(feed->reads[0].low));
	return read;
}

/* The rows of the answer as they were read. */
static WindowSet *
make_read(Feed *feed)
{
	RefillAnswer *answer = feed->answer;
	WindowSet  *read = window_set_create(feed->format, feed->params,
										 feed->template->rows);
	bool		everything = feed->reads[0].everything;
	uint64		position = 0;
	Window	   *window;
	uint64		first = 0;

	if (feed->reads[0].backward)
		return make_read_backward(feed, read);
	if (everything)
		read->others = WINDOW_COMPLETE;
	if (everything && answer->skipped > 0)
		window_set_begin(read, row_ref(answer->rows[first++]),
						 answer->skipped);
	if (!everything)
	{
		for (int i = 0; i < feed->nreads; i++)
		{
			window = read->only ? read->only :
				window_set_get(read, feed->reads[i].key);
			if (feed->reads[i].low)
				window->low = row_ref(feed->reads[i].low);
		}
	}
	for (uint64 i = first; i < answer->nrows; i++)
	{
		Row		   *row = answer->rows[i];

		if (everything || window_set_find(read, row))	/* else not wanted any
														 * more */
			window_set_load(read, row_ref(row));
	}

	if (everything)
	{
		while ((window = window_set_next(read, &position)) != NULL)
			set_read_end(window, read->only ?
						 feed->reads[0].limit - answer->skipped :
						 feed_last_rank(feed, window) + feed->reads[0].limit);
	}
	else
	{
		for (int i = 0; i < feed->nreads; i++)
			set_read_end(read->only ? read->only :
						 window_set_find(read, feed->reads[i].key),
						 feed->reads[i].limit);
	}
	return read;
}

/* Nearly all windows need no further look. */
void
feed_take_first(Feed *feed, WindowSet *read)
{
	uint64		position = 0;
	Window	   *window;

	window_set_free(feed->windows);
	feed->windows = read;
	while ((window = window_set_next(read, &position)) != NULL)
	{
		if (feed_window_need(feed, window) != NEED_NOTHING)
			window_touch(window, window_key(window));
		else
			feed_note_page(feed, window);
	}
}

ReconcileResult
feed_reconcile(Feed *feed, WindowSet *rows, const ReadView *view,
			   WindowSet *windows)
{
	ReconcileResult result;

	PG_TRY();
	{
		result = reconcile(feed->evaluator, rows, view, feed_commit_log,
						   windows, feed->since, feed_place(feed),
						   &feed->merge_at);
	}
	PG_CATCH();
	{
		if (feed->template->shared)
			window_set_free(rows);
		PG_RE_THROW();
	}
	PG_END_TRY();
	return result;
}

/*
 * Merge the rows that came into the windows at the cursor; where that cannot
 * be done, say at which commit after it.
 */
static void
merge(Feed *feed)
{
	WindowSet  *read;

	/*
	 * Ranges may have ended elsewhere since, or lost their rows; and a
	 * partition may have come or gone since a query not known was read.
	 */
	if (feed_awaits_reload(feed) || !feed_keep_wanted_reads(feed))
	{
		feed_drop_refill(feed);
		return;
	}

	take_rows(feed);
	read = make_read(feed);
	switch (feed_reconcile(feed, read, &feed->answer->view,
						   feed->reads[0].everything ? NULL : feed->windows))
	{
		case RECONCILED:
			feed->counters.refilled_rows += feed->answer->nrows;
			cushion_shift(&feed->cushion, read->nrows);
			feed_mark_dirty(feed);
			feed->looks = 0;
			feed_note_full(feed, feed->answer->full);
			if (feed->reads[0].everything)
				feed->unsliced = false;
			if (window_set_is_passing(feed->windows))
			{
				window_set_replace(feed->windows, read);
				feed->windows = read;
			}
			else if (feed->reads[0].everything && !feed->loaded)
				feed_take_first(feed, read);
			else if (window_set_is_partial(feed->windows))
				feed_revive(feed, read, feed->reads[0].everything);
			else if (feed->reads[0].backward)
				window_set_prepend(feed->windows, read);
			else
				window_set_append(feed->windows, read);
			route_take_windows(feed);
			feed_drop_refill(feed);
			break;
		case RECONCILE_LATER:
			window_set_free(read);
			break;
		case RECONCILE_READ_AGAIN:
			feed->unsliced = read->counted;
			window_set_free(read);
			feed_drop_refill(feed);
			feed_look_again_later(feed);
			break;
	}
}

/* Take the query that came with the first rows; these stay, without errors. */
static void
take_query(Feed *feed)
{
	RefillAnswer *answer = feed->answer;
	Subscriber *asker = feed->asker;
	MemoryContext parent = MemoryContextGetParent(answer->context);
	FeedRead   *reads = feed->reads;
	int			nreads = feed->nreads;

	MemoryContextSetParent(answer->context, CurTransactionContext);
	feed->answer = NULL;
	feed->reads = NULL;
	feed->nreads = 0;
	feed_set_query(feed, answer->query_text);
	feed_note_fingerprint(feed, asker, answer->query_text);
	feed_look_again(feed, answer->asked_at);
	MemoryContextSetParent(answer->context, parent);
	feed->answer = answer;
	feed->asker = asker;
	feed->reads = reads;
	feed->nreads = nreads;
}

void
feed_take_answer(Feed *feed)
{
	if (feed->answer->status != REFILL_DONE)
		feed_end_check(feed, CHECK_REFUTED, false);
	if (feed->answer->status == REFILL_FAILED)
		feed_take_failure(feed);
	else if (feed->answer->status == REFILL_TOO_LARGE)
		feed_take_too_large(feed);
	else if (feed->answer->status == REFILL_ORPHANED)
		feed_drop_orphans(feed);
	else if (feed->answer->status == REFILL_CHANGED || feed->nreads == 0)
		feed_take_check(feed);
	else
	{
		if (feed->query == NULL)
			take_query(feed);
		if (feed->recheck)
		{
			feed_drop_refill(feed);
			return;
		}
		if (feed->merge_at == 0)
		{
			feed->counters.refill_time += feed->answer->elapsed;
			cushion_learn(&feed->cushion, feed_position->commit.no,
						  feed->answer->nrows, feed->answer->elapsed);
		}
		merge(feed);
		if (!feed_fit(feed))
			feed_fail_too_large(feed);
		else if (feed->answer == NULL)
			feed_settle(feed);
	}
}
