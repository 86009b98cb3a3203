/*
 * subscriber_changes.h
 *	  What a commit does to subscriptions.
 */
#ifndef LIVE_TOPN_SUBSCRIBER_CHANGES_H
#define LIVE_TOPN_SUBSCRIBER_CHANGES_H

#include "feed.h"
#include "table.h"

/*
 * Another commit begins, and what the one before has done is forgotten.  Memory
 * is allocated in context, which is reset before the next.
 */
extern void subscriber_changes_begin(MemoryContext context);

/*
 * A row of the table of subscriptions has changed, or all are gone.  If our
 * read of the table has seen that, subscriptions are there already; only feeds
 * that are restored to an earlier time have to move again.
 */
extern void subscriber_changes_note(const Change *change, bool seen);

/* A subscription is to start anew, its lease to be extended. */
extern void subscriber_changes_note_resync(int64 id);
extern void subscriber_changes_note_renewal(int64 id);

/*
 * At the commit, what belongs into one batch with its changes of rows: show
 * other pages, and start anew.  Calls touch for each feed concerned.
 */
extern void subscriber_changes_apply_pages(void (*touch) (Feed *feed));

/* And the rest, when these batches are made. */
extern void subscriber_changes_apply(TimestampTz time);

#endif							/* LIVE_TOPN_SUBSCRIBER_CHANGES_H */
