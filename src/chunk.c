/*
 * chunk.c
 *	  Bytes that are kept in memory, or in temporary files beyond a limit.
 *
 * Files are appended to, and each is removed when nothing in it is needed any
 * more.  What was last read from one is kept, as chunks are read many times.
 */
#include "postgres.h"

#include "chunk.h"
#include "storage/buffile.h"
#include "utils/memutils.h"

#define SPILL_FILE_SIZE	(64 * 1024 * 1024)	/* then another one is begun */

typedef struct SpillFile
{
	BufFile    *file;
	uint64		chunks;			/* in it that are needed */
	uint64		bytes;			/* written */
	int			end_fileno;		/* where to append */
	off_t		end_offset;
} SpillFile;

struct Chunk
{
	Size		size;
	char	   *data;			/* NULL: in the file, at this place */
	SpillFile  *file;
	int			fileno;
	off_t		offset;
};

struct ChunkStore
{
	MemoryContext context;
	uint64		memory;			/* bytes of chunks in memory */
	SpillFile  *file;			/* to append to */
	const Chunk *cached;		/* the one last read from a file, ... */
	char	   *cache;			/* its bytes */
};

ChunkStore *
chunk_store_create(MemoryContext context)
{
	ChunkStore *store = MemoryContextAllocZero(context, sizeof(ChunkStore));

	store->context = context;
	return store;
}

static SpillFile *
spill_file(ChunkStore *store)
{
	if (store->file == NULL || store->file->bytes >= SPILL_FILE_SIZE)
	{
		SpillFile  *file = palloc0(sizeof(SpillFile));

		file->file = BufFileCreateTemp(true);
		store->file = file;
	}
	return store->file;
}

static void
spill(ChunkStore *store, Chunk *chunk, const char *data)
{
	SpillFile  *file = spill_file(store);

	if (BufFileSeek(file->file, file->end_fileno, file->end_offset,
					SEEK_SET) != 0)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not seek in the commit log's file")));
	chunk->file = file;
	chunk->fileno = file->end_fileno;
	chunk->offset = file->end_offset;
	BufFileWrite(file->file, unconstify(char *, data), chunk->size);
	BufFileTell(file->file, &file->end_fileno, &file->end_offset);
	file->bytes += chunk->size;
	file->chunks++;
}

Chunk *
chunk_make(ChunkStore *store, const char *data, Size size, uint64 memory)
{
	MemoryContext caller = MemoryContextSwitchTo(store->context);
	Chunk	   *chunk = palloc0(sizeof(Chunk));

	chunk->size = size;
	if (store->memory + size <= memory)
	{
		chunk->data = MemoryContextAllocHuge(store->context, size);
		memcpy(chunk->data, data, size);
		store->memory += size;
	}
	else
		spill(store, chunk, data);
	MemoryContextSwitchTo(caller);
	return chunk;
}

static void
forget_cached(ChunkStore *store)
{
	if (store->cached)
		pfree(store->cache);
	store->cached = NULL;
}

void
chunk_free(ChunkStore *store, Chunk *chunk)
{
	if (store->cached == chunk)
		forget_cached(store);
	if (chunk->data)
	{
		store->memory -= chunk->size;
		pfree(chunk->data);
	}
	else if (--chunk->file->chunks == 0)
	{
		BufFileClose(chunk->file->file);
		if (store->file == chunk->file)
			store->file = NULL;
		pfree(chunk->file);
	}
	pfree(chunk);
}

Size
chunk_size(const Chunk *chunk)
{
	return chunk->size;
}

const char *
chunk_data(ChunkStore *store, const Chunk *chunk)
{
	if (chunk->data)
		return chunk->data;
	if (store->cached != chunk)
	{
		forget_cached(store);
		store->cache = MemoryContextAllocHuge(store->context, chunk->size);
		store->cached = chunk;
		if (BufFileSeek(chunk->file->file, chunk->fileno, chunk->offset,
						SEEK_SET) != 0 ||
			BufFileRead(chunk->file->file, store->cache,
						chunk->size) != chunk->size)
		{
			forget_cached(store);
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not read the commit log's file")));
		}
	}
	return store->cache;
}

void
chunk_store_shrink(ChunkStore *store, Size most)
{
	if (store->cached && store->cached->size > most)
		forget_cached(store);
}
