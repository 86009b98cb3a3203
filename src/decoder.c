/*
 * decoder.c
 *	  The database's logical slot: WAL in, changes and commits out.
 *
 * Decoding runs in this process: XLogReadRecord hands records to
 * LogicalDecodingProcessRecord, which calls our output plugin at each commit.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "access/xlogutils.h"
#include "compat.h"
#include "decoder.h"
#include "miscadmin.h"
#include "output_plugin.h"
#include "postmaster/interrupt.h"
#include "replication/decode.h"
#include "replication/logical.h"
#include "replication/message.h"
#include "replication/reorderbuffer.h"
#include "replication/slot.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

static LogicalDecodingContext *decoding;
static const DecoderOps *decoder_ops;

static void
startup_cb(LogicalDecodingContext *ctx, OutputPluginOptions *options,
		   bool is_init)
{
	options->output_type = OUTPUT_PLUGIN_TEXTUAL_OUTPUT;
	options->receive_rewrites = true;	/* see note_rewrite in apply.c */
}

static void
begin_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	decoder_ops->begin(txn->xid, txn->final_lsn);
}

static void
change_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		  Relation relation, ReorderBufferChange *change)
{
	HeapTuple	old = ChangeTuple(change->data.tp.oldtuple);
	HeapTuple	new = ChangeTuple(change->data.tp.newtuple);

	switch (change->action)
	{
		case REORDER_BUFFER_CHANGE_INSERT:
			decoder_ops->change(relation, CHANGE_INSERT, NULL, new);
			break;
		case REORDER_BUFFER_CHANGE_UPDATE:
			decoder_ops->change(relation, CHANGE_UPDATE, old, new);
			break;
		case REORDER_BUFFER_CHANGE_DELETE:
			decoder_ops->change(relation, CHANGE_DELETE, old, NULL);
			break;
		default:
			elog(ERROR, "unexpected change action %d", change->action);
	}
}

static void
truncate_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
			int nrelations, Relation relations[], ReorderBufferChange *change)
{
	for (int i = 0; i < nrelations; i++)
		decoder_ops->change(relations[i], CHANGE_TRUNCATE, NULL, NULL);
}

static void
message_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		   XLogRecPtr message_lsn, bool transactional, const char *prefix,
		   Size size, const char *message)
{
	if (transactional)
		decoder_ops->message(prefix, message, size);
}

static void
commit_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		  XLogRecPtr commit_lsn)
{
	decoder_ops->commit(txn->xid, commit_lsn, txn->end_lsn,
						txn->xact_time.commit_time, txn->ninvalidations,
						txn->invalidations);
}

void
decoder_output_plugin_init(OutputPluginCallbacks *callbacks)
{
	if (decoder_ops == NULL)
	{
		output_plugin_init(callbacks);
		return;
	}
	callbacks->startup_cb = startup_cb;
	callbacks->begin_cb = begin_cb;
	callbacks->change_cb = change_cb;
	callbacks->truncate_cb = truncate_cb;
	callbacks->message_cb = message_cb;
	callbacks->commit_cb = commit_cb;
}

bool
decoder_slot_exists(const char *slot_name)
{
	return SearchNamedReplicationSlot(slot_name, true) != NULL;
}

/*
 * The slot is ephemeral, and goes away with an error, until it has found a
 * place to start from.
 */
static void
create_slot(const char *slot_name)
{
	LogicalDecodingContext *context;

	replication_slot_create(slot_name, RS_EPHEMERAL);
	context = CreateInitDecodingContext("live_topn", NIL, false,
										InvalidXLogRecPtr,
										XL_ROUTINE(.page_read = read_local_xlog_page,
												   .segment_open = wal_segment_open,
												   .segment_close = wal_segment_close),
										NULL, NULL, NULL);
	DecodingContextFindStartpoint(context);
	FreeDecodingContext(context);
	ReplicationSlotPersist();
}

/* A slot whose WAL is gone is of no use to anybody. */
static void
drop_invalidated_slot(const char *slot_name)
{
	ReplicationSlot *slot = SearchNamedReplicationSlot(slot_name, true);

	if (slot && slot_is_invalidated(slot))
	{
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("replication slot \"%s\" of live_topn was invalidated",
						slot_name),
				 errdetail("It is made anew, and every subscription of the database publishes a reset.")));
		ReplicationSlotDrop(slot_name, true);
	}
}

bool
decoder_open(const char *slot_name, const DecoderOps *ops)
{
	bool		exists;
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "live_topn decoder",
												  ALLOCSET_DEFAULT_SIZES);

	decoder_ops = ops;

	/*
	 * Outside a transaction these would set PROC_IN_LOGICAL_DECODING, and
	 * VACUUM would ignore the snapshots of our own transactions.
	 */
	StartTransactionCommand();
	MemoryContextSwitchTo(context);
	drop_invalidated_slot(slot_name);
	exists = decoder_slot_exists(slot_name);
	if (exists)
		replication_slot_acquire(slot_name);
	else
		create_slot(slot_name);

	/* finding a place to start from uses subtransactions */
	MemoryContextSwitchTo(context);
	decoding = CreateDecodingContext(InvalidXLogRecPtr, NIL, false,
									 XL_ROUTINE(.page_read = read_local_xlog_page_no_wait,
												.segment_open = wal_segment_open,
												.segment_close = wal_segment_close),
									 NULL, NULL, NULL);
	decoding->reader->private_data =
		palloc0(sizeof(ReadLocalXLogPageNoWaitPrivate));
	CommitTransactionCommand();

	XLogBeginRead(decoding->reader, MyReplicationSlot->data.restart_lsn);
	MemoryContextSwitchTo(MemoryContextGetParent(context));
	return !exists;
}

/* The next record; false at the end of what is flushed. */
static bool
read_record(XLogReaderState *reader)
{
	static XLogRecPtr flushed;
	ReadLocalXLogPageNoWaitPrivate *private = reader->private_data;
	char	   *message;

	/* reading the next page would block or fail */
	if (reader->EndRecPtr >= flushed)
		flushed = GetFlushRecPtr(NULL);
	if (reader->EndRecPtr >= flushed)
		return false;

	if (XLogReadRecord(reader, &message) == NULL)
	{
		if (private->end_of_wal)
		{
			private->end_of_wal = false;
			return false;
		}
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not read WAL after %X/%X: %s",
						LSN_FORMAT_ARGS(reader->EndRecPtr),
						message ? message : "no message")));
	}
	return true;
}

/*
 * Decoding a commit takes a transaction, or in one a subtransaction, which
 * takes less.  Either leaves us in its own memory context.
 */
bool
decoder_step(void)
{
	MemoryContext caller = CurrentMemoryContext;

	if (!read_record(decoding->reader))
		return false;
	if (!IsTransactionState())
		StartTransactionCommand();
	MemoryContextSwitchTo(caller);
	LogicalDecodingProcessRecord(decoding, decoding->reader);
	MemoryContextSwitchTo(caller);
	return true;
}

void
decoder_pause(void)
{
	MemoryContext caller = CurrentMemoryContext;

	if (!IsTransactionState())
		return;
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

/* ---- looking ahead ---- */

static XLogReaderState *
allocate_reader(void)
{
	XLogReaderState *reader =
		XLogReaderAllocate(wal_segment_size, NULL,
						   XL_ROUTINE(.page_read = read_local_xlog_page_no_wait,
									  .segment_open = wal_segment_open,
									  .segment_close = wal_segment_close),
						   palloc0(sizeof(ReadLocalXLogPageNoWaitPrivate)));

	if (reader == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory"),
				 errdetail("Failed while allocating a WAL reading processor.")));
	return reader;
}

/* A message whose transaction has not ended yet. */
typedef struct AheadMessage
{
	TransactionId xid;
	char	   *prefix;
	char	   *data;
	Size		size;
} AheadMessage;

static List *
ahead_message(List *messages, XLogReaderState *reader)
{
	xl_logical_message *record = (xl_logical_message *) XLogRecGetData(reader);
	AheadMessage *message;

	if (record->dbId != MyDatabaseId || !record->transactional)
		return messages;
	message = palloc(sizeof(AheadMessage));
	message->xid = XLogRecGetXid(reader);
	message->prefix = pstrdup(record->message);
	message->size = record->message_size;
	message->data = palloc_extended(message->size + 1, MCXT_ALLOC_HUGE);
	memcpy(message->data, record->message + record->prefix_size,
		   message->size);
	return lappend(messages, message);
}

/* The end of a transaction. */
static List *
ahead_end(List *messages, TransactionId xid, bool committed,
		  MessageCallback callback)
{
	ListCell   *lc;

	foreach(lc, messages)
	{
		AheadMessage *message = lfirst(lc);

		if (message->xid != xid)
			continue;
		if (committed)
			callback(message->prefix, message->data, message->size);
		messages = foreach_delete_current(messages, lc);
	}
	return messages;
}

/*
 * Messages of subtransactions and of prepared transactions are left out: a
 * worker has none.
 */
void
decoder_look_ahead(XLogRecPtr end, MessageCallback callback)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext,
												  "live_topn look ahead",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext message_context = AllocSetContextCreate(scratch,
														  "live_topn messages ahead",
														  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(scratch);
	XLogReaderState *reader = allocate_reader();
	List	   *messages = NIL;

	XLogBeginRead(reader, MyReplicationSlot->data.restart_lsn);
	while (reader->EndRecPtr < end && read_record(reader))
	{
		uint8		kind = XLogRecGetInfo(reader) & XLOG_XACT_OPMASK;

		CHECK_FOR_INTERRUPTS();
		if (ShutdownRequestPending)
			proc_exit(0);

		MemoryContextSwitchTo(message_context);
		if (XLogRecGetRmid(reader) == RM_LOGICALMSG_ID)
			messages = ahead_message(messages, reader);
		else if (XLogRecGetRmid(reader) == RM_XACT_ID &&
				 (kind == XLOG_XACT_COMMIT || kind == XLOG_XACT_ABORT))
			messages = ahead_end(messages, XLogRecGetXid(reader),
								 kind == XLOG_XACT_COMMIT, callback);
		MemoryContextSwitchTo(scratch);
		if (messages == NIL)
			MemoryContextReset(message_context);
	}
	XLogReaderFree(reader);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
}

XLogRecPtr
decoder_confirmed(void)
{
	return MyReplicationSlot->data.confirmed_flush;
}

XLogRecPtr
decoder_position(void)
{
	return decoding->reader->EndRecPtr;
}

void
decoder_confirm(XLogRecPtr lsn)
{
	if (lsn <= MyReplicationSlot->data.confirmed_flush)
		return;
	LogicalConfirmReceivedLocation(lsn);
	ReplicationSlotMarkDirty();
	ReplicationSlotSave();
}

void
decoder_drop_slot(const char *slot_name)
{
	FreeDecodingContext(decoding);
	decoding = NULL;
	ReplicationSlotRelease();
	ReplicationSlotDrop(slot_name, false);
}
