/*
 * holders.h
 *	  Which windows hold a row, by its identity.
 */
#ifndef LIVE_TOPN_HOLDERS_H
#define LIVE_TOPN_HOLDERS_H

#include "nodes/pg_list.h"

/* No place, see below. */
#define HOLDER_NONE		0

typedef struct Holders Holders;

extern Holders *holders_create(MemoryContext parent);
extern void holders_free(Holders *holders);

/* A number for somebody who holds rows; he leaves when he holds none. */
extern uint32 holders_enter(Holders *holders, void *owner);
extern void holders_leave(Holders *holders, uint32 holder);

/*
 * Somebody holds a row whose identity has that hash; returns the place that
 * holders_remove wants.
 */
extern uint32 holders_add(Holders *holders, uint32 hash, uint32 holder);
extern void holders_remove(Holders *holders, uint32 place);

/*
 * Call back for the owner of each row with that hash of its identity, which
 * other identities may have, too.
 */
extern void holders_find(Holders *holders, uint32 hash,
						 void (*callback) (void *owner));

/* holders_find is going to be called soon: ask for the memory it looks at. */
extern void holders_prefetch(const Holders *holders, uint32 hash);

/* Bytes of memory for each row that is held. */
extern Size holders_bytes_each(const Holders *holders);

#endif							/* LIVE_TOPN_HOLDERS_H */
