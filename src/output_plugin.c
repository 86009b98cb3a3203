/*
 * output_plugin.c
 *	  The plugin in a consumer's slot: prints batches from WAL.
 *
 * The database worker writes a batch as a logical message, in the transaction
 * that publishes it (deliver.c).  The plugin looks at nothing else, and prints
 * the batches of the subscriptions that it was asked for, one line each, so a
 * consumer can stop and go on wherever its slot stands.
 *
 * Options:
 *	subscriptions	names, separated by commas; in double quotes if they
 *					contain any.  Required.
 *	snapshot		on: begin with the whole result of each, as a reset
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "commands/defrem.h"
#include "compat.h"
#include "libpq/pqformat.h"
#include "miscadmin.h"
#include "output_plugin.h"
#include "read.h"
#include "replication/logical.h"
#include "replication/message.h"
#include "request.h"
#include "subscription.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"
#include "worker.h"

/* Tell the walsender so often that we are alive. */
#define CHANGES_PER_PROGRESS	100

typedef struct StreamedName
{
	char	   *name;
	char	   *snapshot;		/* a batch to print first, or NULL */
	int64		seq;			/* later ones follow it */
} StreamedName;

typedef struct Stream
{
	List	   *names;			/* of StreamedName */
	bool		snapshots;		/* some are not printed yet */
	int			changes;
	Oid			owner;			/* of the last message, and whether we may */
	bool		permitted;
} Stream;

/*
 * Check a name, and fetch the result if it is asked for.
 */
static StreamedName *
open_name(const char *name, bool snapshot, MemoryContext context)
{
	StreamedName *streamed = MemoryContextAllocZero(context,
													sizeof(StreamedName));
	bool		own;

	subscription_find(name, &own);
	streamed->name = MemoryContextStrdup(context, name);
	if (snapshot)
		streamed->snapshot =
			MemoryContextStrdup(context,
								read_reset_batch(name, &streamed->seq));
	return streamed;
}

/* The same for all names, in a transaction. */
static void
open_names(Stream *stream, const char *names, bool snapshot,
		   MemoryContext context)
{
	bool		outside = !IsTransactionState();
	MemoryContext caller = CurrentMemoryContext;
	List	   *list;
	ListCell   *lc;

	if (outside)
		StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (!SplitGUCList(pstrdup(names), ',', &list) || list == NIL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid list of subscriptions: \"%s\"", names)));
	foreach(lc, list)
	{
		StreamedName *streamed = open_name(lfirst(lc), snapshot, context);

		MemoryContextSwitchTo(context);
		stream->names = lappend(stream->names, streamed);
		MemoryContextSwitchTo(caller);
	}
	PopActiveSnapshot();
	if (outside)
		CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

static void
startup_cb(LogicalDecodingContext *ctx, OutputPluginOptions *options,
		   bool is_init)
{
	Stream	   *stream = MemoryContextAllocZero(ctx->context, sizeof(Stream));
	char	   *names = NULL;
	bool		snapshot = false;
	ListCell   *lc;

	options->output_type = OUTPUT_PLUGIN_TEXTUAL_OUTPUT;
	ctx->output_plugin_private = stream;
	if (is_init)
		return;

	foreach(lc, ctx->output_plugin_options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, "subscriptions") == 0 && option->arg)
			names = strVal(option->arg);
		else if (strcmp(option->defname, "snapshot") == 0)
		{
			if (option->arg == NULL)
				snapshot = true;
			else if (!parse_bool(strVal(option->arg), &snapshot))
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("invalid value for option \"%s\": \"%s\"",
								option->defname, strVal(option->arg))));
		}
		else
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("unrecognized option \"%s\"", option->defname),
					 errhint("Valid options are \"subscriptions\" and \"snapshot\".")));
	}
	if (names == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"subscriptions\" is missing"),
				 errhint("Name the subscriptions to stream, separated by commas.")));

	open_names(stream, names, snapshot, ctx->context);
	if (snapshot)
	{
		/* something to decode, so that we are called */
		stream->snapshots = true;
		log_logical_message_now(MESSAGE_PREFIX, "", 0);
		request_flush_point();
	}
}

static void
write_line(LogicalDecodingContext *ctx, const char *line, int len)
{
	OutputPluginPrepareWrite(ctx, true);
	appendBinaryStringInfo(ctx->out, line, len);
	OutputPluginWrite(ctx, true);
}

static void
write_snapshots(LogicalDecodingContext *ctx, Stream *stream)
{
	ListCell   *lc;

	foreach(lc, stream->names)
	{
		StreamedName *streamed = lfirst(lc);

		if (streamed->snapshot)
		{
			write_line(ctx, streamed->snapshot, strlen(streamed->snapshot));
			pfree(streamed->snapshot);
			streamed->snapshot = NULL;
		}
	}
	stream->snapshots = false;
}

/* The owner of a subscription may have changed since we looked. */
static bool
is_permitted(Stream *stream, Oid owner)
{
	if (stream->owner != owner)
	{
		stream->owner = owner;
		stream->permitted = has_privs_of_role(GetUserId(), owner);
	}
	return stream->permitted;
}

static void
write_batch(LogicalDecodingContext *ctx, Stream *stream, StringInfo message)
{
	Oid			owner = pq_getmsgint(message, 4);
	int64		seq = pq_getmsgint64(message);
	const char *name = pq_getmsgrawstring(message);
	ListCell   *lc;

	foreach(lc, stream->names)
	{
		StreamedName *streamed = lfirst(lc);

		if (strcmp(streamed->name, name) == 0 && seq > streamed->seq &&
			is_permitted(stream, owner))
			write_line(ctx, message->data + message->cursor,
					   message->len - message->cursor);
	}
}

static void
message_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		   XLogRecPtr message_lsn, bool transactional, const char *prefix,
		   Size size, const char *data)
{
	Stream	   *stream = ctx->output_plugin_private;
	StringInfoData message;

	if (strcmp(prefix, MESSAGE_PREFIX) != 0)
		return;
	if (stream->snapshots)
		write_snapshots(ctx, stream);
	if (!transactional || size == 0)
		return;

	message.data = unconstify(char *, data);
	message.len = message.maxlen = size;
	message.cursor = 0;
	if (pq_getmsgbyte(&message) == MESSAGE_BATCH)
		write_batch(ctx, stream, &message);
}

static void
change_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		  Relation relation, ReorderBufferChange *change)
{
	Stream	   *stream = ctx->output_plugin_private;

	if (++stream->changes % CHANGES_PER_PROGRESS == 0)
		output_plugin_progress(ctx);
}

static void
begin_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
}

static void
commit_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		  XLogRecPtr commit_lsn)
{
	output_plugin_progress(ctx);
}

void
output_plugin_init(OutputPluginCallbacks *callbacks)
{
	callbacks->startup_cb = startup_cb;
	callbacks->begin_cb = begin_cb;
	callbacks->change_cb = change_cb;
	callbacks->message_cb = message_cb;
	callbacks->commit_cb = commit_cb;
}
