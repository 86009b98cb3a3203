/*
 * keyset.c
 *	  Reading the rows of a query that come after a given row.
 *
 * The queries are PostgreSQL's business from the rewriter on: row security,
 * views and privileges are looked at anew for each read.
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/stratnum.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "funcapi.h"
#include "nodes/makefuncs.h"
#include "tcop/tcopprot.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/ruleutils.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "all_groups.h"
#include "flatten.h"
#include "progress.h"
#include "query.h"
#include "tiers.h"

/* ----- Plans ----- */

static PlannedStmt *
plan_query(Query *query)
{
	return pg_plan_query(rewrite_query(query), "live_topn keyset query",
						 CURSOR_OPT_NO_SCROLL, NULL);
}

/*
 * Does the plan sort rows, rather than read them in order?
 */
static bool
plan_sorts(Plan *plan)
{
	while (plan != NULL)
	{
		if (IsA(plan, Sort) || IsA(plan, IncrementalSort) ||
			IsA(plan, MergeAppend))
			return true;
		plan = IsA(plan, SubqueryScan) ? ((SubqueryScan *) plan)->subplan :
			plan->lefttree;
	}
	return false;
}

PlannedStmt *
plan_tier(TopnQuery *query, Tier *tier, uint64 limit)
{
	PlannedStmt *plan;

	if (limit < NO_LIMIT)
	{
		tier->query->limitCount = (Node *)
			makeConst(INT8OID, -1, InvalidOid, sizeof(int64),
					  Int64GetDatum((int64) limit), false, FLOAT8PASSBYVAL);
		tier->query->limitOption = query->keyless ?
			LIMIT_OPTION_WITH_TIES : LIMIT_OPTION_COUNT;
	}

	plan = plan_query(tier->query);
	if (plan_sorts(plan->planTree) &&
		!equal(tier->query->sortClause, tier->usual_sort))
	{
		List	   *own_sort = tier->query->sortClause;
		PlannedStmt *other;

		tier->query->sortClause = tier->usual_sort;
		other = plan_query(tier->query);
		if (other->planTree->total_cost < plan->planTree->total_cost)
			return other;
		tier->query->sortClause = own_sort;
	}
	return plan;
}

/* ----- Reading ----- */

/*
 * A receiver between the executor and the caller's: it makes one stream of
 * the rows of all tiers, and fetches large values out of line.
 */
typedef struct RowReceiver
{
	DestReceiver pub;
	DestReceiver *dest;
	TupleTableSlot *slot;
	MemoryContext row_context;
	uint64		skip;			/* rows to leave out */
} RowReceiver;

static bool
row_receive(TupleTableSlot *slot, DestReceiver *self)
{
	RowReceiver *receiver = (RowReceiver *) self;
	TupleTableSlot *row = receiver->slot;
	TupleDesc	desc = row->tts_tupleDescriptor;
	MemoryContext old;

	if (receiver->skip > 0)
	{
		receiver->skip--;
		return true;
	}
	slot_getallattrs(slot);
	ExecClearTuple(row);
	MemoryContextReset(receiver->row_context);
	old = MemoryContextSwitchTo(receiver->row_context);

	for (int i = 0; i < desc->natts; i++)
	{
		row->tts_values[i] = slot->tts_values[i];
		row->tts_isnull[i] = slot->tts_isnull[i];

		if (!row->tts_isnull[i] && TupleDescAttr(desc, i)->attlen == -1)
		{
			struct varlena *value = (struct varlena *)
			DatumGetPointer(row->tts_values[i]);

			if (VARATT_IS_EXTERNAL(value))
				row->tts_values[i] =
					PointerGetDatum(detoast_external_attr(value));
		}
	}
	ExecStoreVirtualTuple(row);

	MemoryContextSwitchTo(old);
	return receiver->dest->receiveSlot(row, receiver->dest);
}

static void
row_startup(DestReceiver *self, int operation, TupleDesc typeinfo)
{
	/* query_read does that, once */
}

static void
row_noop(DestReceiver *self)
{
}

static uint64
run_plan(PlannedStmt *plan, DestReceiver *dest)
{
	QueryDesc  *desc = CreateQueryDesc(plan, "live_topn keyset query",
									   GetActiveSnapshot(), InvalidSnapshot,
									   dest, NULL, NULL, INSTRUMENT_ROWS);
	uint64		result;

	ExecutorStart(desc, 0);
	progress_watch(desc->planstate);
	executor_run(desc);
	progress_forget();
	result = desc->estate->es_processed;
	ExecutorFinish(desc);
	ExecutorEnd(desc);
	FreeQueryDesc(desc);
	return result;
}

static uint64
read_tiers(TopnQuery *query, TupleTableSlot *boundary, TierStart start,
		   uint64 limit, DestReceiver *dest)
{
	uint64		result = 0;
	ListCell   *lc;

	foreach(lc, make_tiers(query, boundary, start))
	{
		result += run_plan(plan_tier(query, lfirst(lc), limit - result), dest);
		if (result >= limit)
			break;
	}
	return result;
}

/*
 * Rows of all groups, or of the group of a row: with start those that are after
 * or from it on.
 */
static uint64
read_rows(TopnQuery *query, MinimalTuple row, bool bounded, TierStart start,
		  uint64 skip, uint64 limit, DestReceiver *dest)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext,
												  "live_topn keyset query",
												  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(context);
	TupleDesc	desc = query_row_desc(query);
	TupleTableSlot *slot = NULL;
	RowReceiver receiver = {.skip = skip};
	uint64		result = 0;

	receiver.pub.receiveSlot = row_receive;
	receiver.pub.rStartup = row_startup;
	receiver.pub.rShutdown = row_noop;
	receiver.pub.rDestroy = row_noop;
	receiver.pub.mydest = dest->mydest;
	receiver.dest = dest;
	receiver.slot = MakeSingleTupleTableSlot(desc, &TTSOpsVirtual);
	receiver.row_context = AllocSetContextCreate(context, "live_topn row",
												 ALLOCSET_DEFAULT_SIZES);

	if (row != NULL)
	{
		slot = MakeSingleTupleTableSlot(desc, &TTSOpsMinimalTuple);
		ExecStoreMinimalTuple(row, slot, false);
	}

	dest->rStartup(dest, CMD_SELECT, desc);
	if (row == NULL && query->ngroups > 0)
		result = run_plan(plan_query(query_all_groups(query, limit)),
						  &receiver.pub);
	else if (limit > 0)
		result = read_tiers(query->ngroups > 0 ?
							query_of_group(query, slot) : query,
							bounded ? slot : NULL, start, limit,
							&receiver.pub);
	dest->rShutdown(dest);

	if (slot != NULL)
		ExecDropSingleTupleTableSlot(slot);
	ExecDropSingleTupleTableSlot(receiver.slot);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(context);
	return result;
}

uint64
query_read(TopnQuery *query, MinimalTuple row, bool after, uint64 limit,
		   DestReceiver *dest)
{
	return read_rows(query, row, after, TIERS_AFTER, 0, limit, dest);
}

uint64
query_read_skipping(TopnQuery *query, uint64 skip, uint64 limit,
					DestReceiver *dest)
{
	return read_rows(query, NULL, false, TIERS_AFTER, skip - 1, limit, dest);
}

/* The order of a sort clause, reversed. */
static SortGroupClause *
reverse(SortGroupClause *clause)
{
	SortGroupClause *result = copyObject(clause);
	Oid			opfamily;
	Oid			type;
	OrderStrategy strategy;

	if (!get_ordering_op_properties(clause->sortop, &opfamily, &type,
									&strategy))
		elog(ERROR, "operator %u is not a valid ordering operator",
			 clause->sortop);
	result->sortop = get_opfamily_member(opfamily, type, type,
										 strategy == STRATEGY_GREATER ?
										 BTLessStrategyNumber :
										 BTGreaterStrategyNumber);
	if (!OidIsValid(result->sortop))
		elog(ERROR, "operator %u has no reverse in opfamily %u",
			 clause->sortop, opfamily);
	result->nulls_first = !clause->nulls_first;
	set_reverse_sort(result, strategy != STRATEGY_GREATER);
	return result;
}

uint64
query_read_backward(TopnQuery *query, MinimalTuple from, uint64 limit,
					DestReceiver *dest)
{
	TopnQuery	backward = *query;
	ListCell   *lc;

	backward.source = copyObject(query->source);
	foreach(lc, backward.source->sortClause)
		lfirst(lc) = reverse(lfirst(lc));
	return read_rows(&backward, from, true, TIERS_FROM, 0, limit, dest);
}
