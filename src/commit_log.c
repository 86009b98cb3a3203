/*
 * commit_log.c
 *	  Decoded commits that some window may still need.
 *
 * A commit is needed while some window has not applied it, while a refill
 * that was requested before it is under way, and while its transaction is in
 * the ProcArray: until then a snapshot taken for a refill may miss it, though
 * its commit record is in WAL.
 *
 * Changes are serialized into chunks.  Beyond the memory limit, chunks go to
 * one temporary file, which is given back when the log holds none of them
 * any more.  Pointers to tables are part of the serialized form; the commit
 * holds a reference for each.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "commit_log.h"
#include "lib/stringinfo.h"
#include "storage/buffile.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

#define CHUNK_SIZE	(64 * 1024)

int			commit_log_memory_kb = 64 * 1024;

typedef struct Chunk
{
	Size		size;
	char	   *data;			/* NULL: in the file, at this place */
	int			fileno;
	off_t		offset;
} Chunk;

/* A serialized change; the old and the new tuple follow, maxaligned. */
typedef struct ChangeHeader
{
	Table	   *table;
	uint32		size;			/* of everything */
	uint32		oldlen;			/* 0: none */
	uint32		newlen;
	uint8		kind;
	bool		old_is_key;
} ChangeHeader;

struct CommitLog
{
	MemoryContext context;
	LoggedCommit **commits;		/* by number */
	uint64		entries;
	uint64		max_entries;
	uint64		bytes;
	uint64		memory;			/* of the bytes, those in memory */
	uint64		spilled;		/* number of chunks in the file */
	BufFile    *file;
	int			end_fileno;		/* where to append to it */
	off_t		end_offset;

	LoggedCommit *open;			/* not yet finished */
	Size		open_bytes;
	StringInfoData buffer;		/* its last chunk */
};

CommitLog *
commit_log_create(MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent,
												  "live_topn commit log",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	CommitLog  *log = palloc0(sizeof(CommitLog));

	log->context = context;
	log->max_entries = 64;
	log->commits = palloc(sizeof(LoggedCommit *) * log->max_entries);
	initStringInfo(&log->buffer);
	MemoryContextSwitchTo(caller);
	return log;
}

void
commit_log_begin(CommitLog *log)
{
	Assert(log->open == NULL);
	log->open = MemoryContextAllocZero(log->context, sizeof(LoggedCommit));
	log->open_bytes = 0;
	resetStringInfo(&log->buffer);
}

/* Move the buffer into a chunk of the open commit. */
static void
seal_chunk(CommitLog *log)
{
	Chunk	   *chunk;

	if (log->buffer.len == 0)
		return;

	chunk = palloc0(sizeof(Chunk));
	chunk->size = log->buffer.len;
	if (log->memory + chunk->size <= commit_log_memory_kb * (uint64) 1024)
	{
		chunk->data = palloc(chunk->size);
		memcpy(chunk->data, log->buffer.data, chunk->size);
		log->memory += chunk->size;
	}
	else
	{
		if (log->file == NULL)
		{
			log->file = BufFileCreateTemp(true);
			log->end_fileno = 0;
			log->end_offset = 0;
		}
		if (BufFileSeek(log->file, log->end_fileno, log->end_offset,
						SEEK_SET) != 0)
			ereport(ERROR,
					(errcode_for_file_access(),
					 errmsg("could not seek in the commit log's file")));
		chunk->fileno = log->end_fileno;
		chunk->offset = log->end_offset;
		BufFileWrite(log->file, log->buffer.data, chunk->size);
		BufFileTell(log->file, &log->end_fileno, &log->end_offset);
		log->spilled++;
	}
	log->open->chunks = lappend(log->open->chunks, chunk);
	log->bytes += chunk->size;
	resetStringInfo(&log->buffer);
}

static void
append_tuple(StringInfo buffer, HeapTuple tuple)
{
	int			padded = MAXALIGN(tuple->t_len);

	enlargeStringInfo(buffer, padded);
	memcpy(buffer->data + buffer->len, tuple->t_data, tuple->t_len);
	memset(buffer->data + buffer->len + tuple->t_len, 0,
		   padded - tuple->t_len);
	buffer->len += padded;
}

void
commit_log_append(CommitLog *log, const Change *change)
{
	MemoryContext caller = MemoryContextSwitchTo(log->context);
	HeapTuple	old = table_flatten_tuple(change->table, change->old);
	HeapTuple	new = table_flatten_tuple(change->table, change->new);
	ChangeHeader header = {0};

	header.table = change->table;
	header.kind = change->kind;
	header.old_is_key = change->old_is_key;
	header.oldlen = old ? old->t_len : 0;
	header.newlen = new ? new->t_len : 0;
	header.size = MAXALIGN(sizeof(header)) + MAXALIGN(header.oldlen) +
		MAXALIGN(header.newlen);

	if (log->buffer.len > 0 && log->buffer.len + header.size > CHUNK_SIZE)
		seal_chunk(log);

	appendBinaryStringInfo(&log->buffer, (char *) &header, sizeof(header));
	Assert(sizeof(header) == MAXALIGN(sizeof(header)));
	if (old)
		append_tuple(&log->buffer, old);
	if (new)
		append_tuple(&log->buffer, new);
	log->open_bytes += header.size;

	if (!list_member_ptr(log->open->tables, change->table))
		log->open->tables = lappend(log->open->tables,
									table_ref(change->table));

	if (old != change->old)
		heap_freetuple(old);
	if (new != change->new)
		heap_freetuple(new);
	MemoryContextSwitchTo(caller);
}

Size
commit_log_open_bytes(const CommitLog *log)
{
	return log->open_bytes;
}

static void
free_commit(CommitLog *log, LoggedCommit *commit)
{
	ListCell   *lc;

	foreach(lc, commit->chunks)
	{
		Chunk	   *chunk = lfirst(lc);

		log->bytes -= chunk->size;
		if (chunk->data)
		{
			log->memory -= chunk->size;
			pfree(chunk->data);
		}
		else if (--log->spilled == 0)
		{
			BufFileClose(log->file);
			log->file = NULL;
		}
	}
	list_free_deep(commit->chunks);
	foreach(lc, commit->tables)
		table_unref(lfirst(lc));
	list_free(commit->tables);
	pfree(commit);
}

void
commit_log_drop(CommitLog *log)
{
	if (log->open)
		free_commit(log, log->open);
	log->open = NULL;
	log->open_bytes = 0;
	resetStringInfo(&log->buffer);
}

void
commit_log_finish(CommitLog *log, const CommitInfo *info)
{
	MemoryContext caller;

	if (log->open_bytes == 0)
	{
		commit_log_drop(log);
		return;
	}

	caller = MemoryContextSwitchTo(log->context);
	seal_chunk(log);
	MemoryContextSwitchTo(caller);
	log->open->info = *info;
	if (log->entries == log->max_entries)
	{
		log->max_entries *= 2;
		log->commits = repalloc_huge(log->commits, sizeof(LoggedCommit *) *
									 log->max_entries);
	}
	log->commits[log->entries++] = log->open;
	log->open = NULL;
	log->open_bytes = 0;

	/* don't let one huge row keep its memory */
	if (log->buffer.maxlen > 4 * CHUNK_SIZE)
	{
		caller = MemoryContextSwitchTo(log->context);
		pfree(log->buffer.data);
		initStringInfo(&log->buffer);
		MemoryContextSwitchTo(caller);
	}
}

bool
commit_log_touches(const LoggedCommit *commit, Oid relid)
{
	ListCell   *lc;

	foreach(lc, commit->tables)
		if (table_view(lfirst(lc), relid))
			return true;
	return false;
}

LoggedCommit *
commit_log_get(const CommitLog *log, uint64 i)
{
	return i < log->entries ? log->commits[i] : NULL;
}

/* The place of the first commit after no whose record is not before start. */
static uint64
find_place(const CommitLog *log, uint64 no, XLogRecPtr start)
{
	uint64		low = 0,
				high = log->entries;

	while (low < high)
	{
		uint64		middle = (low + high) / 2;
		const CommitInfo *info = &log->commits[middle]->info;

		if (info->no <= no || info->start < start)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

uint64
commit_log_after(const CommitLog *log, uint64 no)
{
	return find_place(log, no, InvalidXLogRecPtr);
}

uint64
commit_log_from(const CommitLog *log, XLogRecPtr start)
{
	return find_place(log, 0, start);
}

/* Make *tuple what is logged at data; NULL if there is none. */
static HeapTuple
logged_tuple(HeapTuple tuple, const Table *table, uint32 len, const char *data)
{
	if (len == 0)
		return NULL;
	tuple->t_len = len;
	tuple->t_data = (HeapTupleHeader) data;
	ItemPointerSetInvalid(&tuple->t_self);
	tuple->t_tableOid = table->relid;
	return tuple;
}

static bool
scan_change(const char *data, Oid relid, ChangeCallback callback, void *arg)
{
	const ChangeHeader *header = (const ChangeHeader *) data;
	HeapTupleData old,
				new;
	Change		change;

	if (table_view(header->table, relid) == NULL)
		return true;

	data += sizeof(ChangeHeader);
	change.kind = header->kind;
	change.table = header->table;
	change.old_is_key = header->old_is_key;
	change.old = logged_tuple(&old, header->table, header->oldlen, data);
	data += MAXALIGN(header->oldlen);
	change.new = logged_tuple(&new, header->table, header->newlen, data);
	return callback(&change, arg);
}

static bool
scan_chunk(const char *data, Size size, Oid relid, bool backward,
		   ChangeCallback callback, void *arg)
{
	Size		at;
	List	   *places = NIL;
	bool		goon = true;

	for (at = 0; goon && at < size;
		 at += ((const ChangeHeader *) (data + at))->size)
	{
		if (backward)
			places = lappend_int(places, at);
		else
			goon = scan_change(data + at, relid, callback, arg);
	}
	for (int i = list_length(places) - 1; goon && i >= 0; i--)
		goon = scan_change(data + list_nth_int(places, i), relid, callback,
						   arg);
	list_free(places);
	return goon;
}

void
commit_log_scan(CommitLog *log, LoggedCommit *commit, Oid relid,
				bool backward, ChangeCallback callback, void *arg)
{
	int			n = list_length(commit->chunks);
	bool		goon = true;

	for (int i = 0; goon && i < n; i++)
	{
		Chunk	   *chunk = list_nth(commit->chunks, backward ? n - 1 - i : i);
		char	   *data = chunk->data;

		if (data == NULL)
		{
			data = palloc_extended(chunk->size, MCXT_ALLOC_HUGE);
			if (BufFileSeek(log->file, chunk->fileno, chunk->offset,
							SEEK_SET) != 0 ||
				BufFileRead(log->file, data, chunk->size) != chunk->size)
				ereport(ERROR,
						(errcode_for_file_access(),
						 errmsg("could not read the commit log's file")));
		}
		goon = scan_chunk(data, chunk->size, relid, backward, callback, arg);
		if (chunk->data == NULL)
			pfree(data);
	}
}

void
commit_log_trim(CommitLog *log, uint64 floor)
{
	uint64		end = commit_log_after(log, floor);
	uint64		kept = 0;

	for (uint64 i = 0; i < end; i++)
	{
		LoggedCommit *commit = log->commits[i];

		if (TransactionIdIsInProgress(commit->info.xid))
			log->commits[kept++] = commit;
		else
			free_commit(log, commit);
	}
	if (kept < end)
	{
		memmove(log->commits + kept, log->commits + end,
				sizeof(LoggedCommit *) * (log->entries - end));
		log->entries -= end - kept;
	}
}

uint64
commit_log_entries(const CommitLog *log)
{
	return log->entries;
}

uint64
commit_log_bytes(const CommitLog *log)
{
	return log->bytes;
}
