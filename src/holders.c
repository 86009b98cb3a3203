/*
 * holders.c
 *	  Which windows hold a row, by its identity.
 *
 * WAL tells of the old version of a row often no more than its key, and of a
 * hundred thousand windows perhaps one holds it.  This is a hash table with
 * chains that are linked both ways, since many windows may hold the same row
 * and each must be taken out without a look at the others.  Links and owners
 * are numbers, and owners are found by a hash only: a row that is held costs
 * some 22 bytes here.
 *
 * Nearly all rows that are looked for are held by nobody.  So for each chain
 * there is a Bloom filter of 32 bits, of which each hash sets three.  It is one
 * look into memory, that can be asked for ahead of time, and lets pass three of
 * a thousand hashes that are not there, ten where chains are about to be made
 * more: what a chain leads to has not been used for long, and takes longest.
 */
#include "postgres.h"

#include "compat.h"
#include "holders.h"
#include "huge.h"
#include "utils/memutils.h"

#define CHUNK_HOLDERS	1024
#define FIRST_HOLDERS	16
#define FIRST_BUCKETS	16
#define CHAIN_LENGTH	2		/* on average, before there are more chains */
#define SHORT_CHAIN		6

typedef struct Holder
{
	uint32		owner;			/* in owners */
	uint32		hash;
	uint32		next;			/* in the chain, or of the free ones */
	uint32		previous;		/* HOLDER_NONE: the first of its chain */
} Holder;

typedef union Owner
{
	void	   *owner;
	uint32		next;			/* of the free numbers, plus one; 0: none */
} Owner;

struct Holders
{
	MemoryContext context;
	uint32		nbuckets;		/* a power of two */
	uint32	   *buckets;		/* the first of each chain */
	uint32	   *filters;		/* what may be in each chain */
	uint32		maxchunks;
	Holder	  **chunks;			/* of CHUNK_HOLDERS each */
	uint32		room;			/* holders in all chunks */
	uint32		used;			/* holders that were ever given out */
	uint32		free;			/* the first of those given back */
	uint32		count;
	uint32		nowners;		/* numbers that were ever given out */
	uint32		maxowners;
	uint32		free_owner;		/* the first of those given back, plus one */
	Owner	   *owners;
};

static inline Holder *
holder_at(const Holders *holders, uint32 place)
{
	return &holders->chunks[place / CHUNK_HOLDERS][place % CHUNK_HOLDERS];
}

/* Of all bits of the hash, as its lower ones choose the chain. */
static inline uint32
filter_bits(uint32 hash)
{
	uint32		mixed = hash * 0x9e3779b1;

	return (uint32) 1 << (mixed >> 27) | (uint32) 1 << (mixed >> 22 & 31) |
		(uint32) 1 << (mixed >> 17 & 31);
}

/* Empty chains, so many of them. */
static void
make_buckets(Holders *holders, uint32 n)
{
	holders->nbuckets = n;
	holders->buckets = huge_alloc0(holders->context,
								   sizeof(uint32) * (Size) n);
	holders->filters = huge_alloc0(holders->context,
								   sizeof(uint32) * (Size) n);
}

Holders *
holders_create(MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "live_topn holders",
												  ALLOCSET_DEFAULT_SIZES);
	Holders    *holders = MemoryContextAllocZero(context, sizeof(Holders));

	holders->context = context;
	make_buckets(holders, FIRST_BUCKETS);
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
	uint32		n = holder->hash & (holders->nbuckets - 1);
	uint32	   *bucket = &holders->buckets[n];

	holders->filters[n] |= filter_bits(holder->hash);
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

	pfree(holders->filters);
	make_buckets(holders, old * 2);
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

/* Chunks are all of one size, but the only one can be smaller. */
static void
add_room(Holders *holders)
{
	if (holders->room < CHUNK_HOLDERS)
	{
		uint32		n = Max(FIRST_HOLDERS, holders->room * 2);

		if (holders->room == 0)
		{
			holders->maxchunks = 1;
			holders->chunks = MemoryContextAllocZero(holders->context,
													 sizeof(Holder *));
		}
		holders->chunks[0] = holders->chunks[0] ?
			repalloc(holders->chunks[0], sizeof(Holder) * n) :
			MemoryContextAlloc(holders->context, sizeof(Holder) * n);
		holders->room = n;
		return;
	}

	if (holders->room / CHUNK_HOLDERS == holders->maxchunks)
	{
		holders->maxchunks *= 2;
		holders->chunks = repalloc(holders->chunks,
								   sizeof(Holder *) * holders->maxchunks);
	}
	holders->chunks[holders->room / CHUNK_HOLDERS] =
		MemoryContextAlloc(holders->context, sizeof(Holder) * CHUNK_HOLDERS);
	holders->room += CHUNK_HOLDERS;
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
	if (place >= holders->room)
		add_room(holders);
	holders->used++;
	return place;
}

uint32
holders_enter(Holders *holders, void *owner)
{
	uint32		number = holders->nowners;

	if (holders->free_owner > 0)
	{
		number = holders->free_owner - 1;
		holders->free_owner = holders->owners[number].next;
	}
	else if (number == holders->maxowners)
	{
		holders->maxowners = Max(16, holders->maxowners * 2);
		holders->owners = holders->owners ?
			repalloc(holders->owners, sizeof(Owner) * holders->maxowners) :
			MemoryContextAlloc(holders->context,
							   sizeof(Owner) * holders->maxowners);
	}
	holders->nowners = Max(holders->nowners, number + 1);
	holders->owners[number].owner = owner;
	return number;
}

void
holders_leave(Holders *holders, uint32 number)
{
	holders->owners[number].next = holders->free_owner;
	holders->free_owner = number + 1;
}

uint32
holders_add(Holders *holders, uint32 hash, uint32 owner)
{
	uint32		place = new_place(holders);
	Holder	   *holder = holder_at(holders, place);

	if (holders->count >= (uint64) holders->nbuckets * CHAIN_LENGTH &&
		holders->nbuckets < PG_UINT32_MAX / 2)
		grow(holders);
	holder->owner = owner;
	holder->hash = hash;
	link_holder(holders, place);
	holders->count++;
	return place;
}

/*
 * A holder has left a chain.  Of a long one the filter may say too much: many
 * may hold the same row.
 */
static void
narrow_filter(Holders *holders, uint32 bucket)
{
	uint32		filter = 0;
	int			n = 0;

	for (uint32 place = holders->buckets[bucket]; place != HOLDER_NONE;
		 place = holder_at(holders, place)->next)
	{
		if (++n > SHORT_CHAIN)
			return;
		filter |= filter_bits(holder_at(holders, place)->hash);
	}
	holders->filters[bucket] = filter;
}

void
holders_remove(Holders *holders, uint32 place)
{
	Holder	   *holder = holder_at(holders, place);
	uint32		bucket = holder->hash & (holders->nbuckets - 1);

	if (holder->previous != HOLDER_NONE)
		holder_at(holders, holder->previous)->next = holder->next;
	else
		holders->buckets[bucket] = holder->next;
	if (holder->next != HOLDER_NONE)
		holder_at(holders, holder->next)->previous = holder->previous;
	narrow_filter(holders, bucket);
	holder->next = holders->free;
	holders->free = place;
	holders->count--;
}

void
holders_prefetch(const Holders *holders, uint32 hash)
{
	prefetch(&holders->filters[hash & (holders->nbuckets - 1)]);
}

void
holders_find(Holders *holders, uint32 hash,
			 void (*callback) (void *owner))
{
	uint32		bucket = hash & (holders->nbuckets - 1);
	uint32		bits = filter_bits(hash);
	uint32		place;

	if ((holders->filters[bucket] & bits) != bits)
		return;
	place = holders->buckets[bucket];
	while (place != HOLDER_NONE)
	{
		Holder	   *holder = holder_at(holders, place);

		if (holder->hash == hash)
			callback(holders->owners[holder->owner].owner);
		place = holder->next;
	}
}

Size
holders_bytes_each(const Holders *holders)
{
	Size		bytes = (Size) holders->room * sizeof(Holder) +
		holders->nbuckets * 2 * sizeof(uint32);

	return (bytes + holders->count - 1) / Max(holders->count, 1);
}
