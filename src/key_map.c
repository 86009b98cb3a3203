/*
 * key_map.c
 *	  Rows by identity.
 *
 * Of a row that is held it costs the link and the hash in the row, and three to
 * five bytes here.
 */
#include "postgres.h"

#include "key_map.h"
#include "utils/memutils.h"

#define FIRST_BUCKETS	2
#define ROWS_PER_BUCKET 3

static Row **
make_buckets(MemoryContext context, uint32 n)
{
	return MemoryContextAllocExtended(context, sizeof(Row *) * (Size) n,
									  MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
}

KeyMap *
key_map_create(const RowFormat *format, MemoryContext context)
{
	KeyMap	   *map = MemoryContextAllocZero(context, sizeof(KeyMap));

	map->format = format;
	map->nbuckets = FIRST_BUCKETS;
	map->buckets = make_buckets(context, FIRST_BUCKETS);
	return map;
}

void
key_map_free(KeyMap *map)
{
	pfree(map->buckets);
	pfree(map);
}

static inline Row **
bucket(const KeyMap *map, uint32 hash)
{
	return &map->buckets[hash & (map->nbuckets - 1)];
}

static inline void
link_row(KeyMap *map, Row *row)
{
	Row		  **first = bucket(map, row->hash);

	row->next = *first;
	*first = row;
}

static void
resize(KeyMap *map, uint32 nbuckets)
{
	Row		  **old = map->buckets;
	uint32		nold = map->nbuckets;

	map->buckets = make_buckets(GetMemoryChunkContext(old), nbuckets);
	map->nbuckets = nbuckets;
	for (uint32 i = 0; i < nold; i++)
	{
		Row		   *next;

		for (Row *row = old[i]; row; row = next)
		{
			next = row->next;
			link_row(map, row);
		}
	}
	pfree(old);
}

static Row *
find(const KeyMap *map, uint32 hash, const Datum *keys, const bool *nulls)
{
	Row		   *row = *bucket(map, hash);

	while (row && (row->hash != hash ||
				   !row_key_is(map->format, row, keys, nulls)))
		row = row->next;
	return row;
}

void
key_map_add(KeyMap *map, Row *row)
{
	Datum		keys[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	row_get_key(map->format, row, keys, nulls);
	row->hash = row_hash_key(map->format, keys, nulls);
	if (find(map, row->hash, keys, nulls))
		elog(ERROR, "row is already in a window");
	if (map->nrows++ / ROWS_PER_BUCKET >= map->nbuckets &&
		map->nbuckets <= PG_UINT32_MAX / 2)
		resize(map, map->nbuckets * 2);
	link_row(map, row);
}

void
key_map_remove(KeyMap *map, Row *row)
{
	Row		  **link = bucket(map, row->hash);

	while (*link != row)
		link = &(*link)->next;
	*link = row->next;
	row->next = NULL;

	/* some of the room that is left is for rows to come */
	if (--map->nrows < map->nbuckets / 4 * ROWS_PER_BUCKET &&
		map->nbuckets > FIRST_BUCKETS)
		resize(map, map->nbuckets / 2);
}

Row *
key_map_find(const KeyMap *map, const Datum *keys, const bool *nulls)
{
	return find(map, row_hash_key(map->format, keys, nulls), keys, nulls);
}

Size
key_map_bytes(const KeyMap *map)
{
	return GetMemoryChunkSpace(map->buckets);
}
