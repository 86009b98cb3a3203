/*
 * feed_state.c
 *	  How far a feed is: in the log, and with its result.
 */
#include "postgres.h"

#include "feed_private.h"
#include "utils/timestamp.h"

uint64
feed_place(const Feed *feed)
{
	return feed->behind ? feed->cursor : feed_position->commit.no;
}

bool
feed_needs_log(const Feed *feed)
{
	return feed->behind || feed->ticket != 0 || feed->answer;
}

uint64
feed_floor(const Feed *feed)
{
	uint64		floor = PG_UINT64_MAX;

	if (feed->behind)
		floor = feed->cursor;
	if (feed->ticket != 0 || feed->answer || feed->merge_at != 0)
		floor = Min(floor, feed->kept);
	return floor;
}

XLogRecPtr
feed_exact_lsn(const Feed *feed)
{
	XLogRecPtr	lsn = feed_position->lsn;

	if (feed->behind)
	{
		LoggedCommit commit;

		if (commit_log_next(feed_commit_log, feed->cursor, InvalidOid,
							&commit))
			lsn = commit.info.start;
		if (feed->events)
			lsn = Min(lsn, ((FeedEvent *) linitial(feed->events))->commit.start);
	}
	return lsn;
}

XLogRecPtr
feed_restart_lsn(const Feed *feed)
{
	XLogRecPtr	lsn = feed_exact_lsn(feed);
	LoggedCommit commit;

	if (feed_needs_log(feed) &&
		commit_log_next(feed_commit_log, feed_floor(feed), InvalidOid,
						&commit))
		lsn = Min(lsn, commit.info.start);
	return lsn;
}

RefillProgress
feed_refill_progress(const Feed *feed)
{
	return refill_progress(feed_pool, feed->ticket);
}

bool
feed_has_applied(const Feed *feed)
{
	return feed->loaded && feed_position->commit.start < feed->applied;
}

bool
feed_is_checking(const Feed *feed)
{
	return (feed->ticket != 0 || feed->answer) && feed->nreads == 0;
}

const char *
feed_state(const Feed *feed)
{
	if (feed->error)
		return "error";
	if (!feed->loaded)
		return "loading";
	return feed->covered > 0 ? "waiting" : "live";
}

bool
feed_is_current(const Feed *feed)
{
	/* what was committed since may have ended the error */
	if (feed->error)
		return (!feed->recheck ||
				feed->barred_until > GetCurrentTimestamp()) &&
			(feed->forget || feed->query == NULL) &&
			feed->ticket == 0 && feed->answer == NULL;
	if (feed->replaying || !feed->loaded ||
		(feed->covered > 0 && !feed->held) || feed->recheck ||
		feed_is_checking(feed))
		return false;
	return feed_place(feed) == feed_position->commit.no &&
		feed->events == NIL;
}
