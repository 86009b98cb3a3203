/*
 * request.h
 *	  Requests of backends to the database worker, and their answers.
 *
 * A backend creates a DSM segment with the request and a shm_mq for the
 * answer, announces it in its own entry of an array in shared memory (one
 * per backend: a backend has one request at a time), sets the worker's latch
 * and waits.  The worker never waits for a backend.
 */
#ifndef LIVE_TOPN_REQUEST_H
#define LIVE_TOPN_REQUEST_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "lib/stringinfo.h"

typedef enum RequestKind
{
	REQUEST_SYNC,				/* answer: applied lsn (int64) */
	REQUEST_SNAPSHOT,			/* answer: see worker.h */
	REQUEST_STATS,				/* answer: see worker.h */
	REQUEST_POLL				/* answer: see worker.h */
} RequestKind;

typedef struct RequestArgs
{
	RequestKind kind;
	int64		id;				/* of a subscription; 0: all */
	XLogRecPtr	upto;			/* what the worker must have done first */
	int64		after;			/* POLL: the last batch that the client has */
	int			wait_ms;		/* POLL: how long to wait for a batch */
} RequestArgs;

/* ---- for backends ---- */

extern int	request_timeout_ms; /* live_topn.request_timeout */

extern void request_shmem_request(void);
extern void request_shmem_startup(void);

/*
 * Ask the worker of this database and wait for the answer, which is in
 * CurrentMemoryContext.  The worker answers once it has applied and published
 * all WAL before args->upto.  timeout is in milliseconds.  Starts a worker and
 * waits for it where there is none.
 *
 * NULL if the worker found no subscriptions in this database and retired.
 *
 * Errors: the error of the answer; ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE
 * with the reason if no worker can run; ERRCODE_QUERY_CANCELED on time-out,
 * saying what the worker waits for.
 */
extern StringInfo request_call(const RequestArgs *args, int timeout);

/*
 * As request_call, but only where a worker runs and without raising an error
 * if it does not, or does not answer in time: then NULL, and why not.
 */
extern StringInfo request_try(const RequestArgs *args, int timeout,
							  const char **why);

/*
 * The end of all WAL so far, as the end of its last record; and the same,
 * flushed to disk: everything visible to this transaction's next snapshot was
 * committed before it.
 */
extern XLogRecPtr request_insert_point(void);
extern XLogRecPtr request_flush_point(void);

/* ---- for the launcher and the database worker ---- */

/* The state of a database's worker has changed: wake who waits for it. */
extern void request_wake(Oid dboid);

/* ---- for the database worker ---- */

typedef struct Request
{
	RequestArgs args;
	TimestampTz deadline;		/* for the worker's use; 0 at first */
	struct RequestPrivate *private;
} Request;

/*
 * The next request that came in, or NULL; the caller keeps it until it is
 * answered.  Must be called outside decoding.
 */
extern Request *request_next(void);

/*
 * Answer and free the request; the answer stays the caller's.  What cannot be
 * sent at once is sent by request_progress.
 */
extern void request_answer(Request *request, StringInfo answer);
extern void request_answer_error(Request *request, int sqlerrcode,
								 const char *message, const char *hint);

/* Send what is pending without waiting; the latch is set when there is room. */
extern void request_progress(void);

/* Has the backend gone away?  Then drop the request. */
extern bool request_abandoned(Request *request);
extern void request_drop(Request *request);

#endif							/* LIVE_TOPN_REQUEST_H */
