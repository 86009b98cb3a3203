/*
 * feed_joint_check.c
 *	  One look at a text for all feeds that have it with other arguments.
 *
 * DDL may concern as many feeds as there are, of which nearly all have the text
 * of their query in common.  The first one that has it analysed leads a joint
 * check, and the others join it.  If the fingerprint of the query is what it
 * was for all of them (fingerprint.c), and the leader's query is what it was,
 * so are theirs; otherwise each has its own analysed.
 *
 * A feed joins only if all that it has to have looked at was visible when the
 * leader asked: commits that had feeds looked at are counted, and the xids of
 * the last ones kept until they are visible.
 */
#include "postgres.h"

#include "feed_private.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

typedef struct CheckKey
{
	Template   *template;
	const char *query;			/* as intern.c has it */
	uint64		fingerprint;
} CheckKey;

typedef struct JointCheck
{
	CheckKey	key;
	uint64		began;			/* as feed_catalog_changes */
	bool		confirmed;
	bool		full;			/* see feed_note_full */
	dlist_head	followers;		/* by their check_node */
} JointCheck;

typedef struct CheckEntry
{
	CheckKey	key;
	JointCheck *check;
} CheckEntry;

uint64		feed_catalog_changes;

static MemoryContext check_context;
static HTAB *checks;			/* of CheckEntry, those that are under way */
static List *unseen;			/* xids of commits that may not be visible */

void
feed_joint_check_startup(MemoryContext parent)
{
	HASHCTL		ctl = {0};

	check_context = AllocSetContextCreate(parent, "live_topn joint checks",
										  ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(CheckKey);
	ctl.entrysize = sizeof(CheckEntry);
	ctl.hcxt = check_context;
	checks = hash_create("live_topn joint checks", 64, &ctl,
						 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static bool
is_all_seen(void)
{
	unseen = commit_log_drop_seen(unseen);
	return unseen == NIL;
}

void
feed_note_unseen(TransactionId xid)
{
	MemoryContext caller;

	if (unseen != NIL && llast_oid(unseen) == xid)
		return;
	(void) is_all_seen();
	caller = MemoryContextSwitchTo(check_context);
	unseen = lappend_oid(unseen, xid);
	MemoryContextSwitchTo(caller);
}

/* May the feed lead or follow, for that subscriber? */
static bool
make_key(const Feed *feed, const Subscriber *subscriber, CheckKey *key)
{
	if (feed->template == NULL || !feed->loaded || feed->alone ||
		feed->rechecked == 0 || subscriber->fingerprint == 0)
		return false;
	key->template = feed->template;
	key->query = subscriber->row->query;
	key->fingerprint = subscriber->fingerprint;
	return true;
}

void
feed_lead_check(Feed *feed, const Subscriber *subscriber)
{
	CheckKey	key;
	CheckEntry *entry;

	if (!make_key(feed, subscriber, &key) || !is_all_seen())
		return;
	/* one from before later changes goes on without a name */
	entry = hash_search(checks, &key, HASH_ENTER, NULL);
	entry->check = MemoryContextAllocZero(check_context, sizeof(JointCheck));
	entry->check->key = key;
	entry->check->began = feed_catalog_changes;
	dlist_init(&entry->check->followers);
	feed->leads = entry->check;
}

/* Go on, if it waits. */
static void
release(Feed *feed)
{
	feed->waiting = false;
	feed_activate(feed);
}

void
feed_leave_check(Feed *feed)
{
	JointCheck *check = feed->check;

	if (check == NULL)
		return;
	dlist_delete(&feed->check_node);
	feed->check = NULL;
	release(feed);
	if (check->confirmed && dlist_is_empty(&check->followers))
		pfree(check);
}

void
feed_end_check(Feed *feed, CheckResult result, bool full)
{
	JointCheck *check = feed->leads;
	CheckEntry *entry;
	dlist_mutable_iter iter;

	if (check == NULL)
		return;
	feed->leads = NULL;
	entry = hash_search(checks, &check->key, HASH_FIND, NULL);
	if (entry && entry->check == check)
		hash_search(checks, &check->key, HASH_REMOVE, NULL);
	check->full = full;
	dlist_foreach_modify(iter, &check->followers)
	{
		Feed	   *follower = dlist_container(Feed, check_node, iter.cur);

		if (result == CHECK_CONFIRMED)
		{
			release(follower);
			continue;
		}
		follower->alone = result == CHECK_REFUTED;
		feed_leave_check(follower);
	}
	if (dlist_is_empty(&check->followers))
		pfree(check);
	else
		check->confirmed = true;
}

/* The query of those who have the text is what it was. */
static void
take_confirmation(Feed *feed)
{
	const JointCheck *check = feed->check;
	dlist_iter	iter;

	dlist_foreach(iter, &feed->subscribers)
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		if (subscriber->row->query == check->key.query &&
			subscriber->fingerprint == check->key.fingerprint)
			subscriber->unchecked = false;
	}
	feed_note_full(feed, check->full);
	feed_leave_check(feed);
}

bool
feed_follow_check(Feed *feed, const Subscriber *subscriber)
{
	CheckKey	key;
	CheckEntry *entry;

	if (feed->check && feed->check->confirmed)
	{
		take_confirmation(feed);
		return true;
	}
	if (feed->check == NULL)
	{
		if (!make_key(feed, subscriber, &key))
			return false;
		entry = hash_search(checks, &key, HASH_FIND, NULL);
		if (entry == NULL || entry->check->began < feed->rechecked)
			return false;
		feed->check = entry->check;
		dlist_push_tail(&entry->check->followers, &feed->check_node);
	}
	feed->waiting = true;
	return true;
}
