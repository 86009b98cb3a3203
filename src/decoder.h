/*
 * decoder.h
 *	  The database's logical slot: WAL in, changes and commits out.
 */
#ifndef LIVE_TOPN_DECODER_H
#define LIVE_TOPN_DECODER_H

#include "commit_log.h"
#include "replication/output_plugin.h"
#include "storage/sinval.h"
#include "utils/relcache.h"

/*
 * What the decoder calls, in the order of the log, in a subtransaction that is
 * always rolled back and under historic catalogs: no queries, no writes, and
 * what is to be kept is copied.
 */
typedef struct DecoderOps
{
	void		(*begin) (TransactionId xid, XLogRecPtr start);
	void		(*change) (Relation relation, ChangeKind kind, HeapTuple old,
						   HeapTuple new);
	void		(*message) (const char *prefix, const char *data, Size size);
	void		(*commit) (TransactionId xid, XLogRecPtr start,
						   XLogRecPtr end, TimestampTz time,
						   int ninvalidations,
						   const SharedInvalidationMessage *invalidations);
} DecoderOps;

/*
 * Open the slot, creating it if there is none; that waits for transactions
 * older than it to end.  Must be called outside a transaction.  Memory is
 * allocated in CurrentMemoryContext.  Returns whether it was created.
 */
extern bool decoder_open(const char *slot_name, const DecoderOps *ops);

/* Does the slot exist? */
extern bool decoder_slot_exists(const char *slot_name);

/*
 * Decode one record; false if there is none that is flushed.  Leaves a
 * transaction open, which decoder_pause ends.
 */
extern bool decoder_step(void);
extern void decoder_pause(void);

/* Where the slot was when it was opened: what it will not decode again. */
extern XLogRecPtr decoder_confirmed(void);

/* All records before this have been decoded. */
extern XLogRecPtr decoder_position(void);

/*
 * The logical messages of this database's transactions that have committed
 * up to end, as far as those could still be decoded; without decoding
 * anything else.
 */
typedef void (*MessageCallback) (const char *prefix, const char *data,
								 Size size);
extern void decoder_look_ahead(XLogRecPtr end, MessageCallback callback);

/* WAL before this is no longer needed. */
extern void decoder_confirm(XLogRecPtr lsn);

/* Drop the slot, with the decoder open. */
extern void decoder_drop_slot(const char *slot_name);

/* The callbacks of our output plugin, for _PG_output_plugin_init. */
extern void decoder_output_plugin_init(OutputPluginCallbacks *callbacks);

#endif							/* LIVE_TOPN_DECODER_H */
