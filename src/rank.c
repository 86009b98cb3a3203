/*
 * rank.c
 *	  Ranks within a group, as the query counts them.
 *
 * A result is the rows of some ranks.  row_number gives each row a rank of
 * its own; with rank and WITH TIES the rows of the first n ranks are the first
 * n rows, and those that equal the last one; with dense_rank they are those of
 * the first n values.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "compat.h"
#include "executor/tuptable.h"
#include "rank.h"

uint32
rank_last(const Window *window, int64 offset, int64 limit)
{
	const RowFormat *format = window->set->format;
	const TopnQuery *query = format->query;
	int64		last = Min(offset + limit, PG_UINT32_MAX);
	bool		isnull;
	Datum		bound;

	if (limit == 0)
		return 0;
	if (query->bound != InvalidAttrNumber)
	{
		bound = row_get(format, window_key(window), query->bound, &isnull);
		if (isnull || DatumGetInt64(bound) <= query->bound_exclusive)
			return 0;
		last = Min(last, DatumGetInt64(bound) - query->bound_exclusive);
	}
	return last;
}

uint32
rank_end(const Window *window, uint32 last)
{
	const TopnQuery *query = window->set->format->query;
	uint32		size = window_size(window);
	uint32		end = 0;

	if (query->rank == RANK_DENSE)
	{
		for (uint32 i = 0; i < last && end < size; i++)
			end = window_count_upto(window, window_nth(window, end),
									query->nties);
		return end;
	}
	if (query->rank == RANK_ROWS || last == 0 || size <= last)
		return Min(last, size);
	return window_count_upto(window, window_nth(window, last - 1),
							 query->nties);
}

bool
rank_is_open(const Window *window, uint32 last)
{
	const RowFormat *format = window->set->format;
	const TopnQuery *query = format->query;
	uint32		size = window_size(window);
	uint32		end = 0;

	if (window->end == WINDOW_COMPLETE || last == 0)
		return false;
	if (query->rank != RANK_DENSE && size < last)
		return true;
	if (query->rank == RANK_ROWS)
		return false;
	if (window->end == WINDOW_NOTHING)
		return true;
	if (query->rank == RANK_DENSE)
	{
		for (uint32 i = 0; i < last; i++)
		{
			if (end == size)
				return true;
			end = window_count_upto(window, window_nth(window, end),
									query->nties);
		}
	}
	else
		end = last;
	return row_compare_prefix(format, window_nth(window, end - 1),
							  window->high, query->nties) == 0;
}

int64
rank_next(RankCounter *counter, const Row *row)
{
	const TopnQuery *query = counter->format->query;
	bool		ties = query->rank != RANK_ROWS && counter->previous &&
		row_compare_prefix(counter->format, counter->previous, row,
						   query->nties) == 0;

	counter->rows++;
	counter->previous = row;
	if (!ties)
		counter->rank = query->rank == RANK_DENSE ? counter->rank + 1 :
			counter->rows;
	return counter->rank;
}

int64 *
rank_page(const Window *window, ResultPage page)
{
	int64	   *ranks = palloc_extended(sizeof(int64) *
										Max(page.end - page.skip, 1),
										MCXT_ALLOC_HUGE);
	RankCounter counter = {.format = window->set->format};

	for (uint32 i = 0; i < page.end; i++)
	{
		int64		rank = rank_next(&counter, window_nth(window, i));

		if (i >= page.skip)
			ranks[i - page.skip] = rank;
	}
	return ranks;
}

MinimalTuple
rank_show(const RowFormat *format, const Row *row, int64 rank)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(format->desc,
													&TTSOpsMinimalTuple);
	int			natts = format->desc->natts;
	Datum	   *values = palloc(sizeof(Datum) * natts);
	bool	   *nulls = palloc(sizeof(bool) * natts);
	MinimalTuple result;
	ListCell   *lc;

	ExecStoreMinimalTuple(RowTuple(row), slot, false);
	slot_getallattrs(slot);
	memcpy(values, slot->tts_values, sizeof(Datum) * natts);
	memcpy(nulls, slot->tts_isnull, sizeof(bool) * natts);
	foreach(lc, format->query->ranks)
	{
		values[lfirst_int(lc) - 1] = Int64GetDatum(rank);
		nulls[lfirst_int(lc) - 1] = false;
	}
	result = form_minimal_tuple(format->desc, values, nulls);
	ExecDropSingleTupleTableSlot(slot);
	pfree(values);
	pfree(nulls);
	return result;
}
