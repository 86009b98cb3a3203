/*
 * holders.c
 *	  Which windows hold a row, by its identity.
 *
 * WAL tells of the old version of a row often no more than its key, and of a
 * hundred thousand windows perhaps one holds it.  This is a hash table with
 * chains that are linked both ways, since many windows may hold the same row
 * and each must be taken out without a look at the others.  Links are numbers,
 * and owners are found by a hash only: a row that is held costs some 30 bytes
 * here.
 */
#include "postgres.h"

#include "holders.h"
#include "utils/memutils.h"

#define CHUNK_HOLDERS	1024
#define FIRST_BUCKETS	256

typedef struct Holder
{
	void	   *owner;
	uint32		hash;
	uint32		next;			/* in the chain, or of the free ones */
	uint32		previous;		/* HOLDER_NONE: the first of its chain */
} Holder;

struct Holders
{
	MemoryContext context;
	uint32		nbuckets;		/* a power of two */
	uint32	   *buckets;		/* the first of each chain */
	uint32		nchunks;
	uint32		maxchunks;
	Holder	  **chunks;			/* of CHUNK_HOLDERS each */
	uint32		used;			/* holders that were ever given out */
	uint32		free;			/* the first of those given back */
	uint32		count;
};

static inline Holder *
holder_at(const Holders *holders, uint32 place)
{
	return &holders->chunks[place / CHUNK_HOLDERS][place % CHUNK_HOLDERS];
}

Holders *
holders_create(MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "live_topn holders",
												  ALLOCSET_DEFAULT_SIZES);
	Holders    *holders = MemoryContextAllocZero(context, sizeof(Holders));

	holders->context = context;
	holders->nbuckets = FIRST_BUCKETS;
	holders->buckets = MemoryContextAllocZero(context, sizeof(uint32) *
											  FIRST_BUCKETS);
	holders->used = 1;			/* HOLDER_NONE is none */
	return holders;
}

void
holders_free(Holders *holders)
{
	MemoryContextDelete(holders->context);
}

/* Put a holder at the head of its chain. */
static void
link_holder(Holders *holders, uint32 place)
{
	Holder	   *holder = holder_at(holders, place);
	uint32	   *bucket = &holders->buckets[holder->hash &
										   (holders->nbuckets - 1)];

	holder->previous = HOLDER_NONE;
	holder->next = *bucket;
	if (*bucket != HOLDER_NONE)
		holder_at(holders, *bucket)->previous = place;
	*bucket = place;
}

/* Twice as many chains. */
static void
grow(Holders *holders)
{
	uint32		old = holders->nbuckets;
	uint32	   *heads = holders->buckets;

	holders->nbuckets = old * 2;
	holders->buckets = MemoryContextAllocExtended(holders->context,
												  sizeof(uint32) *
												  (Size) holders->nbuckets,
												  MCXT_ALLOC_HUGE |
												  MCXT_ALLOC_ZERO);
	for (uint32 i = 0; i < old; i++)
	{
		uint32		next;

		for (uint32 place = heads[i]; place != HOLDER_NONE; place = next)
		{
			next = holder_at(holders, place)->next;
			link_holder(holders, place);
		}
	}
	pfree(heads);
}

static uint32
new_place(Holders *holders)
{
	uint32		place = holders->free;

	if (place != HOLDER_NONE)
	{
		holders->free = holder_at(holders, place)->next;
		return place;
	}

	place = holders->used;
	if (place == PG_UINT32_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many rows are held by live_topn subscriptions")));
	if (place / CHUNK_HOLDERS >= holders->nchunks)
	{
		if (holders->nchunks == holders->maxchunks)
		{
			holders->maxchunks = Max(16, holders->maxchunks * 2);
			holders->chunks = holders->chunks ?
				repalloc(holders->chunks,
						 sizeof(Holder *) * holders->maxchunks) :
				MemoryContextAlloc(holders->context,
								   sizeof(Holder *) * holders->maxchunks);
		}
		holders->chunks[holders->nchunks++] =
			MemoryContextAlloc(holders->context,
							   sizeof(Holder) * CHUNK_HOLDERS);
	}
	holders->used++;
	return place;
}

uint32
holders_add(Holders *holders, uint32 hash, void *owner)
{
	uint32		place = new_place(holders);
	Holder	   *holder = holder_at(holders, place);

	if (holders->count >= holders->nbuckets &&
		holders->nbuckets < PG_UINT32_MAX / 2)
		grow(holders);
	holder->owner = owner;
	holder->hash = hash;
	link_holder(holders, place);
	holders->count++;
	return place;
}

void
holders_remove(Holders *holders, uint32 place)
{
	Holder	   *holder = holder_at(holders, place);

	if (holder->previous != HOLDER_NONE)
		holder_at(holders, holder->previous)->next = holder->next;
	else
		holders->buckets[holder->hash & (holders->nbuckets - 1)] =
			holder->next;
	if (holder->next != HOLDER_NONE)
		holder_at(holders, holder->next)->previous = holder->previous;
	holder->next = holders->free;
	holders->free = place;
	holders->count--;
}

void
holders_find(Holders *holders, uint32 hash,
			 void (*callback) (void *owner, void *arg), void *arg)
{
	uint32		place = holders->buckets[hash & (holders->nbuckets - 1)];

	while (place != HOLDER_NONE)
	{
		Holder	   *holder = holder_at(holders, place);

		if (holder->hash == hash)
			callback(holder->owner, arg);
		place = holder->next;
	}
}
