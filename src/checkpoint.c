/*
 * checkpoint.c
 *	  Windows saved and restored.
 *
 * A file per database, live_topn/<oid> in the data directory:
 *
 *	Header (one sector, written again in place by checkpoint_move)
 *	for each subscription:
 *		int64 id, seq, last_lsn
 *		int64 lsn, 0 if there are no windows; then that is all
 *		int64 offset, limit
 *		query as text: int64 length, bytes
 *		int64 number of windows; for each:
 *			int64 end
 *			boundary, if end says so: int64 length, bytes of a MinimalTuple
 *			int64 number of rows; each: int64 length, bytes of a MinimalTuple
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
#include "catalog/pg_collation.h"
#include "checkpoint.h"
#include "common/hashfn.h"
#include "deliver.h"
#include "miscadmin.h"
#include "port/pg_crc32c.h"
#include "storage/fd.h"
#include "utils/memutils.h"
#include "utils/pg_locale.h"

#define CHECKPOINT_MAGIC		0x6c74706e
#define CHECKPOINT_VERSION		2
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
	uint32		collations;		/* what collation_versions was */
	pg_crc32c	crc;			/* of the fields above */
} CheckpointHeader;

/* A file that is written or read, with the checksum so far. */
typedef struct CheckpointFile
{
	FILE	   *file;
	pg_crc32c	crc;
	int			error;			/* of the first write that failed */
} CheckpointFile;

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
fill_header(CheckpointHeader *header, XLogRecPtr restart, int64 nfeeds,
			uint32 collations)
{
	memset(header, 0, sizeof(CheckpointHeader));
	header->magic = CHECKPOINT_MAGIC;
	header->version = CHECKPOINT_VERSION;
	header->system_identifier = GetSystemIdentifier();
	header->restart = restart;
	header->nfeeds = nfeeds;
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

	fill_header(&expected, header->restart, header->nfeeds,
				header->collations);
	return memcmp(header, &expected, sizeof(CheckpointHeader)) == 0;
}

/* Always false. */
static bool
file_warning(const char *what, const char *path)
{
	ereport(WARNING,
			(errcode_for_file_access(),
			 errmsg("could not %s file \"%s\": %m", what, path)));
	return false;
}

/* ---- writing ---- */

static void
put(CheckpointFile *file, const void *data, Size size)
{
	COMP_CRC32C(file->crc, data, size);
	if (file->error == 0 && fwrite(data, 1, size, file->file) != size)
		file->error = errno;
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
put_window(CheckpointFile *file, const Window *window)
{
	uint32		size = window_size(window);

	put_int(file, window->end);
	if (window->end == WINDOW_BOUNDED)
		put_tuple(file, RowTuple(window->high));
	put_int(file, size);
	for (uint32 i = 0; i < size; i++)
		put_tuple(file, RowTuple(window_nth(window, i)));
}

static void
put_feed(CheckpointFile *file, const Feed *feed)
{
	uint64		position = 0;
	Window	   *window;

	put_int(file, feed->id);
	put_int(file, feed->seq);
	put_int(file, feed->last_lsn);
	if (feed->error || feed->forget || feed->held || !feed_is_current(feed))
	{
		put_int(file, 0);
		return;
	}
	put_int(file, apply_position()->lsn);
	put_int(file, feed->offset);
	put_int(file, feed->limit);
	put_bytes(file, feed->query_text, strlen(feed->query_text));
	put_int(file, window_set_count(feed->windows));
	while ((window = window_set_next(feed->windows, &position)) != NULL)
		put_window(file, window);
}

/* Only what clients may know is worth saving. */
static int64
count_feeds(void)
{
	HASH_SEQ_STATUS status;
	Feed	   *feed;
	int64		n = 0;

	feed_scan(&status);
	while ((feed = feed_scan_next(&status)) != NULL)
		n += feed->announced;
	return n;
}

static void
put_all(CheckpointFile *file, XLogRecPtr restart)
{
	char		sector[HEADER_SIZE] = {0};
	pg_crc32c	crc;
	HASH_SEQ_STATUS status;
	Feed	   *feed;

	fill_header((CheckpointHeader *) sector, restart, count_feeds(),
				collation_versions());
	put(file, sector, HEADER_SIZE);
	INIT_CRC32C(file->crc);
	feed_scan(&status);
	while ((feed = feed_scan_next(&status)) != NULL)
		if (feed->announced)
			put_feed(file, feed);
	crc = file->crc;
	FIN_CRC32C(crc);
	put(file, &crc, sizeof(crc));
}

bool
checkpoint_save(XLogRecPtr restart)
{
	char		path[MAXPGPATH];
	char		temporary[MAXPGPATH + 4];
	CheckpointFile file = {0};

	Assert(deliver_pending() == 0);
	if (MakePGDirectory(CHECKPOINT_DIRECTORY) == 0)
		fsync_fname_ext(".", true, true, WARNING);
	else if (errno != EEXIST)
		return file_warning("create", CHECKPOINT_DIRECTORY);
	checkpoint_path(path, MyDatabaseId);
	snprintf(temporary, sizeof(temporary), "%s.tmp", path);
	file.file = AllocateFile(temporary, PG_BINARY_W);
	if (file.file == NULL)
		return file_warning("create", temporary);

	put_all(&file, restart);
	if (file.error == 0 &&
		(fflush(file.file) != 0 || pg_fsync(fileno(file.file)) != 0))
		file.error = errno;
	if (FreeFile(file.file) != 0 && file.error == 0)
		file.error = errno;
	if (file.error != 0)
	{
		errno = file.error;
		return file_warning("write", temporary);
	}
	return durable_rename(temporary, path, WARNING) == 0;
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
	fill_header(header, restart, header->nfeeds, header->collations);
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

static bool
get(CheckpointFile *file, void *data, Size size)
{
	return fread(data, 1, size, file->file) == size;
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

static bool
get_window(CheckpointFile *file, SavedWindow *saved)
{
	int64		end;

	if (!get_int(file, &end))
		return false;
	saved->end = end;
	saved->high = NULL;
	if (saved->end == WINDOW_BOUNDED &&
		(saved->high = (MinimalTuple) get_bytes(file)) == NULL)
		return false;
	if (!get_int(file, &saved->nrows) || saved->nrows < 0 ||
		saved->nrows > PG_UINT32_MAX)
		return false;
	saved->rows = palloc_extended(sizeof(MinimalTuple) * Max(saved->nrows, 1),
								  MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < saved->nrows; i++)
	{
		saved->rows[i] = (MinimalTuple) get_bytes(file);
		if (saved->rows[i] == NULL)
			return false;
	}
	return true;
}

static SavedFeed *
get_feed(CheckpointFile *file)
{
	SavedFeed  *saved = palloc0(sizeof(SavedFeed));
	int64		last_lsn,
				lsn;

	if (!get_int(file, &saved->id) || !get_int(file, &saved->seq) ||
		!get_int(file, &last_lsn) || !get_int(file, &lsn))
		return NULL;
	saved->last_lsn = last_lsn;
	saved->lsn = lsn;
	if (lsn == 0)
		return saved;

	if (!get_int(file, &saved->offset) || !get_int(file, &saved->limit))
		return NULL;
	saved->query_text = get_bytes(file);
	if (saved->query_text == NULL || !get_int(file, &saved->nwindows) ||
		saved->nwindows < 0 || saved->nwindows > PG_UINT32_MAX)
		return NULL;
	saved->windows = palloc_extended(sizeof(SavedWindow) *
									 Max(saved->nwindows, 1),
									 MCXT_ALLOC_HUGE);
	for (int64 i = 0; i < saved->nwindows; i++)
		if (!get_window(file, &saved->windows[i]))
			return NULL;
	return saved;
}

/* Does the checksum at the end fit what is before it? */
static bool
is_intact(FILE *file)
{
	char		data[BLCKSZ];
	pg_crc32c	crc;
	size_t		kept = 0;		/* bytes in data, of which the last are not
								 * checksummed yet */

	INIT_CRC32C(crc);
	for (;;)
	{
		size_t		n = fread(data + kept, 1, sizeof(data) - kept, file);
		size_t		sure = kept + n - Min(kept + n, sizeof(crc));

		if (n == 0)
			break;
		COMP_CRC32C(crc, data, sure);
		memmove(data, data + sure, kept + n - sure);
		kept += n - sure;
	}
	FIN_CRC32C(crc);
	return kept == sizeof(crc) && memcmp(data, &crc, sizeof(crc)) == 0;
}

static bool
get_header(FILE *file, CheckpointHeader *header)
{
	char		sector[HEADER_SIZE];

	if (fread(sector, 1, HEADER_SIZE, file) != HEADER_SIZE)
		return false;
	memcpy(header, sector, sizeof(CheckpointHeader));
	return header_is_valid(header);
}

/* False if the file is damaged. */
static bool
get_all(CheckpointFile *file, CheckpointHeader *header, List **feeds)
{
	if (!get_header(file->file, header) || !is_intact(file->file) ||
		fseek(file->file, HEADER_SIZE, SEEK_SET) != 0)
		return false;
	for (int64 i = 0; i < header->nfeeds; i++)
	{
		SavedFeed  *saved = get_feed(file);

		if (saved == NULL)
			return false;
		*feeds = lappend(*feeds, saved);
	}
	return true;
}

CheckpointState
checkpoint_load(XLogRecPtr confirmed, List **feeds)
{
	char		path[MAXPGPATH];
	CheckpointFile file = {0};
	CheckpointHeader header = {0};
	CheckpointState state = CHECKPOINT_GOOD;
	ListCell   *lc;
	bool		intact;

	*feeds = NIL;
	checkpoint_path(path, MyDatabaseId);
	file.file = AllocateFile(path, PG_BINARY_R);
	if (file.file == NULL)
	{
		if (errno == ENOENT)
			return CHECKPOINT_NONE;
		file_warning("open", path);
		return CHECKPOINT_USELESS;
	}
	intact = get_all(&file, &header, feeds);
	FreeFile(file.file);
	if (!intact)
	{
		*feeds = NIL;
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
		foreach(lc, *feeds)
			((SavedFeed *) lfirst(lc))->query_text = NULL;
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
