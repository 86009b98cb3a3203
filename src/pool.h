/*
 * pool.h
 *	  Chunks of memory without headers, in blocks for each size.
 */
#ifndef LIVE_TOPN_POOL_H
#define LIVE_TOPN_POOL_H

typedef struct Pool Pool;

/* A pool in a memory context, with which it goes. */
extern Pool *pool_create(MemoryContext context);

/*
 * A chunk of memory, maxaligned.  pool_free wants *place again, which has to be
 * kept somewhere in the chunk.
 */
extern void *pool_alloc(Pool *pool, Size size, uint16 *place);
extern void pool_free(void *chunk, uint16 place);

/* What a chunk of that size takes, but for its share of what is unused. */
extern Size pool_chunk_bytes(Size size);

/* What is taken for each byte of all chunks there are: 1 or a little more. */
extern double pool_overhead(const Pool *pool);

/* Other memory has been freed. */
extern void pool_note_freed(Size bytes);

/*
 * Give what was freed, if it is much, to the operating system: the C library keeps
 * it, as long as anything stays that was allocated later.
 */
extern void pool_trim(void);

#endif							/* LIVE_TOPN_POOL_H */
