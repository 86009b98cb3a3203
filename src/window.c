/*
 * window.c
 *	  The ordered rows of one window.
 *
 * Rows are the nodes of a treap (Aragon and Seidel, Randomized search trees,
 * FOCS 1989) whose subtree sizes give ranks: every operation is expected
 * O(log n).
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "window_private.h"

volatile uint64 window_progress = 0;

bool
window_covers(const Window *window, const Row *row)
{
	const RowFormat *format = window->set->format;

	if (window->end == WINDOW_NOTHING)
		return false;
	if (window->low && row_compare(format, row, window->low) <= 0)
		return false;
	return window->end != WINDOW_BOUNDED ||
		row_compare(format, row, window->high) <= 0;
}

void
window_set_end(Window *window, WindowEnd end, Row *high)
{
	Assert((end == WINDOW_BOUNDED) == (high != NULL));
	if (window->high)
		row_unref(window->high);
	window->end = end;
	window->high = high;
}

/* ---- the treap ---- */

/*
 * The priority of a row is as good as random, since where it is in memory has
 * nothing to do with where it sorts.
 */
static inline uint32
priority(const Row *row)
{
	return murmurhash32((uint32) ((uintptr_t) row / MAXIMUM_ALIGNOF));
}

static inline void
update_size(Row *row)
{
	row->size = 1 + (row->left ? row->left->size : 0) +
		(row->right ? row->right->size : 0);
}

/* All of a sorts before all of b. */
static Row *
join(Row *a, Row *b)
{
	if (a == NULL)
		return b;
	if (b == NULL)
		return a;
	if (priority(a) > priority(b))
	{
		a->right = join(a->right, b);
		update_size(a);
		return a;
	}
	b->left = join(a, b->left);
	update_size(b);
	return b;
}

/* Rows that sort before row go to *before, the others to *after. */
static void
split(const RowFormat *format, Row *tree, const Row *row,
	  Row **before, Row **after)
{
	if (tree == NULL)
		*before = *after = NULL;
	else if (row_compare(format, tree, row) < 0)
	{
		split(format, tree->right, row, &tree->right, after);
		*before = tree;
		update_size(tree);
	}
	else
	{
		split(format, tree->left, row, before, &tree->left);
		*after = tree;
		update_size(tree);
	}
}

void
window_insert(Window *window, Row *row)
{
	Row		  **link = &window->root;
	uint32		mine = priority(row);

	window_progress++;
	while (*link && priority(*link) >= mine)
	{
		(*link)->size++;
		link = row_compare(window->set->format, *link, row) < 0 ?
			&(*link)->right : &(*link)->left;
	}
	split(window->set->format, *link, row, &row->left, &row->right);
	update_size(row);
	*link = row;
}

/*
 * Unlink a row that compares equal: in a keyless table one of several, which
 * are alike in every column.
 */
Row *
window_delete(Window *window, const Row *row)
{
	const RowFormat *format = window->set->format;
	Row		  **link = &window->root;
	Row		   *node;

	window_progress++;
	while ((node = *link) != NULL)
	{
		int			order = row_compare(format, node, row);

		if (order == 0)
			break;
		node->size--;
		link = order < 0 ? &node->right : &node->left;
	}
	if (node == NULL)
		elog(ERROR, "row is not in the window");
	*link = join(node->left, node->right);
	node->left = node->right = NULL;
	node->size = 1;
	return node;
}

Row *
window_find_equal(const Window *window, const Row *row)
{
	const RowFormat *format = window->set->format;
	Row		   *node = window->root;

	while (node)
	{
		int			order = row_compare(format, node, row);

		if (order == 0)
			return node;
		node = order < 0 ? node->right : node->left;
	}
	return NULL;
}

uint32
window_count_upto(const Window *window, const Row *row, int n)
{
	const RowFormat *format = window->set->format;
	Row		   *node = window->root;
	uint32		end = 0;

	window_progress++;
	while (node)
	{
		if (row_compare_prefix(format, node, row, n) <= 0)
		{
			end += 1 + (node->left ? node->left->size : 0);
			node = node->right;
		}
		else
			node = node->left;
	}
	return end;
}

Row *
window_nth(const Window *window, uint32 n)
{
	Row		   *node = window->root;

	Assert(n < window_size(window));
	window_progress++;
	for (;;)
	{
		uint32		left = node->left ? node->left->size : 0;

		if (n == left)
			return node;
		if (n < left)
			node = node->left;
		else
		{
			n -= left + 1;
			node = node->right;
		}
	}
}

void
window_trim(Window *window, uint32 size)
{
	const RowFormat *format = window->set->format;
	uint32		n = window_size(window);
	Row		   *last;

	Assert(size > 0);
	if (n <= size)
		return;

	/* rows that are equal to the last one to stay must stay, too */
	while (size < n &&
		   row_compare(format, window_nth(window, size - 1),
					   window_nth(window, size)) == 0)
		size++;
	if (n == size)
		return;

	last = row_ref(window_nth(window, size - 1));
	while (n > size)
		window_set_remove(window->set, window_nth(window, --n));
	window_set_end(window, WINDOW_BOUNDED, last);
}

void
window_trim_front(Window *window, uint32 n)
{
	WindowSet  *set = window->set;
	Row		   *low = row_ref(window_nth(window, n - 1));

	for (uint32 i = 0; i < n; i++)
		window_set_remove(set, window_nth(window, 0));
	window_set_begin(set, low, set->before + n);
}
