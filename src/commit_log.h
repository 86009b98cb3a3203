/*
 * commit_log.h
 *	  Decoded commits that some window may still need.
 */
#ifndef LIVE_TOPN_COMMIT_LOG_H
#define LIVE_TOPN_COMMIT_LOG_H

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"
#include "table.h"

extern int	commit_log_memory_kb;	/* live_topn.memory_limit */

/* Which commit: numbered in the order of the commit records. */
typedef struct CommitInfo
{
	uint64		no;
	TransactionId xid;			/* of the top-level transaction */
	XLogRecPtr	start;			/* start of the commit record */
	XLogRecPtr	lsn;			/* its end */
	TimestampTz time;
} CommitInfo;

typedef struct LoggedCommit
{
	CommitInfo	info;
	List	   *tables;			/* of Table, each with a reference */
	List	   *chunks;			/* serialized changes */
} LoggedCommit;

typedef struct CommitLog CommitLog;

extern CommitLog *commit_log_create(MemoryContext parent);

/*
 * Append the changes of one commit: begin, any number of appends, finish.  A
 * commit without changes leaves nothing behind, as does one that is dropped
 * before it is finished.
 */
extern void commit_log_begin(CommitLog *log);
extern void commit_log_append(CommitLog *log, const Change *change);
extern void commit_log_drop(CommitLog *log);
extern void commit_log_finish(CommitLog *log, const CommitInfo *info);

/* Bytes appended to the commit that is not yet finished. */
extern Size commit_log_open_bytes(const CommitLog *log);

/* The logged commits in order, from 0; at or past the end: NULL. */
extern LoggedCommit *commit_log_get(const CommitLog *log, uint64 i);

/* The place of the first commit after no. */
extern uint64 commit_log_after(const CommitLog *log, uint64 no);

/* The place of the first commit whose record is there or later. */
extern uint64 commit_log_from(const CommitLog *log, XLogRecPtr start);

/* Does the commit have changes of the relation, or of a partition of it? */
extern bool commit_log_touches(const LoggedCommit *commit, Oid relid);

/*
 * Call back for each change of the relation in a commit, forward or backward,
 * as long as the callback returns true.  The change is valid during the call.
 */
typedef bool (*ChangeCallback) (const Change *change, void *arg);
extern void commit_log_scan(CommitLog *log, LoggedCommit *commit, Oid relid,
							bool backward, ChangeCallback callback,
							void *arg);

/*
 * Drop the commits that nobody can need: those up to floor that are visible
 * to every snapshot taken from now on.
 */
extern void commit_log_trim(CommitLog *log, uint64 floor);

extern uint64 commit_log_entries(const CommitLog *log);
extern uint64 commit_log_bytes(const CommitLog *log);	/* spilled ones too */

#endif							/* LIVE_TOPN_COMMIT_LOG_H */
