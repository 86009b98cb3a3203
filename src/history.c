/*
 * history.c
 *	  The last batches of each feed, for topn_poll.
 *
 * All batches are in one list by age as well, from which the oldest go when
 * the memory for all feeds is used up.  The oldest of all is the oldest of its
 * feed, so that what is kept of a feed has no holes.
 */
#include "postgres.h"

#include "history.h"
#include "lib/ilist.h"
#include "libpq/pqformat.h"
#include "utils/memutils.h"

int			history_memory_kb = 16 * 1024;
int			history_batches = 1000;

struct History
{
	dlist_head	batches;		/* oldest first */
	int			n;
};

typedef struct Kept
{
	dlist_node	age_node;
	dlist_node	feed_node;
	History    *history;
	int64		seq;
	int			length;
	char		json[FLEXIBLE_ARRAY_MEMBER];
} Kept;

static MemoryContext context;
static dlist_head by_age = DLIST_STATIC_INIT(by_age);
static Size kept_bytes;

void
history_startup(MemoryContext parent)
{
	context = AllocSetContextCreate(parent, "live_topn history",
									ALLOCSET_DEFAULT_SIZES);
}

History *
history_create(void)
{
	History    *history = MemoryContextAllocZero(context, sizeof(History));

	dlist_init(&history->batches);
	return history;
}

static void
drop_oldest(History *history)
{
	Kept	   *kept = dlist_head_element(Kept, feed_node, &history->batches);

	dlist_delete(&kept->age_node);
	dlist_delete(&kept->feed_node);
	history->n--;
	kept_bytes -= GetMemoryChunkSpace(kept);
	pfree(kept);
}

void
history_free(History *history)
{
	while (history->n > 0)
		drop_oldest(history);
	pfree(history);
}

void
history_add(History *history, int64 seq, const char *json, int length)
{
	Kept	   *kept = MemoryContextAllocHuge(context,
											  offsetof(Kept, json) + length);

	kept->history = history;
	kept->seq = seq;
	kept->length = length;
	memcpy(kept->json, json, length);
	dlist_push_tail(&by_age, &kept->age_node);
	dlist_push_tail(&history->batches, &kept->feed_node);
	history->n++;
	kept_bytes += GetMemoryChunkSpace(kept);

	while (history->n > history_batches)
		drop_oldest(history);
	while (kept_bytes > history_memory_kb * (Size) 1024 &&
		   !dlist_is_empty(&by_age))
		drop_oldest(dlist_head_element(Kept, age_node, &by_age)->history);
}

bool
history_append_after(const History *history, int64 seq, int64 last,
					 StringInfo out)
{
	dlist_iter	iter;

	if (seq > last || seq < last - history->n)
		return false;

	pq_sendint32(out, last - seq);
	dlist_foreach(iter, unconstify(dlist_head *, &history->batches))
	{
		Kept	   *kept = dlist_container(Kept, feed_node, iter.cur);

		if (kept->seq > seq)
		{
			pq_sendint32(out, kept->length);
			pq_sendbytes(out, kept->json, kept->length);
		}
	}
	return true;
}
