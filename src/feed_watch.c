/*
 * feed_watch.c
 *	  How long the expressions of a query may take the worker.
 *
 * Whatever they take, all other subscriptions wait for.  So a single row may
 * take no longer than live_topn.evaluation_timeout; and since rows that are
 * only nearly so slow would stop the others all the same, there is an account
 * for each owner, of the processor time that rows take beyond a millisecond
 * each.  A quarter of a second of it is forgiven each second.  Where more than
 * three times the time-out is owed, the subscription at work is put in error
 * until the debt is paid.
 */
#include "postgres.h"

#include <time.h>

#include "evaluate.h"
#include "feed_private.h"
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "utils/guc.h"
#include "utils/hsearch.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#define PATIENCE_MS			2000	/* when we are to end */
#define WATCH_MS			500		/* how often to look */
#define ROW_US				1000	/* what each row may take */
#define MAX_DEBT			3		/* time-outs */
#define REPAYMENT			4		/* a debt of so many seconds is paid back in
									 * this times as many */

int			feed_evaluation_timeout_ms = 10000;

typedef struct Account
{
	Oid			owner;
	int64		debt;			/* microseconds, at ... */
	TimestampTz at;
} Account;

typedef enum Verdict
{
	VERDICT_GOOD,
	VERDICT_ROW,				/* one row takes too long */
	VERDICT_DEBT				/* all of them together do */
} Verdict;

static HTAB *accounts;			/* of Account, for owners with debts */
static TimeoutId timeout_id;

/* of the query at work */
static int64 used_before;
static uint64 rows_before;
static int64 debt_before;
static uint64 rows_seen;		/* at the last look */
static TimestampTz row_since;	/* they have been so many, or longer */
static volatile Verdict verdict;

static void look(void);

void
feed_watch_startup(MemoryContext parent)
{
	HASHCTL		ctl = {0};

	ctl.keysize = sizeof(Oid);
	ctl.entrysize = sizeof(Account);
	ctl.hcxt = parent;
	accounts = hash_create("live_topn evaluation accounts", 16, &ctl,
						   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	timeout_id = RegisterTimeout(USER_TIMEOUT, look);
}

/* Processor time of this process, in microseconds. */
static int64
used_time(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec * INT64CONST(1000000) + now.tv_nsec / 1000;
}

/* Rows that were evaluated or found their place. */
static uint64
rows_done(void)
{
	return evaluate_progress + window_progress;
}

/* What the query at work has taken too long so far, in microseconds. */
static int64
excess(void)
{
	int64		rows = rows_done() - rows_before;

	return Max(used_time() - used_before - rows * ROW_US, 0);
}

/*
 * While expressions of a query run: end if we are to end, and give them up if
 * they take too long.
 */
static void
look(void)
{
	static int	late;
	TimestampTz now = GetCurrentTimestamp();

	if (rows_done() != rows_seen)
		row_since = now;
	rows_seen = rows_done();
	late += ShutdownRequestPending;
	if (late * WATCH_MS >= PATIENCE_MS)
	{
		InterruptPending = true;
		ProcDiePending = true;
	}
	else if (feed_evaluation_timeout_ms > 0)
	{
		int64		limit = feed_evaluation_timeout_ms * INT64CONST(1000);

		if (now - row_since >= limit)
			verdict = VERDICT_ROW;
		else if (debt_before + excess() > MAX_DEBT * limit)
			verdict = VERDICT_DEBT;
		else
			return;
		InterruptPending = true;
		QueryCancelPending = true;
	}
}

/* What the owner owes now. */
static int64
debt_of(Oid owner)
{
	Account    *account = hash_search(accounts, &owner, HASH_FIND, NULL);
	int64		paid;

	if (account == NULL)
		return 0;
	paid = (GetCurrentTimestamp() - account->at) / REPAYMENT;
	return Max(account->debt - paid, 0);
}

void
feed_watch_begin(const Feed *feed)
{
	debt_before = debt_of(feed_first(feed)->row->owner);
	rows_before = rows_seen = rows_done();
	row_since = GetCurrentTimestamp();
	used_before = used_time();
	verdict = VERDICT_GOOD;
	enable_timeout_every(timeout_id,
						 TimestampTzPlusMilliseconds(row_since, WATCH_MS),
						 WATCH_MS);
}

void
feed_watch_end(const Feed *feed)
{
	Oid			owner = feed_first(feed)->row->owner;
	int64		debt = debt_before + excess();

	disable_timeout(timeout_id, false);
	QueryCancelPending = false; /* came when all was done */
	if (debt > 0)
	{
		Account    *account = hash_search(accounts, &owner, HASH_ENTER, NULL);

		account->debt = debt;
		account->at = GetCurrentTimestamp();
	}
	else if (debt_before == 0)
		hash_search(accounts, &owner, HASH_REMOVE, NULL);
}

bool
feed_watch_fail(Feed *feed)
{
	char	   *limit;
	char	   *message;

	if (verdict == VERDICT_GOOD)
		return false;
	limit = GetConfigOptionByName("live_topn.evaluation_timeout", NULL, false);
	message = psprintf(verdict == VERDICT_ROW ?
					   "evaluation of one row took longer than live_topn.evaluation_timeout (%s)" :
					   "evaluation of rows took the worker much longer than live_topn.evaluation_timeout (%s)",
					   limit);
	feed_fail(feed, ERRCODE_QUERY_CANCELED, message,
			  "Let the expressions of the query do less, or raise the setting.");
	feed->barred_until = GetCurrentTimestamp() +
		REPAYMENT * debt_of(feed_first(feed)->row->owner);
	feed->retry_at = Max(feed->retry_at, feed->barred_until);
	pfree(message);
	pfree(limit);
	return true;
}
