/*
 * commit_log.c
 *	  Decoded commits that some window may still need.
 *
 * A commit is needed while some window has not applied it, while a refill
 * that was requested before it is under way, and while its transaction is in
 * the ProcArray: until then a snapshot taken for a refill may miss it, though
 * its commit record is in WAL.
 *
 * The log is a row of blocks.  A block has commits that follow each other,
 * serialized into one chunk of bytes; or one large commit, in chunks of its
 * own.  What is kept in memory for each commit is in its block alone: there
 * can be millions of them.  The last block, to which commits are appended, is
 * in the buffer.  Beyond the memory limit, chunks are in files (chunk.c).
 *
 * Pointers to tables are part of the serialized form; the block holds a
 * reference for each.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "chunk.h"
#include "commit_log.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

#define CHUNK_SIZE	(64 * 1024)

int			commit_log_memory_kb = 64 * 1024;

typedef struct Block
{
	uint64		first_no;
	uint64		last_no;
	XLogRecPtr	start;			/* of the first commit */
	int			ncommits;
	List	   *tables;			/* of Table, each with a reference */
	List	   *unseen;			/* xids, as OIDs: were in the ProcArray when
								 * last looked at */
	List	   *chunks;			/* NIL: in the buffer */
	Size		last;			/* place of the last commit */
	bool		large;			/* one commit, which has no header */
	CommitInfo	info;			/* of that */
} Block;

/* Before the changes of a commit, in a block that is not large. */
typedef struct CommitHeader
{
	CommitInfo	info;
	Size		size;			/* with the changes */
	Size		previous;		/* size of the commit before; 0: none */
} CommitHeader;

/* A serialized change; the old and the new tuple follow, maxaligned. */
typedef struct ChangeHeader
{
	Table	   *table;
	Size		size;			/* of everything */
	uint32		oldlen;			/* 0: none */
	uint32		newlen;
	uint8		kind;
	bool		old_is_key;
} ChangeHeader;

struct CommitLog
{
	MemoryContext context;
	MemoryContext scratch;		/* reset after each change */
	ChunkStore *chunks;
	Block	  **blocks;
	uint64		nblocks;
	uint64		max_blocks;
	uint64		entries;
	uint64		bytes;

	/* the last block, and after it the commit that is not yet finished */
	char	   *buffer;
	Size		max_size;
	Size		size;			/* of both */
	Size		finished;		/* of the block */
	bool		open;			/* is there such a commit? */
	Block	   *large;			/* what of it does not fit */
	List	   *open_tables;	/* of Table, each with a reference */
	Size		open_bytes;

	/* a commit that was found, to go on from there */
	Block	   *found_block;
	uint64		found_no;
	Size		found_at;
};

CommitLog *
commit_log_create(MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent,
												  "live_topn commit log",
												  ALLOCSET_DEFAULT_SIZES);
	CommitLog  *log = MemoryContextAllocZero(context, sizeof(CommitLog));

	log->context = context;
	log->scratch = AllocSetContextCreate(context, "live_topn logged change",
										 ALLOCSET_DEFAULT_SIZES);
	log->chunks = chunk_store_create(context);
	log->max_blocks = 64;
	log->blocks = MemoryContextAlloc(context,
									 sizeof(Block *) * log->max_blocks);
	log->max_size = 2 * CHUNK_SIZE;
	log->buffer = MemoryContextAlloc(context, log->max_size);
	return log;
}

/* ---- blocks ---- */

/* The bytes of a block that is not large. */
static const char *
block_data(CommitLog *log, const Block *block)
{
	return block->chunks ? chunk_data(log->chunks, linitial(block->chunks)) :
		log->buffer;
}

static void
unref_tables(List *tables)
{
	ListCell   *lc;

	foreach(lc, tables)
		table_unref(lfirst(lc));
	list_free(tables);
}

static void
free_block(CommitLog *log, Block *block)
{
	ListCell   *lc;

	foreach(lc, block->chunks)
	{
		log->bytes -= chunk_size(lfirst(lc));
		chunk_free(log->chunks, lfirst(lc));
	}
	list_free(block->chunks);
	unref_tables(block->tables);
	list_free(block->unseen);
	log->entries -= block->ncommits;
	if (log->found_block == block)
		log->found_block = NULL;
	pfree(block);
}

/* Add a block at the end. */
static Block *
add_block(CommitLog *log, Block *block)
{
	if (log->nblocks == log->max_blocks)
	{
		log->max_blocks *= 2;
		log->blocks = repalloc_huge(log->blocks,
									sizeof(Block *) * log->max_blocks);
	}
	log->blocks[log->nblocks++] = block;
	return block;
}

static Chunk *
make_chunk(CommitLog *log, const char *data, Size size)
{
	return chunk_make(log->chunks, data, size,
					  commit_log_memory_kb * (uint64) 1024);
}

/* The block in the buffer becomes a chunk. */
static void
seal_block(CommitLog *log)
{
	Block	   *block = log->blocks[log->nblocks - 1];
	Chunk	   *chunk = make_chunk(log, log->buffer, log->finished);

	block->chunks = list_make1(chunk);
	log->size -= log->finished;
	memmove(log->buffer, log->buffer + log->finished, log->size);
	log->finished = 0;
}

/* What there is of a commit that is too large becomes a chunk. */
static void
seal_large(CommitLog *log)
{
	Size		header = log->large ? 0 : sizeof(CommitHeader);
	Chunk	   *chunk;

	Assert(log->finished == 0);
	chunk = make_chunk(log, log->buffer + header, log->size - header);
	if (log->large == NULL)
	{
		log->large = palloc0(sizeof(Block));
		log->large->large = true;
	}
	log->large->chunks = lappend(log->large->chunks, chunk);
	log->bytes += chunk_size(chunk);
	log->size = 0;
}

List *
commit_log_drop_seen(List *xids)
{
	while (xids != NIL && !TransactionIdIsInProgress(linitial_oid(xids)))
		xids = list_delete_first(xids);
	return xids;
}

/* Is a transaction that committed in the block in the ProcArray? */
static bool
is_unseen(Block *block)
{
	block->unseen = commit_log_drop_seen(block->unseen);
	return block->unseen != NIL;
}

static bool
block_touches(const Block *block, Oid relid)
{
	ListCell   *lc;

	if (!OidIsValid(relid))
		return true;
	foreach(lc, block->tables)
		if (table_view(lfirst(lc), relid))
			return true;
	return false;
}

/* ---- appending ---- */

void
commit_log_begin(CommitLog *log)
{
	Assert(!log->open && log->size == log->finished);
	log->open = true;
	log->size += sizeof(CommitHeader);	/* filled in at the end */
	log->open_bytes = 0;
}

/* Make room in the buffer; what it holds is sealed if need be. */
static void
reserve(CommitLog *log, Size size)
{
	Size		header = log->large ? 0 : sizeof(CommitHeader);

	if (log->finished > 0 && log->size + size > CHUNK_SIZE)
		seal_block(log);
	if (log->finished == 0 && log->size > header &&
		log->size + size > CHUNK_SIZE)
		seal_large(log);
	if (log->size + size > log->max_size)
	{
		log->buffer = repalloc_huge(log->buffer, log->size + size);
		log->max_size = log->size + size;
	}
}

static void
append_tuple(CommitLog *log, HeapTuple tuple)
{
	Size		padded = MAXALIGN((Size) tuple->t_len);

	memcpy(log->buffer + log->size, tuple->t_data, tuple->t_len);
	memset(log->buffer + log->size + tuple->t_len, 0, padded - tuple->t_len);
	log->size += padded;
}

void
commit_log_append(CommitLog *log, const Change *change)
{
	MemoryContext caller = MemoryContextSwitchTo(log->scratch);
	HeapTuple	old;
	HeapTuple	new;
	ChangeHeader header = {0};

	Assert(sizeof(header) == MAXALIGN(sizeof(header)));
	header.table = change->table;
	header.kind = change->kind;
	if (!table_flatten_tuple(change->table, change->old, &old) ||
		!table_flatten_tuple(change->table, change->new, &new))
	{
		/* too large for memory: rows may have any values now */
		header.kind = CHANGE_REWRITE;
		old = new = NULL;
	}
	header.old_is_key = change->old_is_key;
	header.oldlen = old ? old->t_len : 0;
	header.newlen = new ? new->t_len : 0;
	header.size = sizeof(header) + MAXALIGN((Size) header.oldlen) +
		MAXALIGN((Size) header.newlen);

	MemoryContextSwitchTo(log->context);
	reserve(log, header.size);
	memcpy(log->buffer + log->size, &header, sizeof(header));
	log->size += sizeof(header);
	if (old)
		append_tuple(log, old);
	if (new)
		append_tuple(log, new);
	log->open_bytes += header.size;

	if (!list_member_ptr(log->open_tables, change->table))
		log->open_tables = lappend(log->open_tables,
								   table_ref(change->table));

	MemoryContextSwitchTo(caller);
	MemoryContextReset(log->scratch);
}

Size
commit_log_open_bytes(const CommitLog *log)
{
	return log->open_bytes;
}

/* There is no commit that is not finished; don't keep a huge row's memory. */
static void
close_commit(CommitLog *log)
{
	log->size = log->finished;
	log->open = false;
	log->large = NULL;
	log->open_tables = NIL;
	log->open_bytes = 0;
	if (log->max_size > 4 * CHUNK_SIZE)
	{
		log->max_size = 2 * CHUNK_SIZE;
		log->buffer = repalloc(log->buffer, log->max_size);
	}
}

void
commit_log_drop(CommitLog *log)
{
	if (log->large)
		free_block(log, log->large);
	unref_tables(log->open_tables);
	close_commit(log);
}

/* The block that the commit goes to. */
static Block *
commit_block(CommitLog *log, const CommitInfo *info)
{
	Block	   *block;

	if (log->finished > 0)
		return log->blocks[log->nblocks - 1];
	block = log->large ? log->large : palloc0(sizeof(Block));
	block->first_no = info->no;
	block->start = info->start;
	return add_block(log, block);
}

void
commit_log_finish(CommitLog *log, const CommitInfo *info)
{
	MemoryContext caller;
	Block	   *block;
	ListCell   *lc;

	if (log->open_bytes == 0)
	{
		commit_log_drop(log);
		return;
	}

	caller = MemoryContextSwitchTo(log->context);
	if (log->large && log->size > 0)
		seal_large(log);
	block = commit_block(log, info);
	if (log->large)
		block->info = *info;
	else
	{
		CommitHeader *header = (CommitHeader *) (log->buffer + log->finished);

		header->info = *info;
		header->size = log->size - log->finished;
		header->previous = log->finished - block->last;
		block->last = log->finished;
		log->finished = log->size;
		log->bytes += header->size;
	}
	block->last_no = info->no;
	block->ncommits++;
	block->unseen = lappend_oid(block->unseen, info->xid);
	foreach(lc, log->open_tables)
	{
		if (list_member_ptr(block->tables, lfirst(lc)))
			table_unref(lfirst(lc));
		else
			block->tables = lappend(block->tables, lfirst(lc));
	}
	list_free(log->open_tables);
	log->entries++;
	if (log->finished > CHUNK_SIZE)
		seal_block(log);
	MemoryContextSwitchTo(caller);
	close_commit(log);
}

/* ---- reading ---- */

/* The first block that ends after a commit. */
static uint64
find_block(const CommitLog *log, uint64 no)
{
	uint64		low = 0,
				high = log->nblocks;

	while (low < high)
	{
		uint64		middle = (low + high) / 2;

		if (log->blocks[middle]->last_no <= no)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
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
	data += MAXALIGN((Size) header->oldlen);
	change.new = logged_tuple(&new, header->table, header->newlen, data);
	return callback(&change, arg);
}

static bool
scan_changes(const char *data, Size size, Oid relid, bool backward,
			 ChangeCallback callback, void *arg)
{
	List	   *places = NIL;
	bool		goon = true;

	for (Size at = 0; goon && at < size;
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
commit_log_scan(CommitLog *log, const LoggedCommit *commit, Oid relid,
				bool backward, ChangeCallback callback, void *arg)
{
	Block	   *block = commit->block;
	int			n = list_length(block->chunks);
	bool		goon = true;

	if (!block->large)
		(void) scan_changes(block_data(log, block) + commit->begin,
							commit->end - commit->begin, relid, backward,
							callback, arg);
	else
		for (int i = 0; goon && i < n; i++)
		{
			Chunk	   *chunk = list_nth(block->chunks,
										 backward ? n - 1 - i : i);

			goon = scan_changes(chunk_data(log->chunks, chunk),
								chunk_size(chunk), relid, backward, callback,
								arg);
		}
	chunk_store_shrink(log->chunks, 4 * CHUNK_SIZE);
}

static bool
stop_at_change(const Change *change, void *arg)
{
	return false;
}

/* Is the commit at a place of the block one with changes of the relation? */
static bool
take_commit(CommitLog *log, Block *block, const char *data, Size at,
			Oid relid, LoggedCommit *commit)
{
	const CommitHeader *header = (const CommitHeader *) (data + at);

	commit->info = header->info;
	commit->block = block;
	commit->begin = at + sizeof(CommitHeader);
	commit->end = at + header->size;
	if (OidIsValid(relid) &&
		scan_changes(data + commit->begin, commit->end - commit->begin,
					 relid, false, stop_at_change, NULL))
		return false;
	log->found_block = block;
	log->found_no = header->info.no;
	log->found_at = at;
	return true;
}

static bool
take_large(Block *block, LoggedCommit *commit)
{
	commit->info = block->info;
	commit->block = block;
	commit->begin = commit->end = 0;
	return true;
}

bool
commit_log_next(CommitLog *log, uint64 no, Oid relid, LoggedCommit *commit)
{
	for (uint64 i = find_block(log, no); i < log->nblocks; i++)
	{
		Block	   *block = log->blocks[i];
		const char *data;
		Size		at = 0;

		if (!block_touches(block, relid))
			continue;
		if (block->large)
			return take_large(block, commit);
		data = block_data(log, block);
		if (log->found_block == block && log->found_no <= no)
			at = log->found_at;
		while (at <= block->last)
		{
			const CommitHeader *header = (const CommitHeader *) (data + at);

			if (header->info.no > no &&
				take_commit(log, block, data, at, relid, commit))
				return true;
			at += header->size;
		}
	}
	return false;
}

bool
commit_log_previous(CommitLog *log, uint64 no, Oid relid,
					LoggedCommit *commit)
{
	/* the last block that begins before the commit */
	uint64		i = Min(find_block(log, no) + 1, log->nblocks);

	while (i-- > 0)
	{
		Block	   *block = log->blocks[i];
		const char *data;
		Size		at = block->last;

		if (block->first_no >= no || !block_touches(block, relid))
			continue;
		if (block->large)
			return take_large(block, commit);
		data = block_data(log, block);
		if (log->found_block == block && log->found_no >= no)
			at = log->found_at;
		for (;;)
		{
			const CommitHeader *header = (const CommitHeader *) (data + at);

			if (header->info.no < no &&
				take_commit(log, block, data, at, relid, commit))
				return true;
			if (header->previous == 0)
				break;
			at -= header->previous;
		}
	}
	return false;
}

XLogRecPtr
commit_log_start(const CommitLog *log)
{
	return log->nblocks > 0 ? log->blocks[0]->start : InvalidXLogRecPtr;
}

uint64
commit_log_visible_upto(CommitLog *log, uint64 no)
{
	for (uint64 i = 0; i < log->nblocks; i++)
	{
		Block	   *block = log->blocks[i];

		if (block->first_no > no)
			break;
		if (is_unseen(block))
			return block->first_no - 1;
	}
	return no;
}

/* ---- trimming ---- */

void
commit_log_trim(CommitLog *log, uint64 floor)
{
	uint64		end = find_block(log, floor);
	uint64		kept = 0;

	Assert(!log->open);
	for (uint64 i = 0; i < end; i++)
	{
		Block	   *block = log->blocks[i];

		if (is_unseen(block))
			log->blocks[kept++] = block;
		else
		{
			if (block->chunks == NIL)
			{
				log->bytes -= log->finished;
				log->finished = log->size = 0;
			}
			free_block(log, block);
		}
	}
	if (kept < end)
	{
		memmove(log->blocks + kept, log->blocks + end,
				sizeof(Block *) * (log->nblocks - end));
		log->nblocks -= end - kept;
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
