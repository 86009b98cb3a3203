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
#include "port/pg_bswap.h"
#include "rank.h"
#include "request.h"
#include "utils/memutils.h"
#include "wakeup.h"

static List *requests;			/* of Request, not answered yet */

/* An answer with rows, while it is made. */
typedef struct RowsAnswer
{
	const Subscriber *subscriber;
	StringInfoData buffer;
	int64		nrows;
	bool		too_large;
} RowsAnswer;

static void
append_page(RowsAnswer *answer, const Window *window)
{
	const Feed *feed = answer->subscriber->feed;
	ResultPage	page = feed_page(answer->subscriber, window);
	int64	   *ranks = NULL;

	if (feed->query->ranks != NIL)
		ranks = rank_page(window, page);
	for (uint32 i = page.skip; i < page.end; i++)
	{
		Row		   *row = window_nth(window, i);
		MinimalTuple tuple = RowTuple(row);

		if (ranks)
			tuple = rank_show(feed->format, row, ranks[i - page.skip]);
		answer->too_large |= answer->buffer.len + tuple->t_len +
			2 * sizeof(int32) >= MaxAllocSize;
		if (answer->too_large)
			return;
		pq_sendint32(&answer->buffer, tuple->t_len);
		pq_sendbytes(&answer->buffer, (char *) tuple, tuple->t_len);
		answer->nrows++;
		if (ranks)
			pfree(tuple);
	}
	if (ranks)
		pfree(ranks);
}

static void
append_result(Feed *feed, const void *arg)
{
	RowsAnswer *answer = unconstify(void *, arg);
	uint64		nwindows = window_set_count(feed->windows);
	Window	  **windows = window_set_list(feed->windows);

	for (uint64 i = 0; i < nwindows && !answer->too_large; i++)
		append_page(answer, windows[i]);
	pfree(windows);
}

static void
answer_error(Request *request, const Subscriber *subscriber)
{
	const Feed *feed = subscriber->feed;
	char	   *message = psprintf("subscription \"%s\" is in error: %s",
								   subscriber->row->name, feed->error);
	char	   *hint = psprintf("%s%sIt goes on by itself when the cause is gone.",
							feed->hint ? feed->hint : "",
							feed->hint ? " " : "");

	request_answer_error(request, ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
						 message, hint);
	pfree(message);
	pfree(hint);
}

/* The worker need not hold them, but would have to for a moment. */
static void
answer_too_large(Request *request)
{
	char	   *message = feed_too_large_message();

	request_answer_error(request, ERRCODE_PROGRAM_LIMIT_EXCEEDED, message,
						 "The worker holds none of its rows, only whoever asks for all of them needs the memory.");
	pfree(message);
}

static void
answer_snapshot(Request *request, const Subscriber *subscriber)
{
	Feed	   *feed = subscriber->feed;
	RowsAnswer	answer = {.subscriber = subscriber};
	StringInfo	buffer = &answer.buffer;
	int			count_at;
	uint64		count;
	char	   *text = template_text(feed->template, feed->params);

	initStringInfo(buffer);
	pq_sendint64(buffer, subscriber->seq);
	pq_sendint64(buffer, apply_position()->lsn);
	pq_sendint32(buffer, strlen(text));
	pq_sendbytes(buffer, text, strlen(text));
	pfree(text);
	count_at = buffer->len;
	pq_sendint64(buffer, 0);
	if (feed->query->inert)
		append_result(feed, &answer);
	else
		feed_run_safely(feed, append_result, &answer);
	count = pg_hton64(answer.nrows);
	memcpy(buffer->data + count_at, &count, sizeof(count));

	if (feed->error)
		answer_error(request, subscriber);
	else if (feed->unwieldy)
		answer_too_large(request);
	else if (answer.too_large)
		request_answer_error(request, ERRCODE_PROGRAM_LIMIT_EXCEEDED,
							 "result is larger than 1 GB",
							 "Receive it as batches.");
	else
		request_answer(request, buffer);
	pfree(buffer->data);
}

static void
answer_poll(Request *request, const Subscriber *subscriber)
{
	StringInfoData answer;

	initStringInfo(&answer);
	if (!history_append_after(subscriber->history, request->args.after,
							  subscriber->seq, &answer))
		pq_sendint32(&answer, -1);
	request_answer(request, &answer);
	pfree(answer.data);
}

static void
append_stats(StringInfo answer, Subscriber *subscriber)
{
	const Feed *feed = subscriber->feed;
	const WindowSet *windows = feed->windows;
	RefillProgress refill = feed_refill_progress(feed);
	int64		stats[NUM_STATS] = {
		[STAT_ID] = subscriber->id,
		[STAT_HELD_ROWS] = windows ? windows->nrows : 0,
		[STAT_RESULT_ROWS] = windows == NULL ? 0 :
		window_set_is_passing(windows) ? -1 : feed_result_rows(subscriber),
		[STAT_CUSHION] = cushion_rows(&feed->cushion),
		[STAT_BYTES] = windows ? window_set_bytes(windows) : 0,
		[STAT_CHANGES] = feed->counters.changes,
		[STAT_BATCHES] = subscriber->batches,
		[STAT_DELTAS] = subscriber->deltas,
		[STAT_REFILLS] = feed->counters.refills,
		[STAT_REFILLED_ROWS] = feed->counters.refilled_rows,
		[STAT_REFILL_TIME] = feed->counters.refill_time,
		[STAT_COALESCED] = subscriber->coalesced,
		[STAT_RESETS] = subscriber->resets,
		[STAT_SEQ] = subscriber->seq,
		[STAT_LSN] = subscriber->last_lsn,
		[STAT_LEASE_END] = subscriber->lease_end,
		[STAT_ROWS_BEFORE] = windows ? windows->before : 0,
		[STAT_SKIPPED_ROWS] = windows ? feed_skipped_rows(subscriber) : 0,
		[STAT_ROW_BYTES] = windows ? windows->own_bytes : 0,
		[STAT_GROUPS] = windows ? window_set_count(windows) : 0,
		[STAT_GROUPS_DROPPED] = windows ? windows->ndropped : 0,
		[STAT_GROUPS_LOADED] = windows ? windows->loaded : 0,
		[STAT_WORK_TIME] = feed->counters.work_time,
		[STAT_RESTART_LSN] = feed_restart_lsn(feed),
		[STAT_REFILL_PID] = refill.pid,
		[STAT_REFILL_START] = refill.started_at,
		[STAT_REFILL_READ] = refill.rows,
		[STAT_SHARED] = feed->nsubscribers,
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
	Subscriber *subscriber;

	initStringInfo(&answer);
	pq_sendint32(&answer, subscriber_count());
	subscriber_scan(&status);
	while ((subscriber = subscriber_scan_next(&status)) != NULL)
		append_stats(&answer, subscriber);
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
	Subscriber *subscriber;
	Feed	   *feed;

	if (request->args.kind == REQUEST_STATS)
		return true;
	if (apply_position()->lsn < request->args.upto || deliver_pending() > 0)
		return false;
	if (request->args.kind == REQUEST_SYNC)
		return feed_all_current();

	subscriber = subscriber_find(request->args.id);
	if (subscriber == NULL)
		return true;
	feed = subscriber->feed;
	if (!feed_is_current(feed))
		return false;
	if (feed->error)
		return true;
	if (request->args.kind == REQUEST_SNAPSHOT)
	{
		/* what clients read goes with the last batch */
		feed_flush(subscriber);
		return deliver_pending() == 0 && feed_hold(subscriber->feed);
	}
	if (request->deadline == 0)
		request->deadline =
			TimestampTzPlusMilliseconds(GetCurrentTimestamp(),
										request->args.wait_ms);
	return subscriber->seq != request->args.after ||
		GetCurrentTimestamp() >= request->deadline;
}

/* Answer what concerns one subscription, or say why not. */
static void
answer_of_subscriber(Request *request)
{
	Subscriber *subscriber = subscriber_find(request->args.id);

	if (subscriber == NULL)
		request_answer_error(request, ERRCODE_UNDEFINED_OBJECT,
							 "subscription does not exist", NULL);
	else if (subscriber->feed->error)
		answer_error(request, subscriber);
	else if (request->args.kind == REQUEST_SNAPSHOT)
		answer_snapshot(request, subscriber);
	else
		answer_poll(request, subscriber);
}

static void
answer(Request *request)
{
	if (request->args.kind == REQUEST_SYNC)
		answer_sync(request);
	else if (request->args.kind == REQUEST_STATS)
		answer_stats(request);
	else
		answer_of_subscriber(request);
}

/* Nobody waits for the rows that a subscription shows any longer? */
static void
release(int64 id)
{
	Subscriber *subscriber = subscriber_find(id);
	ListCell   *lc;

	if (subscriber == NULL || !subscriber->feed->wanted)
		return;
	foreach(lc, requests)
	{
		const RequestArgs *args = &((Request *) lfirst(lc))->args;
		const Subscriber *other;

		if (args->kind != REQUEST_SNAPSHOT)
			continue;
		other = subscriber_find(args->id);
		if (other && other->feed == subscriber->feed)
			return;
	}
	feed_release(subscriber->feed);
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
		int64		id;

		request = lfirst(lc);
		id = request->args.id;
		if (request_abandoned(request))
			request_drop(request);
		else if (!can_answer(request))
			continue;
		else
			answer(request);
		requests = foreach_delete_current(requests, lc);
		release(id);
	}
}
