/*
 * checkpoint.c
 *	  Windows saved and restored.
 *
 * A file per database, live_topn/<oid> in the data directory, that begins with
 * a header of one sector, which checkpoint_move writes again in place.  A
 * record for each subscription follows (put_subscriber); of those that share
 * a feed the first one has it.  What is not up to date is found in WAL, from
 * the slot's position on, so that each feed may be as of another time.
 *
 * A first result is known to clients long before the next checkpoint, and
 * cannot be found again in WAL.  So its window is appended to the file before
 * it is published; of the records of a subscription the last one counts.  The
 * end of the file may be torn, where nothing was published yet.
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
#include "checkpoint_file.h"
#include "common/hashfn.h"
#include "deliver.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/pg_locale.h"

#define CHECKPOINT_MAGIC		0x6c74706e
#define CHECKPOINT_VERSION		6
#define HEADER_SIZE				512

int			checkpoint_interval_ms = 60000;

typedef struct CheckpointHeader
{
	uint32		magic;
	uint32		version;
	uint64		system_identifier;
	XLogRecPtr	restart;
	int64		nsubscribers;
	Oid			dboid;
	uint32		collations;		/* what collation_versions was */
	pg_crc32c	crc;			/* of the fields above */
} CheckpointHeader;

/* Where to append records to the file; 0: it is of no use. */
static off_t file_end;

/* Records that are being appended. */
static FileWriter appender;
static bool appending;

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
collation_versions(void)
{
	static const char providers[] = {COLLPROVIDER_LIBC, COLLPROVIDER_ICU};
	uint32		hash = 0;

	for (int i = 0; i < lengthof(providers); i++)
	{
		char	   *version = get_collation_actual_version(providers[i], "en");

		if (version)
			hash = hash_combine(hash,
								hash_bytes((const unsigned char *) version,
										   strlen(version)));
	}
	return hash;
}

static void
fill_header(CheckpointHeader *header, XLogRecPtr restart, int64 nsubscribers,
			uint32 collations)
{
	memset(header, 0, sizeof(CheckpointHeader));
	header->magic = CHECKPOINT_MAGIC;
	header->version = CHECKPOINT_VERSION;
	header->system_identifier = GetSystemIdentifier();
	header->restart = restart;
	header->nsubscribers = nsubscribers;
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

	fill_header(&expected, header->restart, header->nsubscribers,
				header->collations);
	return memcmp(header, &expected, sizeof(CheckpointHeader)) == 0;
}

/* ---- writing ---- */

static void
put_rows(FileWriter *writer, Row **rows, uint32 n)
{
	writer_put_int(writer, n);
	for (uint32 i = 0; i < n; i++)
		writer_put_tuple(writer, RowTuple(rows[i]));
}

/*
 *	int64 1 and the key, if there is nothing else that tells the group; or 0
 *	int64 end; boundary, if it is WINDOW_BOUNDED
 *	int64 skip, end of the page
 *	rows kept, removed, added: int64 number, then each
 */
static void
put_window(FileWriter *writer, const Window *window, WindowEnd end)
{
	const WindowWork *work = window->work;
	uint32		n = window_size(window);
	uint32		nadded = work ? work->nadded : 0;
	uint32		nkept = end == WINDOW_PASSING ? 0 : n - nadded;
	Row		   *key = n == 0 ? window_key(window) : NULL;

	writer_put_int(writer, key != NULL);
	if (key)
		writer_put_tuple(writer, RowTuple(key));
	writer_put_int(writer, end);
	if (end == WINDOW_BOUNDED)
		writer_put_tuple(writer, RowTuple(window->high));
	writer_put_int(writer, window->page.skip);
	writer_put_int(writer, window->page.end);
	writer_put_int(writer, nkept);
	for (uint32 i = 0; nkept > 0 && i < n; i++)
	{
		Row		   *row = window_nth(window, i);

		if (row->fresh < 0)
			writer_put_tuple(writer, RowTuple(row));
	}
	put_rows(writer, work ? work->removed : NULL, work ? work->nremoved : 0);
	put_rows(writer, work ? work->added : NULL, nadded);
}

static void
put_dropped(FileWriter *writer, const WindowSet *set)
{
	uint32	   *hashes = window_set_list_dropped(set);

	writer_put_int(writer, set->ndropped);
	for (uint64 i = 0; i < set->ndropped; i++)
		writer_put_int(writer, hashes[i]);
	writer_put_int(writer, set->dropped_rows);
	pfree(hashes);
}

/*
 *	int64 lsn
 *	query as text
 *	int64 1, rows before and low, if they are counted; or 0
 *	int64 others; number of dropped groups, each; rows of their results
 *	number of windows, each
 *	int64 recheck, number of unseen xids, each
 *	int64 covered, from, commit: xid, start, lsn, time
 */
static void
put_feed(FileWriter *writer, const Feed *feed)
{
	char	   *text;
	uint64		position = 0;
	Window	   *window;
	ListCell   *lc;

	writer_put_int(writer, feed_exact_lsn(feed));
	text = template_text(feed->template, feed->params);
	writer_put_bytes(writer, text, strlen(text));
	pfree(text);
	writer_put_int(writer, feed->windows->counted);
	if (feed->windows->counted)
	{
		writer_put_int(writer, feed->windows->before);
		writer_put_tuple(writer, RowTuple(feed->windows->only->low));
	}
	writer_put_int(writer, feed->windows->others);
	put_dropped(writer, feed->windows);
	writer_put_int(writer, window_set_count(feed->windows));
	while ((window = window_set_next(feed->windows, &position)) != NULL)
		put_window(writer, window,
				   feed_can_pass(feed) ? WINDOW_PASSING : window->end);
	writer_put_int(writer, feed->recheck || feed_is_checking(feed));
	writer_put_int(writer, list_length(feed->unseen));
	foreach(lc, feed->unseen)
		writer_put_int(writer, lfirst_oid(lc));
	writer_put_int(writer, feed->covered);
	writer_put_int(writer, feed->from);
	writer_put_int(writer, feed->commit.xid);
	writer_put_int(writer, feed->commit.start);
	writer_put_int(writer, feed->commit.lsn);
	writer_put_int(writer, feed->commit.time);
}

/* What follows of a feed in the record of a subscription. */
typedef enum FeedRecord
{
	RECORD_NOTHING,				/* there are no windows */
	RECORD_FEED,
	RECORD_SAME_FEED			/* as that of the record before */
} FeedRecord;

/*
 *	int64 id, seq, last_lsn, lease_end, offset, limit, page, reset
 *	int64 kind, as FeedRecord; and that
 */
static void
put_subscriber(FileWriter *writer, const Subscriber *subscriber, bool first)
{
	const Feed *feed = subscriber->feed;

	writer_begin_record(writer);
	writer_put_int(writer, subscriber->id);
	writer_put_int(writer, subscriber->seq);
	writer_put_int(writer, subscriber->last_lsn);
	writer_put_int(writer, subscriber->lease_end);
	writer_put_int(writer, subscriber->offset);
	writer_put_int(writer, subscriber->limit);
	writer_put_int(writer, subscriber->page.skip);
	writer_put_int(writer, subscriber->page.end);
	writer_put_int(writer, subscriber->reset);
	if (!feed->loaded || feed->error || feed->forget)
		writer_put_int(writer, RECORD_NOTHING);
	else if (!first)
		writer_put_int(writer, RECORD_SAME_FEED);
	else
	{
		writer_put_int(writer, RECORD_FEED);
		put_feed(writer, feed);
	}
	writer_end_record(writer);
}

/*
 * All who show the feed, one after the other; unless they are about to know
 * it, only those whose clients may know the result: that is worth saving.
 */
static void
put_subscribers(FileWriter *writer, const Feed *feed, bool unannounced)
{
	bool		first = true;
	dlist_iter	iter;

	dlist_foreach(iter, unconstify(dlist_head *, &feed->subscribers))
	{
		Subscriber *subscriber = dlist_container(Subscriber, node, iter.cur);

		if (!subscriber->announced && !unannounced)
			continue;
		put_subscriber(writer, subscriber, first);
		first = false;
	}
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
put_all(FileWriter *writer, XLogRecPtr restart)
{
	char		sector[HEADER_SIZE] = {0};
	dlist_iter	iter;

	fill_header((CheckpointHeader *) sector, restart, count_announced(),
				collation_versions());
	writer_begin_record(writer);
	writer_put(writer, sector, HEADER_SIZE);
	dlist_foreach(iter, &feed_all)
		put_subscribers(writer, dlist_container(Feed, node, iter.cur), false);
}

/* Append no more to the file that is there. */
static void
end_appending(void)
{
	if (appending)
		FileClose(appender.file);
	appending = false;
	file_end = 0;
}

bool
checkpoint_save(XLogRecPtr restart)
{
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 4];
	FileWriter	writer;

	Assert(deliver_pending() == 0);
	if (MakePGDirectory(CHECKPOINT_DIRECTORY) == 0)
		fsync_fname_ext(".", true, true, WARNING);
	else if (errno != EEXIST)
		return file_warning("create", CHECKPOINT_DIRECTORY);
	checkpoint_path(path, MyDatabaseId);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	if (!writer_open(&writer, temporary, O_CREAT | O_WRONLY, 0))
		return false;
	put_all(&writer, restart);
	if (!writer_close(&writer, temporary) ||
		durable_rename(temporary, path, WARNING) != 0)
		return false;
	end_appending();
	file_end = writer.end;
	return true;
}

void
checkpoint_add(const Feed *feed)
{
	char		path[MAXPGPATH];

	if (!appending && file_end > 0)
	{
		checkpoint_path(path, MyDatabaseId);
		appending = writer_open(&appender, path, O_WRONLY, file_end);
	}
	if (appending)
		put_subscribers(&appender, feed, true);
}

void
checkpoint_flush(void)
{
	char		path[MAXPGPATH];

	if (!appending)
		return;
	checkpoint_path(path, MyDatabaseId);
	appending = false;
	if (writer_close(&appender, path))
		file_end = appender.end;
}

/* Write the header of an open file again. */
static bool
move_header(int fd, XLogRecPtr restart)
{
	char		sector[HEADER_SIZE];
	CheckpointHeader *header = (CheckpointHeader *) sector;

	errno = 0;
	if (pg_pread(fd, sector, HEADER_SIZE, 0) != HEADER_SIZE)
		return false;
	fill_header(header, restart, header->nsubscribers, header->collations);
	return pg_pwrite(fd, sector, HEADER_SIZE, 0) == HEADER_SIZE &&
		pg_fsync(fd) == 0;
}

bool
checkpoint_move(XLogRecPtr restart)
{
	char		path[MAXPGPATH];
	int			fd;
	bool		moved;

	checkpoint_path(path, MyDatabaseId);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0)
		return file_warning("open", path);
	moved = move_header(fd, restart) || file_warning("write", path);
	CloseTransientFile(fd);
	return moved;
}

/* ---- reading ---- */

static SavedRows
get_rows(FileReader *reader)
{
	SavedRows	rows = {.n = reader_get_count(reader, sizeof(int64))};

	rows.tuples = palloc_extended(sizeof(MinimalTuple) * Max(rows.n, 1),
								  MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < rows.n; i++)
		rows.tuples[i] = reader_get_tuple(reader);
	return rows;
}

static void
get_window(FileReader *reader, SavedWindow *window)
{
	window->key = window->high = NULL;
	if (reader_get_int(reader))
		window->key = reader_get_tuple(reader);
	window->end = reader_get_int(reader);
	if (window->end == WINDOW_BOUNDED)
		window->high = reader_get_tuple(reader);
	window->page.skip = reader_get_int(reader);
	window->page.end = reader_get_int(reader);
	window->kept = get_rows(reader);
	window->removed = get_rows(reader);
	window->added = get_rows(reader);
}

static void
get_dropped(FileReader *reader, SavedFeed *saved)
{
	saved->ndropped = reader_get_count(reader, sizeof(int64));
	saved->dropped = palloc_extended(sizeof(uint32) * Max(saved->ndropped, 1),
									 MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < saved->ndropped; i++)
		saved->dropped[i] = reader_get_int(reader);
	saved->dropped_rows = reader_get_int(reader);
}

static void
get_feed(FileReader *reader, SavedFeed *saved)
{
	int64		n;

	saved->lsn = reader_get_int(reader);
	saved->query_text = reader_get_bytes(reader);
	if (reader_get_int(reader))
	{
		saved->before = reader_get_int(reader);
		saved->low = reader_get_tuple(reader);
	}
	saved->others = reader_get_int(reader);
	get_dropped(reader, saved);
	saved->nwindows = reader_get_count(reader, sizeof(int64));
	saved->windows = palloc_extended(sizeof(SavedWindow) *
									 Max(saved->nwindows, 1),
									 MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < saved->nwindows; i++)
		get_window(reader, &saved->windows[i]);
	saved->recheck = reader_get_int(reader);
	n = reader_get_count(reader, sizeof(int64));
	for (int64 i = 0; i < n; i++)
		saved->unseen = lappend_oid(saved->unseen, reader_get_int(reader));
	saved->covered = reader_get_int(reader);
	saved->from = reader_get_int(reader);
	saved->commit.xid = reader_get_int(reader);
	saved->commit.start = reader_get_int(reader);
	saved->commit.lsn = reader_get_int(reader);
	saved->commit.time = reader_get_int(reader);
}

/* The next record, NULL if there is none that is intact. */
static SavedSubscriber *
get_subscriber(FileReader *reader, const SavedSubscriber *before)
{
	SavedSubscriber *saved = palloc0(sizeof(SavedSubscriber));
	int64		kind;

	reader_begin_record(reader);
	saved->id = reader_get_int(reader);
	saved->seq = reader_get_int(reader);
	saved->last_lsn = reader_get_int(reader);
	saved->lease_end = reader_get_int(reader);
	saved->offset = reader_get_int(reader);
	saved->limit = reader_get_int(reader);
	saved->page.skip = reader_get_int(reader);
	saved->page.end = reader_get_int(reader);
	saved->reset = reader_get_int(reader);
	kind = reader_get_int(reader);
	if (kind == RECORD_FEED)
		get_feed(reader, &saved->feed);
	else if (kind == RECORD_SAME_FEED && before)
		saved->feed = before->feed;
	return reader_end_record(reader) ? saved : NULL;
}

static bool
get_header(FileReader *reader, CheckpointHeader *header)
{
	char		sector[HEADER_SIZE];

	reader_get(reader, sector, HEADER_SIZE);
	memcpy(header, sector, sizeof(CheckpointHeader));
	return !reader->failed && header_is_valid(header);
}

/* False if the file is damaged; a torn end is none. */
static bool
get_all(FileReader *reader, CheckpointHeader *header, List **subscribers)
{
	SavedSubscriber *saved = NULL;

	if (!get_header(reader, header))
		return false;
	file_end = reader->at;
	while ((saved = get_subscriber(reader, saved)) != NULL)
	{
		*subscribers = lappend(*subscribers, saved);
		file_end = reader->at;
	}
	if (list_length(*subscribers) >= header->nsubscribers)
		return true;
	file_end = 0;
	return false;
}

CheckpointState
checkpoint_load(XLogRecPtr confirmed, List **subscribers)
{
	char		path[MAXPGPATH];
	FileReader	reader;
	CheckpointHeader header = {0};
	CheckpointState state = CHECKPOINT_GOOD;
	ListCell   *lc;
	bool		intact;

	*subscribers = NIL;
	checkpoint_path(path, MyDatabaseId);
	if (!reader_open(&reader, path))
	{
		if (errno == ENOENT)
			return CHECKPOINT_NONE;
		file_warning("open", path);
		return CHECKPOINT_USELESS;
	}
	intact = get_all(&reader, &header, subscribers);
	reader_close(&reader);
	if (!intact)
	{
		*subscribers = NIL;
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("file \"%s\" is damaged, or of another version of live_topn",
						path),
				 errdetail("The windows are read from the tables again.")));
		return CHECKPOINT_USELESS;
	}

	if (confirmed > header.restart)
		state = CHECKPOINT_USELESS;
	if (state == CHECKPOINT_USELESS ||
		header.collations != collation_versions())
		foreach(lc, *subscribers)
			((SavedSubscriber *) lfirst(lc))->feed.query_text = NULL;
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
