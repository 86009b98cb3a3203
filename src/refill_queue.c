/*
 * refill_queue.c
 *	  Which query the next free refill worker runs.
 *
 * Owners take turns, and none may have all workers.  Reads may take any time;
 * what is quick does not wait for them: there is one worker more than reads or
 * checks may have.
 */
#include "postgres.h"

#include "refill.h"
#include "refill_queue.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

int			refill_max_workers = 3;

/*
 * What is asked for one owner of subscriptions; of InvalidOid, drops.  One
 * without jobs is kept only while one of its jobs runs.
 */
typedef struct OwnerQueue
{
	dlist_node	node;
	Oid			oid;
	int			running[NUM_KINDS];
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
	int			running[NUM_KINDS];
	uint64		last_ticket;
};

RefillQueue *
refill_queue_create(MemoryContext context)
{
	RefillQueue *queue = MemoryContextAllocZero(context, sizeof(RefillQueue));
	HASHCTL		ctl = {0};

	queue->context = context;
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

RefillJob *
refill_queue_add(RefillQueue *queue, Oid oid, int64 id, RefillKind kind,
				 bool urgent)
{
	MemoryContext caller = MemoryContextSwitchTo(queue->context);
	RefillJob  *job = palloc0(sizeof(RefillJob));
	OwnerQueue *owner = find_owner(queue, oid);
	TicketEntry *entry;

	job->ticket = ++queue->last_ticket;
	job->id = id;
	job->kind = kind;
	job->owner = owner;
	initStringInfo(&job->message);
	entry = hash_search(queue->tickets, &job->ticket, HASH_ENTER, NULL);
	entry->job = job;
	dlist_push_tail(kind == REFILL_CHECK ? &owner->checks :
					urgent ? &owner->urgent : &owner->others, &job->node);
	queue->length++;
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
	pfree(job->message.data);
	pfree(job);
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

RefillJob *
refill_queue_next(RefillQueue *queue)
{
	OwnerQueue *owner = next_owner(queue);
	RefillJob  *job;

	if (owner == NULL)
		return NULL;
	dlist_delete(&owner->node);
	dlist_push_tail(&queue->owners, &owner->node);
	job = dlist_container(RefillJob, node,
						  dlist_pop_head_node(next_jobs(queue, owner)));
	job->started_at = GetCurrentTimestamp();
	owner->running[job->kind]++;
	queue->running[job->kind]++;
	queue->length--;
	return job;
}

void
refill_queue_end(RefillQueue *queue, RefillJob *job)
{
	job->owner->running[job->kind]--;
	queue->running[job->kind]--;
	free_job(queue, job);
}
