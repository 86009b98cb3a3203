/*
 * window.c
 *	  An exact stretch of the ordered, filtered relation.
 *
 * Rows are the nodes of a treap (Aragon and Seidel, Randomized search trees,
 * FOCS 1989) whose subtree sizes give ranks: every operation is expected
 * O(log n).  A hash table by identity finds the held version of a changed row.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "window.h"

typedef struct KeyEntry
{
	Row		   *row;
	uint32		hash;
	char		status;
} KeyEntry;

static uint32 keymap_hash_row(const Window *window, const Row *row);
static bool keymap_equal(const Window *window, const Row *a, const Row *b);

/* A NULL key stands for the window's probe. */
#define SH_PREFIX keymap
#define SH_ELEMENT_TYPE KeyEntry
#define SH_KEY_TYPE Row *
#define SH_KEY row
#define SH_HASH_KEY(tb, key) keymap_hash_row(tb->private_data, key)
#define SH_EQUAL(tb, a, b) keymap_equal(tb->private_data, a, b)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) a->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static uint32
keymap_hash_row(const Window *window, const Row *row)
{
	Datum		keys[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (row == NULL)
		return row_hash_key(window->format, window->probe_keys,
							window->probe_nulls);
	row_get_key(window->format, row, keys, nulls);
	return row_hash_key(window->format, keys, nulls);
}

static bool
keymap_equal(const Window *window, const Row *a, const Row *b)
{
	Datum		keys[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (b == NULL)
		return row_key_is(window->format, a, window->probe_keys,
						  window->probe_nulls);
	if (a == NULL)
		return row_key_is(window->format, b, window->probe_keys,
						  window->probe_nulls);
	row_get_key(window->format, b, keys, nulls);
	return row_key_is(window->format, a, keys, nulls);
}

Window *
window_create(RowFormat *format, MemoryContext context)
{
	Window	   *window = MemoryContextAllocZero(context, sizeof(Window));

	window->format = format;
	window->context = context;
	window->end = WINDOW_NOTHING;
	if (!format->query->keyless)
		window->by_key = keymap_create(context, 2, window);
	return window;
}

void
window_free(Window *window)
{
	window_clear(window);
	window_settle(window);
	if (window->low)
		row_unref(window->low);
	if (window->by_key)
		keymap_destroy(window->by_key);
	if (window->removed)
		pfree(window->removed);
	if (window->added)
		pfree(window->added);
	pfree(window);
}

bool
window_covers(const Window *window, const Row *row)
{
	if (window->end == WINDOW_NOTHING)
		return false;
	if (window->low && row_compare(window->format, row, window->low) <= 0)
		return false;
	return window->end == WINDOW_COMPLETE ||
		row_compare(window->format, row, window->high) <= 0;
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
	if (a->priority > b->priority)
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

static void
tree_insert(Window *window, Row *row)
{
	Row		  **link = &window->root;

	row->priority = pg_prng_uint32(&pg_global_prng_state);
	while (*link && (*link)->priority >= row->priority)
	{
		(*link)->size++;
		link = row_compare(window->format, *link, row) < 0 ?
			&(*link)->right : &(*link)->left;
	}
	split(window->format, *link, row, &row->left, &row->right);
	update_size(row);
	*link = row;
}

/*
 * Unlink a row that compares equal: in a keyless table one of several, which
 * are alike in every column.
 */
static Row *
tree_delete(Window *window, const Row *row)
{
	Row		  **link = &window->root;
	Row		   *node;

	while ((node = *link) != NULL)
	{
		int			order = row_compare(window->format, node, row);

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
	Row		   *node = window->root;

	while (node)
	{
		int			order = row_compare(window->format, node, row);

		if (order == 0)
			return node;
		node = order < 0 ? node->right : node->left;
	}
	return NULL;
}

uint32
window_count_upto(const Window *window, const Row *row, int n)
{
	Row		   *node = window->root;
	uint32		end = 0;

	while (node)
	{
		if (row_compare_prefix(window->format, node, row, n) <= 0)
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

/* ---- rows in and out ---- */

static void
remember(Window *window, Row ***array, int *n, int *max, Row *row)
{
	if (*n == *max)
	{
		*max = Max(8, *max * 2);
		if (*array)
			*array = repalloc_huge(*array, sizeof(Row *) * (Size) *max);
		else
			*array = MemoryContextAlloc(window->context,
										sizeof(Row *) * *max);
	}
	(*array)[(*n)++] = row;
}

void
window_add(Window *window, Row *row)
{
	tree_insert(window, row);
	window->bytes += row_bytes(row);
	if (window->by_key)
	{
		bool		found;
		KeyEntry   *entry = keymap_insert(window->by_key, row, &found);

		if (found)
			elog(ERROR, "row is already in the window");
		entry->row = row;
	}
	row->fresh = window->nadded;
	remember(window, &window->added, &window->nadded, &window->maxadded, row);
}

void
window_remove(Window *window, Row *row)
{
	row = tree_delete(window, row);
	if (window->by_key)
		keymap_delete(window->by_key, row);
	window->bytes -= row_bytes(row);

	if (row->fresh >= 0)
	{
		Row		   *last = window->added[--window->nadded];

		window->added[row->fresh] = last;
		last->fresh = row->fresh;
		row->fresh = -1;
		row_unref(row);
	}
	else
		remember(window, &window->removed, &window->nremoved,
				 &window->maxremoved, row);
}

void
window_clear(Window *window)
{
	while (window->root)
		window_remove(window, window->root);
	window_set_end(window, WINDOW_NOTHING, NULL);
}

Row *
window_find_key(Window *window, const Datum *keys, const bool *nulls)
{
	KeyEntry   *entry;

	if (window->root == NULL)
		return NULL;
	window->probe_keys = keys;
	window->probe_nulls = nulls;
	entry = keymap_lookup(window->by_key, NULL);
	return entry ? entry->row : NULL;
}

void
window_trim(Window *window, uint32 size)
{
	uint32		n = window_size(window);
	Row		   *last;

	Assert(size > 0);
	if (n <= size)
		return;

	/* rows that are equal to the last one to stay must stay, too */
	while (size < n &&
		   row_compare(window->format, window_nth(window, size - 1),
					   window_nth(window, size)) == 0)
		size++;
	if (n == size)
		return;

	last = row_ref(window_nth(window, size - 1));
	while (n > size)
		window_remove(window, window_nth(window, --n));
	window_set_end(window, WINDOW_BOUNDED, last);
}

void
window_settle(Window *window)
{
	for (int i = 0; i < window->nremoved; i++)
		row_unref(window->removed[i]);
	for (int i = 0; i < window->nadded; i++)
		window->added[i]->fresh = -1;
	window->nremoved = window->nadded = 0;
	window->before_size = window_size(window);
}
