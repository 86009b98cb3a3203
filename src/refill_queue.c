/*
 * refill_queue.c
 *	  Which query the next free refill worker runs.
 *
 * Owners take turns, and none may have all workers.  Reads may take any time;
 * what is quick does not wait for them: there is one worker more than reads or
 * checks may have.
 *
 * What is quick by itself takes most of its time to begin and end.  So jobs
 * that are alike run in batches, whose size is found by trial: as many as take
 * some ten milliseconds together.
 */
#include "postgres.h"

#include "refill.h"
#include "refill_queue.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#define JOB_BLOCK_SIZE	2048	/* usually all that it takes */
#define MAX_BATCH		256
#define BATCH_MS		10		/* a batch that took less may grow ... */
#define LONG_BATCH_MS	50		/* ... and one that took more has to shrink */
#define MAX_SKIPPED		64		/* jobs of another kind that are passed over */

int			refill_max_workers = 3;

/*
 * What is asked for one owner of subscriptions; of InvalidOid, drops.  One
 * without jobs is kept only while one of its jobs runs.
 */
typedef struct OwnerQueue
{
	dlist_node	node;
	Oid			oid;
	int			running[NUM_KINDS]; /* batches */
	dlist_head	checks;			/* of RefillJob */
	dlist_head	urgent;			/* reads of rows that a window lacks */
	dlist_head	others;			/* other reads */
} OwnerQueue;

typedef struct TicketEntry
{
	uint64		ticket;
	RefillJob  *job;
} TicketEntry;

struct RefillQueue
{
	MemoryContext context;
	dlist_head	owners;			/* of OwnerQueue; who had the last turn is
								 * last */
	HTAB	   *tickets;		/* of TicketEntry: jobs queued or under way */
	int			length;
	int			running[NUM_KINDS];	/* batches */
	int			max_batch;
	uint64		last_ticket;
};

RefillQueue *
refill_queue_create(MemoryContext context)
{
	RefillQueue *queue = MemoryContextAllocZero(context, sizeof(RefillQueue));
	HASHCTL		ctl = {0};

	queue->context = context;
	queue->max_batch = 1;
	dlist_init(&queue->owners);
	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(TicketEntry);
	ctl.hcxt = context;
	queue->tickets = hash_create("live_topn tickets", 64, &ctl,
								 HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	return queue;
}

static OwnerQueue *
find_owner(RefillQueue *queue, Oid oid)
{
	dlist_iter	iter;
	OwnerQueue *owner;

	dlist_foreach(iter, &queue->owners)
	{
		owner = dlist_container(OwnerQueue, node, iter.cur);
		if (owner->oid == oid)
			return owner;
	}
	owner = palloc0(sizeof(OwnerQueue));
	owner->oid = oid;
	dlist_init(&owner->checks);
	dlist_init(&owner->urgent);
	dlist_init(&owner->others);
	dlist_push_head(&queue->owners, &owner->node);
	return owner;
}

static void
drop_owner_if_unused(OwnerQueue *owner)
{
	if (owner->running[REFILL_CHECK] > 0 || owner->running[REFILL_READ] > 0 ||
		!dlist_is_empty(&owner->checks) || !dlist_is_empty(&owner->urgent) ||
		!dlist_is_empty(&owner->others))
		return;
	dlist_delete(&owner->node);
	pfree(owner);
}

static void
enqueue(RefillQueue *queue, RefillJob *job)
{
	OwnerQueue *owner = job->owner;

	dlist_push_tail(job->kind == REFILL_CHECK ? &owner->checks :
					job->urgent ? &owner->urgent : &owner->others, &job->node);
	queue->length++;
}

RefillJob *
refill_queue_add(RefillQueue *queue, Oid oid, int64 id, RefillKind kind,
				 bool urgent)
{
	MemoryContext caller = MemoryContextSwitchTo(queue->context);
	OwnerQueue *owner = find_owner(queue, oid);
	MemoryContext context = AllocSetContextCreate(queue->context,
												  "live_topn refill job",
												  0, JOB_BLOCK_SIZE,
												  ALLOCSET_DEFAULT_MAXSIZE);
	RefillJob  *job = MemoryContextAllocZero(context, sizeof(RefillJob));
	TicketEntry *entry;

	job->ticket = ++queue->last_ticket;
	job->id = id;
	job->kind = kind;
	job->urgent = urgent;
	job->owner = owner;
	job->context = context;
	MemoryContextSwitchTo(context);
	initStringInfo(&job->message);
	entry = hash_search(queue->tickets, &job->ticket, HASH_ENTER, NULL);
	entry->job = job;
	enqueue(queue, job);
	MemoryContextSwitchTo(caller);
	return job;
}

/* One that has run, or has left the queue. */
static void
free_job(RefillQueue *queue, RefillJob *job)
{
	if (job->ticket != 0)
		hash_search(queue->tickets, &job->ticket, HASH_REMOVE, NULL);
	drop_owner_if_unused(job->owner);
	MemoryContextDelete(job->context);
}

void
refill_queue_forget(RefillQueue *queue, uint64 ticket)
{
	TicketEntry *entry = hash_search(queue->tickets, &ticket, HASH_REMOVE,
									 NULL);
	RefillJob  *job;

	if (entry == NULL)
		return;
	job = entry->job;
	job->ticket = 0;
	if (job->started_at == 0)
	{
		dlist_delete(&job->node);
		queue->length--;
		free_job(queue, job);
	}
}

int
refill_queue_length(const RefillQueue *queue)
{
	return queue->length;
}

static bool
may_run(const RefillQueue *queue, const OwnerQueue *owner, RefillKind kind)
{
	return queue->running[kind] < refill_max_workers &&
		owner->running[kind] < Max(refill_max_workers - 1, 1);
}

/* Where the owner's next job to run is, or NULL. */
static dlist_head *
next_jobs(const RefillQueue *queue, OwnerQueue *owner)
{
	if (!dlist_is_empty(&owner->checks) &&
		may_run(queue, owner, REFILL_CHECK))
		return &owner->checks;
	if (!may_run(queue, owner, REFILL_READ))
		return NULL;
	if (!dlist_is_empty(&owner->urgent))
		return &owner->urgent;
	return dlist_is_empty(&owner->others) ? NULL : &owner->others;
}

/* Whose turn is it, of those with a job that may run? */
static OwnerQueue *
next_owner(RefillQueue *queue)
{
	dlist_iter	iter;

	dlist_foreach(iter, &queue->owners)
	{
		OwnerQueue *owner = dlist_container(OwnerQueue, node, iter.cur);

		if (next_jobs(queue, owner))
			return owner;
	}
	return NULL;
}

bool
refill_queue_has_next(RefillQueue *queue)
{
	return next_owner(queue) != NULL;
}

static bool
are_alike(const RefillJob *a, const RefillJob *b)
{
	return a->alike > 0 && a->alike == b->alike &&
		memcmp(a->message.data, b->message.data, a->alike) == 0;
}

static RefillJob *
take(RefillQueue *queue, dlist_node *node)
{
	dlist_delete(node);
	queue->length--;
	return dlist_container(RefillJob, node, node);
}

/* Let others from that list run after the job; workers share what waits. */
static void
fill_batch(RefillQueue *queue, dlist_head *jobs, RefillJob *first)
{
	int			most = Min(queue->max_batch,
						   1 + queue->length / refill_max_workers);
	int			skipped = 0;
	RefillJob  *last = first;
	dlist_mutable_iter iter;

	first->batch_size = 1;
	dlist_foreach_modify(iter, jobs)
	{
		RefillJob  *job = dlist_container(RefillJob, node, iter.cur);

		if (first->batch_size >= most || skipped == MAX_SKIPPED)
			break;
		if (!are_alike(first, job))
		{
			skipped++;
			continue;
		}
		last->next = take(queue, iter.cur);
		last = job;
		first->batch_size++;
	}
	for (RefillJob *job = first; job; job = job->next)
	{
		job->batch_size = first->batch_size;
		job->started_at = job->batch_at = GetCurrentTimestamp();
	}
}

RefillJob *
refill_queue_next(RefillQueue *queue)
{
	OwnerQueue *owner = next_owner(queue);
	dlist_head *jobs;
	RefillJob  *job;

	if (owner == NULL)
		return NULL;
	dlist_delete(&owner->node);
	dlist_push_tail(&queue->owners, &owner->node);
	jobs = next_jobs(queue, owner);
	job = take(queue, dlist_head_node(jobs));
	owner->running[job->kind]++;
	queue->running[job->kind]++;
	fill_batch(queue, jobs, job);
	return job;
}

/* A batch has ended: should batches be larger, or smaller? */
static void
learn_size(RefillQueue *queue, const RefillJob *job)
{
	TimestampTz now = GetCurrentTimestamp();

	if (!TimestampDifferenceExceeds(job->batch_at, now, BATCH_MS))
	{
		if (job->batch_size == queue->max_batch)
			queue->max_batch = Min(queue->max_batch * 2, MAX_BATCH);
	}
	else if (TimestampDifferenceExceeds(job->batch_at, now, LONG_BATCH_MS))
		queue->max_batch = Max(job->batch_size / 2, 1);
}

RefillJob *
refill_queue_end(RefillQueue *queue, RefillJob *job)
{
	RefillJob  *next = job->next;

	if (next)
		next->started_at = GetCurrentTimestamp();
	else
	{
		learn_size(queue, job);
		job->owner->running[job->kind]--;
		queue->running[job->kind]--;
	}
	free_job(queue, job);
	return next;
}

void
refill_queue_put_back(RefillQueue *queue, RefillJob *job)
{
	OwnerQueue *owner = job->owner;
	RefillKind	kind = job->kind;
	RefillJob  *next;

	for (; job; job = next)
	{
		next = job->next;
		job->next = NULL;
		job->started_at = 0;
		if (job->ticket == 0)
			free_job(queue, job);
		else
			enqueue(queue, job);
	}
	owner->running[kind]--;
	queue->running[kind]--;
	drop_owner_if_unused(owner);
}
