/*
 * subscriber_changes.c
 *	  What a commit does to subscriptions.
 *
 * They are rows of a table, which the commit makes, changes and deletes; and
 * logical messages ask for resyncs and longer leases.  All of them may come in
 * one commit, in any number, and each any number of times.
 */
#include "postgres.h"

#include "subscriber_changes.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"

/* A change of the table of subscriptions; without rows, a truncation. */
typedef struct CatalogChange
{
	SubscriptionRow *old;
	SubscriptionRow *new;
	bool		move;			/* nothing but the page is another */
	bool		seen;			/* by our read of the table */
} CatalogChange;

/* What the commit has done to a subscription so far. */
typedef struct Mention
{
	int64		id;
	CatalogChange *change;		/* the last one that leaves it; or NULL */
	bool		resync;
	bool		renewal;
} Mention;

static MemoryContext changes_context;
static HTAB *mentions;			/* NULL: none */
static List *catalog_changes;	/* of CatalogChange, in their order */
static List *resyncs;			/* of Mention, likewise */
static List *renewals;

void
subscriber_changes_begin(MemoryContext context)
{
	changes_context = context;
	mentions = NULL;
	catalog_changes = resyncs = renewals = NIL;
}

static Mention *
get_mention(int64 id)
{
	Mention    *mention;
	bool		found;

	if (mentions == NULL)
	{
		HASHCTL		ctl = {0};

		ctl.keysize = sizeof(int64);
		ctl.entrysize = sizeof(Mention);
		ctl.hcxt = changes_context;
		mentions = hash_create("live_topn subscriptions of a commit", 64, &ctl,
							   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	}
	mention = hash_search(mentions, &id, HASH_ENTER, &found);
	if (!found)
	{
		mention->change = NULL;
		mention->resync = mention->renewal = false;
	}
	return mention;
}

void
subscriber_changes_note(const Change *change, bool seen)
{
	MemoryContext caller;
	TupleDesc	desc = change->table->desc;
	CatalogChange *noted;
	Mention    *mention = NULL;
	HeapTuple	new;

	if (seen && change->kind != CHANGE_UPDATE)
		return;
	caller = MemoryContextSwitchTo(changes_context);
	noted = palloc0(sizeof(CatalogChange));
	new = change_fill_new(change);
	noted->seen = seen;
	noted->move = change->old && new &&
		catalog_is_move(change->old, new, desc);
	if (change->old)
		noted->old = catalog_row(change->old, desc);
	if (new)
	{
		noted->new = catalog_row(new, desc);
		mention = get_mention(noted->new->id);
	}

	/* a commit may move it more than once, and may have made it, too */
	if (noted->move && mention->change)
		mention->change->new = noted->new;
	else if (noted->move || !seen)
	{
		catalog_changes = lappend(catalog_changes, noted);
		if (mention)
			mention->change = noted;
	}
	MemoryContextSwitchTo(caller);
}

/* Once in a commit is enough. */
static void
note_once(List **list, Mention *mention, bool *noted)
{
	MemoryContext caller = MemoryContextSwitchTo(changes_context);

	if (!*noted)
		*list = lappend(*list, mention);
	*noted = true;
	MemoryContextSwitchTo(caller);
}

void
subscriber_changes_note_resync(int64 id)
{
	Mention    *mention = get_mention(id);

	note_once(&resyncs, mention, &mention->resync);
}

void
subscriber_changes_note_renewal(int64 id)
{
	Mention    *mention = get_mention(id);

	note_once(&renewals, mention, &mention->renewal);
}

void
subscriber_changes_apply_pages(void (*touch) (Feed *feed))
{
	ListCell   *lc;

	foreach(lc, catalog_changes)
	{
		CatalogChange *change = lfirst(lc);
		Subscriber *subscriber = change->move ?
			subscriber_find(change->new->id) : NULL;

		if (subscriber && feed_move(subscriber, change->new->offset,
									change->new->limit, change->seen))
			touch(subscriber->feed);
	}
	foreach(lc, resyncs)
	{
		Subscriber *subscriber = subscriber_find(((Mention *) lfirst(lc))->id);

		if (subscriber && feed_resync(subscriber))
			touch(subscriber->feed);
	}
}

static void
drop_all(void)
{
	HASH_SEQ_STATUS status;
	Subscriber *subscriber;

	subscriber_scan(&status);
	while ((subscriber = subscriber_scan_next(&status)) != NULL)
		subscriber_drop(subscriber);	/* which a scan allows for the current
										 * one */
}

static void
apply_change(const CatalogChange *change)
{
	Subscriber *subscriber = change->old ?
		subscriber_find(change->old->id) : NULL;
	int64		seq = 0;
	bool		announced = false;

	if (change->move)
		return;
	if (change->old == NULL && change->new == NULL)
		drop_all();
	if (subscriber)
	{
		seq = subscriber->seq;
		announced = subscriber->announced;
		subscriber_drop(subscriber);
	}
	if (change->new)
	{
		subscriber = subscriber_create(change->new, false);
		subscriber->seq = seq;
		subscriber->announced = announced;
		subscriber->reset = announced || get_mention(subscriber->id)->resync;
	}
}

void
subscriber_changes_apply(TimestampTz time)
{
	ListCell   *lc;

	foreach(lc, catalog_changes)
		apply_change(lfirst(lc));
	foreach(lc, renewals)
	{
		Subscriber *subscriber = subscriber_find(((Mention *) lfirst(lc))->id);

		if (subscriber)
			feed_renew(subscriber, time);
	}
}
