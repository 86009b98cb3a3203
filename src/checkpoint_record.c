/*
 * checkpoint_record.c
 *	  A record of a checkpoint file: what is saved of a subscription.
 *
 * What is written is read below in the same order; a change of either needs
 * another CHECKPOINT_VERSION.
 */
#include "postgres.h"

#include "checkpoint_record.h"
#include "utils/memutils.h"

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
 * Who restores rows that are left out takes old versions to be whole.  If they
 * no longer are, another look at the query has the rows read.
 */
static bool
needs_look(const Feed *feed)
{
	return feed->recheck || feed_is_checking(feed) ||
		(!feed->full && (window_set_is_passing(feed->windows) ||
						 window_set_is_partial(feed->windows)));
}

static void
put_query(FileWriter *writer, const Feed *feed)
{
	char	   *text = template_text(feed->template, feed->params);

	writer_put_bytes(writer, text, strlen(text));
	pfree(text);
}

/*
 *	int64 1, rows before and low, if they are counted; or 0
 *	int64 others; number of dropped groups, each; rows of their results
 *	number of windows, each
 *	int64 recheck, number of unseen xids, each
 */
static void
put_feed(FileWriter *writer, const Feed *feed)
{
	uint64		position = 0;
	Window	   *window;
	ListCell   *lc;

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
	writer_put_int(writer, needs_look(feed));
	writer_put_int(writer, list_length(feed->unseen));
	foreach(lc, feed->unseen)
		writer_put_int(writer, lfirst_oid(lc));
}

/*
 *	int64 covered, from, commit: xid, start, lsn, time
 */
static void
put_covered(FileWriter *writer, const Feed *feed)
{
	writer_put_int(writer, feed->covered);
	writer_put_int(writer, feed->from);
	writer_put_int(writer, feed->commit.xid);
	writer_put_int(writer, feed->commit.start);
	writer_put_int(writer, feed->commit.lsn);
	writer_put_int(writer, feed->commit.time);
}

/*
 *	int64 id, seq, last_lsn, offset, limit, page, reset
 */
static void
put_shown(FileWriter *writer, const Subscriber *subscriber)
{
	writer_put_int(writer, subscriber->id);
	writer_put_int(writer, subscriber->seq);
	writer_put_int(writer, subscriber->last_lsn);
	writer_put_int(writer, subscriber->offset);
	writer_put_int(writer, subscriber->limit);
	writer_put_int(writer, subscriber->page.skip);
	writer_put_int(writer, subscriber->page.end);
	writer_put_int(writer, subscriber->reset);
}

/*
 *	what is shown
 *	int64 lease_end
 *	int64 kind, as RecordKind; if it is RECORD_FEED:
 *	int64 lsn; query as text; the feed; what it covers
 */
void
record_put(FileWriter *writer, const Subscriber *subscriber, RecordKind kind)
{
	writer_begin_record(writer);
	put_shown(writer, subscriber);
	writer_put_int(writer, subscriber->lease_end);
	writer_put_int(writer, kind);
	if (kind == RECORD_FEED)
	{
		writer_put_int(writer, feed_exact_lsn(subscriber->feed));
		put_query(writer, subscriber->feed);
		put_feed(writer, subscriber->feed);
		put_covered(writer, subscriber->feed);
	}
	writer_end_record(writer);
}

#ifdef USE_ASSERT_CHECKING
/* The query is the same, unless the windows are others, too. */
uint32
record_checksum(const Subscriber *subscriber)
{
	const Feed *feed = subscriber->feed;
	FileWriter	writer = {.file = -1};

	writer_begin_record(&writer);
	put_shown(&writer, subscriber);
	if (record_has_windows(feed))
	{
		put_feed(&writer, feed);
		if (feed->covered > 0)
			put_covered(&writer, feed);
	}
	return writer.crc;
}
#endif

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

bool
record_get(FileReader *reader, MemoryContext context, SavedSubscriber *saved,
		   RecordKind *kind)
{
	MemoryContext caller = MemoryContextSwitchTo(context);

	reader_begin_record(reader);
	saved->id = reader_get_int(reader);
	saved->seq = reader_get_int(reader);
	saved->last_lsn = reader_get_int(reader);
	saved->offset = reader_get_int(reader);
	saved->limit = reader_get_int(reader);
	saved->page.skip = reader_get_int(reader);
	saved->page.end = reader_get_int(reader);
	saved->reset = reader_get_int(reader);
	saved->lease_end = reader_get_int(reader);
	*kind = reader_get_int(reader);
	if (*kind == RECORD_NOTHING || *kind == RECORD_FEED)
	{
		MemoryContextReset(context);
		memset(&saved->feed, 0, sizeof(SavedFeed));
	}
	if (*kind == RECORD_FEED)
		get_feed(reader, &saved->feed);
	MemoryContextSwitchTo(caller);
	return reader_end_record(reader);
}
