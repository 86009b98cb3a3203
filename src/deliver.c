/*
 * deliver.c
 *	  Batches on their way to clients.
 *
 * A turn of the worker's loop publishes all its batches, in one transaction
 * unless they are large.  It commits asynchronously (the worker runs with
 * synchronous_commit off): a commit that notifies holds a lock that every
 * other such commit in the cluster waits for, so it must not wait for a disk
 * or a standby.
 *
 * Batches go out in the order in which they were queued.  So what has been
 * published is always the beginning of what there was to publish, also after
 * a crash between two transactions.
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
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
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

/* commands/async.c: a payload must be shorter */
#define NOTIFY_LIMIT	(BLCKSZ - NAMEDATALEN - 128)

/* Whoever notifies waits for all others, of any database: not for ever. */
#define NOTIFY_LOCK_MS	1000

/* So many batches are enough for one transaction. */
#define MAX_QUEUED		1000

typedef struct Delivery
{
	dlist_node	node;
	Subscriber *subscriber;
	Batch	   *batch;			/* NULL: announce the result at birth */
	Size		bytes;			/* that it keeps in memory */
	char	   *json;			/* while it is published */
	int			length;
} Delivery;

static MemoryContext context;
static MemoryContext json_context;	/* batches while they are published */
static dlist_head queue = DLIST_STATIC_INIT(queue); /* of Delivery */
static int	queued;
static Size queued_bytes;

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
deliver_enqueue(Subscriber *subscriber, Batch *batch)
{
	MemoryContext caller = MemoryContextSwitchTo(context);
	Delivery   *delivery = palloc0(sizeof(Delivery));

	delivery->subscriber = subscriber;
	delivery->batch = batch;
	delivery->bytes = GetMemoryChunkSpace(delivery);
	if (batch)
		delivery->bytes += batch_bytes(batch);
	dlist_push_tail(&queue, &delivery->node);
	queued++;
	queued_bytes += delivery->bytes;
	feed_note_pending(subscriber);
	MemoryContextSwitchTo(caller);
}

void
deliver_announce(Subscriber *subscriber)
{
	deliver_enqueue(subscriber, NULL);
}

int
deliver_pending(void)
{
	return queued;
}

/* A share of the memory limit. */
static Size
max_bytes(void)
{
	return commit_log_memory_kb * (Size) 1024 / 4;
}

bool
deliver_is_full(void)
{
	return queued >= MAX_QUEUED || queued_bytes >= max_bytes();
}

/* Take it from the queue. */
static void
free_delivery(Delivery *delivery)
{
	dlist_delete(&delivery->node);
	queued--;
	queued_bytes -= delivery->bytes;
	if (delivery->batch)
		batch_free(delivery->batch);
	feed_delivered(delivery->subscriber);
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
notify_parts(const Subscriber *subscriber, const Batch *batch, const char *json)
{
	StringInfoData head;
	StringInfoData payload;
	int			room;
	int			parts = 0;

	initStringInfo(&head);
	appendStringInfoString(&head, "{\"sub\":");
	escape_json(&head, subscriber->row->name);
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
		Async_Notify(subscriber->row->name, payload.data);
		json += length;
		pfree(data);
	}
}

/* For the output plugin. */
static void
log_batch(const Subscriber *subscriber, const Batch *batch, StringInfo json)
{
	const SubscriptionRow *row = subscriber->row;
	StringInfoData message;

	initStringInfo(&message);
	appendStringInfo(&message, "%c " INT64_FORMAT " %u " INT64_FORMAT " "
					 INT64_FORMAT " %d %s",
					 MESSAGE_BATCH, message_secret(), row->owner, row->id,
					 batch->seq, (int) strlen(row->name), row->name);
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
	Subscriber *subscriber = delivery->subscriber;
	const Feed *feed = subscriber->feed;
	const SubscriptionRow *row = subscriber->row;
	const char *deliver = row->deliver;
	MemoryContext caller;
	StringInfoData json;

	if (delivery->batch == NULL)
		return;

	caller = MemoryContextSwitchTo(json_context);
	initStringInfo(&json);
	MemoryContextSwitchTo(caller);
	act_for(row);
	batch_append(&json, row->name, delivery->batch,
				 feed->batch_format, feed->format, row->old);

	if (strcmp(deliver, "notify") == 0 || strcmp(deliver, "both") == 0)
	{
		if (json.len < NOTIFY_LIMIT)
			Async_Notify(row->name, json.data);
		else
			notify_parts(subscriber, delivery->batch, json.data);
	}
	if (strcmp(deliver, "stream") == 0 || strcmp(deliver, "both") == 0)
		log_batch(subscriber, delivery->batch, &json);
	delivery->json = json.data;
	delivery->length = json.len;
}

/*
 * Write into WAL that the first n batches are published, in the same
 * transaction: a worker that starts again finds it there.
 */
static void
log_published(int n)
{
	StringInfoData message;
	dlist_iter	iter;

	initStringInfo(&message);
	appendStringInfo(&message, "%c " INT64_FORMAT, MESSAGE_PUBLISHED,
					 message_secret());
	dlist_foreach(iter, &queue)
	{
		Delivery   *delivery = dlist_container(Delivery, node, iter.cur);
		Batch	   *batch = delivery->batch;

		if (n-- == 0)
			break;
		appendStringInfo(&message,
						 " " INT64_FORMAT " " INT64_FORMAT " " UINT64_FORMAT,
						 delivery->subscriber->id, batch ? batch->seq : 0,
						 batch && !batch->error ? batch->commit.lsn : 0);
	}
	log_logical_message(MESSAGE_PREFIX, message.data, message.len);
	pfree(message.data);
}

void
deliver_forget_published(void)
{
	dlist_mutable_iter iter;

	/* what is queued of a feed comes after what was published of it */
	dlist_foreach_modify(iter, &queue)
	{
		Subscriber *subscriber = dlist_container(Delivery, node,
												 iter.cur)->subscriber;

		if (subscriber->feed->replaying && subscriber->published >= 0)
			subscriber->seq = subscriber->published;
	}
	dlist_foreach_modify(iter, &queue)
	{
		Delivery   *delivery = dlist_container(Delivery, node, iter.cur);
		Subscriber *subscriber = delivery->subscriber;

		if (!subscriber->feed->replaying || subscriber->published < 0)
			continue;
		if (delivery->batch == NULL ||
			delivery->batch->commit.lsn <= subscriber->published_lsn)
			free_delivery(delivery);
		else
			delivery->batch->seq = ++subscriber->seq;
	}
}

void
deliver_discard(Subscriber *subscriber)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &queue)
	{
		Delivery   *delivery = dlist_container(Delivery, node, iter.cur);

		if (delivery->subscriber != subscriber)
			continue;
		if (delivery->batch)
			subscriber->seq = Min(subscriber->seq, delivery->batch->seq - 1);
		free_delivery(delivery);
	}
}

/* Who holds the lock that PreCommit_Notify takes? */
static void
note_lock_holder(void)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	PGPROC	   *proc = NULL;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, DatabaseRelationId, InvalidOid, 0);
	holders = GetLockConflicts(&tag, AccessExclusiveLock, NULL);
	if (VirtualTransactionIdIsValid(holders[0]))
		proc = vxid_get_proc(holders[0]);
	blocker[0] = '\0';
	if (proc)
		snprintf(blocker, sizeof(blocker),
				 "The server process with PID %d is committing and holds it",
				 proc->pid);
	pfree(holders);
}

static void
report_stall(const ErrorData *error)
{
	const char *message = error->message;
	char	   *text;

	if (error->sqlerrcode == ERRCODE_LOCK_NOT_AVAILABLE)
	{
		message = "the lock for transactions that notify is not available";
		note_lock_holder();
	}
	text = psprintf("cannot publish: %s%s%s", message,
					blocker[0] ? ". " : "", blocker);
	launcher_set_error(text);
	pfree(text);
	if (!stalled)
		ereport(WARNING,
				(errcode(error->sqlerrcode),
				 errmsg("live_topn worker of database %u cannot publish: %s",
						MyDatabaseId, message),
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

/*
 * Print batches and put them out until they are enough for one transaction,
 * and note that.  Returns their number; *printing is whose batch is at
 * work.
 */
static int
publish_first(Subscriber *volatile *printing)
{
	Size		bytes = 0;
	int			n = 0;
	dlist_iter	iter;

	dlist_foreach(iter, &queue)
	{
		Delivery   *delivery = dlist_container(Delivery, node, iter.cur);

		if (n == MAX_QUEUED || bytes >= max_bytes())
			break;
		*printing = delivery->subscriber;
		publish(delivery);
		bytes += delivery->length;
		n++;
	}
	*printing = NULL;
	act_for_nobody();
	log_published(n);
	return n;
}

/* The first n batches are out: keep them for topn_poll. */
static void
forget_first(int n)
{
	while (n-- > 0)
	{
		Delivery   *delivery = dlist_head_element(Delivery, node, &queue);

		if (delivery->batch)
			history_add(delivery->subscriber->history, delivery->batch->seq,
						delivery->json, delivery->length);
		free_delivery(delivery);
	}
}

/*
 * Publish what comes first in the queue in one transaction.  An error while a
 * batch is printed is its own, and concerns no other.
 */
static bool
publish_transaction(void)
{
	MemoryContext caller = CurrentMemoryContext;
	volatile int n = 0;
	volatile bool good = true;
	Subscriber *volatile printing = NULL;

	MemoryContextReset(json_context);
	streamed = false;
	PG_TRY();
	{
		/* nobody who notifies gets so far as to cut off a full queue */
		if (stalled)
			(void) DirectFunctionCall1(pg_notification_queue_usage, (Datum) 0);
		StartTransactionCommand();
		PushActiveSnapshot(GetTransactionSnapshot());
		n = publish_first(&printing);
		PopActiveSnapshot();
		LockTimeout = NOTIFY_LOCK_MS;
		CommitTransactionCommand();
		LockTimeout = 0;
	}
	PG_CATCH();
	{
		ErrorData  *error;
		Subscriber *subscriber = printing;

		LockTimeout = 0;
		n = 0;
		acting_for = NULL;
		HOLD_INTERRUPTS();
		MemoryContextSwitchTo(caller);
		error = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		RESUME_INTERRUPTS();
		good = subscriber != NULL;
		if (subscriber == NULL)
			report_stall(error);
		else
		{
			/* it may go with its last batch */
			feed_note_pending(subscriber);
			deliver_discard(subscriber);
			if (!subscriber->dropped)
				feed_fail_subscriber(subscriber, error);
			feed_delivered(subscriber);
		}
		FreeErrorData(error);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(caller);

	if (n > 0)
	{
		if (stalled)
			report_end_of_stall();
		pg_atomic_write_u64(&MyWorkerSlot->published_lsn, XactLastCommitEnd);
		if (streamed)
			unflushed = XactLastCommitEnd;
		forget_first(n);
		MemoryContextReset(json_context);
	}
	return good;
}

bool
deliver_publish(void)
{
	while (queued > 0)
	{
		if (!publish_transaction())
			return false;
	}
	return true;
}

void
deliver_flush(void)
{
	if (!XLogRecPtrIsInvalid(unflushed))
		XLogFlush(unflushed);
	unflushed = InvalidXLogRecPtr;
}
