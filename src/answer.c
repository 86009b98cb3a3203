/*
 * answer.c
 *	  The database worker answers requests of backends.
 *
 * A request is answered once what it waits for is applied and published.
 */
#include "postgres.h"

#include "answer.h"
#include "apply.h"
#include "deliver.h"
#include "libpq/pqformat.h"
#include "request.h"
#include "utils/memutils.h"
#include "wakeup.h"

static List *requests;			/* of Request, not answered yet */

static void
append_page(StringInfo answer, const Feed *feed, const Window *window)
{
	ResultPage	page = feed_page(feed, window);

	for (uint32 i = page.skip; i < page.end; i++)
	{
		MinimalTuple tuple = RowTuple(window_nth(window, i));

		pq_sendint32(answer, tuple->t_len);
		pq_sendbytes(answer, (char *) tuple, tuple->t_len);
	}
}

static Size
page_size(const Feed *feed, const Window *window)
{
	ResultPage	page = feed_page(feed, window);
	Size		size = 0;

	for (uint32 i = page.skip; i < page.end; i++)
		size += RowTuple(window_nth(window, i))->t_len + sizeof(int32);
	return size;
}

static void
answer_snapshot(Request *request, Feed *feed)
{
	char	   *text = template_text(feed->template, feed->params);
	Size		size = strlen(text) + 100;
	uint64		nwindows = window_set_count(feed->windows);
	uint64		position = 0;
	Window	  **windows;
	Window	   *window;
	StringInfoData answer;

	while ((window = window_set_next(feed->windows, &position)) != NULL)
		size += page_size(feed, window);
	if (size >= MaxAllocSize)
	{
		pfree(text);
		request_answer_error(request, ERRCODE_PROGRAM_LIMIT_EXCEEDED,
							 "result is larger than 1 GB",
							 "Receive it as batches.");
		return;
	}

	initStringInfo(&answer);
	pq_sendint64(&answer, feed->seq);
	pq_sendint64(&answer, apply_position()->lsn);
	pq_sendint32(&answer, strlen(text));
	pq_sendbytes(&answer, text, strlen(text));
	pfree(text);
	pq_sendint64(&answer, feed_result_rows(feed));
	windows = window_set_list(feed->windows);
	for (uint64 i = 0; i < nwindows; i++)
		append_page(&answer, feed, windows[i]);
	pfree(windows);
	request_answer(request, &answer);
	pfree(answer.data);
}

static void
answer_poll(Request *request, Feed *feed)
{
	StringInfoData answer;

	initStringInfo(&answer);
	if (!history_append_after(feed->history, request->args.after, feed->seq,
							  &answer))
		pq_sendint32(&answer, -1);
	request_answer(request, &answer);
	pfree(answer.data);
}

static void
append_stats(StringInfo answer, const Feed *feed)
{
	const WindowSet *windows = feed->windows;
	int64		stats[NUM_STATS] = {
		[STAT_ID] = feed->id,
		[STAT_HELD_ROWS] = windows ? windows->nrows : 0,
		[STAT_RESULT_ROWS] = windows ? feed_result_rows(feed) : 0,
		[STAT_CUSHION] = feed->cushion,
		[STAT_BYTES] = windows ? windows->bytes : 0,
		[STAT_CHANGES] = feed->changes,
		[STAT_BATCHES] = feed->batches,
		[STAT_DELTAS] = feed->deltas,
		[STAT_REFILLS] = feed->refills,
		[STAT_REFILLED_ROWS] = feed->refilled_rows,
		[STAT_REFILL_TIME] = feed->refill_time,
		[STAT_COALESCED] = feed->coalesced,
		[STAT_RESETS] = feed->resets,
		[STAT_SEQ] = feed->seq,
		[STAT_LSN] = feed->last_lsn,
		[STAT_LEASE_END] = feed->lease_end,
		[STAT_ROWS_BEFORE] = windows ? windows->before : 0,
		[STAT_SKIPPED_ROWS] = windows ? feed_skipped_rows(feed) : 0,
	};

	for (int i = 0; i < NUM_STATS; i++)
		pq_sendint64(answer, stats[i]);
	pq_sendstring(answer, feed_state(feed));
	pq_sendstring(answer, feed->error ? feed->error : "");
}

static void
answer_stats(Request *request)
{
	HASH_SEQ_STATUS status;
	StringInfoData answer;
	Feed	   *feed;

	initStringInfo(&answer);
	pq_sendint32(&answer, feed_count());
	feed_scan(&status);
	while ((feed = feed_scan_next(&status)) != NULL)
		append_stats(&answer, feed);
	request_answer(request, &answer);
	pfree(answer.data);
}

static void
answer_sync(Request *request)
{
	StringInfoData answer;

	initStringInfo(&answer);
	pq_sendint64(&answer, apply_position()->lsn);
	request_answer(request, &answer);
	pfree(answer.data);
}

/* Is all that the request waits for applied and published? */
static bool
can_answer(Request *request)
{
	Feed	   *feed;

	if (request->args.kind == REQUEST_STATS)
		return true;
	if (apply_position()->lsn < request->args.upto || deliver_pending() > 0)
		return false;
	if (request->args.kind == REQUEST_SYNC)
		return feed_all_current();

	feed = feed_find(request->args.id);
	if (feed == NULL)
		return true;
	if (!feed_is_current(feed))
		return false;
	if (feed->error)
		return true;
	if (request->args.kind == REQUEST_SNAPSHOT)
	{
		/* what clients read goes with the last batch */
		feed_flush(feed);
		return deliver_pending() == 0;
	}
	if (request->deadline == 0)
		request->deadline =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
										request->args.wait_ms);
	return feed->seq != request->args.after ||
		GetCurrentTimestamp() >= request->deadline;
}

/* Answer what concerns one subscription, or say why not. */
static void
answer_of_feed(Request *request)
{
	Feed	   *feed = feed_find(request->args.id);

	if (feed == NULL)
		request_answer_error(request, ERRCODE_UNDEFINED_OBJECT,
							 "subscription does not exist", NULL);
	else if (feed->error)
	{
		char	   *message = psprintf("subscription \"%s\" is in error: %s",
									   feed->row->name, feed->error);

		request_answer_error(request, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
							 message,
							 "It goes on by itself when the cause is gone.");
		pfree(message);
	}
	else if (request->args.kind == REQUEST_SNAPSHOT)
		answer_snapshot(request, feed);
	else
		answer_poll(request, feed);
}

static void
answer(Request *request)
{
	if (request->args.kind == REQUEST_SYNC)
		answer_sync(request);
	else if (request->args.kind == REQUEST_STATS)
		answer_stats(request);
	else
		answer_of_feed(request);
}

long
answer_next_timeout(void)
{
	TimestampTz now = GetCurrentTimestamp();
	long		timeout = -1;
	ListCell   *lc;

	foreach(lc, requests)
	{
		Request    *request = lfirst(lc);

		if (request->deadline > 0)
			timeout = timeout_until(timeout, now, request->deadline);
	}
	return timeout;
}

void
answer_requests(void)
{
	Request    *request;
	ListCell   *lc;

	request_progress();
	while ((request = request_next()) != NULL)
		requests = lappend(requests, request);

	foreach(lc, requests)
	{
		request = lfirst(lc);
		if (request_abandoned(request))
			request_drop(request);
		else if (!can_answer(request))
			continue;
		else
			answer(request);
		requests = foreach_delete_current(requests, lc);
	}
}
