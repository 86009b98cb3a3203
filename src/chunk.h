/*
 * chunk.h
 *	  Bytes that are kept in memory, or in temporary files beyond a limit.
 */
#ifndef LIVE_TOPN_CHUNK_H
#define LIVE_TOPN_CHUNK_H

typedef struct ChunkStore ChunkStore;
typedef struct Chunk Chunk;

/* In context, which must live as long as the chunks. */
extern ChunkStore *chunk_store_create(MemoryContext context);

/*
 * Keep a copy of the bytes: in memory, if all that is there takes no more than
 * that.
 */
extern Chunk *chunk_make(ChunkStore *store, const char *data, Size size,
						 uint64 memory);
extern void chunk_free(ChunkStore *store, Chunk *chunk);

extern Size chunk_size(const Chunk *chunk);

/* The bytes of a chunk, until another one is asked for. */
extern const char *chunk_data(ChunkStore *store, const Chunk *chunk);

/* Nothing is read any more: keep no bytes of a file, if they are more. */
extern void chunk_store_shrink(ChunkStore *store, Size most);

#endif							/* LIVE_TOPN_CHUNK_H */
