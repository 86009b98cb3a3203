/*
 * delta_moves.c
 *	  Which rows of a result move, and from where to where.
 *
 * Of the rows visible both before and after, those on a longest subsequence
 * that is in the same order in both lists stay, and the others move: fewer
 * moves cannot do (cf. Schensted, Longest increasing and decreasing
 * subsequences, 1961; the maximum over prefixes is kept in a Fenwick tree).
 * Among equally long ones, that which keeps most rows that are as they were is
 * taken.  Where all were read again, touched rows are, too.
 */
#include "postgres.h"

#include "delta_private.h"
#include "lib/qunique.h"

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

/*
 * Order of elements in the list before: by the untouched rows that precede
 * them, touched rows ahead of the segment that begins there.
 */
static int
compare_elements_before(const void *a, const void *b)
{
	const Element *x = a;
	const Element *y = b;
	uint32		xstart = x->touched ? x->touched->before_untouched : x->start;
	uint32		ystart = y->touched ? y->touched->before_untouched : y->start;

	if (xstart != ystart)
		return xstart < ystart ? -1 : 1;
	if (x->touched == NULL || y->touched == NULL)
		return (x->touched == NULL) - (y->touched == NULL);
	return compare_uint32(&x->touched->before, &y->touched->before);
}

static int
compare_elements_after(const void *a, const void *b)
{
	const Element *x = *(Element *const *) a;
	const Element *y = *(Element *const *) b;
	uint32		xstart = x->touched ? x->touched->after_untouched : x->start;
	uint32		ystart = y->touched ? y->touched->after_untouched : y->start;

	if (xstart != ystart)
		return xstart < ystart ? -1 : 1;
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
			element->weight = (INT64CONST(1) << 31) +
				row_equal(element->touched->old, element->touched->row);
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

void
delta_find_moves(Differ *differ)
{
	int			n;
	Element    *elements = make_elements(differ, &n);

	choose_staying(elements, n);
	for (int i = 0; i < n; i++)
	{
		Touched    *touched = elements[i].touched;

		if (touched)
			delta_add_place(differ, elements[i].stays ?
							&differ->updates : &differ->moves,
							touched->old, touched->row,
							touched->before, touched->after);
		else if (!elements[i].stays)
			for (uint32 u = 1; u <= elements[i].length; u++)
				delta_add_untouched(differ, &differ->moves,
									elements[i].start + u);
	}
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
 * A place that a move leaves or comes to.
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

void
delta_position_moves(Differ *differ, Delta *deltas)
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
