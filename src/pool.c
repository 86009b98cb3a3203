/*
 * pool.c
 *	  Chunks of memory without headers, in blocks for each size.
 *
 * Rows that are held are many, small, and alike: what AllocSet adds to each, a
 * header and the way to the next power of two, can be more than the row.
 * Here sizes are rounded up to one of 73 classes, at most an eighth, and by less
 * than eight bytes if they are small.  Chunks of a class share blocks, and a
 * chunk knows where in its block it is, in two bytes that its user keeps for
 * it.  PostgreSQL's Slab, of one size each, has headers, and no small blocks
 * for users of few chunks.
 *
 * Blocks grow with the number of chunks, so that not much is unused, up to a
 * size that AllocSet gets from malloc and gives back.
 */
#include "postgres.h"

#include "lib/ilist.h"
#include "pool.h"
#include "port/pg_bitutils.h"
#include "utils/memdebug.h"
#include "utils/memutils.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#define UNIT			8		/* of small sizes, and places */
#define SMALL_SIZE		256		/* up to here classes are a unit apart */
#define STEPS_LOG2		3		/* classes for each doubling beyond */
#define MAX_SIZE		8192	/* larger chunks are not in blocks */
#define NUM_CLASSES		(SMALL_SIZE / UNIT + 1 + (5 << STEPS_LOG2))

#define MIN_BLOCK		1024
#define MAX_BLOCK		16384	/* or a few chunks, if that is more */
#define MIN_CHUNKS		4		/* in a block of full size */
#define MAX_UNUSED		16		/* a new block adds one of so many chunks */

#define TRIM_BYTES		(4 * 1024 * 1024)

typedef struct PoolClass
{
	Pool	   *pool;
	Size		size;			/* of a chunk */
	uint64		nchunks;		/* in use */
	dlist_head	open;			/* blocks with unused chunks */
} PoolClass;

typedef struct PoolBlock
{
	PoolClass  *class;
	dlist_node	node;			/* in class->open, unless full */
	void	   *unused;			/* chunks that were given back, linked */
	uint16		nused;
	uint16		nfresh;			/* never used, at the end */
	uint16		nchunks;
} PoolBlock;

#define BLOCK_HEADER	MAXALIGN(sizeof(PoolBlock))

struct Pool
{
	MemoryContext context;
	Size		taken;			/* bytes of all blocks */
	Size		used;			/* of the chunks in them that are in use */
	PoolClass  *classes[NUM_CLASSES];	/* NULL: never used */
};

static Size given_back;			/* to malloc, since it was trimmed */

Pool *
pool_create(MemoryContext context)
{
	Pool	   *pool = MemoryContextAllocZero(context, sizeof(Pool));

	pool->context = context;
	return pool;
}

/* The class for a size, as a number and the size of its chunks. */
static inline int
find_class(Size size, Size *chunk_size)
{
	int			shift;
	int			steps;

	Assert(size > 0 && size <= MAX_SIZE);
	if (size <= SMALL_SIZE)
	{
		*chunk_size = TYPEALIGN(UNIT, size);
		return *chunk_size / UNIT;
	}
	shift = pg_leftmost_one_pos64(size - 1) - STEPS_LOG2;
	steps = (size - 1) >> shift;	/* 8 to 15 */
	*chunk_size = (Size) (steps + 1) << shift;
	return SMALL_SIZE / UNIT + 1 + steps - (1 << STEPS_LOG2) +
		((shift + STEPS_LOG2 - pg_leftmost_one_pos64(SMALL_SIZE)) <<
		 STEPS_LOG2);
}

static PoolClass *
get_class(Pool *pool, Size size)
{
	Size		chunk_size;
	int			number = find_class(size, &chunk_size);
	PoolClass  *class = pool->classes[number];

	if (class == NULL)
	{
		class = MemoryContextAllocZero(pool->context, sizeof(PoolClass));
		class->pool = pool;
		class->size = chunk_size;
		dlist_init(&class->open);
		pool->classes[number] = class;
	}
	return class;
}

static PoolBlock *
add_block(PoolClass *class)
{
	Pool	   *pool = class->pool;
	uint64		most = Max(MAX_BLOCK / class->size, MIN_CHUNKS);
	uint64		n = Min(Max(class->nchunks / MAX_UNUSED, 1), most);
	Size		bytes = BLOCK_HEADER + n * class->size;
	PoolBlock  *block;

	/* AllocSet would round it up as well */
	if (bytes <= MAX_SIZE)
	{
		bytes = Max(pg_nextpower2_64(bytes), MIN_BLOCK);
		n = (bytes - BLOCK_HEADER) / class->size;
	}
	block = MemoryContextAlloc(pool->context, bytes);
	memset(block, 0, BLOCK_HEADER);
	block->class = class;
	block->nchunks = block->nfresh = n;
	VALGRIND_MAKE_MEM_NOACCESS((char *) block + BLOCK_HEADER,
							   bytes - BLOCK_HEADER);
	dlist_push_head(&class->open, &block->node);
	pool->taken += GetMemoryChunkSpace(block);
	return block;
}

void *
pool_alloc(Pool *pool, Size size, uint16 *place)
{
	PoolClass  *class;
	PoolBlock  *block;
	char	   *chunk;

	if (size > MAX_SIZE)
	{
		*place = 0;
		return MemoryContextAlloc(pool->context, size);
	}

	class = get_class(pool, size);
	block = dlist_is_empty(&class->open) ? add_block(class) :
		dlist_head_element(PoolBlock, node, &class->open);
	if (block->unused)
	{
		chunk = block->unused;
		block->unused = *(void **) chunk;
	}
	else
		chunk = (char *) block + BLOCK_HEADER +
			(block->nchunks - block->nfresh--) * class->size;
	if (++block->nused == block->nchunks)
		dlist_delete(&block->node);
	VALGRIND_MAKE_MEM_UNDEFINED(chunk, size);
	class->nchunks++;
	pool->used += class->size;
	*place = (chunk - (char *) block) / UNIT;
	return chunk;
}

void
pool_free(void *chunk, uint16 place)
{
	PoolBlock  *block;
	PoolClass  *class;

	if (place == 0)
	{
		pfree(chunk);
		return;
	}

	block = (PoolBlock *) ((char *) chunk - (Size) place * UNIT);
	class = block->class;
	if (block->nused-- == block->nchunks)
		dlist_push_head(&class->open, &block->node);
	*(void **) chunk = block->unused;
	block->unused = chunk;
#ifdef CLOBBER_FREED_MEMORY
	/* the link stays, for Valgrind too, as in Slab */
	wipe_mem((char *) chunk + sizeof(void *), class->size - sizeof(void *));
#endif
	class->nchunks--;
	class->pool->used -= class->size;

	/* one that is the only one with room stays for the next chunk */
	if (block->nused == 0 && (class->nchunks == 0 ||
							  dlist_has_next(&class->open, &block->node) ||
							  dlist_has_prev(&class->open, &block->node)))
	{
		dlist_delete(&block->node);
		class->pool->taken -= GetMemoryChunkSpace(block);
		given_back += GetMemoryChunkSpace(block);
		pfree(block);
	}
}

Size
pool_chunk_bytes(Size size)
{
	Size		chunk_size;

	if (size > MAX_SIZE)
		return MAXALIGN(size);
	(void) find_class(size, &chunk_size);
	return chunk_size;
}

double
pool_overhead(const Pool *pool)
{
	return pool->used > 0 ? (double) pool->taken / pool->used : 1;
}

void
pool_note_freed(Size bytes)
{
	given_back += bytes;
}

void
pool_trim(void)
{
	if (given_back < TRIM_BYTES)
		return;
	given_back = 0;
#ifdef __GLIBC__
	malloc_trim(0);
#endif
}
