/*
 * checkpoint.c
 *	  Windows saved and restored.
 *
 * A file per database, live_topn/<oid> in the data directory, that begins with
 * a header of one sector, which checkpoint_move writes again in place.
 * Records of subscriptions follow (checkpoint_record.c), of which the last one
 * of each counts.  What is not up to date is found in WAL, from the slot's
 * position on, so that each feed may be as of another time.
 *
 * A checkpoint appends records of the feeds that have changed, and of the
 * leases that were renewed, and then moves the header on: the others are as
 * they were saved at the new position, too, since nothing has concerned them
 * meanwhile.  The whole file is written anew
 * when more than half of it is of no use any more.
 *
 * A first result is known to clients long before the next checkpoint, and
 * cannot be found again in WAL.  So its window is appended to the file before
 * it is published.
 *
 * The end of the file may be torn, behind the records that the header counts:
 * nothing was published or given back yet that relies on it.
 *
 * The file is made durable before the slot is moved, so that WAL from what is
 * saved on is there.  The other way round, a slot that has been moved beyond
 * what the header says is another slot of the same name, and what is saved
 * is worth nothing but its numbers.
 */
#include "postgres.h"

#include <fcntl.h>
#include <unistd.h>

#include "access/xlog.h"
#include "apply.h"
#include "catalog/pg_collation.h"
#include "checkpoint.h"
#include "checkpoint_record.h"
#include "common/hashfn.h"
#include "deliver.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/pg_locale.h"

#define CHECKPOINT_MAGIC		0x6c74706e
#define CHECKPOINT_VERSION		9
#define HEADER_SIZE				512
#define MIN_GARBAGE				(1024 * 1024)	/* worth writing a file anew */

int			checkpoint_interval_ms = 60000;

typedef struct CheckpointHeader
{
	uint32		magic;
	uint32		version;
	uint64		system_identifier;
	XLogRecPtr	restart;
	int64		nrecords;		/* that are intact, at least */
	Oid			dboid;
	uint32		collations;		/* what hash_collation_versions was */
	pg_crc32c	crc;			/* of the fields above */
} CheckpointHeader;

typedef union HeaderSector
{
	CheckpointHeader header;
	char		bytes[HEADER_SIZE];
} HeaderSector;

/* Where to append records to the file; 0: it is of no use. */
static off_t file_end;
static int64 file_records;		/* up to there */
static off_t file_live;			/* bytes, of records that count */

/* Records that are being appended. */
static FileWriter appender;
static bool appending;
static int64 appended;

static void
checkpoint_path(char *path, Oid dboid)
{
	snprintf(path, MAXPGPATH, CHECKPOINT_DIRECTORY "/%u", dboid);
}

/*
 * A hash of the versions of the libraries that compare text.  With others, the
 * rows of a window may have to be in another order.
 */
static uint32
hash_collation_versions(void)
{
	static const char providers[] = {COLLPROVIDER_LIBC, COLLPROVIDER_ICU};
	uint32		hash = 0;

	for (int i = 0; i < lengthof(providers); i++)
	{
		char	   *version = get_collation_actual_version(providers[i], "en");

		if (version == NULL)
			continue;
		hash = hash_combine(hash, hash_bytes((const unsigned char *) version,
											 strlen(version)));
		pfree(version);
	}
	return hash;
}

static void
fill_header(CheckpointHeader *header, XLogRecPtr restart, int64 nrecords,
			uint32 collations)
{
	memset(header, 0, sizeof(CheckpointHeader));
	header->magic = CHECKPOINT_MAGIC;
	header->version = CHECKPOINT_VERSION;
	header->system_identifier = GetSystemIdentifier();
	header->restart = restart;
	header->nrecords = nrecords;
	header->dboid = MyDatabaseId;
	header->collations = collations;
	INIT_CRC32C(header->crc);
	COMP_CRC32C(header->crc, header, offsetof(CheckpointHeader, crc));
	FIN_CRC32C(header->crc);
}

static bool
header_is_valid(const CheckpointHeader *header)
{
	CheckpointHeader expected;

	fill_header(&expected, header->restart, header->nrecords,
				header->collations);
	return memcmp(header, &expected, sizeof(CheckpointHeader)) == 0;
}

/* ---- writing ---- */

#ifdef USE_ASSERT_CHECKING
/* Are all that are not marked dirty as they were saved? */
static bool
are_clean(void)
{
	HASH_SEQ_STATUS status;
	Subscriber *subscriber;

	subscriber_scan(&status);
	while ((subscriber = subscriber_scan_next(&status)) != NULL)
	{
		if (!subscriber->announced || subscriber->feed->dirty ||
			subscriber->saved_checksum == record_checksum(subscriber))
			continue;
		elog(WARNING, "subscription \"%s\" has changed unmarked",
			 subscriber->row->name);
		hash_seq_term(&status);
		return false;
	}
	return true;
}
#endif

/* The record is as the subscriber is. */
static void
note_saved(Subscriber *subscriber, off_t bytes)
{
	file_live += bytes - subscriber->saved_bytes;
	subscriber->saved_bytes = bytes;
#ifdef USE_ASSERT_CHECKING
	subscriber->saved_checksum = record_checksum(subscriber);
#endif
}

static void
put_record(FileWriter *writer, Subscriber *subscriber, RecordKind kind)
{
	off_t		start = writer_position(writer);

	record_put(writer, subscriber, kind);
	note_saved(subscriber, writer_position(writer) - start);
}

/*
 * All who show the feed, one after the other; unless they are about to know
 * it, only those whose clients may know the result: that is worth saving.
 * Returns how many.
 */
static int64
put_subscribers(FileWriter *writer, const Feed *feed, bool unannounced)
{
	RecordKind	kind = record_has_windows(feed) ? RECORD_FEED :
		RECORD_NOTHING;
	int64		n = 0;
	dlist_iter	iter;

	dlist_foreach(iter, unconstify(dlist_head *, &feed->subscribers))
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		if (!subscriber->announced && !unannounced)
			continue;
		put_record(writer, subscriber, kind);
		if (kind == RECORD_FEED)
			kind = RECORD_SAME_FEED;
		n++;
	}
	return n;
}

static int64
count_announced(void)
{
	HASH_SEQ_STATUS status;
	Subscriber *subscriber;
	int64		n = 0;

	subscriber_scan(&status);
	while ((subscriber = subscriber_scan_next(&status)) != NULL)
		n += subscriber->announced;
	return n;
}

static void
put_header(FileWriter *writer, XLogRecPtr restart, int64 nrecords)
{
	HeaderSector sector = {.bytes = {0}};

	fill_header(&sector.header, restart, nrecords, hash_collation_versions());
	writer_begin_record(writer);
	writer_put(writer, sector.bytes, HEADER_SIZE);
}

/* There is another file in its place. */
static void
end_appending(void)
{
	if (appending)
		FileClose(appender.file);
	appending = false;
}

/* Write the file anew. */
static bool
save_all(XLogRecPtr restart)
{
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 4];
	FileWriter	writer;
	int64		nrecords = count_announced();
	dlist_iter	iter;

	if (MakePGDirectory(CHECKPOINT_DIRECTORY) == 0)
		fsync_fname_ext(".", true, true, WARNING);
	else if (errno != EEXIST)
		return file_warning("create", CHECKPOINT_DIRECTORY);
	checkpoint_path(path, MyDatabaseId);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	if (!writer_open(&writer, temporary, O_CREAT | O_WRONLY, 0))
		return false;
	put_header(&writer, restart, nrecords);
	dlist_foreach(iter, &feed_all)
		put_subscribers(&writer, dlist_container(Feed, node, iter.cur), false);
	if (!writer_close(&writer, temporary) ||
		durable_rename(temporary, path, WARNING) != 0)
		return false;
	end_appending();
	file_end = file_live = writer.end;
	file_records = nrecords;
	return true;
}

/* ---- appending ---- */

static bool
begin_appending(void)
{
	char		path[MAXPGPATH];

	if (appending)
		return true;
	if (file_end == 0)
		return false;
	checkpoint_path(path, MyDatabaseId);
	appended = 0;
	appending = writer_open(&appender, path, O_WRONLY, file_end);
	if (!appending)
		file_end = 0;			/* it lacks something from now on */
	return appending;
}

/*
 * Make durable what was appended.  If that fails, it is not known what of it
 * is there, and the file has to be written anew.
 */
static bool
finish_appending(void)
{
	char		path[MAXPGPATH];

	if (!appending)
		return true;
	checkpoint_path(path, MyDatabaseId);
	appending = false;
	if (!writer_close(&appender, path))
	{
		file_end = 0;
		return false;
	}
	file_end = appender.end;
	file_records += appended;
	return true;
}

/* Append what is not as it was saved. */
static bool
append_dirty(void)
{
	dlist_iter	iter;

	if (feed_any_dirty() && !begin_appending())
		return false;
	dlist_foreach(iter, feed_list_dirty())
		appended += put_subscribers(&appender,
									dlist_container(Feed, dirty_node, iter.cur),
									false);
	dlist_foreach(iter, feed_list_renewed())
	{
		Subscriber *subscriber = dlist_container(Subscriber, renewed_node,
												 iter.cur);

		/* a whole record has the lease, too */
		if (subscriber->feed->dirty || subscriber->saved_bytes == 0)
			continue;
		record_put(&appender, subscriber, RECORD_LEASE);
		appended++;
	}
	return finish_appending();
}

static bool
is_mostly_garbage(void)
{
	return file_end - file_live > file_live + MIN_GARBAGE;
}

bool
checkpoint_save(XLogRecPtr restart)
{
	Assert(deliver_pending() == 0);
	Assert(are_clean());
	if ((file_end == 0 || is_mostly_garbage() || !append_dirty()) &&
		!save_all(restart))
		return false;
	feed_clean();
	return true;
}

void
checkpoint_add(Feed *feed)
{
	if (!begin_appending())
		return;
	appended += put_subscribers(&appender, feed, true);
	feed_mark_clean(feed);
}

void
checkpoint_drop(const Subscriber *subscriber)
{
	if (subscriber->saved_bytes == 0 || !begin_appending())
		return;
	file_live -= subscriber->saved_bytes;
	record_put(&appender, subscriber, RECORD_DROPPED);
	appended++;
}

void
checkpoint_flush(void)
{
	(void) finish_appending();
}

/* Write the header of an open file again. */
static bool
move_header(int fd, XLogRecPtr restart)
{
	HeaderSector sector;

	errno = 0;
	if (pg_pread(fd, sector.bytes, HEADER_SIZE, 0) != HEADER_SIZE)
		return false;
	fill_header(&sector.header, restart, file_records,
				sector.header.collations);
	return pg_pwrite(fd, sector.bytes, HEADER_SIZE, 0) == HEADER_SIZE &&
		pg_fsync(fd) == 0;
}

bool
checkpoint_move(XLogRecPtr restart)
{
	char		path[MAXPGPATH];
	int			fd;
	bool		moved;

	Assert(!appending && !feed_any_dirty());
	checkpoint_path(path, MyDatabaseId);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0)
	{
		file_end = 0;
		return file_warning("open", path);
	}
	moved = move_header(fd, restart) || file_warning("write", path);
	if (!moved)
		file_end = 0;
	CloseTransientFile(fd);
	return moved;
}

/* ---- reading ---- */

/* The records of a subscription that count. */
typedef struct LastRecord
{
	int64		id;
	off_t		at;				/* that with its windows */
	TimestampTz lease_end;		/* of the last one */
} LastRecord;

typedef struct Loader
{
	FileReader	reader;
	CheckpointHeader header;
	MemoryContext context;
	MemoryContext record_context;	/* see record_get */
	HTAB	   *last_records;
} Loader;

static void
loader_init(Loader *loader)
{
	HASHCTL		ctl = {0};

	loader->context = AllocSetContextCreate(CurrentMemoryContext,
											"live_topn restore",
											ALLOCSET_DEFAULT_SIZES);
	loader->record_context = AllocSetContextCreate(loader->context,
												   "live_topn record",
												   ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(int64);
	ctl.entrysize = sizeof(LastRecord);
	ctl.hcxt = loader->context;
	loader->last_records = hash_create("live_topn records", 1024, &ctl,
									   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static bool
get_header(Loader *loader)
{
	HeaderSector sector;

	reader_get(&loader->reader, sector.bytes, HEADER_SIZE);
	loader->header = sector.header;
	return !loader->reader.failed && header_is_valid(&loader->header);
}

/*
 * Find out which records count, and where they end.  False if the file is
 * damaged; a torn end is none.
 */
static bool
find_last_records(Loader *loader)
{
	SavedSubscriber saved = {0};
	RecordKind	kind;
	LastRecord *last;

	if (!get_header(loader))
		return false;
	file_records = 0;
	for (file_end = loader->reader.at;
		 record_get(&loader->reader, loader->record_context, &saved, &kind);
		 file_end = loader->reader.at)
	{
		file_records++;
		if (kind == RECORD_DROPPED)
		{
			hash_search(loader->last_records, &saved.id, HASH_REMOVE, NULL);
			continue;
		}
		last = hash_search(loader->last_records, &saved.id,
						   kind == RECORD_LEASE ? HASH_FIND : HASH_ENTER, NULL);
		if (last == NULL)
			continue;
		last->lease_end = saved.lease_end;
		if (kind != RECORD_LEASE)
			last->at = file_end;
	}
	return file_records >= loader->header.nrecords;
}

/*
 * Read the records again, and give subscribers those that count; without their
 * windows, if these are useless.
 */
static void
restore_all(Loader *loader, bool useless)
{
	FileReader *reader = &loader->reader;
	SavedSubscriber saved = {0};
	RecordKind	kind;
	off_t		start;

	reader_rewind(reader);
	(void) get_header(loader);
	file_live = reader->at;
	for (start = reader->at;
		 record_get(reader, loader->record_context, &saved, &kind);
		 start = reader->at)
	{
		LastRecord *last = hash_search(loader->last_records, &saved.id,
									   HASH_FIND, NULL);
		Subscriber *subscriber = subscriber_find(saved.id);
		SavedSubscriber counting = saved;

		if (last == NULL || last->at != start || subscriber == NULL)
			continue;
		counting.lease_end = last->lease_end;
		if (useless)
			counting.feed.query_text = NULL;

		/* when the header was moved nothing had concerned it since */
		counting.feed.lsn = Max(counting.feed.lsn, loader->header.restart);
		feed_restore(subscriber, &counting);
		note_saved(subscriber, reader->at - start);
	}
}

/* What is in an open file. */
static CheckpointState
load(Loader *loader, const char *path, XLogRecPtr confirmed)
{
	bool		ours;
	bool		sorted;

	if (!find_last_records(loader))
	{
		file_end = 0;
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("file \"%s\" is damaged, or of another version of live_topn",
						path),
				 errdetail("The windows are read from the tables again.")));
		return CHECKPOINT_USELESS;
	}
	ours = confirmed <= loader->header.restart;
	sorted = loader->header.collations == hash_collation_versions();
	restore_all(loader, !ours || !sorted);
	if (!ours || !sorted)
		file_end = 0;
	return ours ? CHECKPOINT_GOOD : CHECKPOINT_USELESS;
}

CheckpointState
checkpoint_load(XLogRecPtr confirmed)
{
	char		path[MAXPGPATH];
	Loader		loader;
	MemoryContext caller;
	CheckpointState state;

	checkpoint_path(path, MyDatabaseId);
	if (!reader_open(&loader.reader, path))
	{
		if (errno == ENOENT)
			return CHECKPOINT_NONE;
		file_warning("open", path);
		return CHECKPOINT_USELESS;
	}
	loader_init(&loader);
	caller = MemoryContextSwitchTo(loader.context);
	state = load(&loader, path, confirmed);
	reader_close(&loader.reader);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(loader.context);
	return state;
}

void
checkpoint_remove(Oid dboid)
{
	char		path[MAXPGPATH];

	checkpoint_path(path, dboid);
	if (unlink(path) != 0 && errno != ENOENT)
		ereport(WARNING,
				(errcode_for_file_access(),
				 errmsg("could not remove file \"%s\": %m", path)));
}
