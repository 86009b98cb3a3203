/*
 * feed.h
 *	  The windows of a query, which follow the log, for those who subscribed.
 */
#ifndef LIVE_TOPN_FEED_H
#define LIVE_TOPN_FEED_H

#include "batch.h"
#include "catalog.h"
#include "checkpoint.h"
#include "cushion.h"
#include "evaluate.h"
#include "lib/ilist.h"
#include "lib/pairingheap.h"
#include "refill.h"
#include "span.h"
#include "subscriber.h"
#include "template.h"

/* What a refill reads: rows of one window, or the first ones of all groups. */
typedef struct FeedRead
{
	bool		everything;		/* the relation is read from the start */
	Row		   *key;			/* of the group, a reference; NULL if there
								 * are no groups, or of all */
	Row		   *low;			/* where it begins, a reference; or NULL */
	bool		backward;		/* from low on towards the start */
	uint64		skip;			/* of everything: first rows to leave out */
	uint64		limit;			/* rows; of all groups: beyond the results */
} FeedRead;

typedef enum FeedEventKind
{
	FEED_RESET,
	FEED_RELOAD,				/* read all rows again */
	FEED_MOVE
} FeedEventKind;

/* What a feed that is behind has to do at a commit, beside its changes. */
typedef struct FeedEvent
{
	FeedEventKind kind;
	CommitInfo	commit;
	Subscriber *subscriber;		/* RESET, MOVE: whose result */
	int64		offset;			/* MOVE */
	int64		limit;
} FeedEvent;

extern int	feed_slice_offset;	/* live_topn.slice_offset */
extern int	feed_result_memory_kb;	/* live_topn.result_memory */
extern int	feed_group_memory_kb;	/* live_topn.group_memory */
extern int	feed_evaluation_timeout_ms; /* live_topn.evaluation_timeout */

/* What has been done for the rows of a feed. */
typedef struct FeedCounters
{
	int64		changes;
	int64		refills;
	int64		refilled_rows;
	int64		refill_time;	/* microseconds */
	int64		work_time;		/* nanoseconds, see meter.h */
} FeedCounters;

typedef struct Feed
{
	dlist_node	node;			/* in the list of all */
	dlist_head	subscribers;	/* who show something of it */
	int			nsubscribers;	/* 0: freed once their batches are out */
	int			pending;		/* batches that wait for delivery, also of
								 * some who have left */

	/* see feed_mark_dirty */
	dlist_node	dirty_node;
	bool		dirty;

	/* see feed_turn.c */
	dlist_node	active_node;
	dlist_node	ready_node;
	pairingheap_node timer_node;
	bool		active;
	bool		ready;
	bool		fresh;			/* ready since it was last looked at */
	TimestampTz timer_at;		/* 0: none */

	/* see feed_share.c */
	struct Share *share;		/* NULL: shares with nobody */
	dlist_node	share_node;
	bool		waiting;		/* for another feed: its rows, or its check */
	bool		resized;		/* pages came or went: who may share, and what
								 * is needed? */
	struct Feed *newborn;		/* being made of it, see feed_split; or NULL */

	/* see route.c */
	struct Route *route;		/* NULL without a query */
	dlist_node	route_node;
	dlist_node	logger_node;
	bool		logger;
	dlist_node	counter_node;
	bool		counter;
	dlist_node	passer_node;
	bool		passer;
	struct RouteKey *route_key;
	struct Shape *shape;		/* NULL: it takes its changes from the log */
	int			nspans;
	Span	   *spans;
	WindowEnd	boundary_end;	/* as the spans were told */
	Row		   *boundary;		/* a reference; or NULL */
	uint64		found;			/* by which route_find */

	MemoryContext context;		/* holds all of this but the rows */
	bool		unresolved;		/* the changes of its table may be any */

	/* the query as last analysed; NULL until then, and in error */
	dlist_node	template_node;	/* in its list, or feed_list_unknown */
	Template   *template;		/* of which these are parts: */
	TopnQuery  *query;			/* constants of quals are parameters */
	RowFormat  *format;
	Evaluator  *evaluator;
	BatchFormat *batch_format;
	ParamListInfo params;		/* our own, as what follows */
	WindowSet  *windows;		/* one, or one for each group */
	Cushion		cushion;
	TimestampTz tight_until;	/* no cushion before, see feed_bound.c */

	bool		full;			/* old rows are whole, as far as we know ... */
	uint64		full_at;		/* ... from this commit on */
	bool		unsliced;		/* ... but not all that the next read needs */
	int64		offset;			/* of the page that reaches furthest */
	int64		limit;

	/*
	 * A feed that is behind follows the commit log from its cursor; the
	 * others take changes straight from the decoder.
	 */
	bool		behind;
	uint64		cursor;			/* last commit applied, if behind */
	bool		loaded;			/* the windows hold the result */
	bool		touched;		/* by the commit that is being decoded */
	bool		lost;			/* some change could not be applied: reload */
	bool		recheck;		/* the query may have changed its meaning: of
								 * subscribers that are unchecked */
	List	   *unseen;			/* xids, as OIDs, of the commits that changed
								 * it, as far as snapshots may miss them */
	List	   *events;			/* of FeedEvent after cursor */

	/* see feed_set.c */
	bool		wanted;			/* somebody waits for its rows ... */
	bool		unwieldy;		/* ... in vain, they are too many */

	/* commits applied since the last result that is known */
	int			covered;
	XLogRecPtr	from;			/* the first of them */
	CommitInfo	commit;			/* the last of them */

	/* a result that is known, but held back by the throttle */
	bool		held;
	TimestampTz due;			/* not before */

	/* the refill under way */
	uint64		ticket;			/* 0: none */
	Subscriber *asker;			/* whose text is analysed for it */
	uint64		asked_at;		/* as feed_catalog_changes */
	uint64		since;			/* last commit when it was requested */
	uint64		kept;			/* its answer may need the commits after it */
	int			nreads;			/* 0: the query is only checked */
	FeedRead   *reads;
	RefillAnswer *answer;		/* came, and waits to be merged ... */
	uint64		merge_at;		/* ... at this commit, if that is to come */
	TimestampTz retry_at;		/* after a failure, or to look again */
	TimestampTz barred_until;	/* and not before, see feed_watch.c */
	int			failures;
	int			looks;			/* for a commit to become visible, in a row */

	/* see feed_joint_check.c */
	struct JointCheck *leads;	/* or NULL */
	struct JointCheck *check;	/* whose follower it is; or NULL */
	dlist_node	check_node;
	bool		alone;			/* it has its query analysed by itself */
	uint64		rechecked;		/* feed_catalog_changes at feed_recheck */

	char	   *error;			/* NULL: none */
	char	   *hint;			/* what to do about it, or NULL */
	bool		forget;			/* the query, once no batch is pending */

	bool		replaying;		/* see feed_end_replay */
	XLogRecPtr	applied;		/* restored: feed_exact_lsn then */

	FeedCounters counters;
} Feed;

/* One of those who show it: all have the same owner and settings. */
static inline Subscriber *
feed_first(const Feed *feed)
{
	return dlist_head_element(Subscriber, node,
							  unconstify(dlist_head *, &feed->subscribers));
}

/* What decoding has reached; kept by apply.c. */
typedef struct LogPosition
{
	CommitInfo	commit;			/* the last commit */
	XLogRecPtr	lsn;			/* all records before it are decoded */
} LogPosition;

extern void feed_startup(MemoryContext parent, CommitLog *log,
						 RefillPool *pool, const LogPosition *position);

/* Give a subscription that was found what was saved of it. */
extern void feed_restore(Subscriber *subscriber,
						 const SavedSubscriber *saved);

/*
 * It is not known what an earlier worker has published, except that all of it
 * was before lsn.  Clients get a reset, whose number is beyond all numbers
 * used: a batch takes more than a byte of WAL.
 */
extern void feed_lose_history(Subscriber *subscriber, XLogRecPtr lsn);

/*
 * What an earlier worker has published, as a message in WAL says: numbers
 * after MESSAGE_PUBLISHED.  When all is told, deliver_forget_published must
 * follow.
 */
extern void feed_note_published(const char *numbers);

/*
 * All that an earlier worker can have written is decoded: go on from there.
 */
extern void feed_end_replay(Feed *feed);

/*
 * The feed, or something of who shows it, is not as it was saved.  Whatever
 * changes anything that a record says must call this: what a checkpoint leaves
 * out is taken to be right at a later position, too.  A window saved with more
 * rows than it holds now would not be, as changes of these concern it no more.
 */
extern void feed_mark_dirty(Feed *feed);
extern void feed_mark_clean(Feed *feed);

/* Those that are dirty, by their dirty_node. */
extern dlist_head *feed_list_dirty(void);

/* Is something not as it was saved, if only a lease?  All has been saved. */
extern bool feed_any_dirty(void);
extern void feed_clean(void);

/* All of them, by their node. */
extern dlist_head feed_all;

/* Those whose query is not known, or is in error, by their template_node. */
extern dlist_head *feed_list_unknown(void);

/* Does the feed want the changes of its table logged? */
extern bool feed_needs_log(const Feed *feed);

/* Is there a feed whose table is not known yet, so that any may be its? */
extern bool feed_any_unresolved(void);

/* Which commits the feed, or any of them, may still need: those after it. */
extern uint64 feed_floor(const Feed *feed);
extern uint64 feed_floor_of_all(void);

/*
 * The windows of a feed have all that was committed before this record, and
 * nothing after; nor have they seen what is asked for after.
 */
extern XLogRecPtr feed_exact_lsn(const Feed *feed);
extern XLogRecPtr feed_exact_lsn_of_all(void);

/* From which record on it may still need WAL. */
extern XLogRecPtr feed_restart_lsn(const Feed *feed);

/* Of its refill that is under way. */
extern RefillProgress feed_refill_progress(const Feed *feed);

/* Was the last commit decoded in the windows already when they were saved? */
extern bool feed_has_applied(const Feed *feed);

/* Is a refill worker looking at the query itself? */
extern bool feed_is_checking(const Feed *feed);

/* ---- while decoding ---- */

/*
 * A change of the feed's table, in a commit whose record starts there; false
 * if it is behind, or has the change already.  One that cannot be evaluated
 * now makes it fall behind: then the change is to be logged.
 */
extern bool feed_change(Feed *feed, const Change *change, XLogRecPtr start);

/*
 * A commit that asks for a reset; false if the feed is behind, or does not
 * need to know.
 */
extern bool feed_resync(Subscriber *subscriber);

/*
 * A commit that slides or resizes the result; false as above.  With seen, the
 * row that subscriber_create was given has it.
 */
extern bool feed_move(Subscriber *subscriber, int64 offset, int64 limit,
					  bool seen);

/* The end of a commit, if one of these functions has returned true in it. */
extern void feed_commit(Feed *feed);

/*
 * A commit that may have changed what the query means, before feed_commit.
 * Nothing is published until that is known.  With reload, it may have changed
 * rows, too, without showing them.
 */
extern void feed_recheck(Feed *feed, bool reload);

/* How many commits have changed catalogs, or roles of other databases? */
extern uint64 feed_catalog_changes;

/*
 * A commit that may have changed rows without showing them.  A feed that is
 * late reads them when it comes to the commit; what it is reading now may be
 * of either side of it.
 */
extern void feed_reload_later(Feed *feed);

/* ---- between ---- */

/*
 * The feed cannot go on as things are, or one of its subscribers cannot: that
 * one then has a feed of its own.  It is tried again, and starts from the
 * table then.  hint may be NULL.
 */
extern void feed_fail(Feed *feed, int sqlerrcode, const char *message,
					  const char *hint);
extern void feed_fail_subscriber(Subscriber *subscriber,
								 const ErrorData *error);

/* What to say of a result that is larger than that. */
extern char *feed_too_large_message(void);

/* live_topn.result_memory is, or may be, another now. */
extern void feed_change_bound(void);

/* live_topn.slice_offset is another now. */
extern void feed_change_slices(void);

/* A batch waits for delivery, or is out. */
extern void feed_note_pending(Subscriber *subscriber);
extern void feed_delivered(Subscriber *subscriber);

/* Take an answer; it is of a feed that may have gone. */
extern void feed_answer(RefillAnswer *answer);

/*
 * Go on with the feeds that are behind or wait for something.  Opens
 * transactions of its own; an error in a query's expressions puts its feed in
 * error.  Returns whether there is more to do at once.
 */
extern bool feed_advance_all(void);

/*
 * Have many commits each made other feeds go through the log since?  Every
 * commit decoded before they do is one more that each of them looks at.
 */
extern bool feed_many_roused(void);

/*
 * After that, and once batches are out: of feeds with the same query that are
 * at rest then, one stays, for all their subscribers.
 */
extern void feed_merge_all(void);

/*
 * Has a feed become ready that feed_advance_all has not looked at since?  It
 * has to, before the worker sleeps.
 */
extern bool feed_any_fresh(void);

/* Milliseconds until feed_advance_all has something to do, -1 if never. */
extern long feed_next_timeout(void);

/*
 * Do changes tell all, so that no rows need to be held; and has the log come
 * to where they do, so that none need to be saved?
 */
extern bool feed_passes(const Feed *feed);
extern bool feed_can_pass(const Feed *feed);

/*
 * Let the feed hold its result, until it is released: false if it has to be
 * read.  It may turn out to be unwieldy.
 */
extern bool feed_hold(Feed *feed);
extern void feed_release(Feed *feed);

/* Publish a result that the throttle holds back; all there are. */
extern void feed_flush(Subscriber *subscriber);
extern void feed_flush_all(void);

/* Extend the lease, from that time on. */
extern void feed_renew(Subscriber *subscriber, TimestampTz at);

/* Whose lease was extended since feed_clean, by their renewed_node. */
extern dlist_head *feed_list_renewed(void);

/* Have subscriptions dropped whose lease or session has ended. */
extern void feed_end_leases(void);

/*
 * Has all up to the position been applied?  A feed in error has, unless it is
 * being looked at.
 */
extern bool feed_is_current(const Feed *feed);

extern bool feed_all_current(void);

/*
 * Do something in a transaction, as the owner and restricted: expressions of
 * the query, and comparison functions of its types, run here.  An error puts
 * the feed in error.
 */
extern void feed_run_safely(Feed *feed,
							void (*function) (Feed *feed, const void *arg),
							const void *arg);

/* The result as ranks in a window, which must not be short. */
extern ResultPage feed_page(const Subscriber *subscriber,
							const Window *window);

/* The page that clients know, of a window. */
static inline ResultPage *
feed_known_page(Subscriber *subscriber, Window *window)
{
	return window->set->only ? &subscriber->page : &window->page;
}

/* How many rows are in the result that clients know. */
extern uint64 feed_result_rows(Subscriber *subscriber);

/* Rows held before the page that clients know. */
extern uint64 feed_skipped_rows(Subscriber *subscriber);

extern const char *feed_state(const Feed *feed);

#endif							/* LIVE_TOPN_FEED_H */
