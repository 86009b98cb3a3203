/*
 * worker.h
 *	  The database worker: decodes, applies, publishes.
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
 *	  int32 number of subscriptions, then for each the fields of
 *	  SubscriptionStats in order: int64s, then the two strings (pq_sendstring).
 */
#ifndef LIVE_TOPN_WORKER_H
#define LIVE_TOPN_WORKER_H

#include "postgres.h"

typedef struct SubscriptionStats
{
	int64		id;
	int64		held_rows;
	int64		result_rows;
	int64		cushion;		/* rows, the current size aimed at */
	int64		bytes;
	int64		changes;		/* seen on its table */
	int64		batches;
	int64		deltas;
	int64		refills;
	int64		refilled_rows;
	int64		refill_time;	/* microseconds */
	int64		coalesced;		/* commits that share another's batch */
	int64		resets;
	int64		seq;
	int64		lsn;			/* of the last batch, 0 if none */
	const char *state;			/* loading, live, waiting, error */
	const char *error;			/* empty unless state is error */
} SubscriptionStats;

#define SUBSCRIPTION_STATS_INT64S	15

extern PGDLLEXPORT void live_topn_worker_main(Datum main_arg);

#endif							/* LIVE_TOPN_WORKER_H */
