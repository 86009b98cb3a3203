/*
 * apply.h
 *	  Decoded changes to the feeds that they concern.
 */
#ifndef LIVE_TOPN_APPLY_H
#define LIVE_TOPN_APPLY_H

#include "decoder.h"
#include "feed.h"

/* What to give to decoder_open. */
extern const DecoderOps apply_ops;

/* Starts feed.c as well.  Memory is allocated below parent. */
extern void apply_startup(MemoryContext parent, RefillPool *pool);

/*
 * The table of subscriptions was read under that view: changes that it has
 * seen are not to be applied again.
 */
extern void apply_set_catalog(Oid relid, const ReadView *view);

extern LogPosition *apply_position(void);
extern CommitLog *apply_log(void);

/* Changes decoded, of any table. */
extern uint64 apply_changes(void);

/* Drop from the commit log what no feed needs. */
extern void apply_trim_log(void);

/* WAL from here on is needed again if the worker starts anew. */
extern XLogRecPtr apply_restart_lsn(void);

/* Has the table of subscriptions been dropped? */
extern bool apply_catalog_is_gone(void);

#endif							/* LIVE_TOPN_APPLY_H */
