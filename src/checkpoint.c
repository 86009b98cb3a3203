/*
 * checkpoint.c
 *	  Windows saved and restored.
 *
 * A file per database, live_topn/<oid> in the data directory:
 *
 *	Header (one sector, written again in place by checkpoint_move)
 *	for each subscription:
 *		int64 id, seq, last_lsn
 *		int64 lsn, 0 if there is no window; then that is all
 *		query as text: int64 length, bytes
 *		int64 end
 *		boundary, if end says so: int64 length, bytes of a MinimalTuple
 *		int64 number of rows; each: int64 length, bytes of a MinimalTuple
 *	uint32 CRC-32C of all that follows the header
 *
 * The file is made durable before the slot is moved, so that WAL from what is
 * saved on is there.  The other way round, a slot that has been moved beyond
 * what the header says is another slot of the same name, and what is saved
 * is worth nothing but its numbers.
 */
#include "postgres.h"

#include <sys/stat.h>
#include <unistd.h>

#include "access/htup_details.h"
#include "access/xlog.h"
#include "apply.h"
#include "checkpoint.h"
#include "common/file_perm.h"
#include "deliver.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "utils/memutils.h"

#define CHECKPOINT_DIRECTORY	"live_topn"
#define CHECKPOINT_MAGIC		0x6c74706e
#define CHECKPOINT_VERSION		1
#define HEADER_SIZE				512

int			checkpoint_interval_s = 60;

typedef struct CheckpointHeader
{
	uint32		magic;
	uint32		version;
	uint64		system_identifier;
	XLogRecPtr	restart;
	int64		nfeeds;
	Oid			dboid;
	pg_crc32c	crc;			/* of the fields above */
} CheckpointHeader;

/* A file that is written or read, with the checksum so far. */
typedef struct CheckpointFile
{
	FILE	   *file;
	const char *path;
	pg_crc32c	crc;
} CheckpointFile;

static void
checkpoint_path(char *path, Oid dboid)
{
	snprintf(path, MAXPGPATH, CHECKPOINT_DIRECTORY "/%u", dboid);
}

static void
fill_header(CheckpointHeader *header, XLogRecPtr restart, int64 nfeeds)
{
	memset(header, 0, sizeof(CheckpointHeader));
	header->magic = CHECKPOINT_MAGIC;
	header->version = CHECKPOINT_VERSION;
	header->system_identifier = GetSystemIdentifier();
	header->restart = restart;
	header->nfeeds = nfeeds;
	header->dboid = MyDatabaseId;
	INIT_CRC32C(header->crc);
	COMP_CRC32C(header->crc, header, offsetof(CheckpointHeader, crc));
	FIN_CRC32C(header->crc);
}

static bool
header_is_valid(const CheckpointHeader *header)
{
	CheckpointHeader expected;

	fill_header(&expected, header->restart, header->nfeeds);
	return memcmp(header, &expected, sizeof(CheckpointHeader)) == 0;
}

static void
file_error(const char *what, const char *path)
{
	ereport(ERROR,
			(errcode_for_file_access(),
			 errmsg("could not %s file \"%s\": %m", what, path)));
}

/* ---- writing ---- */

static void
put(CheckpointFile *file, const void *data, Size size)
{
	COMP_CRC32C(file->crc, data, size);
	if (fwrite(data, 1, size, file->file) != size)
		file_error("write", file->path);
}

static void
put_int(CheckpointFile *file, int64 value)
{
	put(file, &value, sizeof(value));
}

static void
put_bytes(CheckpointFile *file, const void *data, Size size)
{
	put_int(file, size);
	put(file, data, size);
}

static void
put_tuple(CheckpointFile *file, MinimalTuple tuple)
{
	put_bytes(file, tuple, tuple->t_len);
}

static void
put_feed(CheckpointFile *file, const Feed *feed)
{
	const Window *window = feed->window;

	put_int(file, feed->id);
	put_int(file, feed->seq);
	put_int(file, feed->last_lsn);
	if (feed->error || feed->forget || feed->held || !feed_is_current(feed))
	{
		put_int(file, 0);
		return;
	}
	put_int(file, apply_position()->lsn);
	put_bytes(file, feed->query_text, strlen(feed->query_text));
	put_int(file, window->end);
	if (window->end == WINDOW_BOUNDED)
		put_tuple(file, RowTuple(window->high));
	put_int(file, window_size(window));
	for (uint32 i = 0; i < window_size(window); i++)
		put_tuple(file, RowTuple(window_nth(window, i)));
}

void
checkpoint_save(XLogRecPtr restart)
{
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 4];
	char		sector[HEADER_SIZE] = {0};
	CheckpointFile file = {.path = temporary};
	HASH_SEQ_STATUS status;
	Feed	   *feed;

	Assert(deliver_pending() == 0);
	if (MakePGDirectory(CHECKPOINT_DIRECTORY) != 0 && errno != EEXIST)
		ereport(ERROR,
				(errcode_for_file_access(),
				 errmsg("could not create directory \"%s\": %m",
						CHECKPOINT_DIRECTORY)));
	checkpoint_path(path, MyDatabaseId);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	file.file = AllocateFile(temporary, PG_BINARY_W);
	if (file.file == NULL)
		file_error("create", temporary);

	fill_header((CheckpointHeader *) sector, restart, feed_count());
	if (fwrite(sector, 1, HEADER_SIZE, file.file) != HEADER_SIZE)
		file_error("write", temporary);
	INIT_CRC32C(file.crc);
	feed_scan(&status);
	while ((feed = feed_scan_next(&status)) != NULL)
		put_feed(&file, feed);
	FIN_CRC32C(file.crc);
	if (fwrite(&file.crc, 1, sizeof(file.crc), file.file) != sizeof(file.crc) ||
		fflush(file.file) != 0)
		file_error("write", temporary);
	if (pg_fsync(fileno(file.file)) != 0)
		file_error("fsync", temporary);
	FreeFile(file.file);
	durable_rename(temporary, path, ERROR);
}

void
checkpoint_move(XLogRecPtr restart)
{
	char		path[MAXPGPATH];
	char		sector[HEADER_SIZE];
	CheckpointHeader *header = (CheckpointHeader *) sector;
	int			fd;

	checkpoint_path(path, MyDatabaseId);
	fd = OpenTransientFile(path, O_RDWR | PG_BINARY);
	if (fd < 0)
		file_error("open", path);
	if (pg_pread(fd, sector, HEADER_SIZE, 0) != HEADER_SIZE)
		file_error("read", path);
	fill_header(header, restart, header->nfeeds);
	if (pg_pwrite(fd, sector, HEADER_SIZE, 0) != HEADER_SIZE)
		file_error("write", path);
	if (pg_fsync(fd) != 0)
		file_error("fsync", path);
	CloseTransientFile(fd);
}

/* ---- reading ---- */

static bool
get(CheckpointFile *file, void *data, Size size)
{
	if (fread(data, 1, size, file->file) != size)
		return false;
	COMP_CRC32C(file->crc, data, size);
	return true;
}

static bool
get_int(CheckpointFile *file, int64 *value)
{
	return get(file, value, sizeof(int64));
}

/* Bytes in new memory, with a zero behind them; NULL if there are not enough. */
static char *
get_bytes(CheckpointFile *file)
{
	int64		size;
	char	   *data;

	if (!get_int(file, &size) || size < 0 || size >= MaxAllocSize)
		return NULL;
	data = palloc(size + 1);
	data[size] = '\0';
	return get(file, data, size) ? data : NULL;
}

static SavedFeed *
get_feed(CheckpointFile *file)
{
	SavedFeed  *saved = palloc0(sizeof(SavedFeed));
	int64		last_lsn,
				lsn,
				end;

	if (!get_int(file, &saved->id) || !get_int(file, &saved->seq) ||
		!get_int(file, &last_lsn) || !get_int(file, &lsn))
		return NULL;
	saved->last_lsn = last_lsn;
	saved->lsn = lsn;
	if (lsn == 0)
		return saved;

	saved->query_text = get_bytes(file);
	if (saved->query_text == NULL || !get_int(file, &end))
		return NULL;
	saved->end = end;
	if (saved->end == WINDOW_BOUNDED &&
		(saved->high = (MinimalTuple) get_bytes(file)) == NULL)
		return NULL;
	if (!get_int(file, &saved->nrows) || saved->nrows < 0 ||
		saved->nrows > PG_UINT32_MAX)
		return NULL;
	saved->rows = palloc_extended(sizeof(MinimalTuple) * Max(saved->nrows, 1),
								  MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < saved->nrows; i++)
	{
		saved->rows[i] = (MinimalTuple) get_bytes(file);
		if (saved->rows[i] == NULL)
			return NULL;
	}
	return saved;
}

/* All of the file, or NIL with *intact false. */
static List *
get_feeds(CheckpointFile *file, CheckpointHeader *header, bool *intact)
{
	char		sector[HEADER_SIZE];
	pg_crc32c	crc;
	List	   *feeds = NIL;

	*intact = false;
	if (fread(sector, 1, HEADER_SIZE, file->file) != HEADER_SIZE)
		return NIL;
	memcpy(header, sector, sizeof(CheckpointHeader));
	if (!header_is_valid(header))
		return NIL;

	INIT_CRC32C(file->crc);
	for (int64 i = 0; i < header->nfeeds; i++)
	{
		SavedFeed  *saved = get_feed(file);

		if (saved == NULL)
			return NIL;
		feeds = lappend(feeds, saved);
	}
	FIN_CRC32C(file->crc);
	if (fread(&crc, 1, sizeof(crc), file->file) != sizeof(crc) ||
		!EQ_CRC32C(crc, file->crc))
		return NIL;
	*intact = true;
	return feeds;
}

List *
checkpoint_load(XLogRecPtr confirmed)
{
	char		path[MAXPGPATH];
	CheckpointFile file = {.path = path};
	CheckpointHeader header = {0};
	List	   *feeds;
	ListCell   *lc;
	bool		intact;

	checkpoint_path(path, MyDatabaseId);
	file.file = AllocateFile(path, PG_BINARY_R);
	if (file.file == NULL)
	{
		if (errno != ENOENT)
			file_error("open", path);
		return NIL;
	}
	feeds = get_feeds(&file, &header, &intact);
	FreeFile(file.file);
	if (!intact)
	{
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("file \"%s\" of live_topn is damaged", path),
				 errdetail("The windows are read from the tables again.")));
		return NIL;
	}

	if (confirmed > header.restart)
		foreach(lc, feeds)
			((SavedFeed *) lfirst(lc))->query_text = NULL;
	return feeds;
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
