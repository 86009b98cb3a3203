/*
 * evaluate.c
 *	  The expressions of a query, on rows of its table.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/sysattr.h"
#include "catalog/pg_class.h"
#include "evaluate.h"
#include "executor/executor.h"
#include "optimizer/optimizer.h"
#include "utils/memutils.h"

volatile uint64 evaluate_progress = 0;

typedef enum EvaluateResult
{
	EVALUATE_OUTSIDE,			/* does not satisfy the filter, or out of
								 * range */
	EVALUATE_BEFORE,			/* at or before the low of the only window */
	EVALUATE_ROW,				/* *row is the row, with one reference */
	EVALUATE_MISSING			/* depends on a value that WAL lacks */
} EvaluateResult;

Evaluator *
evaluator_create(const TopnQuery *query, RowFormat *format)
{
	Evaluator  *evaluator = palloc0(sizeof(Evaluator));
	int			ncolumns = list_length(query->targetlist);
	int			i = 0;
	ListCell   *lc;

	evaluator->query = query;
	evaluator->format = format;
	evaluator->econtext = CreateStandaloneExprContext();
	evaluator->change_context = AllocSetContextCreate(CurrentMemoryContext,
													  "live_topn change",
													  ALLOCSET_SMALL_SIZES);
	evaluator->qual = ExecInitQual(query->quals, NULL);
	evaluator->columns = palloc(sizeof(ExprState *) * ncolumns);
	evaluator->values = palloc(sizeof(Datum) * ncolumns);
	evaluator->nulls = palloc(sizeof(bool) * ncolumns);

	pull_varattnos((Node *) query->quals, 1, &evaluator->used_by_qual);
	foreach(lc, query->targetlist)
	{
		TargetEntry *column = lfirst_node(TargetEntry, lc);

		evaluator->columns[i++] = ExecInitExpr(column->expr, NULL);
		pull_varattnos((Node *) column->expr, 1, &evaluator->used);
	}
	evaluator->used = bms_add_members(evaluator->used,
									  evaluator->used_by_qual);
	for (i = 0; i < query->nsort; i++)
	{
		TargetEntry *column = list_nth_node(TargetEntry, query->targetlist,
											query->sort[i].attno - 1);

		pull_varattnos((Node *) column->expr, 1, &evaluator->used_by_place);
	}
	for (i = 0; i < query->ngroups; i++)
	{
		TargetEntry *column = list_nth_node(TargetEntry, query->targetlist,
											query->groups[i] - 1);

		pull_varattnos((Node *) column->expr, 1, &evaluator->used_by_place);
	}
	evaluator->leading = evaluator->columns[query->sort[0].attno - 1];
	evaluator->vars = list_concat(pull_var_clause((Node *) query->quals, 0),
								  pull_var_clause((Node *) query->targetlist,
												  0));
	return evaluator;
}

void
evaluator_free(Evaluator *evaluator)
{
	FreeExprContext(evaluator->econtext, true);
}

static bool
types_fit(List *vars, TupleDesc desc)
{
	ListCell   *lc;

	foreach(lc, vars)
	{
		Var		   *var = lfirst_node(Var, lc);
		Form_pg_attribute att;

		if (var->varattno <= 0)
			continue;
		if (var->varattno > desc->natts)
			return false;
		att = TupleDescAttr(desc, var->varattno - 1);
		if (att->attisdropped || att->atttypid != var->vartype)
			return false;
	}
	return true;
}

/* Are the columns of the query's identity in old tuples of the table? */
static bool
identity_fits(const TopnQuery *query, const Table *table,
			  const TableView *view)
{
	if (table->replident == REPLICA_IDENTITY_FULL)
		return true;
	if (query->keyless)
		return false;
	for (int i = 0; i < query->nkeys; i++)
	{
		AttrNumber	attnum = query->key_attnums[i];

		if (view->map)
			attnum = view->map->attnums[attnum - 1];
		if (!bms_is_member(attnum - FirstLowInvalidHeapAttributeNumber,
						   table->identity))
			return false;
	}
	return true;
}

bool
evaluator_accepts(Evaluator *evaluator, const Change *change)
{
	Table	   *table = change->table;
	TableFit   *fit = &evaluator->fits[table->serial % EVALUATOR_FITS];

	if (fit->serial != table->serial)
	{
		const TopnQuery *query = evaluator->query;
		TableView  *view = table_view(table, query->relid);

		fit->serial = table->serial;
		fit->types = types_fit(evaluator->vars,
							   view->slot->tts_tupleDescriptor);
		fit->identity = fit->types && identity_fits(query, table, view);
	}
	if (change->kind == CHANGE_UPDATE || change->kind == CHANGE_DELETE)
		return fit->identity;
	return fit->types;
}

/*
 * Which columns that the query uses are missing in a slot, other than those
 * that the held row could supply?  Those are put into the slot.
 */
static Bitmapset *
fill_missing(Evaluator *evaluator, TupleTableSlot *slot, const Row *held)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	Bitmapset  *missing = NULL;

	slot_getallattrs(slot);
	for (int i = 0; i < desc->natts; i++)
	{
		AttrNumber	attnum = i + 1;
		AttrNumber	attno = 0;
		ListCell   *lc;

		if (!value_is_missing(TupleDescAttr(desc, i), slot->tts_values[i],
							  slot->tts_isnull[i]) ||
			!bms_is_member(attnum - FirstLowInvalidHeapAttributeNumber,
						   evaluator->used))
			continue;

		if (held)
		{
			foreach(lc, evaluator->query->targetlist)
			{
				Var		   *var = (Var *) lfirst_node(TargetEntry, lc)->expr;

				if (IsA(var, Var) && var->varattno == attnum)
					attno = foreach_current_index(lc) + 1;
			}
		}
		if (attno > 0)
			slot->tts_values[i] = row_get(evaluator->format, held, attno,
										  &slot->tts_isnull[i]);
		else
			missing = bms_add_member(missing, attnum -
									 FirstLowInvalidHeapAttributeNumber);
	}
	return missing;
}

/* The window of the group of the row at hand, or NULL. */
static Window *
find_window(Evaluator *evaluator, WindowSet *set)
{
	const TopnQuery *query = evaluator->query;

	for (int i = 0; i < query->ngroups; i++)
		evaluator->values[i] =
			ExecEvalExprSwitchContext(evaluator->columns[query->groups[i] - 1],
									  evaluator->econtext,
									  &evaluator->nulls[i]);
	return window_set_find_group(set, evaluator->values, evaluator->nulls);
}

/*
 * Do the group and the leading sort column alone say that the row is not
 * covered, being past the end?
 */
static bool
is_past_end(Evaluator *evaluator, WindowSet *set)
{
	Window	   *window = find_window(evaluator, set);
	Datum		datum;
	bool		isnull;

	if (window == NULL)
		return set->others == WINDOW_NOTHING;
	if (window->end != WINDOW_BOUNDED)
		return window->end == WINDOW_NOTHING;
	datum = ExecEvalExprSwitchContext(evaluator->leading, evaluator->econtext,
									  &isnull);
	return row_compare_leading(evaluator->format, datum, isnull,
							   window->high) > 0;
}

/* Does the leading sort column alone say that it is before the only window? */
static bool
is_before_start(Evaluator *evaluator, WindowSet *set)
{
	Datum		datum;
	bool		isnull;

	if (set->only == NULL || set->only->low == NULL)
		return false;
	datum = ExecEvalExprSwitchContext(evaluator->leading, evaluator->econtext,
									  &isnull);
	return row_compare_leading(evaluator->format, datum, isnull,
							   set->only->low) < 0;
}

/*
 * The row of the query made from a tuple, if it satisfies the filter and lies
 * in the range of its window.  held is the held row for the same identity
 * before the change, or NULL: missing values are taken from it where it has
 * them.
 */
static EvaluateResult
evaluate_tuple(Evaluator *evaluator, WindowSet *set, Table *table,
			   TableView *view, HeapTuple tuple, const Row *held, Row **row)
{
	ExprContext *econtext = evaluator->econtext;
	int			ncolumns = list_length(evaluator->query->targetlist);
	Bitmapset  *missing = NULL;
	bool		first = evaluator->query->inert_end;
	const Row  *low = set->only ? set->only->low : NULL;
	EvaluateResult result = EVALUATE_OUTSIDE;
	MemoryContext caller;

	if (window_set_is_lost(set) && (set->only || window_set_count(set) == 0))
		return EVALUATE_OUTSIDE;

	evaluate_progress++;
	ResetExprContext(econtext);
	econtext->ecxt_param_list_info = set->params;
	econtext->ecxt_scantuple = table_slot(table, view, tuple);
	if (HeapTupleHasExternal(tuple))
	{
		missing = fill_missing(evaluator, econtext->ecxt_scantuple, held);
		if (missing)
		{
			if (bms_overlap(missing, evaluator->used_by_place))
				first = false;
			if (bms_overlap(missing, evaluator->used_by_qual))
				return first && is_past_end(evaluator, set) ?
					EVALUATE_OUTSIDE : EVALUATE_MISSING;
		}
	}

	/* the cheapest test first, unless it could fail or reveal anything */
	if (first && is_past_end(evaluator, set))
		return EVALUATE_OUTSIDE;
	if (!ExecQual(evaluator->qual, econtext))
		return EVALUATE_OUTSIDE;
	if (missing)
	{
		if (!bms_overlap(missing, evaluator->used_by_place) &&
			is_past_end(evaluator, set))
			return EVALUATE_OUTSIDE;
		return EVALUATE_MISSING;
	}
	if (!first && is_past_end(evaluator, set))
		return EVALUATE_OUTSIDE;
	if (is_before_start(evaluator, set))
		return EVALUATE_BEFORE;

	for (int i = 0; i < ncolumns; i++)
		evaluator->values[i] =
			ExecEvalExprSwitchContext(evaluator->columns[i], econtext,
									  &evaluator->nulls[i]);

	/* what is too large for memory is too large for a query as well */
	if (heap_compute_data_size(evaluator->format->desc, evaluator->values,
							   evaluator->nulls) > MAX_ROW_SIZE)
		return EVALUATE_MISSING;

	/* what forming the row leaves behind goes with the expressions' memory */
	caller = MemoryContextSwitchTo(econtext->ecxt_per_tuple_memory);
	*row = row_form(evaluator->format, evaluator->values, evaluator->nulls);
	MemoryContextSwitchTo(caller);
	if (window_set_covers(set, *row))
		return EVALUATE_ROW;
	if (low && row_compare(evaluator->format, *row, low) <= 0)
		result = EVALUATE_BEFORE;
	row_unref(*row);
	*row = NULL;
	return result;
}

void
evaluate_key(Evaluator *evaluator, Table *table, TableView *view,
			 HeapTuple tuple, Datum **keys, bool **nulls)
{
	const TopnQuery *query = evaluator->query;
	TupleTableSlot *slot = table_slot(table, view, tuple);

	for (int i = 0; i < query->nkeys; i++)
		evaluator->values[i] = slot_getattr(slot, query->key_attnums[i],
											&evaluator->nulls[i]);
	*keys = evaluator->values;
	*nulls = evaluator->nulls;
}

/*
 * The held version of the row that a change replaces or removes, NULL if it
 * is not held.
 */
static Row *
find_held(Evaluator *evaluator, WindowSet *set, const Change *change,
		  TableView *view)
{
	Row		   *held = NULL;

	if (change->kind == CHANGE_INSERT)
		return NULL;

	if (!evaluator->query->keyless)
	{
		Datum	   *keys;
		bool	   *nulls;

		if (set->nrows == 0)
			return NULL;
		evaluate_key(evaluator, change->table, view,
					 change->old ? change->old : change->new, &keys, &nulls);
		return window_set_find_key(set, keys, nulls);
	}

	if (evaluate_tuple(evaluator, set, change->table, view, change->old,
					   NULL, &held) == EVALUATE_ROW)
	{
		Row		   *row = held;

		held = window_set_find_equal(set, row);
		row_unref(row);
		if (held == NULL)
			elog(ERROR, "a row that the window should hold is not in it");
	}
	return held;
}

bool
evaluate_put_in(Evaluator *evaluator, WindowSet *set, const Change *change,
				HeapTuple tuple)
{
	TableView  *view = table_view(change->table, evaluator->query->relid);
	Row		   *row;
	EvaluateResult result = evaluate_tuple(evaluator, set, change->table,
										   view, tuple, NULL, &row);

	if (result == EVALUATE_ROW)
		window_set_add(set, row);
	else if (result == EVALUATE_BEFORE)
		window_set_count_before(set, 1);
	return result != EVALUATE_MISSING;
}

bool
evaluate_take_out(Evaluator *evaluator, WindowSet *set, const Change *change,
				  HeapTuple tuple)
{
	TableView  *view = table_view(change->table, evaluator->query->relid);
	Row		   *row;
	EvaluateResult result = evaluate_tuple(evaluator, set, change->table,
										   view, tuple, NULL, &row);

	if (result == EVALUATE_ROW)
	{
		window_set_remove(set, row);
		row_unref(row);
	}
	else if (result == EVALUATE_BEFORE)
		window_set_count_before(set, -1);
	return result != EVALUATE_MISSING;
}

/*
 * A change where rows before the window are counted: whether the old version
 * was one of them only it can tell.
 */
static bool
change_counted(Evaluator *evaluator, WindowSet *set, const Change *change)
{
	if (!change_has_old(change))
		return false;
	if (change->kind != CHANGE_INSERT &&
		!evaluate_take_out(evaluator, set, change, change->old))
		return false;
	return change->new == NULL ||
		evaluate_put_in(evaluator, set, change, change_fill_new(change));
}

/*
 * A change where nothing is held: the old version has been there if it is one
 * of the result.  Without a difference there is nothing to remember.
 */
static bool
change_passing(Evaluator *evaluator, WindowSet *set, const Change *change)
{
	TableView  *view = table_view(change->table, evaluator->query->relid);
	Row		   *old = NULL;
	Row		   *new = NULL;
	bool		known = change_has_old(change);

	if (known && change->kind != CHANGE_INSERT)
		known = evaluate_tuple(evaluator, set, change->table, view,
							   change->old, NULL, &old) != EVALUATE_MISSING;
	evaluator->old = old;
	if (known && change->new)
		known = evaluate_tuple(evaluator, set, change->table, view,
							   change_fill_new(change), NULL,
							   &new) != EVALUATE_MISSING;
	evaluator->old = NULL;
	if (known && !(old && new && row_equal(old, new)))
	{
		if (old)
			window_set_remove(set, old);
		if (new)
			window_set_add(set, row_ref(new));
	}
	if (old)
		row_unref(old);
	if (new)
		row_unref(new);
	return known;
}

/*
 * The old version of a row that is not held is of a group that is dropped, or
 * of none.  False if that is not known.
 */
static bool
evaluate_dropped(Evaluator *evaluator, WindowSet *set, const Change *change,
				 TableView *view, Row **old)
{
	if (change->kind == CHANGE_INSERT || !window_set_is_partial(set))
		return true;
	return change_has_old(change) &&
		evaluate_tuple(evaluator, set, change->table, view, change->old, NULL,
					   old) != EVALUATE_MISSING;
}

static void
remove_dropped(WindowSet *set, Row *old)
{
	if (window_set_get(set, old)->end != WINDOW_PASSING)
		elog(ERROR, "a row that the window should hold is not in it");
	window_set_remove(set, old);
	row_unref(old);
}

/* evaluate_change for a change of a row, in memory that is reset later. */
static bool
change_row(Evaluator *evaluator, WindowSet *set, const Change *change)
{
	TableView  *view = table_view(change->table, evaluator->query->relid);
	Row		   *held = find_held(evaluator, set, change, view);
	Row		   *old = NULL;
	Row		   *row = NULL;
	EvaluateResult result = EVALUATE_OUTSIDE;

	if (held == NULL && !evaluate_dropped(evaluator, set, change, view, &old))
		return false;
	evaluator->old = old;
	if (change->new)
		result = evaluate_tuple(evaluator, set, change->table, view,
								change_fill_new(change), held, &row);
	evaluator->old = NULL;
	if (old && row && row_equal(old, row))
	{
		row_unref(old);			/* the group need not be read */
		row_unref(row);
		return true;
	}
	if (held)
		window_set_remove(set, held);
	if (old)
		remove_dropped(set, old);
	if (result == EVALUATE_ROW)
		window_set_add(set, row);
	return result != EVALUATE_MISSING;
}

bool
evaluate_concerns(Evaluator *evaluator, WindowSet *set, const Change *change)
{
	TableView  *view = table_view(change->table, evaluator->query->relid);
	bool		passing = window_set_is_passing(set);
	bool		untold = passing || window_set_is_partial(set);
	MemoryContext caller;
	Row		   *held = NULL;
	Row		   *row = NULL;
	EvaluateResult result = EVALUATE_OUTSIDE;

	if (change->kind == CHANGE_REWRITE || change->kind == CHANGE_TRUNCATE ||
		(set->counted && change->kind != CHANGE_INSERT) ||
		(untold && !change_has_old(change)))
		return true;
	MemoryContextReset(evaluator->change_context);
	caller = MemoryContextSwitchTo(evaluator->change_context);
	if (!passing)
		held = find_held(evaluator, set, change, view);
	if (held == NULL && untold && change->kind != CHANGE_INSERT)
		result = evaluate_tuple(evaluator, set, change->table, view,
								change->old, NULL, &row);
	if (held == NULL && row == NULL && change->new)
		result = evaluate_tuple(evaluator, set, change->table, view,
								change_fill_new(change), NULL, &row);
	if (result == EVALUATE_ROW)
		row_unref(row);
	MemoryContextSwitchTo(caller);

	/* of a row with missing values other conditions may know that it is out */
	return held != NULL || result == EVALUATE_ROW ||
		result == EVALUATE_BEFORE;
}

bool
evaluate_change(Evaluator *evaluator, WindowSet *set, const Change *change)
{
	MemoryContext caller;
	bool		complete;

	if (change->kind == CHANGE_REWRITE)
		return false;
	if (change->kind == CHANGE_TRUNCATE)
	{
		/* of a partition: which rows were in it?  None, if there are none. */
		if (change->table->relid != evaluator->query->relid)
			return window_set_is_empty(set);
		window_set_clear(set, WINDOW_COMPLETE);
		return true;
	}

	if (evaluator->old)
		row_unref(evaluator->old);
	evaluator->old = NULL;
	MemoryContextReset(evaluator->change_context);
	caller = MemoryContextSwitchTo(evaluator->change_context);
	complete = set->counted ? change_counted(evaluator, set, change) :
		window_set_is_passing(set) ? change_passing(evaluator, set, change) :
		change_row(evaluator, set, change);
	MemoryContextSwitchTo(caller);
	return complete;
}
