/*
 * feed_refill.c
 *	  The rows of a feed's window: how many, and how they get there.
 *
 * A feed has at most one request under way, to read the rows beyond its window
 * or, with limit 0, to have its query analysed.
 */
#include "postgres.h"

#include "feed_private.h"
#include "reconcile.h"
#include "route.h"
#include "storage/procarray.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#define READ_AGAIN_MS		10

/* ---- requests ---- */

/*
 * What a refill that is requested now will need of the log: commits after the
 * cursor, and those before it that are still there because its snapshot may
 * miss them, however long they stay invisible.
 */
static void
note_request(Feed *feed)
{
	LoggedCommit *first = commit_log_get(feed_commit_log, 0);

	feed->since = feed->behind ? feed->cursor : feed_position->commit.no;
	feed->kept = first ? Min(feed->since, first->info.no - 1) : feed->since;
}

void
feed_request_rows(Feed *feed)
{
	Window	   *window = feed->window;
	Row		   *low = window->end == WINDOW_BOUNDED ? window->high : NULL;

	Assert(feed->ticket == 0 && feed->answer == NULL);
	feed->refill_limit = feed_needed_rows(feed) + feed->cushion;
	feed->refill_limit -= Min(feed->refill_limit - 1, window_size(window));
	if (feed_has_open_ties(feed))
		feed->refill_limit = Max(feed->refill_limit, window_size(window));
	feed->refill_low = low ? row_ref(low) : NULL;
	note_request(feed);
	feed->ticket = refill_submit(feed_pool, feed->row, feed->query_text,
								 feed->refill_limit,
								 low ? RowTuple(low) : NULL);
	feed->refills++;
	route_note_logger(feed);
	feed_activate(feed);
}

void
feed_request_check(Feed *feed)
{
	Assert(feed->ticket == 0 && feed->answer == NULL);
	while (feed->unseen != NIL &&
		   !TransactionIdIsInProgress(linitial_oid(feed->unseen)))
		feed->unseen = list_delete_first(feed->unseen);
	if (feed->unseen != NIL)
	{
		feed->retry_at =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(), READ_AGAIN_MS);
		return;
	}

	feed->recheck = false;
	feed->refill_limit = 0;
	note_request(feed);
	feed->ticket = refill_submit(feed_pool, feed->row, feed->query_text,
								 0, NULL);
	route_note_logger(feed);
	feed_activate(feed);
}

void
feed_drop_refill(Feed *feed)
{
	if (feed->ticket != 0)
		refill_forget(feed_pool, feed->ticket);
	feed->ticket = 0;
	if (feed->answer)
		MemoryContextDelete(feed->answer->context);
	feed->answer = NULL;
	if (feed->refill_low)
		row_unref(feed->refill_low);
	feed->refill_low = NULL;
}

void
feed_balance(Feed *feed)
{
	Window	   *window = feed->window;
	uint64		size = window_size(window);
	uint64		needed = feed_needed_rows(feed);
	uint64		target;
	bool		refilling = feed->ticket != 0 || feed->answer;

	if (!feed_is_short(feed))
	{
		/* where ties end shows in a row that is none */
		needed = Max(needed, feed_page(feed).end);
		needed += feed->query->nties > 0;
	}
	target = needed + feed->cushion;
	if (size > target + feed->cushion &&
		(!refilling || size > 2 * target + 1000) && target > 0)
	{
		if (refilling && feed->refill_limit > 0)
		{
			feed_drop_refill(feed);
			refilling = false;
		}
		if (!refilling)
			window_trim(window, target);
	}
	else if (window->end == WINDOW_BOUNDED && !refilling &&
			 size < needed + (feed->cushion + 1) / 2)
		feed_request_rows(feed);
}

/* ---- answers ---- */

/* The rows of the answer as they were read. */
static Window *
make_read(Feed *feed)
{
	RefillAnswer *answer = feed->answer;
	Window	   *read = window_create(feed->format, feed->query_context);

	if (feed->refill_low)
		read->low = row_ref(feed->refill_low);
	for (int i = 0; i < answer->nrows; i++)
		window_add(read, row_from_tuple(feed->format, answer->rows[i]));
	if (answer->nrows < feed->refill_limit)
		window_set_end(read, WINDOW_COMPLETE, NULL);
	else
		window_set_end(read, WINDOW_BOUNDED,
					   row_from_tuple(feed->format,
									  answer->rows[answer->nrows - 1]));
	window_settle(read);
	return read;
}

/* Append what was read to the window. */
static void
take_rows(Feed *feed, Window *read)
{
	Window	   *window = feed->window;
	uint32		n = window_size(read);
	Row		  **rows = palloc_extended(sizeof(Row *) * Max(n, 1),
									   MCXT_ALLOC_HUGE);
	WindowEnd	end = read->end;
	Row		   *high = read->high ? row_ref(read->high) : NULL;

	for (uint32 i = 0; i < n; i++)
		rows[i] = row_ref(window_nth(read, i));
	window_free(read);
	for (uint32 i = 0; i < n; i++)
		window_add(window, rows[i]);
	window_set_end(window, end, high);
	pfree(rows);
}

/*
 * Merge the rows that came into the window, at its cursor or at the first
 * commit after it where that can be done.
 */
static void
merge(Feed *feed)
{
	for (;;)
	{
		Window	   *window = feed->window;
		Row		   *low = window->end == WINDOW_BOUNDED ? window->high : NULL;
		Window	   *read;
		uint64		later = 0;
		ReconcileResult result;

		/* the range may have ended elsewhere since, or lost its rows */
		if (low != feed->refill_low || window->end == WINDOW_COMPLETE)
			break;

		read = make_read(feed);
		result = reconcile(feed->evaluator, read, &feed->answer->view,
						   feed_commit_log, window, feed->since,
						   feed->behind ? feed->cursor :
						   feed_position->commit.no,
						   &later);
		if (result == RECONCILED)
		{
			feed->refilled_rows += feed->answer->nrows;
			take_rows(feed, read);
			break;
		}

		window_free(read);
		if (result == RECONCILE_READ_AGAIN)
		{
			feed->retry_at =
				TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
											READ_AGAIN_MS);
			break;
		}
		while (feed->cursor < later && feed->answer && feed_step(feed))
			;
		if (feed->answer == NULL)
			return;				/* all rows were lost on the way */
	}
	feed_drop_refill(feed);
}

static void
take_dependencies(Feed *feed, const char *text)
{
	MemoryContext caller;

	if (strcmp(feed->query_text, text) == 0)
		return;
	caller = MemoryContextSwitchTo(feed->query_context);
	query_take_dependencies(feed->query, text);
	feed->query_text = pstrdup(text);
	MemoryContextSwitchTo(caller);
}

static void
take_check(Feed *feed)
{
	if (feed->query == NULL || feed->answer->status == REFILL_CHANGED)
	{
		char	   *text = pstrdup(feed->answer->query_text);

		/* clients that knew the result before start anew */
		if (feed->query)
		{
			feed->reset = feed->announced;
			feed->behind = false;
			list_free_deep(feed->events);
			feed->events = NIL;
		}
		feed_set_query(feed, text);
		pfree(text);
	}
	else
	{
		take_dependencies(feed, feed->answer->query_text);
		feed_drop_refill(feed);
		if (!feed->recheck)
			feed_settle(feed);	/* what was held back meanwhile */
	}
	if (feed->loaded)
		feed->failures = 0;
}

static void
take_failure(Feed *feed)
{
	bool		check = feed->refill_limit == 0;

	switch (feed->answer->sqlerrcode)
	{
		case ERRCODE_CONNECTION_FAILURE:
		case ERRCODE_QUERY_CANCELED:
		case ERRCODE_T_R_DEADLOCK_DETECTED:
			ereport(LOG,
					(errmsg("refill of live_topn subscription \"%s\" failed: %s",
							feed->row->name, feed->answer->error)));
			feed_drop_refill(feed);
			feed->recheck = feed->recheck || (check && feed->query);
			feed_retry_later(feed);
			break;
		default:
			feed_fail(feed, feed->answer->error);
	}
}

void
feed_take_answer(Feed *feed)
{
	if (feed->answer->status == REFILL_FAILED)
		take_failure(feed);
	else if (feed->answer->status == REFILL_CHANGED || feed->refill_limit == 0)
		take_check(feed);
	else
	{
		feed->refill_time += feed->answer->elapsed;
		merge(feed);
		if (feed_is_too_large(feed))
			feed_fail(feed, RESULT_TOO_LARGE);
		else
			feed_settle(feed);
	}
}
