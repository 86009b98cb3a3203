/*
 * key_map.h
 *	  Rows by identity.
 */
#ifndef LIVE_TOPN_KEY_MAP_H
#define LIVE_TOPN_KEY_MAP_H

#include "row.h"

/* A hash table whose chains go through the rows. */
typedef struct KeyMap
{
	const RowFormat *format;
	uint32		nbuckets;		/* a power of two */
	uint64		nrows;
	Row		  **buckets;
} KeyMap;

extern KeyMap *key_map_create(const RowFormat *format, MemoryContext context);
extern void key_map_free(KeyMap *map);

/* Put in a row, which must not be in it. */
extern void key_map_add(KeyMap *map, Row *row);
extern void key_map_remove(KeyMap *map, Row *row);

/* The row with that identity, or NULL. */
extern Row *key_map_find(const KeyMap *map, const Datum *keys,
						 const bool *nulls);

/* What is taken beside the rows. */
extern Size key_map_bytes(const KeyMap *map);

#endif							/* LIVE_TOPN_KEY_MAP_H */
