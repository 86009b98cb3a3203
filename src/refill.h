/*
 * refill.h
 *	  Refill workers: queries of the database worker, run by others.
 *
 * A refill worker is a dynamic background worker with a DSM segment that has
 * two shm_mq: requests to it, answers from it.  It runs one request after the
 * other, and answers it.  Those that come in one message share a transaction,
 * unless one of them fails.
 *
 * Messages (pq_send format).  One to it is an int32 number of requests, and for
 * each an int32 length and its bytes.  A request is 'X', and the int64 id of a
 * subscription to drop, answered by 'C' with an empty string; or 'R', and
 *
 *	int32		owner
 *	int32		number of settings, then each as a string, name=value
 *	string		SQL text of the query
 *	string		name
 *	int32		number of arguments, then for each a byte, 1 for null, and,
 *				if it is 0, a string
 *	string		the query as text (query_to_text) that the caller knows, or '',
 *				when it is looked at for the first time
 *	int64		bytes that the rows may take in memory
 *	int32		number of reads; 0: only to check the query; then for each
 *		int64	how many rows to read, NO_LIMIT for all that there are
 *		int32	length of a row, and its bytes as a MinimalTuple; -1: none,
 *				read all from the start
 *		byte	as RefillStart
 *		int64	how many of the first rows, if not 0, may be skipped but for
 *				the last one of them
 *
 * and is answered by any number of
 *
 *	'T'			some more of the rows, of which each is an int32 length and the
 *				bytes of a MinimalTuple: they may be parted anywhere
 *
 * and one of
 *
 *	'D'			done: int64 number of rows; int32 xmin, xmax, number of xip and each; int64 WAL
 *				position; int64 microseconds; int64 up to which row rows were
 *				skipped, the first one sent being that, or 0; byte, 1 if old
 *				rows are whole in WAL; string, the query as text
 *	'C'			the query is not the one that the caller knows; string, the
 *				query as text; there are no rows
 *	'L'			the rows would take more
 *	'O'			the owner does not exist
 *	'E'			error: int32 sqlerrcode, string message, string hint or ''
 */
#ifndef LIVE_TOPN_REFILL_H
#define LIVE_TOPN_REFILL_H

#include "catalog.h"
#include "query.h"
#include "reconcile.h"

#define REFILL_MAGIC		0x746f706e	/* of the segment */
#define REFILL_QUEUE_SIZE	(64 * 1024)

/* Keys in the segment's table of contents. */
#define REFILL_KEY_IN		1
#define REFILL_KEY_OUT		2
#define REFILL_KEY_PROGRESS	3	/* pg_atomic_uint64: see progress.h */

extern int	refill_max_workers; /* live_topn.max_refill_workers */
extern int	refill_timeout_ms;	/* live_topn.refill_timeout */
extern bool refill_debug_stops; /* live_topn.debug_refill_stops */
extern int	refill_debug_delay; /* live_topn.debug_refill_delay */

typedef enum RefillStart
{
	REFILL_GROUP,				/* all of the row's group */
	REFILL_AFTER,				/* what is after it, in its group */
	REFILL_BACKWARD				/* it, and what is before it */
} RefillStart;

/* Rows to read. */
typedef struct RefillRead
{
	uint64		limit;
	MinimalTuple row;			/* NULL: read all from the start */
	RefillStart start;
	uint64		skip;			/* of the limit; see above */
} RefillRead;

typedef enum RefillStatus
{
	REFILL_DONE,
	REFILL_CHANGED,				/* query_text is another */
	REFILL_TOO_LARGE,			/* rows take more memory than there is room */
	REFILL_ORPHANED,			/* the owner does not exist */
	REFILL_FAILED				/* error says why */
} RefillStatus;

/* Some of the bytes of rows. */
typedef struct RefillChunk
{
	struct RefillChunk *next;
	Size		size;
	char		data[FLEXIBLE_ARRAY_MEMBER];
} RefillChunk;

typedef struct RefillAnswer
{
	MemoryContext context;		/* holds all of this */
	int64		id;				/* of the subscription */
	uint64		ticket;
	uint64		asked_at;		/* for the feed, which see */
	RefillStatus status;
	uint64		nrows;
	RefillChunk *chunks;		/* for refill_next_row */
	RefillChunk *last_chunk;
	Size		used;			/* bytes of the first one */
	Row		  **rows;			/* for who takes them: nrows references, or
								 * NULL */
	ReadView	view;
	uint64		elapsed;		/* microseconds */
	uint64		skipped;		/* rows up to and with the first one, or 0 */
	bool		full;			/* old rows are whole in WAL */
	char	   *query_text;
	int			sqlerrcode;
	char	   *error;
	char	   *hint;			/* or NULL */
} RefillAnswer;

typedef struct RefillPool RefillPool;

extern RefillPool *refill_pool_create(MemoryContext parent);

/*
 * Queue a request; returns its ticket.  known may be NULL.  Rows that are read
 * may take room bytes, as by window_set_memory_of.
 */
extern uint64 refill_submit(RefillPool *pool, const SubscriptionRow *row,
							const char *known, Size room, int nreads,
							const RefillRead *reads);

/*
 * Have a subscription dropped, whose lease has ended.  Nothing comes back.
 */
extern void refill_submit_drop(RefillPool *pool, int64 id);

/* Forget a request; its answer, if it comes, is dropped. */
extern void refill_forget(RefillPool *pool, uint64 ticket);

/*
 * Start workers, hand out requests, take in what has come; never waits.
 * Returns a complete answer, or NULL; the caller deletes its context.
 */
extern RefillAnswer *refill_poll(RefillPool *pool);

/*
 * Is there no query under way that has taken long already, so that a read can
 * be expected to run soon?
 */
extern bool refill_reads_at_once(const RefillPool *pool);

/*
 * The next one of answer->nrows rows, which gives up the memory that it took in
 * the answer.
 */
extern MinimalTuple refill_next_row(RefillAnswer *answer);

/* What a request that is under way has done so far. */
typedef struct RefillProgress
{
	pid_t		pid;			/* of the worker; 0: none runs it */
	TimestampTz started_at;
	uint64		rows;			/* that it has read */
} RefillProgress;

extern RefillProgress refill_progress(const RefillPool *pool, uint64 ticket);

/* Requests that are not answered yet, queued or under way. */
extern int	refill_active(const RefillPool *pool);

/*
 * Milliseconds until refill_poll has something to do by itself (retry to
 * start a worker, let an idle one go), -1 if nothing.
 */
extern long refill_next_timeout(const RefillPool *pool);

extern PGDLLEXPORT void live_topn_refill_main(Datum main_arg);

#endif							/* LIVE_TOPN_REFILL_H */
