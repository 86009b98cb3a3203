/*
 * deliver.c
 *	  Batches on their way to clients.
 *
 * A turn of the worker's loop publishes all its batches in one transaction.
 * It commits asynchronously (the worker runs with synchronous_commit off): a
 * commit that notifies holds a lock that every other such commit in the
 * cluster waits for, so it must not wait for a disk or a standby.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "commands/async.h"
#include "compat.h"
#include "deliver.h"
#include "fmgr.h"
#include "launcher.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "message.h"
#include "miscadmin.h"
#include "replication/message.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* commands/async.c: a payload must be shorter */
#define NOTIFY_LIMIT	(BLCKSZ - NAMEDATALEN - 128)

typedef struct Delivery
{
	Feed	   *feed;
	Batch	   *batch;			/* NULL: announce the result at birth */
	char	   *json;			/* while it is published */
	int			length;
} Delivery;

static MemoryContext context;
static MemoryContext json_context;	/* batches while they are published */
static List *queue;				/* of Delivery */

/* whose identity and settings are in force, in the publishing transaction */
static const SubscriptionRow *acting_for;
static int	acting_nestlevel;

/* Publishing fails, which has been said; and who may be to blame, or "". */
static bool stalled;
static char blocker[256];
static emit_log_hook_type prev_emit_log_hook;

static bool streamed;			/* batches went into WAL ... */
static XLogRecPtr unflushed;	/* ... and up to here wait to be flushed */

/*
 * emit_log_hook: who keeps the NOTIFY queue from being emptied is known to
 * asyncQueueFillWarning only.
 */
static void
note_blocker(ErrorData *edata)
{
	if (edata->elevel == WARNING && edata->message_id && edata->detail &&
		strncmp(edata->message_id, "NOTIFY queue is", 15) == 0)
	{
		strlcpy(blocker, edata->detail, sizeof(blocker));
		blocker[strcspn(blocker, ".")] = '\0';
	}
	if (prev_emit_log_hook)
		prev_emit_log_hook(edata);
}

void
deliver_startup(MemoryContext parent)
{
	prev_emit_log_hook = emit_log_hook;
	emit_log_hook = note_blocker;
	context = AllocSetContextCreate(parent, "live_topn batches",
									ALLOCSET_DEFAULT_SIZES);
	json_context = AllocSetContextCreate(context, "live_topn JSON",
										 ALLOCSET_DEFAULT_SIZES);
}

MemoryContext
deliver_context(void)
{
	return context;
}

void
deliver_enqueue(Feed *feed, Batch *batch)
{
	MemoryContext caller = MemoryContextSwitchTo(context);
	Delivery   *delivery = palloc0(sizeof(Delivery));

	delivery->feed = feed;
	delivery->batch = batch;
	queue = lappend(queue, delivery);
	feed->pending++;
	MemoryContextSwitchTo(caller);
}

void
deliver_announce(Feed *feed)
{
	deliver_enqueue(feed, NULL);
}

int
deliver_pending(void)
{
	return list_length(queue);
}

static void
free_delivery(Delivery *delivery)
{
	if (delivery->batch)
		batch_free(delivery->batch);
	feed_delivered(delivery->feed);
	pfree(delivery);
}

/* Bytes that a character takes in a JSON string. */
static int
escaped_length(const char *c, int length)
{
	if (length > 1)
		return length;
	switch (*c)
	{
		case '\b':
		case '\f':
		case '\n':
		case '\r':
		case '\t':
		case '"':
		case '\\':
			return 2;
		default:
			return (unsigned char) *c < ' ' ? 6 : 1;
	}
}

/*
 * How many bytes of json, from the start, fit into room bytes once escaped;
 * whole characters, at least one.
 */
static int
part_length(const char *json, int room)
{
	int			length = 0;
	int			escaped = 0;

	while (json[length] != '\0')
	{
		int			char_length = pg_mblen(json + length);

		escaped += escaped_length(json + length, char_length);
		if (escaped > room && length > 0)
			break;
		length += char_length;
	}
	return length;
}

/*
 * A payload that is too long goes out in parts.
 */
static void
notify_parts(const Feed *feed, const Batch *batch, const char *json)
{
	StringInfoData head;
	StringInfoData payload;
	int			room;
	int			parts = 0;

	initStringInfo(&head);
	appendStringInfoString(&head, "{\"sub\":");
	escape_json(&head, feed->row->name);
	appendStringInfo(&head, ",\"seq\":" INT64_FORMAT, batch->seq);

	/* what comes after the head: ,"part":…,"parts":…,"data":"…"} */
	room = NOTIFY_LIMIT - 1 - head.len - 64;
	for (const char *at = json; *at; at += part_length(at, room))
		parts++;

	initStringInfo(&payload);
	for (int part = 1; part <= parts; part++)
	{
		int			length = part_length(json, room);
		char	   *data = pnstrdup(json, length);

		resetStringInfo(&payload);
		appendStringInfo(&payload, "%s,\"part\":%d,\"parts\":%d,\"data\":",
						 head.data, part, parts);
		escape_json(&payload, data);
		appendStringInfoChar(&payload, '}');
		Async_Notify(feed->row->name, payload.data);
		json += length;
		pfree(data);
	}
}

/* For the output plugin. */
static void
log_batch(const Feed *feed, const Batch *batch, StringInfo json)
{
	StringInfoData message;

	initStringInfo(&message);
	appendStringInfo(&message, "%c " INT64_FORMAT " %u " INT64_FORMAT " "
					 INT64_FORMAT " %d %s",
					 MESSAGE_BATCH, message_secret(), feed->row->owner, feed->id,
					 batch->seq, (int) strlen(feed->row->name), feed->row->name);
	appendBinaryStringInfo(&message, json->data, json->len);
	log_logical_message(MESSAGE_PREFIX, message.data, message.len);
	pfree(message.data);
	streamed = true;
}

static bool
same_settings(const SubscriptionRow *a, const SubscriptionRow *b)
{
	if (a->nsettings != b->nsettings)
		return false;
	for (int i = 0; i < a->nsettings; i++)
		if (strcmp(a->settings[i], b->settings[i]) != 0)
			return false;
	return true;
}

/* Give up the owner's identity and settings. */
static void
act_for_nobody(void)
{
	if (acting_for == NULL)
		return;
	AtEOXact_GUC(false, acting_nestlevel);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, 0);
	acting_for = NULL;
}

/*
 * Act as the owner of a subscription and under its settings, until
 * act_for_nobody or the end of the transaction.
 */
static void
act_for(const SubscriptionRow *row)
{
	if (acting_for && acting_for->owner == row->owner &&
		same_settings(acting_for, row))
		return;
	act_for_nobody();
	SetUserIdAndSecContext(row->owner, SECURITY_RESTRICTED_OPERATION);
	acting_nestlevel = catalog_apply_settings(row->nsettings, row->settings);
	acting_for = row;
}

/*
 * Print a batch, as the owner of its feed and under its settings, and put it
 * out.
 */
static void
publish(Delivery *delivery)
{
	Feed	   *feed = delivery->feed;
	const char *deliver = feed->row->deliver;
	MemoryContext caller;
	StringInfoData json;

	if (delivery->batch == NULL)
		return;

	caller = MemoryContextSwitchTo(json_context);
	initStringInfo(&json);
	MemoryContextSwitchTo(caller);
	act_for(feed->row);
	batch_append(&json, feed->row->name, delivery->batch,
				 feed->batch_format, feed->format, feed->row->old);

	if (strcmp(deliver, "notify") == 0 || strcmp(deliver, "both") == 0)
	{
		if (json.len < NOTIFY_LIMIT)
			Async_Notify(feed->row->name, json.data);
		else
			notify_parts(feed, delivery->batch, json.data);
	}
	if (strcmp(deliver, "stream") == 0 || strcmp(deliver, "both") == 0)
		log_batch(feed, delivery->batch, &json);
	delivery->json = json.data;
	delivery->length = json.len;
}

/*
 * Write what is published into WAL, in the same transaction: a worker that
 * starts again finds it there.
 */
static void
log_published(void)
{
	StringInfoData message;
	ListCell   *lc;

	initStringInfo(&message);
	appendStringInfo(&message, "%c " INT64_FORMAT, MESSAGE_PUBLISHED,
					 message_secret());
	foreach(lc, queue)
	{
		Delivery   *delivery = lfirst(lc);
		Batch	   *batch = delivery->batch;

		appendStringInfo(&message,
						 " " INT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT,
						 delivery->feed->id, batch ? batch->seq : 0,
						 batch && !batch->error ? batch->commit.lsn : 0);
	}
	log_logical_message(MESSAGE_PREFIX, message.data, message.len);
	pfree(message.data);
}

int64
deliver_forget(Feed *feed, int64 seq, XLogRecPtr lsn)
{
	ListCell   *lc;

	foreach(lc, queue)
	{
		Delivery   *delivery = lfirst(lc);

		if (delivery->feed != feed)
			continue;
		if (delivery->batch == NULL || delivery->batch->commit.lsn <= lsn)
		{
			queue = foreach_delete_current(queue, lc);
			free_delivery(delivery);
		}
		else
			delivery->batch->seq = ++seq;
	}
	return seq;
}

/*
 * Drop what is queued of a feed whose rows cannot be printed.  Its next batch
 * takes the first number that was not used.
 */
static void
discard_failed(Feed *feed)
{
	ListCell   *lc;

	foreach(lc, queue)
	{
		Delivery   *delivery = lfirst(lc);

		if (delivery->feed == feed && delivery->batch)
			feed->seq = Min(feed->seq, delivery->batch->seq - 1);
	}
	deliver_forget(feed, feed->seq, PG_UINT64_MAX);
}

static void
report_stall(const ErrorData *error)
{
	char	   *text = psprintf("cannot publish: %s%s%s", error->message,
								blocker[0] ? ". " : "", blocker);

	launcher_set_error(text);
	pfree(text);
	if (!stalled)
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("live_topn worker of database %u cannot publish: %s",
						MyDatabaseId, error->message),
				 blocker[0] ? errdetail_internal("%s.", blocker) : 0,
				 errhint("It waits, and loses nothing.")));
	stalled = true;
}

static void
report_end_of_stall(void)
{
	launcher_set_error("");
	ereport(LOG,
			(errmsg("live_topn worker of database %u publishes again",
					MyDatabaseId)));
	stalled = false;
	blocker[0] = '\0';
}

bool
deliver_publish(void)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile bool published = false;
	Feed	   *volatile printing = NULL;
	ListCell   *lc;

	if (queue == NIL)
		return true;

	MemoryContextReset(json_context);
	streamed = false;
	PG_TRY();
	{
		/* nobody who notifies gets so far as to cut off a full queue */
		if (stalled)
			(void) DirectFunctionCall1(pg_notification_queue_usage, (Datum) 0);
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		foreach(lc, queue)
		{
			Delivery   *delivery = lfirst(lc);

			printing = delivery->feed;
			publish(delivery);
		}
		act_for_nobody();
		printing = NULL;
		log_published();
		PopActiveSnapshot();
		CommitTransactionCommand();
		published = true;
	}
	PG_CATCH();
	{
		ErrorData  *error;

		acting_for = NULL;
		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		RESUME_INTERRUPTS();
		if (printing == NULL)
			report_stall(error);
		if (printing)
		{
			Feed	   *feed = printing;

			/* it may go with its last batch */
			feed->pending++;
			discard_failed(feed);
			if (!feed->dropped)
				feed_fail(feed, error->message);
			feed_delivered(feed);
		}
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);

	if (published)
	{
		if (stalled)
			report_end_of_stall();
		pg_atomic_write_u64(&MyWorkerSlot->published_lsn, XactLastCommitEnd);
		if (streamed)
			unflushed = XactLastCommitEnd;
		foreach(lc, queue)
		{
			Delivery   *delivery = lfirst(lc);

			if (delivery->batch)
				history_add(delivery->feed->history, delivery->batch->seq,
							delivery->json, delivery->length);
			free_delivery(delivery);
		}
		list_free(queue);
		queue = NIL;
		MemoryContextReset(json_context);
	}
	return published;
}

void
deliver_flush(void)
{
	if (!XLogRecPtrIsInvalid(unflushed))
		XLogFlush(unflushed);
	unflushed = InvalidXLogRecPtr;
}
