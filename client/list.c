/*
 * list.c
 *	  The result of a subscription as a client keeps it.
 *
 * This is all that a client must do with batches; doc/protocol.md has the
 * rules.  A batch that does not follow the last one, or whose deltas do not
 * meet the rows that they name, shows that something was lost: the caller then
 * starts again from a snapshot.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "list.h"

static void
free_row(ListRow *row)
{
	json_decref(row->key);
	json_decref(row->row);
	json_decref(row->group);
	json_decref(row->changed);
	free(row);
}

static ListRow *
make_row(const json_t *entry, double entered)
{
	ListRow    *row = calloc(1, sizeof(ListRow));

	row->key = json_incref(json_object_get(entry, "key"));
	row->row = json_incref(json_object_get(entry, "row"));
	row->group = json_incref(json_object_get(entry, "group"));
	row->changed = json_object();
	row->entered = entered;
	return row;
}

static void
clear(List *list)
{
	for (size_t i = 0; i < list->nrows; i++)
		if (list->rows[i])
			free_row(list->rows[i]);
	list->nrows = 0;
}

void
list_init(List *list, bool absolute)
{
	memset(list, 0, sizeof(List));
	list->absolute = absolute;
	list->seq = -1;
}

void
list_free(List *list)
{
	clear(list);
	free(list->rows);
	free(list->parts);
	free(list->error);
}

static void
make_room(List *list, size_t size)
{
	if (size <= list->maxrows)
		return;
	list->maxrows = size > 2 * list->maxrows ? size : 2 * list->maxrows;
	list->rows = realloc(list->rows, list->maxrows * sizeof(ListRow *));
}

static void
insert_at(List *list, size_t at, ListRow *row)
{
	make_room(list, list->nrows + 1);
	memmove(list->rows + at + 1, list->rows + at,
			(list->nrows - at) * sizeof(ListRow *));
	list->rows[at] = row;
	list->nrows++;
}

static ListRow *
remove_at(List *list, size_t at)
{
	ListRow    *row = list->rows[at];

	list->nrows--;
	memmove(list->rows + at, list->rows + at + 1,
			(list->nrows - at) * sizeof(ListRow *));
	return row;
}

static void
set_rows(List *list, json_t *rows, double now)
{
	size_t		i;
	json_t	   *entry;

	clear(list);
	json_array_foreach(rows, i, entry)
		insert_at(list, i, make_row(entry, now));
}

bool
list_start(List *list, json_int_t seq, const char *rows)
{
	json_t	   *parsed = json_loads(rows, JSON_ALLOW_NUL, NULL);

	if (!json_is_array(parsed))
	{
		json_decref(parsed);
		return false;
	}
	set_rows(list, parsed, 0);
	json_decref(parsed);
	list->seq = seq;
	free(list->parts);
	list->parts = NULL;
	return true;
}

/* ---- deltas ---- */

typedef struct Delta
{
	const char *op;
	json_int_t	from;			/* positions count from 1; 0: none */
	json_int_t	to;
	json_t	   *key;
	json_t	   *group;
	json_t	   *row;
	json_t	   *set;
	json_t	   *rows;
} Delta;

static bool
parse_delta(json_t *json, Delta *delta)
{
	json_int_t	pos = 0;

	memset(delta, 0, sizeof(Delta));
	if (json_unpack(json, "{s:s, s?I, s?I, s?I, s?o, s?o, s?o, s?o, s?o}",
					"op", &delta->op, "pos", &pos, "from", &delta->from,
					"to", &delta->to, "key", &delta->key,
					"group", &delta->group, "row", &delta->row,
					"set", &delta->set, "rows", &delta->rows) != 0)
		return false;
	if (strcmp(delta->op, "leave") == 0)
		delta->from = pos;
	else if (strcmp(delta->op, "move") != 0)
		delta->to = pos;
	return true;
}

/*
 * Where the rows of a group begin, or would begin.  Groups stand together;
 * where a new one belongs among them only a snapshot tells, here it is last.
 */
static size_t
group_start(const List *list, const json_t *group)
{
	size_t		i = 0;

	if (group)
		while (i < list->nrows &&
			   (list->rows[i] == NULL ||
				!json_equal(list->rows[i]->group, group)))
			i++;
	return i;
}

/*
 * The index of the row at a position, or, where positions do not exist, of the
 * row with the key; -1 if that is not the row that the delta names.
 */
static long
find_row(const List *list, const Delta *delta, json_int_t pos)
{
	size_t		at = group_start(list, delta->group) + pos - 1;

	if (pos == 0)
		for (at = 0; at < list->nrows; at++)
			if (json_equal(list->rows[at]->key, delta->key))
				break;
	if (at >= list->nrows || list->rows[at] == NULL ||
		!json_equal(list->rows[at]->key, delta->key))
		return -1;
	return (long) at;
}

static void
change_row(ListRow *row, json_t *set, double now)
{
	const char *column;
	json_t	   *value;

	json_object_foreach(set, column, value)
	{
		json_object_set(row->row, column, value);
		json_object_set_new(row->changed, column, json_real(now));
	}
}

static bool
place_row(List *list, const Delta *delta, ListRow *row)
{
	size_t		at = delta->to == 0 ? list->nrows :
		group_start(list, delta->group) + delta->to - 1;

	if (at > list->nrows)
		return false;
	insert_at(list, at, row);
	return true;
}

static ListRow *
row_of_delta(const Delta *delta, double now)
{
	json_t	   *entry = json_pack("{s:O, s:O, s:O*}", "key", delta->key,
								  "row", delta->row, "group", delta->group);
	ListRow    *row = make_row(entry, now);

	json_decref(entry);
	return row;
}

/* The list is edited delta by delta. */
static bool
apply_delta(List *list, const Delta *delta, double now)
{
	long		at;
	ListRow    *row;

	if (strcmp(delta->op, "reset") == 0)
	{
		set_rows(list, delta->rows, now);
		return true;
	}
	if (strcmp(delta->op, "enter") == 0)
	{
		row = row_of_delta(delta, now);
		if (place_row(list, delta, row))
			return true;
		free_row(row);
		return false;
	}

	at = find_row(list, delta, delta->from ? delta->from : delta->to);
	if (at < 0)
		return false;
	if (strcmp(delta->op, "leave") == 0)
		free_row(remove_at(list, at));
	else if (strcmp(delta->op, "update") == 0)
		change_row(list->rows[at], delta->set, now);
	else if (strcmp(delta->op, "move") == 0)
	{
		row = remove_at(list, at);
		change_row(row, delta->set, now);
		row->moved = now;
		row->upwards = delta->to < delta->from;
		return place_row(list, delta, row);
	}
	else
		return false;
	return true;
}

/*
 * Absolute ranks: rows that leave or move are taken out by their old ranks,
 * rows that move or enter are put at their new ones, the others stay in order
 * in the places between.  All in one group at a time.
 */
static bool
apply_absolute(List *list, const Delta *deltas, size_t n, double now)
{
	json_t	   *group = deltas[0].group;
	size_t		start = group_start(list, group);
	size_t		end = start;
	size_t		next = start;
	size_t		nplaced = 0;
	size_t		size;
	ListRow   **placed;
	ListRow   **rest;
	size_t		nrest = 0;
	bool		good = true;

	while (end < list->nrows &&
		   (group == NULL || json_equal(list->rows[end]->group, group)))
		end++;
	size = end - start + n;
	placed = calloc(size + 1, sizeof(ListRow *));
	rest = calloc(size + 1, sizeof(ListRow *));

	for (size_t i = 0; i < n && good; i++)
	{
		const Delta *delta = &deltas[i];
		ListRow    *row = NULL;

		if (delta->from > 0)
		{
			long		at = find_row(list, delta, delta->from);

			good = at >= 0;
			if (!good)
				break;
			row = list->rows[at];
			list->rows[at] = NULL;
			if (strcmp(delta->op, "leave") == 0)
			{
				free_row(row);
				continue;
			}
			change_row(row, delta->set, now);
			row->moved = now;
			row->upwards = delta->to < delta->from;
		}
		else if (strcmp(delta->op, "enter") == 0)
			row = row_of_delta(delta, now);
		if (row)
		{
			good = delta->to >= 1 && (size_t) delta->to <= size &&
				placed[delta->to - 1] == NULL;
			if (good)
				placed[delta->to - 1] = row;
			else
				free_row(row);
			nplaced++;
		}
	}
	for (size_t i = start; i < end; i++)
		if (list->rows[i])
			rest[nrest++] = list->rows[i];

	/* the new rows of the group, and then those behind it */
	size = nrest + nplaced;
	make_room(list, list->nrows - (end - start) + size);
	memmove(list->rows + start + size, list->rows + end,
			(list->nrows - end) * sizeof(ListRow *));
	list->nrows = list->nrows - (end - start) + size;
	for (size_t i = 0, r = 0; i < size; i++)
	{
		ListRow    *row = placed[i] ? placed[i] : r < nrest ? rest[r++] : NULL;

		list->rows[next++] = row;
		good = good && row;
	}
	free(placed);
	free(rest);

	for (size_t i = 0; i < n && good; i++)
		if (strcmp(deltas[i].op, "update") == 0)
		{
			long		at = find_row(list, &deltas[i], deltas[i].to);

			good = at >= 0;
			if (good)
				change_row(list->rows[at], deltas[i].set, now);
		}
	return good;
}

static bool
apply_deltas(List *list, json_t *array, double now)
{
	size_t		n = json_array_size(array);
	Delta	   *deltas = calloc(n + 1, sizeof(Delta));
	bool		good = true;

	for (size_t i = 0; i < n && good; i++)
		good = parse_delta(json_array_get(array, i), &deltas[i]);
	for (size_t i = 0, next; i < n && good; i = next)
	{
		next = i + 1;
		if (!list->absolute || strcmp(deltas[i].op, "reset") == 0)
			good = apply_delta(list, &deltas[i], now);
		else
		{
			while (next < n &&
				   (deltas[i].group == deltas[next].group ||
					json_equal(deltas[i].group, deltas[next].group)))
				next++;
			good = apply_absolute(list, deltas + i, next - i, now);
		}
	}
	free(deltas);
	return good;
}

/* ---- batches ---- */

/* "2026-11-29T21:26:00.123456+00:00" as seconds since 1970 */
static double
parse_time(const char *text)
{
	struct tm	tm = {0};
	double		seconds = 0;

	if (sscanf(text, "%d-%d-%dT%d:%d:%lf", &tm.tm_year, &tm.tm_mon,
			   &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &seconds) < 6)
		return 0;
	tm.tm_year -= 1900;
	tm.tm_mon -= 1;
	return timegm(&tm) + seconds;	/* the offset is always +00:00 */
}

static ListResult
apply_batch(List *list, json_t *batch, double now)
{
	json_int_t	seq;
	const char *at = "";
	const char *error = NULL;
	json_t	   *deltas;
	const char *first_op = "";

	if (json_unpack(batch, "{s:I, s:s, s:o, s?s}", "seq", &seq, "at", &at,
					"deltas", &deltas, "error", &error) != 0)
		return LIST_MALFORMED;
	json_unpack(json_array_get(deltas, 0), "{s:s}", "op", &first_op);
	if (seq <= list->seq)
		return LIST_IGNORED;
	if (seq != list->seq + 1 && strcmp(first_op, "reset") != 0)
		return LIST_GAP;
	if (!apply_deltas(list, deltas, now))
		return LIST_GAP;
	list->seq = seq;
	list->nbatches++;
	list->ndeltas += json_array_size(deltas);
	list->at = parse_time(at);
	free(list->error);
	list->error = error ? strdup(error) : NULL;
	return LIST_APPLIED;
}

ListResult
list_take(List *list, const char *payload, double now, const char **batch)
{
	json_t	   *message = json_loads(payload, JSON_ALLOW_NUL, NULL);
	const char *data;
	int			part;
	int			last;
	ListResult	result = LIST_IGNORED;

	if (message == NULL)
		return LIST_MALFORMED;
	if (batch)
		*batch = payload;
	if (json_unpack(message, "{s:i, s:i, s:s}", "part", &part,
					"parts", &last, "data", &data) != 0)
		result = apply_batch(list, message, now);
	else
	{
		size_t		have = part > 1 && list->parts ? strlen(list->parts) : 0;

		list->parts = realloc(list->parts, have + strlen(data) + 1);
		strcpy(list->parts + have, data);
		if (part == last)
		{
			json_t	   *joined = json_loads(list->parts, JSON_ALLOW_NUL, NULL);

			if (batch)
				*batch = list->parts;
			result = joined ? apply_batch(list, joined, now) : LIST_MALFORMED;
			json_decref(joined);
		}
	}
	json_decref(message);
	return result;
}
