/*
 * answer.h
 *	  The database worker answers requests of backends.
 *
 * Answers to requests (pq_send format):
 *
 * REQUEST_SNAPSHOT
 *	  int64 seq, int64 lsn, int32 length and bytes of the query's text
 *	  (query_to_text), int64 number of rows, then for each an int32 length and
 *	  the bytes of a MinimalTuple in the format of query_row_desc.
 *
 * REQUEST_POLL
 *	  int32 number of batches, then each as int32 length and bytes; -1 if not
 *	  all that the client lacks are kept.
 *
 * REQUEST_STATS
 *	  int32 number of subscriptions, then for each NUM_STATS int64s
 *	  and two strings (pq_sendstring): its state, and its error or ''.
 *
 * Others: int64 lsn up to which all is applied.
 */
#ifndef LIVE_TOPN_ANSWER_H
#define LIVE_TOPN_ANSWER_H

/* The numbers of a subscription in REQUEST_STATS, in order. */
typedef enum SubscriptionStat
{
	STAT_ID,
	STAT_HELD_ROWS,
	STAT_RESULT_ROWS,
	STAT_CUSHION,				/* rows, the current size aimed at */
	STAT_BYTES,					/* of memory */
	STAT_CHANGES,				/* seen on its table */
	STAT_BATCHES,
	STAT_DELTAS,
	STAT_REFILLS,
	STAT_REFILLED_ROWS,
	STAT_REFILL_TIME,			/* microseconds */
	STAT_COALESCED,				/* commits that share another's batch */
	STAT_RESETS,
	STAT_SEQ,
	STAT_LSN,					/* of the last batch, 0 if none */
	STAT_LEASE_END,				/* TimestampTz, 0 if none */
	STAT_ROWS_BEFORE,			/* counted, before the first one held */
	STAT_SKIPPED_ROWS,			/* held, before the page */
	STAT_ROW_BYTES,				/* of the rows held, as in a table */
	STAT_GROUPS,				/* of which rows are held */
	STAT_GROUPS_DROPPED,		/* that have rows, and none held */
	STAT_GROUPS_LOADED,			/* again after they were */
	STAT_WORK_TIME,				/* nanoseconds */
	STAT_RESTART_LSN,			/* WAL from there on is needed */
	STAT_REFILL_PID,			/* of the worker that reads now, 0 if none */
	STAT_REFILL_START,			/* TimestampTz, 0 if none */
	STAT_REFILL_READ,			/* rows, so far */
	STAT_SHARED,				/* subscriptions that show these rows */
	NUM_STATS
} SubscriptionStat;

/* Take in requests, and answer those that can be. */
extern void answer_requests(void);

/* Milliseconds until a poll is answered anyway, -1 if there is none. */
extern long answer_next_timeout(void);

#endif							/* LIVE_TOPN_ANSWER_H */
