/*
 * delta_ranks.c
 *	  Deltas of a result that shows the ranks of its rows.
 *
 * One row more or less changes the ranks of all after it, which then are
 * updates of their own.  Rows that no other delta takes away or brings keep
 * their order, so that the n-th of these before is the n-th after.
 */
#include "postgres.h"

#include "delta_private.h"
#include "rank.h"

/* Ranks of the rows that were visible before; compare rank_page. */
static int64 *
ranks_before(const Differ *differ)
{
	uint32		end = Min(differ->before.end, differ->window->work->before_size);
	uint32		skip = Min(differ->before.skip, end);
	int64	   *ranks = palloc_extended(sizeof(int64) * Max(end - skip, 1),
										MCXT_ALLOC_HUGE);
	RankCounter counter = {.format = differ->window->set->format};
	int			touched = 0;

	for (uint32 n = 1; n <= end; n++)
	{
		int64		rank = rank_next(&counter,
									 delta_old_row(differ, n, &touched));

		if (n > skip)
			ranks[n - skip - 1] = rank;
	}
	return ranks;
}

/* Mark the places that a kind of delta takes or brings. */
static void
mark(bool *marks, const Places *places, bool before)
{
	for (int i = 0; i < places->n; i++)
		marks[before ? places->items[i].before : places->items[i].after] = true;
}

static void
set_ranks(Places *places, const int64 *before, const int64 *after)
{
	for (int i = 0; i < places->n; i++)
	{
		Place	   *place = &places->items[i];

		if (before)
			place->old_rank = before[place->before - 1];
		if (after)
			place->rank = after[place->after - 1];
	}
}

static int
compare_places(const void *a, const void *b)
{
	return compare_uint32(&((const Place *) a)->after,
						  &((const Place *) b)->after);
}

void
delta_add_ranks(Differ *differ)
{
	uint32		nbefore = differ->before.end - differ->before.skip;
	uint32		nafter = differ->after.end - differ->after.skip;
	int64	   *before = ranks_before(differ);
	int64	   *after = rank_page(differ->window, differ->after);
	bool	   *taken = palloc0(nbefore + 1);
	bool	   *brought = palloc0(nafter + 1);
	bool	   *updated = palloc0(nafter + 1);
	uint32		from = 0;

	mark(taken, &differ->leaves, true);
	mark(taken, &differ->moves, true);
	mark(brought, &differ->enters, false);
	mark(brought, &differ->moves, false);
	mark(updated, &differ->updates, false);
	for (uint32 to = 1; to <= nafter; to++)
	{
		Row		   *row;

		if (brought[to])
			continue;
		do
			from++;
		while (taken[from]);
		if (updated[to] || before[from - 1] == after[to - 1])
			continue;
		row = window_nth(differ->window, differ->after.skip + to - 1);
		delta_add_place(differ, &differ->updates, row, row,
						differ->before.skip + from, differ->after.skip + to);
	}
	qsort(differ->updates.items, differ->updates.n, sizeof(Place),
		  compare_places);

	set_ranks(&differ->leaves, before, NULL);
	set_ranks(&differ->moves, before, after);
	set_ranks(&differ->enters, NULL, after);
	set_ranks(&differ->updates, before, after);
}
