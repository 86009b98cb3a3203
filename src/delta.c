/*
 * delta.c
 *	  From the result before some changes to the result after them.
 *
 * Rows that were not touched keep their order, so the n-th untouched row is
 * the same row before and after, and the lists are described by the touched
 * rows alone: each has its rank, and the number of untouched rows that
 * precede it, before and after.  Untouched rows between two such places form
 * a segment, which stays together.  Who moves, of those visible both before
 * and after, is the subject of delta_moves.c.
 */
#include "postgres.h"

#include "delta_private.h"
#include "utils/memutils.h"

static bool
is_visible(uint32 rank, ResultPage page)
{
	return rank > page.skip && rank <= page.end;
}

void
delta_add_place(const Differ *differ, Places *places, Row *old, Row *row,
				uint32 before, uint32 after)
{
	Place	   *place;

	if (places->n == places->max)
	{
		places->max = Max(16, places->max * 2);
		places->items = places->items ?
			repalloc_huge(places->items, sizeof(Place) * places->max) :
			palloc(sizeof(Place) * places->max);
	}
	place = &places->items[places->n++];
	place->old = old;
	place->row = row;
	place->before = before ? before - differ->before.skip : 0;
	place->after = after ? after - differ->after.skip : 0;
	place->old_rank = place->rank = 0;
}

static int
compare_old(const void *a, const void *b, void *format)
{
	return row_compare(format, (*(Touched *const *) a)->old,
					   (*(Touched *const *) b)->old);
}

static int
compare_new(const void *a, const void *b, void *format)
{
	return row_compare(format, (*(Touched *const *) a)->row,
					   (*(Touched *const *) b)->row);
}

static int
compare_before(const void *a, const void *b)
{
	return compare_uint32(&((const Place *) a)->before,
						  &((const Place *) b)->before);
}

static int
compare_before_descending(const void *a, const void *b)
{
	return compare_before(b, a);
}

static int
compare_after(const void *a, const void *b)
{
	return compare_uint32(&((const Place *) a)->after,
						  &((const Place *) b)->after);
}

/*
 * In a keyless table a row that went and an equal row that came are no
 * change.
 */
static void
cancel_equal(Differ *differ)
{
	RowFormat  *format = differ->window->set->format;
	int			nold = 0,
				nnew = 0,
				i = 0,
				j = 0;

	while (i < differ->nold || j < differ->nnew)
	{
		int			order;

		if (i == differ->nold)
			order = 1;
		else if (j == differ->nnew)
			order = -1;
		else
			order = row_compare(format, differ->by_old[i]->old,
								differ->by_new[j]->row);

		if (order < 0)
			differ->by_old[nold++] = differ->by_old[i++];
		else if (order > 0)
			differ->by_new[nnew++] = differ->by_new[j++];
		else
			i++, j++;
	}
	differ->nold = nold;
	differ->nnew = nnew;
}

/* The row of the same identity that the window holds now, or NULL. */
static Row *
find_successor(Window *window, const Row *old)
{
	WindowSet  *set = window->set;
	Datum		keys[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];
	Row		   *row;

	row_get_key(set->format, old, keys, nulls);
	row = window_set_find_key(set, keys, nulls);
	return row && window_set_find(set, row) == window ? row : NULL;
}

/*
 * Pair the removed rows of the window with the held rows of the same
 * identity, and sort.
 */
static void
collect_touched(Differ *differ)
{
	Window	   *window = differ->window;
	WindowWork *work = window->work;
	RowFormat  *format = window->set->format;
	int			max = Max(work->nremoved + work->nadded, 1);
	bool	   *paired = palloc0(sizeof(bool) * Max(work->nadded, 1));

	differ->touched = palloc0_array(Touched, max);
	differ->by_old = palloc_array(Touched *, max);
	differ->by_new = palloc_array(Touched *, max);

	for (int i = 0; i < work->nremoved; i++)
	{
		Touched    *touched = &differ->touched[differ->ntouched++];

		touched->old = work->removed[i];
		differ->by_old[differ->nold++] = touched;
		if (!format->query->keyless)
			touched->row = find_successor(window, touched->old);
		if (touched->row)
		{
			differ->by_new[differ->nnew++] = touched;
			if (touched->row->fresh >= 0)
				paired[touched->row->fresh] = true;
		}
	}
	for (int i = 0; i < work->nadded; i++)
	{
		if (!paired[i])
		{
			Touched    *touched = &differ->touched[differ->ntouched++];

			touched->row = work->added[i];
			differ->by_new[differ->nnew++] = touched;
		}
	}

	qsort_arg(differ->by_old, differ->nold, sizeof(Touched *), compare_old,
			  format);
	qsort_arg(differ->by_new, differ->nnew, sizeof(Touched *), compare_new,
			  format);
	if (format->query->keyless)
		cancel_equal(differ);
}

/* Held rows up to a row in the whole order. */
static uint32
count_upto(const Window *window, const Row *row)
{
	return window_count_upto(window, row, window->set->format->query->nsort);
}

/*
 * Ranks of the touched rows.  The window holds the rows of after, and those
 * of before are these without the new versions and with the old ones.  Of
 * equal rows those that were touched are the last ones.
 */
static void
rank_touched(Differ *differ)
{
	Window	   *window = differ->window;
	int			upto = 0;		/* new versions up to the row at hand */

	for (int i = 0; i < differ->nold; i++)
	{
		Touched    *touched = differ->by_old[i];

		while (upto < differ->nnew &&
			   row_compare(window->set->format, differ->by_new[upto]->row,
						   touched->old) <= 0)
			upto++;
		touched->before_untouched =
			count_upto(window, touched->old) - upto;
		touched->before = touched->before_untouched + i + 1;
	}

	upto = 0;
	for (int j = 0; j < differ->nnew; j++)
	{
		Touched    *touched = differ->by_new[j];

		while (upto < differ->nnew &&
			   row_compare(window->set->format, differ->by_new[upto]->row,
						   touched->row) <= 0)
			upto++;
		touched->after_untouched =
			count_upto(window, touched->row) - upto;
		touched->after = touched->after_untouched + j + 1;
	}
}

/* The rank of the n-th untouched row (from 1) before and after. */
static uint32
untouched_before(const Differ *differ, uint32 n)
{
	int			low = 0,
				high = differ->nold;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (differ->by_old[middle]->before_untouched < n)
			low = middle + 1;
		else
			high = middle;
	}
	return n + low;
}

static uint32
untouched_after(const Differ *differ, uint32 n)
{
	int			low = 0,
				high = differ->nnew;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (differ->by_new[middle]->after_untouched < n)
			low = middle + 1;
		else
			high = middle;
	}
	return n + low;
}

Row *
delta_old_row(const Differ *differ, uint32 n, int *touched)
{
	while (*touched < differ->nold &&
		   differ->by_old[*touched]->before < n)
		(*touched)++;
	if (*touched < differ->nold && differ->by_old[*touched]->before == n)
		return differ->by_old[*touched]->old;
	return window_nth(differ->window,
					  untouched_after(differ, n - *touched) - 1);
}

void
delta_add_untouched(Differ *differ, Places *places, uint32 n)
{
	uint32		after = untouched_after(differ, n);
	Row		   *row = window_nth(differ->window, after - 1);

	delta_add_place(differ, places, row, row, untouched_before(differ, n),
					after);
}

/* Untouched rows up to a rank. */
static uint32
count_untouched_before(const Differ *differ, uint32 rank)
{
	uint32		n = Min(rank, differ->window->work->before_size);

	rank = n;
	for (int i = 0; i < differ->nold; i++)
		if (differ->by_old[i]->before <= rank)
			n--;
	return n;
}

static uint32
count_untouched_after(const Differ *differ, uint32 rank)
{
	uint32		n = Min(rank, window_size(differ->window));

	rank = n;
	for (int i = 0; i < differ->nnew; i++)
		if (differ->by_new[i]->after <= rank)
			n--;
	return n;
}

/* Of the untouched rows low + 1 to high, those not visible in both lists. */
static void
add_unshared(Differ *differ, Places *places, uint32 low, uint32 high)
{
	for (uint32 n = low + 1; n <= Min(high, differ->shared_low); n++)
		delta_add_untouched(differ, places, n);
	for (uint32 n = Max(low, differ->shared_high) + 1; n <= high; n++)
		delta_add_untouched(differ, places, n);
}

/*
 * Rows that are visible in one of the lists only.
 */
static void
find_leaves_and_enters(Differ *differ)
{
	uint32		before_low = count_untouched_before(differ, differ->before.skip);
	uint32		before_high = count_untouched_before(differ, differ->before.end);
	uint32		after_low = count_untouched_after(differ, differ->after.skip);
	uint32		after_high = count_untouched_after(differ, differ->after.end);
	uint32		low = Max(before_low, after_low);
	uint32		high = Max(Min(before_high, after_high), low);

	differ->shared_low = low;
	differ->shared_high = high;
	differ->staying = palloc_array(Touched *, differ->nold + 1);

	for (int i = 0; i < differ->nold; i++)
	{
		Touched    *touched = differ->by_old[i];

		if (is_visible(touched->before, differ->before) &&
			is_visible(touched->after, differ->after))
			differ->staying[differ->nstaying++] = touched;
		else if (is_visible(touched->before, differ->before))
			delta_add_place(differ, &differ->leaves, touched->old, NULL,
							touched->before, 0);
	}
	for (int i = 0; i < differ->nnew; i++)
	{
		Touched    *touched = differ->by_new[i];

		if (is_visible(touched->after, differ->after) &&
			!is_visible(touched->before, differ->before))
			delta_add_place(differ, &differ->enters, NULL, touched->row,
							0, touched->after);
	}
	add_unshared(differ, &differ->leaves, before_low, before_high);
	add_unshared(differ, &differ->enters, after_low, after_high);

	qsort(differ->leaves.items, differ->leaves.n, sizeof(Place),
		  compare_before_descending);
	qsort(differ->enters.items, differ->enters.n, sizeof(Place),
		  compare_after);
}

/* Does the row look different, though at its place? */
static bool
visibly_changed(const RowFormat *format, const Row *old, const Row *row)
{
	if (old == row)
		return false;
	for (int attno = 1; attno <= format->query->nvisible; attno++)
		if (!row_column_equal(format, old, row, attno))
			return true;
	return false;
}

/*
 * Rows visible in both lists: who moves, who is updated at its place.  In a
 * keyless table a changed row is another row, so that nobody does: both lists
 * are sorted by all columns.
 */
static void
find_moves_and_updates(Differ *differ, bool absolute)
{
	if (absolute)
	{
		for (uint32 u = differ->shared_low + 1; u <= differ->shared_high; u++)
			if (untouched_before(differ, u) - differ->before.skip !=
				untouched_after(differ, u) - differ->after.skip)
				delta_add_untouched(differ, &differ->moves, u);
		for (int i = 0; i < differ->nstaying; i++)
		{
			Touched    *touched = differ->staying[i];

			delta_add_place(differ,
							touched->before - differ->before.skip !=
							touched->after - differ->after.skip ?
							&differ->moves : &differ->updates,
							touched->old, touched->row,
							touched->before, touched->after);
		}
	}
	else if (!differ->window->set->format->query->keyless)
		delta_find_moves(differ);
	qsort(differ->moves.items, differ->moves.n, sizeof(Place), compare_after);
	qsort(differ->updates.items, differ->updates.n, sizeof(Place),
		  compare_after);
}

static int
compare_leaves(const void *a, const void *b, void *format)
{
	int			result = row_compare(format, ((const Place *) a)->old,
									 ((const Place *) b)->old);

	return result ? result : compare_before(a, b);
}

static int
compare_enters(const void *a, const void *b, void *format)
{
	int			result = row_compare(format, ((const Place *) a)->row,
									 ((const Place *) b)->row);

	return result ? result : compare_after(a, b);
}

static void
append_place(Places *places, const Place *place)
{
	Differ		nowhere = {0};

	delta_add_place(&nowhere, places, place->old, place->row, place->before,
					place->after);
}

/*
 * Drop the places that an equal row leaves and comes to.  Both lists are
 * sorted, by row and place.
 */
static void
drop_kept_places(Places *leaves, Places *enters, RowFormat *format)
{
	int			nleaves = 0,
				nenters = 0,
				i = 0,
				j = 0;

	while (i < leaves->n || j < enters->n)
	{
		int			order;

		if (i == leaves->n)
			order = 1;
		else if (j == enters->n)
			order = -1;
		else
			order = row_compare(format, leaves->items[i].old,
								enters->items[j].row);
		if (order == 0)
			order = compare_uint32(&leaves->items[i].before,
								   &enters->items[j].after);

		if (order < 0)
			leaves->items[nleaves++] = leaves->items[i];
		if (order > 0)
			enters->items[nenters++] = enters->items[j];
		i += order <= 0;
		j += order >= 0;
	}
	leaves->n = nleaves;
	enters->n = nenters;
}

/*
 * Equal rows of a keyless table cannot be told apart.  If one leaves a place
 * and another comes to it, then nothing happened; if they are different
 * places, it has moved, which is worth a delta only where ranks are absolute:
 * in a list that is sorted by all columns nobody overtakes anybody.
 */
static void
match_equal(Differ *differ, bool absolute)
{
	RowFormat  *format = differ->window->set->format;
	Places		leaves = differ->leaves;
	Places		enters = differ->enters;
	int			i = 0,
				j = 0;

	for (int k = 0; k < differ->moves.n; k++)
	{
		append_place(&leaves, &differ->moves.items[k]);
		append_place(&enters, &differ->moves.items[k]);
	}
	memset(&differ->leaves, 0, sizeof(Places));
	memset(&differ->enters, 0, sizeof(Places));
	differ->moves.n = 0;
	qsort_arg(leaves.items, leaves.n, sizeof(Place), compare_leaves, format);
	qsort_arg(enters.items, enters.n, sizeof(Place), compare_enters, format);

	drop_kept_places(&leaves, &enters, format);

	while (i < leaves.n || j < enters.n)
	{
		Place		place = {0};
		int			order;

		if (i == leaves.n)
			order = 1;
		else if (j == enters.n)
			order = -1;
		else
			order = row_compare(format, leaves.items[i].old,
								enters.items[j].row);

		if (order <= 0)
		{
			place.old = leaves.items[i].old;
			place.before = leaves.items[i++].before;
		}
		if (order >= 0)
		{
			place.row = enters.items[j].row;
			place.after = enters.items[j++].after;
		}
		if (order < 0)
			append_place(&differ->leaves, &place);
		else if (order > 0)
			append_place(&differ->enters, &place);
		else if (absolute)
			append_place(&differ->moves, &place);
	}
	qsort(differ->leaves.items, differ->leaves.n, sizeof(Place),
		  compare_before_descending);
	qsort(differ->enters.items, differ->enters.n, sizeof(Place),
		  compare_after);
	qsort(differ->moves.items, differ->moves.n, sizeof(Place), compare_after);
}

/* Where rows have no ranks, they come, go, or change. */
static void
find_unranked(Differ *differ)
{
	for (int i = 0; i < differ->nold; i++)
	{
		Touched    *touched = differ->by_old[i];

		delta_add_place(differ, touched->row ?
						&differ->updates : &differ->leaves,
						touched->old, touched->row, 0, 0);
	}
	for (int i = 0; i < differ->nnew; i++)
	{
		Touched    *touched = differ->by_new[i];

		if (touched->old == NULL)
			delta_add_place(differ, &differ->enters, NULL, touched->row, 0, 0);
	}
}

static void
find_ranked(Differ *differ, bool absolute)
{
	rank_touched(differ);
	find_leaves_and_enters(differ);
	find_moves_and_updates(differ, absolute);
	if (differ->window->set->format->query->keyless)
		match_equal(differ, absolute);
}

static void
append_deltas(DeltaScript *script, DeltaOp op, const Places *places)
{
	for (int i = 0; i < places->n; i++)
	{
		Place	   *place = &places->items[i];
		Delta	   *delta = &script->deltas[script->n++];

		delta->op = op;
		delta->from = place->before;
		delta->to = place->after;
		delta->old = op == DELTA_ENTER ? NULL : row_ref(place->old);
		delta->row = op == DELTA_LEAVE ? NULL : row_ref(place->row);
		delta->old_rank = place->old_rank;
		delta->rank = place->rank;
	}
}

DeltaScript *
delta_script(void)
{
	DeltaScript *script = palloc0(sizeof(DeltaScript));

	script->refs = 1;
	script->max = 16;
	script->deltas = palloc(sizeof(Delta) * script->max);
	return script;
}

static void
make_room(DeltaScript *script, uint64 n)
{
	uint64		max = script->max;

	while (max < script->n + n)
		max *= 2;
	if (max > PG_INT32_MAX)
		elog(ERROR, "too many deltas in a batch");
	if (max > script->max)
		script->deltas = repalloc_huge(script->deltas, sizeof(Delta) * max);
	script->max = max;
}

void
delta_append(DeltaScript *script, Window *window, ResultPage before,
			 ResultPage after, bool absolute)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch = AllocSetContextCreate(caller, "live_topn delta",
												  ALLOCSET_SMALL_SIZES);
	Differ		differ = {.window = window,.before = before,.after = after};
	int			kept = 0;
	Delta	   *moves;

	MemoryContextSwitchTo(scratch);
	collect_touched(&differ);
	if (window->set->format->query->unranked)
		find_unranked(&differ);
	else
		find_ranked(&differ, absolute);

	for (int i = 0; i < differ.updates.n; i++)
	{
		Place	   *update = &differ.updates.items[i];

		if (visibly_changed(window->set->format, update->old, update->row))
			differ.updates.items[kept++] = *update;
	}
	differ.updates.n = kept;
	if (window->set->format->query->ranks != NIL)
		delta_add_ranks(&differ);

	make_room(script, (uint64) differ.leaves.n + differ.moves.n +
			  differ.enters.n + differ.updates.n);
	append_deltas(script, DELTA_LEAVE, &differ.leaves);
	moves = script->deltas + script->n;
	append_deltas(script, DELTA_MOVE, &differ.moves);
	if (!absolute && differ.moves.n > 0)
		delta_position_moves(&differ, moves);
	append_deltas(script, DELTA_ENTER, &differ.enters);
	append_deltas(script, DELTA_UPDATE, &differ.updates);

	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
}

void
delta_free(DeltaScript *script)
{
	if (--script->refs > 0)
		return;
	for (int i = 0; i < script->n; i++)
	{
		if (script->deltas[i].old)
			row_unref(script->deltas[i].old);
		if (script->deltas[i].row)
			row_unref(script->deltas[i].row);
	}
	pfree(script->deltas);
	pfree(script);
}

Size
delta_bytes(const DeltaScript *script)
{
	Size		bytes = GetMemoryChunkSpace((void *) script) +
		GetMemoryChunkSpace(script->deltas);

	for (int i = 0; i < script->n; i++)
	{
		const Delta *delta = &script->deltas[i];

		if (delta->old && delta->old != delta->row)
			bytes += row_bytes(delta->old);
		if (delta->row)
			bytes += row_bytes(delta->row);
	}
	return bytes;
}
