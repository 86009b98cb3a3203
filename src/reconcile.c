/*
 * reconcile.c
 *	  A snapshot read moved to a log position.
 *
 * A read shows the rows as of a snapshot, which sees a set V of commits.  We
 * want them as of the log position after commit p.  Per row, the commits of V
 * are a prefix of all commits that changed it (locks are released only after
 * a commit is visible), and V is known once the log reaches the WAL position
 * read after the snapshot.  So
 *
 *	undo:	take back the commits after p that V has, the last one first;
 *	redo:	apply the commits up to p that V has not, in order.
 *
 * The two concern different rows.  To take a change back is to remove its new
 * version and to put back the old one.  With REPLICA IDENTITY FULL that is in
 * the log.  With a key, it is known
 *
 *	- if the change made the row: there was none;
 *	- if the row is held by the window before the range of the read: then it
 *	  is not in the range;
 *	- if a commit up to p that is still in the log wrote it.
 *
 * Otherwise the window has to go on to the first change of that row, from
 * where on its version is known by the third rule.
 */
#include "postgres.h"

#include "reconcile.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

int			reconcile_ignore_fact = IGNORE_NONE;

/* A row whose version at p is not known.  Identity columns are never null. */
typedef struct Unknown
{
	Datum	   *keys;
	uint64		first;			/* first commit after p that changed it */
	uint32		hash;
	char		status;
} Unknown;

static uint32 hash_keys(const RowFormat *format, const Datum *keys);
static bool equal_keys(const RowFormat *format, const Datum *a,
					   const Datum *b);

#define SH_PREFIX unknown
#define SH_ELEMENT_TYPE Unknown
#define SH_KEY_TYPE Datum *
#define SH_KEY keys
#define SH_HASH_KEY(tb, key) hash_keys(tb->private_data, key)
#define SH_EQUAL(tb, a, b) equal_keys(tb->private_data, a, b)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) a->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

typedef struct Reconciler
{
	Evaluator  *evaluator;
	WindowSet  *read;
	WindowSet  *held;
	unknown_hash *unknowns;
	uint64		commit_no;		/* of the changes being scanned */
	uint64		later;			/* the window must go there first; 0: no */
	uint64		last_undone;
	bool		blind;			/* what is before in the log tells nothing */
	bool		read_again;
} Reconciler;

static const bool no_nulls[INDEX_MAX_KEYS];

static uint32
hash_keys(const RowFormat *format, const Datum *keys)
{
	return row_hash_key(format, keys, no_nulls);
}

static bool
equal_keys(const RowFormat *format, const Datum *a, const Datum *b)
{
	const TopnQuery *query = format->query;

	for (int i = 0; i < query->nkeys; i++)
	{
		Form_pg_attribute att = TupleDescAttr(format->desc,
											  query->keys[i] - 1);

		if (!datum_image_eq(a[i], b[i], att->attbyval, att->attlen))
			return false;
	}
	return true;
}

/* The identity in a tuple of a change, copied. */
static Datum *
copy_key(Reconciler *reconciler, const Change *change, HeapTuple tuple)
{
	const TopnQuery *query = reconciler->evaluator->query;
	TupleDesc	desc = reconciler->evaluator->format->desc;
	Datum	   *copy = palloc(sizeof(Datum) * query->nkeys);
	Datum	   *keys;
	bool	   *nulls;

	evaluate_key(reconciler->evaluator, change->table,
				 table_view(change->table, query->relid), tuple,
				 &keys, &nulls);
	for (int i = 0; i < query->nkeys; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, query->keys[i] - 1);

		if (nulls[i])
			elog(ERROR, "an identity column is null");
		copy[i] = datumCopy(keys[i], att->attbyval, att->attlen);
	}
	return copy;
}

/*
 * Where there is no key, or rows before the window are counted: a version is
 * taken out by its place.
 */
static bool
undo_versions(Reconciler *reconciler, const Change *change)
{
	Evaluator  *evaluator = reconciler->evaluator;
	WindowSet  *read = reconciler->read;

	if (!change_has_old(change) ||
		(change->new && !evaluate_take_out(evaluator, read, change,
										   change_fill_new(change))))
		return false;
	return change->kind == CHANGE_INSERT ||
		evaluate_put_in(evaluator, read, change, change->old);
}

static void
undo_keyed(Reconciler *reconciler, const Change *change)
{
	Datum	   *new = NULL;
	Datum	   *old = NULL;
	Row		   *row;

	if (change->new)
	{
		new = copy_key(reconciler, change, change_fill_new(change));
		row = window_set_find_key(reconciler->read, new, no_nulls);
		if (row)
			window_set_remove(reconciler->read, row);
	}
	if (change->old)
		old = copy_key(reconciler, change, change->old);
	else if (change->kind == CHANGE_UPDATE)
		old = new;

	/* before the change that made the row there was none */
	if (new && (old == NULL ||
				!equal_keys(reconciler->evaluator->format, old, new)))
		unknown_delete(reconciler->unknowns, new);
	if (old == NULL)
		return;

	if (change->old && !change->old_is_key)
	{
		unknown_delete(reconciler->unknowns, old);
		if (!evaluate_put_in(reconciler->evaluator, reconciler->read, change,
							 change->old))
			reconciler->read_again = true;	/* too large for a row */
	}
	else if (reconciler->held == NULL ||
			 window_set_find_key(reconciler->held, old, no_nulls) == NULL)
	{
		bool		found;

		unknown_insert(reconciler->unknowns, old, &found)->first =
			reconciler->commit_no;
	}
}

static bool
undo_change(const Change *change, void *arg)
{
	Reconciler *reconciler = arg;

	if (change->kind == CHANGE_TRUNCATE || change->kind == CHANGE_REWRITE ||
		!evaluator_accepts(reconciler->evaluator, change))
	{
		/* what changed before that is not to be found in the read */
		reconciler->later = Max(reconciler->later, reconciler->commit_no);
		reconciler->blind = true;
	}
	else if (reconciler->evaluator->query->keyless ||
			 reconciler->read->counted)
	{
		if (!undo_versions(reconciler, change))
			reconciler->read_again = true;
	}
	else
		undo_keyed(reconciler, change);
	return !reconciler->blind && !reconciler->read_again;
}

/*
 * A change up to p, the last one first: does it tell the version at p of a
 * row that is not known?
 */
static bool
resolve_change(const Change *change, void *arg)
{
	Reconciler *reconciler = arg;
	Datum	   *new;

	if (change->kind == CHANGE_REWRITE ||
		!evaluator_accepts(reconciler->evaluator, change))
	{
		reconciler->blind = true;
		return false;
	}
	if (change->new == NULL)
		return true;
	new = copy_key(reconciler, change, change_fill_new(change));
	if (unknown_lookup(reconciler->unknowns, new))
	{
		unknown_delete(reconciler->unknowns, new);
		if (!evaluate_put_in(reconciler->evaluator, reconciler->read, change,
							 change_fill_new(change)))
			reconciler->later = reconciler->last_undone;
	}
	return reconciler->unknowns->members > 0;
}

static bool
redo_change(const Change *change, void *arg)
{
	Reconciler *reconciler = arg;

	if (!evaluator_accepts(reconciler->evaluator, change) ||
		!evaluate_change(reconciler->evaluator, reconciler->read, change))
		reconciler->read_again = true;
	return !reconciler->read_again;
}

/* Is the commit in V? */
static bool
is_seen(const ReadView *view, const LoggedCommit *commit)
{
	if (view->is_place)
		return commit->info.no <= view->place;
	if (reconcile_ignore_fact == IGNORE_SNAPSHOT)
		return commit->info.lsn <= view->lsn;
	return !XidInMVCCSnapshot(commit->info.xid,
							  (Snapshot) &view->snapshot);
}

static void
undo(Reconciler *reconciler, const ReadView *view, CommitLog *log,
	 uint64 since, uint64 p)
{
	Oid			relid = reconciler->evaluator->query->relid;
	uint64		no = PG_UINT64_MAX;
	LoggedCommit commit;
	unknown_iterator iter;
	Unknown    *unknown;

	while (commit_log_previous(log, no, relid, &commit) &&
		   commit.info.no > since && !reconciler->blind &&
		   !reconciler->read_again &&
		   (commit.info.no > p || reconciler->unknowns->members > 0))
	{
		no = commit.info.no;
		if (no <= p)
			commit_log_scan(log, &commit, relid, true, resolve_change,
							reconciler);
		else if (is_seen(view, &commit))
		{
			reconciler->commit_no = no;
			reconciler->last_undone = Max(reconciler->last_undone, no);
			commit_log_scan(log, &commit, relid, true, undo_change,
							reconciler);
		}
	}

	unknown_start_iterate(reconciler->unknowns, &iter);
	while ((unknown = unknown_iterate(reconciler->unknowns, &iter)) != NULL)
		reconciler->later = Max(reconciler->later, unknown->first);
}

static void
redo(Reconciler *reconciler, const ReadView *view, CommitLog *log, uint64 p)
{
	Oid			relid = reconciler->evaluator->query->relid;
	uint64		no = 0;
	LoggedCommit commit;

	while (!reconciler->read_again &&
		   commit_log_next(log, no, relid, &commit) && commit.info.no <= p)
	{
		no = commit.info.no;
		if (!is_seen(view, &commit))
			commit_log_scan(log, &commit, relid, false, redo_change,
							reconciler);
	}
}

ReconcileResult
reconcile(Evaluator *evaluator, WindowSet *read, const ReadView *view,
		  CommitLog *log, WindowSet *held, uint64 since, uint64 p,
		  uint64 *later)
{
	MemoryContext scratch = AllocSetContextCreate(CurrentMemoryContext,
												  "live_topn reconcile",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(scratch);
	Reconciler	reconciler = {0};
	ReconcileResult result = RECONCILED;

	reconciler.evaluator = evaluator;
	reconciler.read = read;
	reconciler.held = held;
	reconciler.unknowns = unknown_create(scratch, 16, evaluator->format);

	if (reconcile_ignore_fact != IGNORE_UNDO)
		undo(&reconciler, view, log, since, p);
	if (reconciler.later == 0 && reconcile_ignore_fact != IGNORE_REDO)
		redo(&reconciler, view, log, p);

	if (reconciler.read_again)
		result = RECONCILE_READ_AGAIN;
	else if (reconciler.later > 0)
	{
		*later = reconciler.later;
		result = RECONCILE_LATER;
	}

	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
	return result;
}
