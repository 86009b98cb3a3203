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

struct Block;

/* A commit in the log; valid until the next trim. */
typedef struct LoggedCommit
{
	CommitInfo	info;
	struct Block *block;		/* where its changes are */
	Size		begin;
	Size		end;
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

/*
 * The first commit after no, or the last one before it, that has changes of
 * the relation or of a partition of it, or any changes if relid is invalid.
 * False if there is none.
 */
extern bool commit_log_next(CommitLog *log, uint64 no, Oid relid,
							LoggedCommit *commit);
extern bool commit_log_previous(CommitLog *log, uint64 no, Oid relid,
								LoggedCommit *commit);

/* Where the log begins; invalid if it is empty. */
extern XLogRecPtr commit_log_start(const CommitLog *log);

/*
 * Of xids of commits in the order of the log, as OIDs: drop those at the start
 * of the list that no snapshot taken from now on misses.
 */
extern List *commit_log_drop_seen(List *xids);

/*
 * What a snapshot taken from now on may miss comes after the commit returned,
 * which is no or one before it.
 */
extern uint64 commit_log_visible_upto(CommitLog *log, uint64 no);

/*
 * Call back for each change of the relation in a commit, forward or backward,
 * as long as the callback returns true.  The change is valid during the call.
 */
typedef bool (*ChangeCallback) (const Change *change, void *arg);
extern void commit_log_scan(CommitLog *log, const LoggedCommit *commit,
							Oid relid, bool backward, ChangeCallback callback,
							void *arg);

/*
 * Drop commits that nobody can need: those up to floor that are visible to
 * every snapshot taken from now on.  Some may stay, together with others.
 */
extern void commit_log_trim(CommitLog *log, uint64 floor);

extern uint64 commit_log_entries(const CommitLog *log);
extern uint64 commit_log_bytes(const CommitLog *log);	/* spilled ones too */

#endif							/* LIVE_TOPN_COMMIT_LOG_H */
