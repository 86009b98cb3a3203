/*
 * output_plugin.c
 *	  The plugin in a consumer's slot: prints batches from WAL.
 *
 * The database worker writes a batch as a logical message, in the transaction
 * that publishes it (deliver.c).  The plugin looks at nothing else, and prints
 * the batches of the subscriptions that it was asked for, one line each.
 *
 * The last line of a transaction has the end of its commit as its LSN, those
 * before it the start of the commit record.  So a consumer that confirms the
 * LSN of the last line it has, and goes on from there, misses nothing, and
 * sees nothing again unless it stopped amid a transaction; then what comes
 * again has the very LSN that was confirmed.
 *
 * Options:
 *	subscriptions	names, separated by commas; in double quotes if they
 *					contain any.  Required.
 *	snapshot		on: begin with the whole result of each, as a reset
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "compat.h"
#include "libpq/pqformat.h"
#include "message.h"
#include "miscadmin.h"
#include "output_plugin.h"
#include "read.h"
#include "replication/logical.h"
#include "replication/message.h"
#include "replication/walsender.h"
#include "request.h"
#include "subscription.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/varlena.h"

/* Let the walsender see to its connection so often. */
#define CHANGES_PER_PROGRESS	100

typedef struct StreamedName
{
	char	   *name;
	char	   *snapshot;		/* a batch to print first, or NULL */
	int64		id;				/* of which subscription it is, */
	int64		seq;			/* and the number of its last batch */
} StreamedName;

typedef struct Stream
{
	List	   *names;			/* of StreamedName */
	bool		snapshots;		/* some are not printed yet */
	XLogRecPtr	marker;			/* they are, from here on */
	StringInfo	line;			/* the last one of the transaction, so far */
	uint64		changes;
} Stream;

/*
 * Check a name, and fetch the result if it is asked for.
 */
static StreamedName *
open_name(const char *name, bool snapshot, MemoryContext context)
{
	StreamedName *streamed = MemoryContextAllocZero(context,
													sizeof(StreamedName));
	SubscriptionRow *row = subscription_find(name, NULL);

	if (strcmp(row->deliver, "stream") != 0 &&
		strcmp(row->deliver, "both") != 0)
		ereport(WARNING,
				(errmsg("subscription \"%s\" does not deliver to replication slots",
						name),
				 errhint("Subscribe with deliver => 'stream' or 'both'.")));
	streamed->id = row->id;
	streamed->name = MemoryContextStrdup(context, name);
	if (snapshot)
		streamed->snapshot =
			MemoryContextStrdup(context,
								read_reset_batch(name, &streamed->seq));
	return streamed;
}

static bool
is_open(Stream *stream, const char *name)
{
	ListCell   *lc;

	foreach(lc, stream->names)
		if (strcmp(((StreamedName *) lfirst(lc))->name, name) == 0)
			return true;
	return false;
}

/* Open all names of a list, in a transaction. */
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
		StreamedName *streamed;

		if (is_open(stream, lfirst(lc)))
			continue;
		streamed = open_name(lfirst(lc), snapshot, context);
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
	stream->line = makeStringInfo();
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
		stream->marker = GetXLogInsertRecPtr();
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
write_snapshot(LogicalDecodingContext *ctx, StreamedName *streamed)
{
	if (streamed->snapshot == NULL)
		return;
	write_line(ctx, streamed->snapshot, strlen(streamed->snapshot));
	pfree(streamed->snapshot);
	streamed->snapshot = NULL;
}

static void
write_snapshots(LogicalDecodingContext *ctx, Stream *stream)
{
	ListCell   *lc;

	foreach(lc, stream->names)
		write_snapshot(ctx, lfirst(lc));
	stream->snapshots = false;
}

/* Write the line that was kept: another one of the transaction follows. */
static void
write_kept_line(LogicalDecodingContext *ctx, Stream *stream,
				ReorderBufferTXN *txn)
{
	ctx->write_location = txn->final_lsn;
	if (stream->line->len > 0)
		write_line(ctx, stream->line->data, stream->line->len);
	resetStringInfo(stream->line);
}

/*
 * A batch.  What a snapshot has is not repeated, and the snapshot comes before
 * what it has not.
 */
static void
take_batch(LogicalDecodingContext *ctx, Stream *stream, ReorderBufferTXN *txn,
		   const char *at)
{
	int64		owner,
				id,
				seq,
				name_length;
	ListCell   *lc;

	if (!message_is_genuine(&at) || !message_number(&at, &owner) ||
		!message_number(&at, &id) || !message_number(&at, &seq) ||
		!message_number(&at, &name_length) ||
		name_length < 0 || strlen(at) < 1 + name_length)
		return;
	at++;

	foreach(lc, stream->names)
	{
		StreamedName *streamed = lfirst(lc);

		if (strlen(streamed->name) != name_length ||
			memcmp(streamed->name, at, name_length) != 0 ||
			(id == streamed->id && seq <= streamed->seq) ||
			!has_privs_of_role(GetUserId(), (Oid) owner))
			continue;
		write_kept_line(ctx, stream, txn);
		if (id == streamed->id)
			write_snapshot(ctx, streamed);
		appendStringInfoString(stream->line, at + name_length);
	}
}

/*
 * What is not printed takes its time, too.
 */
static void
note_change(LogicalDecodingContext *ctx)
{
	Stream	   *stream = ctx->output_plugin_private;

	if (++stream->changes % CHANGES_PER_PROGRESS == 0)
		output_plugin_progress(ctx);
}

static void
message_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		   XLogRecPtr message_lsn, bool transactional, const char *prefix,
		   Size size, const char *data)
{
	Stream	   *stream = ctx->output_plugin_private;

	if (transactional)
		note_change(ctx);
	if (strcmp(prefix, MESSAGE_PREFIX) != 0)
		return;
	if (!transactional)
	{
		if (stream->snapshots && message_lsn >= stream->marker)
			write_snapshots(ctx, stream);
	}
	else if (size > 0 && data[0] == MESSAGE_BATCH)
	{
		char	   *copy = pnstrdup(data + 1, size - 1);

		take_batch(ctx, stream, txn, copy);
		pfree(copy);
	}
}

static void
change_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		  Relation relation, ReorderBufferChange *change)
{
	note_change(ctx);
}

/*
 * The SQL functions decode up to where WAL ended before they called us: our
 * message comes too late there, so take the first opportunity.
 */
static void
begin_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn)
{
	Stream	   *stream = ctx->output_plugin_private;

	if (stream->snapshots && !am_walsender)
		write_snapshots(ctx, stream);
}

static void
commit_cb(LogicalDecodingContext *ctx, ReorderBufferTXN *txn,
		  XLogRecPtr commit_lsn)
{
	Stream	   *stream = ctx->output_plugin_private;

	if (stream->line->len > 0)
		write_line(ctx, stream->line->data, stream->line->len);
	resetStringInfo(stream->line);
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
