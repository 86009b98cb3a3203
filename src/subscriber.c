/*
 * subscriber.c
 *	  One subscription in the database worker: what it shows of a feed, and
 *	  what its clients know.
 *
 * A subscription is born with a feed of its own.  Once its query is known it
 * may turn out that another feed has the same one (feed_share.c).
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "feed_private.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

/* Usually all that it takes, since a Subscriber fits into 256 bytes. */
#define SUBSCRIBER_BLOCK_SIZE	1024

#ifndef USE_ASSERT_CHECKING
StaticAssertDecl(sizeof(Subscriber) <= 256,
				 "a Subscriber takes a chunk of 512 bytes");
#endif

typedef struct SubscriberEntry
{
	int64		id;
	Subscriber *subscriber;
} SubscriberEntry;

/* How many have the same text, arguments and owner. */
typedef struct TextEntry
{
	uint64		hash;
	int			n;
} TextEntry;

static MemoryContext subscriber_context;
static HTAB *subscribers;
static HTAB *texts;

void
subscriber_startup(MemoryContext parent)
{
	HASHCTL		ctl = {0};

	subscriber_context = AllocSetContextCreate(parent,
											   "live_topn subscribers",
											   ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(int64);
	ctl.entrysize = sizeof(SubscriberEntry);
	ctl.hcxt = subscriber_context;
	subscribers = hash_create("live_topn subscribers", 64, &ctl,
							  HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(TextEntry);
	texts = hash_create("live_topn texts", 64, &ctl,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static uint64
hash_text(uint64 hash, const char *text)
{
	return hash_combine64(hash, text == NULL ? 0 :
						  hash_bytes_extended((const unsigned char *) text,
											  strlen(text), 1));
}

static uint64
text_hash(const SubscriptionRow *row)
{
	uint64		hash = hash_text(row->owner, row->query);

	for (int i = 0; i < row->nargs; i++)
		hash = hash_text(hash, row->args[i]);
	return hash;
}

/* One more, or one less, has that text. */
static void
count_text(uint64 hash, int change)
{
	bool		found;
	TextEntry  *entry = hash_search(texts, &hash, HASH_ENTER, &found);

	entry->n = found ? entry->n + change : change;
	if (entry->n == 0)
		hash_search(texts, &hash, HASH_REMOVE, NULL);
}

bool
subscriber_has_equals(const Subscriber *subscriber)
{
	TextEntry  *entry = hash_search(texts, &subscriber->text_hash, HASH_FIND,
									NULL);

	return entry->n > 1;
}

Subscriber *
subscriber_create(const SubscriptionRow *row, bool found)
{
	MemoryContext context = AllocSetContextCreate(subscriber_context,
												  "live_topn subscriber",
												  0, SUBSCRIBER_BLOCK_SIZE,
												  ALLOCSET_SMALL_MAXSIZE);
	MemoryContext caller = MemoryContextSwitchTo(context);
	Subscriber *subscriber = palloc0(sizeof(Subscriber));
	SubscriberEntry *entry;
	bool		exists;

	subscriber->id = row->id;
	subscriber->context = context;
	subscriber->row = catalog_keep_row(row);
	MemoryContextSetIdentifier(context, subscriber->row->name);
	subscriber->offset = row->offset;
	subscriber->limit = row->limit;
	subscriber->published = -1;
	subscriber->history = history_create();
	MemoryContextSwitchTo(caller);

	entry = hash_search(subscribers, &subscriber->id, HASH_ENTER, &exists);
	if (exists)
		elog(ERROR, "subscription " INT64_FORMAT " exists already",
			 subscriber->id);
	entry->subscriber = subscriber;
	subscriber->text_hash = text_hash(row);
	count_text(subscriber->text_hash, 1);
	feed_start_lease(subscriber, found ? GetCurrentTimestamp() :
					 feed_position->commit.time);
	feed_create(subscriber, found);
	return subscriber;
}

Subscriber *
subscriber_find(int64 id)
{
	SubscriberEntry *entry = hash_search(subscribers, &id, HASH_FIND, NULL);

	return entry ? entry->subscriber : NULL;
}

void
subscriber_scan(HASH_SEQ_STATUS *status)
{
	hash_seq_init(status, subscribers);
}

Subscriber *
subscriber_scan_next(HASH_SEQ_STATUS *status)
{
	SubscriberEntry *entry = hash_seq_search(status);

	return entry ? entry->subscriber : NULL;
}

long
subscriber_count(void)
{
	return hash_get_num_entries(subscribers);
}

bool
subscriber_same_text(const Subscriber *a, const Subscriber *b)
{
	if (strcmp(a->row->query, b->row->query) != 0 ||
		a->row->nargs != b->row->nargs)
		return false;
	for (int i = 0; i < a->row->nargs; i++)
	{
		const char *x = a->row->args[i];
		const char *y = b->row->args[i];

		if (x && y ? strcmp(x, y) != 0 : x != y)
			return false;
	}
	return true;
}

void
subscriber_free(Subscriber *subscriber)
{
	history_free(subscriber->history);
	catalog_release_row(subscriber->row);
	MemoryContextDelete(subscriber->context);
}

void
subscriber_drop(Subscriber *subscriber)
{
	bool		pending = subscriber->pending > 0;

	hash_search(subscribers, &subscriber->id, HASH_REMOVE, NULL);
	count_text(subscriber->text_hash, -1);
	feed_stop_lease(subscriber);
	checkpoint_drop(subscriber);
	subscriber->dropped = true;
	feed_leave(subscriber);
	if (!pending)
		subscriber_free(subscriber);
}
