/*
 * delta.c
 *	  From the result before some changes to the result after them.
 *
 * Rows that were not touched keep their order, so the n-th untouched row is
 * the same row before and after, and the lists are described by the touched
 * rows alone: each has its rank, and the number of untouched rows that
 * precede it, before and after.  Untouched rows between two such places form
 * a segment, which stays together.
 *
 * Of the rows visible both before and after, those on a longest subsequence
 * that is in the same order in both lists stay, and the others move: fewer
 * moves cannot do (cf. Schensted, Longest increasing and decreasing
 * subsequences, 1961; the maximum over prefixes is kept in a Fenwick tree).
 * Among equally long ones, that which keeps most untouched rows is taken.
 */
#include "postgres.h"

#include "delta.h"
#include "lib/qunique.h"

#include "utils/memutils.h"

/* A row that was changed, came or went. */
typedef struct Touched
{
	Row		   *old;			/* NULL: not held before */
	Row		   *row;			/* NULL: not held now */
	uint32		before;			/* rank, 0 if not held then */
	uint32		after;
	uint32		before_untouched;	/* untouched rows that precede it */
	uint32		after_untouched;
} Touched;

/* A touched row, or a segment of untouched rows, that is visible throughout. */
typedef struct Element
{
	Touched    *touched;		/* NULL: a segment ... */
	uint32		start;			/* ... of the untouched rows start + 1 ... */
	uint32		length;
	int			after_index;	/* place among the elements, after */
	int64		weight;			/* of the best chain that ends here */
	int			previous;		/* in that chain, -1 if none */
	bool		stays;
} Element;

/* A row with its ranks; what a delta is made of. */
typedef struct Place
{
	Row		   *old;
	Row		   *row;
	uint32		before;
	uint32		after;
} Place;

typedef struct Places
{
	int			n;
	int			max;
	Place	   *items;
} Places;

typedef struct Differ
{
	Window	   *window;
	ResultPage		before;
	ResultPage		after;

	int			ntouched;
	Touched    *touched;
	int			nold;
	Touched   **by_old;			/* those with an old row, in its order */
	int			nnew;
	Touched   **by_new;			/* those with a new row, in its order */

	/* untouched rows visible in both lists: low + 1 to high */
	uint32		shared_low;
	uint32		shared_high;
	/* rows visible in both lists: a row of each, and their number */
	int			nstaying;
	Touched   **staying;
	Places		leaves;			/* by before, descending */
	Places		enters;			/* by after */
	Places		moves;			/* by after */
	Places		updates;		/* by after */
} Differ;

static bool
is_visible(uint32 rank, ResultPage page)
{
	return rank > page.skip && rank <= page.end;
}

/* Ranks, of rows that are visible, become positions in the page. */
static void
add_place(const Differ *differ, Places *places, Row *old, Row *row,
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
compare_uint32(const void *a, const void *b)
{
	uint32		x = *(const uint32 *) a;
	uint32		y = *(const uint32 *) b;

	return (x > y) - (x < y);
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
	RowFormat  *format = differ->window->format;
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

/*
 * Pair the removed rows of the window with the held rows of the same
 * identity, and sort.
 */
static void
collect_touched(Differ *differ)
{
	Window	   *window = differ->window;
	int			max = Max(window->nremoved + window->nadded, 1);
	bool	   *paired = palloc0(sizeof(bool) * Max(window->nadded, 1));

	differ->touched = palloc0_array(Touched, max);
	differ->by_old = palloc_array(Touched *, max);
	differ->by_new = palloc_array(Touched *, max);

	for (int i = 0; i < window->nremoved; i++)
	{
		Touched    *touched = &differ->touched[differ->ntouched++];

		touched->old = window->removed[i];
		differ->by_old[differ->nold++] = touched;
		if (window->by_key)
		{
			Datum		keys[INDEX_MAX_KEYS];
			bool		nulls[INDEX_MAX_KEYS];

			row_get_key(window->format, touched->old, keys, nulls);
			touched->row = window_find_key(window, keys, nulls);
		}
		if (touched->row)
		{
			differ->by_new[differ->nnew++] = touched;
			if (touched->row->fresh >= 0)
				paired[touched->row->fresh] = true;
		}
	}
	for (int i = 0; i < window->nadded; i++)
	{
		if (!paired[i])
		{
			Touched    *touched = &differ->touched[differ->ntouched++];

			touched->row = window->added[i];
			differ->by_new[differ->nnew++] = touched;
		}
	}

	qsort_arg(differ->by_old, differ->nold, sizeof(Touched *), compare_old,
			  window->format);
	qsort_arg(differ->by_new, differ->nnew, sizeof(Touched *), compare_new,
			  window->format);
	if (window->by_key == NULL)
		cancel_equal(differ);
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
			   row_compare(window->format, differ->by_new[upto]->row,
						   touched->old) <= 0)
			upto++;
		touched->before_untouched =
			window_position(window, touched->old, true) - upto;
		touched->before = touched->before_untouched + i + 1;
	}

	upto = 0;
	for (int j = 0; j < differ->nnew; j++)
	{
		Touched    *touched = differ->by_new[j];

		while (upto < differ->nnew &&
			   row_compare(window->format, differ->by_new[upto]->row,
						   touched->row) <= 0)
			upto++;
		touched->after_untouched =
			window_position(window, touched->row, true) - upto;
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

static void
add_untouched(Differ *differ, Places *places, uint32 n)
{
	uint32		after = untouched_after(differ, n);
	Row		   *row = window_nth(differ->window, after - 1);

	add_place(differ, places, row, row, untouched_before(differ, n), after);
}

/* Untouched rows up to a rank. */
static uint32
count_untouched_before(const Differ *differ, uint32 rank)
{
	uint32		n = Min(rank, differ->window->before_size);

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
			add_place(differ, &differ->leaves, touched->old, NULL,
					  touched->before, 0);
	}
	for (int i = 0; i < differ->nnew; i++)
	{
		Touched    *touched = differ->by_new[i];

		if (is_visible(touched->after, differ->after) &&
			!is_visible(touched->before, differ->before))
			add_place(differ, &differ->enters, NULL, touched->row,
					  0, touched->after);
	}
	for (uint32 n = before_low + 1; n <= before_high; n++)
		if (n <= low || n > high)
			add_untouched(differ, &differ->leaves, n);
	for (uint32 n = after_low + 1; n <= after_high; n++)
		if (n <= low || n > high)
			add_untouched(differ, &differ->enters, n);

	qsort(differ->leaves.items, differ->leaves.n, sizeof(Place),
		  compare_before_descending);
	qsort(differ->enters.items, differ->enters.n, sizeof(Place),
		  compare_after);
}

/*
 * Order of elements in the list before: by the untouched rows that precede
 * them, touched rows ahead of the segment that begins there.
 */
static int
compare_elements_before(const void *a, const void *b)
{
	const Element *x = a;
	const Element *y = b;
	uint32		xuntouched = x->touched ? x->touched->before_untouched : x->start;
	uint32		yuntouched = y->touched ? y->touched->before_untouched : y->start;

	if (xuntouched != yuntouched)
		return xuntouched < yuntouched ? -1 : 1;
	if (x->touched == NULL || y->touched == NULL)
		return (x->touched == NULL) - (y->touched == NULL);
	return compare_uint32(&x->touched->before, &y->touched->before);
}

static int
compare_elements_after(const void *a, const void *b)
{
	const Element *x = *(Element *const *) a;
	const Element *y = *(Element *const *) b;
	uint32		xuntouched = x->touched ? x->touched->after_untouched : x->start;
	uint32		yuntouched = y->touched ? y->touched->after_untouched : y->start;

	if (xuntouched != yuntouched)
		return xuntouched < yuntouched ? -1 : 1;
	if (x->touched == NULL || y->touched == NULL)
		return (x->touched == NULL) - (y->touched == NULL);
	return compare_uint32(&x->touched->after, &y->touched->after);
}

static uint32
clamp(uint32 n, const Differ *differ)
{
	return Max(differ->shared_low, Min(n, differ->shared_high));
}

/*
 * The rows visible in both lists as elements, in the order before.
 */
static Element *
make_elements(Differ *differ, int *nelements)
{
	Element    *elements = palloc0_array(Element, 3 * differ->nstaying + 1);
	uint32	   *cuts = palloc_array(uint32, 2 * differ->nstaying + 2);
	int			ncuts = 0;
	int			n = 0;

	cuts[ncuts++] = differ->shared_low;
	for (int i = 0; i < differ->nstaying; i++)
	{
		Touched    *touched = differ->staying[i];

		elements[n++].touched = touched;
		cuts[ncuts++] = clamp(touched->before_untouched, differ);
		cuts[ncuts++] = clamp(touched->after_untouched, differ);
	}
	cuts[ncuts++] = differ->shared_high;

	qsort(cuts, ncuts, sizeof(uint32), compare_uint32);
	ncuts = qunique(cuts, ncuts, sizeof(uint32), compare_uint32);
	for (int i = 1; i < ncuts; i++)
	{
		elements[n].start = cuts[i - 1];
		elements[n].length = cuts[i] - cuts[i - 1];
		n++;
	}
	qsort(elements, n, sizeof(Element), compare_elements_before);
	*nelements = n;
	return elements;
}

/*
 * Mark the elements that stay: the heaviest chain that ascends in both
 * orders.  Weight counts rows, then untouched rows.
 */
static void
choose_staying(Element *elements, int n)
{
	Element   **by_after = palloc_array(Element *, n);
	int		   *best = palloc_array(int, n + 1);	/* Fenwick tree, from 1 */
	int			top = -1;

	for (int i = 0; i < n; i++)
	{
		by_after[i] = &elements[i];
		best[i + 1] = -1;
	}
	qsort(by_after, n, sizeof(Element *), compare_elements_after);
	for (int i = 0; i < n; i++)
		by_after[i]->after_index = i + 1;

	for (int i = 0; i < n; i++)
	{
		Element    *element = &elements[i];

		element->previous = -1;
		for (int j = element->after_index - 1; j > 0; j -= j & -j)
		{
			if (best[j] >= 0 &&
				(element->previous < 0 ||
				 elements[best[j]].weight > elements[element->previous].weight))
				element->previous = best[j];
		}
		if (element->touched)
			element->weight = INT64CONST(1) << 31;
		else
			element->weight = (INT64CONST(1) << 31) * element->length +
				element->length;
		if (element->previous >= 0)
			element->weight += elements[element->previous].weight;

		for (int j = element->after_index; j <= n; j += j & -j)
		{
			if (best[j] < 0 || elements[best[j]].weight < element->weight)
				best[j] = i;
		}
		if (top < 0 || elements[top].weight < element->weight)
			top = i;
	}
	for (; top >= 0; top = elements[top].previous)
		elements[top].stays = true;
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
	int			n;
	Element    *elements;

	if (absolute)
	{
		for (uint32 u = differ->shared_low + 1; u <= differ->shared_high; u++)
			if (untouched_before(differ, u) - differ->before.skip !=
				untouched_after(differ, u) - differ->after.skip)
				add_untouched(differ, &differ->moves, u);
		for (int i = 0; i < differ->nstaying; i++)
		{
			Touched    *touched = differ->staying[i];

			add_place(differ,
					  touched->before - differ->before.skip !=
					  touched->after - differ->after.skip ?
					  &differ->moves : &differ->updates,
					  touched->old, touched->row,
					  touched->before, touched->after);
		}
	}
	else if (differ->window->by_key)
	{
		elements = make_elements(differ, &n);
		choose_staying(elements, n);
		for (int i = 0; i < n; i++)
		{
			Touched    *touched = elements[i].touched;

			if (touched)
				add_place(differ, elements[i].stays ?
						  &differ->updates : &differ->moves,
						  touched->old, touched->row,
						  touched->before, touched->after);
			else if (!elements[i].stays)
				for (uint32 u = 1; u <= elements[i].length; u++)
					add_untouched(differ, &differ->moves,
								  elements[i].start + u);
		}
	}
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

	add_place(&nowhere, places, place->old, place->row, place->before,
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
	RowFormat  *format = differ->window->format;
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

/* How many places of an array have a smaller rank. */
static uint32
count_before(const uint32 *ranks, int n, uint32 rank)
{
	int			low = 0,
				high = n;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (ranks[middle] < rank)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Positions of the moves, each as of its turn.
 *
 * Beside the rows that stay, the list is at any time the moving rows at
 * their old or at their new places.  Both kinds of place are put in one
 * order (between two rows that stay, new places first); a Fenwick tree
 * counts those taken.
 */
typedef struct MovePlace
{
	uint32		stays;			/* rows that stay before it */
	bool		old;
	uint32		rank;			/* among its kind */
	int			move;
} MovePlace;

static int
compare_move_places(const void *a, const void *b)
{
	const MovePlace *x = a;
	const MovePlace *y = b;

	if (x->stays != y->stays)
		return x->stays < y->stays ? -1 : 1;
	if (x->old != y->old)
		return x->old ? 1 : -1;
	return compare_uint32(&x->rank, &y->rank);
}

static void
fenwick_add(int *tree, int n, int i, int value)
{
	for (i++; i <= n; i += i & -i)
		tree[i] += value;
}

static uint32
fenwick_before(const int *tree, int i)
{
	int			sum = 0;

	for (; i > 0; i -= i & -i)
		sum += tree[i];
	return sum;
}

static uint32 *
sorted_ranks(const Places *places, bool before)
{
	uint32	   *ranks = palloc_array(uint32, Max(places->n, 1));

	for (int i = 0; i < places->n; i++)
		ranks[i] = before ? places->items[i].before : places->items[i].after;
	qsort(ranks, places->n, sizeof(uint32), compare_uint32);
	return ranks;
}

static void
position_moves(Differ *differ, Delta *deltas)
{
	int			n = differ->moves.n;
	uint32	   *leaves = sorted_ranks(&differ->leaves, true);
	uint32	   *enters = sorted_ranks(&differ->enters, false);
	uint32	   *befores = sorted_ranks(&differ->moves, true);
	MovePlace  *places = palloc_array(MovePlace, 2 * n);
	int		   *taken = palloc0_array(int, 2 * n + 1);
	int		   *old_place = palloc_array(int, n);
	int		   *new_place = palloc_array(int, n);

	for (int i = 0; i < n; i++)
	{
		Place	   *move = &differ->moves.items[i];
		uint32		rank = count_before(befores, n, move->before);

		places[2 * i].old = true;
		places[2 * i].rank = rank;
		places[2 * i].stays = move->before - 1 - rank -
			count_before(leaves, differ->leaves.n, move->before);
		places[2 * i].move = i;
		places[2 * i + 1].old = false;
		places[2 * i + 1].rank = i;
		places[2 * i + 1].stays = move->after - 1 - i -
			count_before(enters, differ->enters.n, move->after);
		places[2 * i + 1].move = i;
	}
	qsort(places, 2 * n, sizeof(MovePlace), compare_move_places);
	for (int i = 0; i < 2 * n; i++)
	{
		if (places[i].old)
		{
			old_place[places[i].move] = i;
			fenwick_add(taken, 2 * n, i, 1);
		}
		else
			new_place[places[i].move] = i;
	}

	for (int i = 0; i < n; i++)
	{
		int			old = old_place[i];
		int			new = new_place[i];

		deltas[i].from = places[old].stays + fenwick_before(taken, old) + 1;
		fenwick_add(taken, 2 * n, old, -1);
		deltas[i].to = places[new].stays + fenwick_before(taken, new) + 1;
		fenwick_add(taken, 2 * n, new, 1);
	}
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
	}
}

DeltaScript *
delta_script(Window *window, ResultPage before, ResultPage after, bool absolute)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch = AllocSetContextCreate(caller, "live_topn delta",
												  ALLOCSET_SMALL_SIZES);
	DeltaScript *script = palloc0(sizeof(DeltaScript));
	Differ		differ = {.window = window,.before = before,.after = after};
	int			kept = 0;

	MemoryContextSwitchTo(scratch);
	collect_touched(&differ);
	rank_touched(&differ);
	find_leaves_and_enters(&differ);
	find_moves_and_updates(&differ, absolute);
	if (window->by_key == NULL)
		match_equal(&differ, absolute);

	for (int i = 0; i < differ.updates.n; i++)
	{
		Place	   *update = &differ.updates.items[i];

		if (visibly_changed(window->format, update->old, update->row))
			differ.updates.items[kept++] = *update;
	}
	differ.updates.n = kept;

	script->deltas = MemoryContextAllocHuge(caller, sizeof(Delta) *
											Max(differ.leaves.n +
												differ.moves.n +
												differ.enters.n +
												differ.updates.n, 1));
	append_deltas(script, DELTA_LEAVE, &differ.leaves);
	append_deltas(script, DELTA_MOVE, &differ.moves);
	if (!absolute && differ.moves.n > 0)
		position_moves(&differ, script->deltas + differ.leaves.n);
	append_deltas(script, DELTA_ENTER, &differ.enters);
	append_deltas(script, DELTA_UPDATE, &differ.updates);

	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
	return script;
}

void
delta_free(DeltaScript *script)
{
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
