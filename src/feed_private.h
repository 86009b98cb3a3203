/*
 * feed_private.h
 *	  What the files that make up feeds share with each other only.
 */
#ifndef LIVE_TOPN_FEED_PRIVATE_H
#define LIVE_TOPN_FEED_PRIVATE_H

#include "commit_log.h"
#include "feed.h"
#include "reconcile.h"

#define MIN_BACKOFF_MS		250 /* before a feed in error is tried again */

/* Given to feed_startup. */
extern CommitLog *feed_commit_log;
extern RefillPool *feed_pool;
extern const LogPosition *feed_position;

/* ---- feed.c ---- */

/* A feed for a subscription that was born, or found: see subscriber_create. */
extern void feed_create(Subscriber *subscriber, bool found);

/* Up to which row a page goes: an empty one, to none. */
static inline int64
feed_reach(int64 offset, int64 limit)
{
	return limit == 0 ? 0 : offset + limit;
}

/* The subscription has been dropped. */
extern void feed_leave(Subscriber *subscriber);

/* The subscriber shows a feed of the same template from now on. */
extern void feed_transfer(Subscriber *subscriber, Feed *feed);

/*
 * Make a feed of its own for one of several subscribers, of the same query at
 * the same place of the log.  It has no rows until make has run, which gives
 * it some, or makes it do without.  An error in that is one of both feeds.
 */
extern void feed_split(Subscriber *subscriber,
					   void (*make) (Feed *split, const void *arg),
					   const void *arg);

/* Nobody shows the feed any more.  It goes with its last batch. */
extern void feed_end(Feed *feed);

/*
 * Take over a query from text, with nothing loaded.  No batch may be pending:
 * its rows live in the memory of the query before.
 */
extern void feed_set_query(Feed *feed, const char *text);

/* Rows of pending batches live in the query's memory, so none may be left. */
extern void feed_forget_query(Feed *feed);

/* The changes of its table may be any, until a query is set. */
extern void feed_leave_unresolved(Feed *feed);

/*
 * What the feed knows is of no use any more, the query least of all: clients
 * get a reset when that has been looked at, and the table been read.
 */
extern void feed_start_anew(Feed *feed);

extern void feed_retry_later(Feed *feed);

/* It goes on. */
extern void feed_forget_error(Feed *feed);

/* May the page be empty, though the range must end somewhere? */
extern bool feed_must_hold_rows(const Feed *feed);

/* Show that part of the ordered rows. */
extern void feed_move_page(Subscriber *subscriber, int64 offset, int64 limit);

/*
 * Forget the commits between the cursor and the last one decoded: the feed
 * starts anew.
 */
extern void feed_drop_events(Feed *feed);

/* ---- feed_turn.c ---- */

extern void feed_turn_startup(void);

/* The commit that is being decoded makes one more feed go through the log. */
extern void feed_note_roused(void);

/* Have feed_advance_all look at the feed, until it finds nothing to do. */
extern void feed_activate(Feed *feed);

/* There is nothing to be done until the next feed_activate. */
extern void feed_rest(Feed *feed);

/* ---- feed_bound.c ---- */

/* Drop what need not be held, if too much is; false if too much is left. */
extern bool feed_fit(Feed *feed);

/* What rows that are read may take. */
extern Size feed_room(const Feed *feed);

/* There is more to read than that. */
extern void feed_take_too_large(Feed *feed);

/* Put the feed in error, because it holds too much. */
extern void feed_fail_too_large(Feed *feed);

/* May there be a cushion again? */
extern bool feed_relax(Feed *feed);

/* Has much changed that is not published yet? */
extern bool feed_holds_much(const Feed *feed);

/* ---- feed_watch.c ---- */

extern void feed_watch_startup(MemoryContext parent);

/* Expressions of the feed's query begin to run, and have ended. */
extern void feed_watch_begin(const Feed *feed);
extern void feed_watch_end(const Feed *feed);

/*
 * They were canceled: if we did that, put the feed in error and return true.
 */
extern bool feed_watch_fail(Feed *feed);

/* ---- feed_state.c ---- */

/* The last commit that the feed's windows have. */
extern uint64 feed_place(const Feed *feed);

/* ---- feed_lease.c ---- */

extern void feed_lease_startup(void);

/* The feed was made at that time; it has gone. */
extern void feed_start_lease(Subscriber *subscriber, TimestampTz at);
extern void feed_stop_lease(Subscriber *subscriber);

/* As it was when it was saved. */
extern void feed_restore_lease(Subscriber *subscriber, TimestampTz end);

/* All leases are as they were saved. */
extern void feed_clean_leases(void);

/* When the first lease ends; 0: never. */
extern TimestampTz feed_next_lease_end(void);

/* ---- feed_log.c ---- */

/* How many rows a window must hold, at least, that begins with the first. */
extern uint32 feed_needed_rows(const Feed *feed);

/* The last rank that belongs to the result of the window's group. */
extern uint32 feed_last_rank(const Feed *feed, const Window *window);

/* Does the window hold too few rows to know its result? */
extern bool feed_window_is_short(const Feed *feed, const Window *window);

/* Does any window? */
extern bool feed_is_short(const Feed *feed);

/* The page that reaches furthest, in a window that is not short. */
extern ResultPage feed_reach_page(const Feed *feed, const Window *window);

/* Clients know the result in the window as it is. */
extern void feed_note_page(Feed *feed, Window *window);

/*
 * The changes so far are accounted for: this is the result clients know.
 * Windows may be trimmed.
 */
extern void feed_settle_windows(Feed *feed);

/* Go through the log, from the last commit decoded on. */
extern void feed_fall_behind(Feed *feed);

/* Start again from the table: at this commit the rows are not known. */
extern void feed_lose_rows(Feed *feed);

/* At the cursor: is there a result, and is it news? */
extern void feed_settle(Feed *feed);

/*
 * Go on to the next commit or event of the log; false if there is none.  The
 * window may be short already: what it holds stays right, and results are
 * published where they are known.
 */
extern bool feed_step(Feed *feed);

/* Is it of no use to ask for rows before some commit to come? */
extern bool feed_awaits_reload(const Feed *feed);

/* ---- feed_publish.c ---- */

/* The throttle lets the next batch through after its interval. */
extern void feed_start_interval(Feed *feed);

/*
 * The result is known as of feed->commit: queue what makes it from the one
 * known before.
 */
extern void feed_publish(Feed *feed);

/*
 * The same unless the throttle says later: then the commits until that time
 * share a batch.
 */
extern void feed_publish_if_due(Feed *feed);

/*
 * Tell clients that their list is no longer kept.  It is what it was, so
 * last_lsn stays.
 */
extern void feed_publish_error(Subscriber *subscriber);

/* ---- feed_refill.c ---- */

/* Ask for the rows beyond the window. */
extern void feed_request_rows(Feed *feed);

/* Have the text of a subscriber analysed, and rows read. */
extern void feed_submit(Feed *feed, Subscriber *asker, int nreads,
						const RefillRead *reads);

/* Ask for the first rows of a query that is looked at for the first time. */
extern void feed_request_first_rows(Feed *feed);

/*
 * A commit that the log has is not visible yet, and we have to wait until it
 * is: often for a moment, but with synchronous replication possibly long.
 */
extern void feed_look_again_later(Feed *feed);

/* Forget the refill under way, and its answer. */
extern void feed_drop_refill(Feed *feed);

/* How urgently does the window need more rows? */
extern WindowNeed feed_window_need(const Feed *feed, const Window *window);

/*
 * Drop rows far beyond the result.  A range that a refill will extend keeps
 * its end, unless it grows too large.
 */
extern void feed_trim(Feed *feed, Window *window);

/* Ask for rows in time, if windows need some and none are on the way. */
extern void feed_balance(Feed *feed);

/*
 * How large should the cushion be now?  If smaller than it was, windows at
 * rest give rows back.  Needs no transaction.
 */
extern void feed_shrink(Feed *feed);

/* Forget reads that are not wanted any more; is anything left? */
extern bool feed_keep_wanted_reads(Feed *feed);

/* ---- feed_merge.c ---- */

/* reconcile rows with the place of the feed; an error frees them. */
extern ReconcileResult feed_reconcile(Feed *feed, WindowSet *rows,
									  const ReadView *view,
									  WindowSet *windows);

/* Take over rows, all that is known, for the first time. */
extern void feed_take_first(Feed *feed, WindowSet *read);

/* Use what feed_answer left in feed->answer. */
extern void feed_take_answer(Feed *feed);

/* ---- feed_check.c ---- */

/*
 * Have the query analysed again, once all that changed it is visible: a commit
 * is decoded before that.
 */
extern void feed_request_check(Feed *feed);

/* The text that the subscriber has was analysed: this came of it. */
extern void feed_note_fingerprint(Feed *feed, const Subscriber *subscriber,
								  const char *text);

/* What the text means that the subscriber has is not known any more. */
extern void feed_uncheck_text(Feed *feed, const Subscriber *subscriber);

/* Drop the refill under way; a text that is being looked at is again, later. */
extern void feed_give_up_refill(Feed *feed);

/*
 * A query has become known that was asked for then.  Catalog changes since do
 * not tell whether they concern it: if there were any, its text is unchecked.
 */
extern void feed_look_again(Feed *feed, uint64 asked_at);

/* What feed_answer left in feed->answer says of the query. */
extern void feed_take_check(Feed *feed);
extern void feed_take_failure(Feed *feed);
extern void feed_drop_orphans(Feed *feed);

/* ---- feed_joint_check.c ---- */

typedef enum CheckResult
{
	CHECK_CONFIRMED,			/* the query is what it was */
	CHECK_REFUTED,				/* it may be for some, and not for others */
	CHECK_ABANDONED				/* another has to lead */
} CheckResult;

extern void feed_joint_check_startup(MemoryContext parent);

/* That commit, which has feeds looked at, may not be visible yet. */
extern void feed_note_unseen(TransactionId xid);

/* The text of the subscriber is analysed: let others wait for the answer. */
extern void feed_lead_check(Feed *feed, const Subscriber *subscriber);

/* There is an answer, or none.  Nothing is done if nobody is led. */
extern void feed_end_check(Feed *feed, CheckResult result, bool full);

/*
 * Wait for somebody else's answer, or take it: then subscribers have been
 * checked, if not all of them.
 */
extern bool feed_follow_check(Feed *feed, const Subscriber *subscriber);

/* Go on without it. */
extern void feed_leave_check(Feed *feed);

/* ---- feed_set.c ---- */

/* Is it told by a reset that rows are not known, or have gone all at once? */
extern bool feed_starts_anew(const Feed *feed);

/* The table, as it is now, says that old rows are whole, or are not. */
extern void feed_note_full(Feed *feed, bool full);

/* The next batch has to be a reset, or need not be. */
extern void feed_note_reset(Subscriber *subscriber, bool reset);

/* The next batch of all whose clients know a result has to be one. */
extern void feed_note_resets(Feed *feed);

/* Has anybody's next batch to be one? */
extern bool feed_needs_reset(const Feed *feed);

/* Should rows be read that nothing waits for? */
extern bool feed_wants_rows(const Feed *feed);

/* Hold no rows, if none are needed, or whoever needs them. */
extern void feed_pass(Feed *feed);
extern void feed_shed(Feed *feed);

/* Begin with a query without reading rows, if it can be. */
extern void feed_start_passing(Feed *feed);

/* ---- feed_share.c ---- */

extern void feed_share_startup(MemoryContext parent);

/* The feed has a query, or another page; or it has a query no longer. */
extern void feed_share_join(Feed *feed);
extern void feed_share_leave(Feed *feed);

/* The first rows are there. */
extern void feed_share_loaded(Feed *feed);

/*
 * Take the first rows from a feed that has the same ones; true if so, or if
 * they are on the way.
 */
extern bool feed_share_rows(Feed *feed);

/* The feed has had a turn: perhaps feed_merge_all is of use. */
extern void feed_share_note(Feed *feed);

/* Does it want to go, but has to wait? */
extern bool feed_wants_merge(const Feed *feed);

/*
 * Give one of several subscribers a feed of its own, with the same rows and
 * what is not published yet.
 */
extern void feed_share_part(Subscriber *subscriber);

/*
 * Give pages that may not share their own feeds, and rows back that nobody
 * needs.
 */
extern void feed_share_resize(Feed *feed);

/* ---- feed_slice.c ---- */

/* How many rows to leave out, if possible, when all are read; 0: none. */
extern uint64 feed_slice_skip(const Feed *feed);

/* Does the window begin after rows of a page? */
extern bool feed_begins_late(const Feed *feed, const Window *window);

/* Should it have more rows before the page, though it need not?  How many? */
extern bool feed_is_thin_ahead(const Feed *feed, const Window *window);
extern uint64 feed_missing_ahead(const Feed *feed, const Window *window);

/* Drop rows far before the page. */
extern void feed_trim_ahead(Feed *feed, Window *window);

/* Is the only page so far from what is held that it is better read anew? */
extern bool feed_page_is_far(const Feed *feed);

/* ---- feed_drop.c ---- */

/* Drop groups that nobody has touched for long, if memory is short. */
extern void feed_drop_idle(Feed *feed);

/* Does the feed need all groups, has not all, and are they read together? */
extern bool feed_reads_all_groups(const Feed *feed);

/* Does a dropped group, which is PASSING, have to be read? */
extern bool feed_is_waiting(const Feed *feed, const Window *window);

/* How many of its rows. */
extern uint64 feed_rows_to_revive(const Feed *feed, const Window *window);

/* Hold the groups again that were read.  Frees what was read. */
extern void feed_revive(Feed *feed, WindowSet *read, bool everything);

#endif							/* LIVE_TOPN_FEED_PRIVATE_H */
