/*
 * screen.c
 *	  A list on a terminal.
 *
 * What has happened of late is highlighted for a moment: rows that entered,
 * rows that moved with the direction, cells that changed.  Nothing but ANSI
 * escape sequences is used, which every terminal of today understands.
 */
#include "postgres_fe.h"

#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "libpq-fe.h"
#include "pqexpbuffer.h"
#include "screen.h"

#define HIGHLIGHT_TIME	0.8		/* seconds */
#define MAX_COLUMNS		64
#define MIN_WIDTH		4
#define MAX_WIDTH		40

#define BOLD			"\033[1m"
#define DIM				"\033[2m"
#define GREEN			"\033[32m"
#define YELLOW			"\033[33m"
#define PLAIN			"\033[0m"

/* A column of the table: of the group, if grouped, or of the select list. */
typedef struct Column
{
	const char *name;
	bool		of_group;
	bool		number;			/* aligned to the right */
	int			width;
} Column;

static struct termios saved_termios;
static bool is_open;
static int	encoding_now;		/* of what is being drawn */

void
screen_open(void)
{
	struct termios raw;

	if (tcgetattr(STDIN_FILENO, &saved_termios) == 0)
	{
		raw = saved_termios;
		raw.c_lflag &= ~(ICANON | ECHO);
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	printf("\033[?1049h\033[?25l");
	fflush(stdout);
	is_open = true;
	atexit(screen_close);
}

void
screen_close(void)
{
	if (!is_open)
		return;
	is_open = false;
	printf("\033[?25h\033[?1049l");
	fflush(stdout);
	tcsetattr(STDIN_FILENO, TCSANOW, &saved_termios);
}

char
screen_key(void)
{
	char		key = 0;

	return read(STDIN_FILENO, &key, 1) == 1 ? key : 0;
}

static void
get_size(int *lines, int *columns)
{
	struct winsize size;

	*lines = 24;
	*columns = 80;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0)
	{
		*lines = size.ws_row;
		*columns = size.ws_col;
	}
}

/*
 * Append text, cut or padded to so many places of the screen; control
 * characters show as dots.
 */
static void
append_cell(PQExpBuffer out, const char *text, int width, bool right)
{
	PQExpBuffer cell = createPQExpBuffer();
	int			used = 0;

	while (*text)
	{
		int			length = PQmblenBounded(text, encoding_now);
		int			places = PQdsplen(text, encoding_now);

		if (places < 0 || (unsigned char) *text < ' ')
			places = 1;
		if (used + places > width)
			break;
		if ((unsigned char) *text < ' ' || PQdsplen(text, encoding_now) < 0)
			appendPQExpBufferChar(cell, '.');
		else
			appendBinaryPQExpBuffer(cell, text, length);
		used += places;
		text += length;
	}
	if (right)
		appendPQExpBuffer(out, "%*s", width - used, "");
	appendPQExpBufferStr(out, cell->data);
	if (!right)
		appendPQExpBuffer(out, "%*s", width - used, "");
	destroyPQExpBuffer(cell);
}

/* A value as text, to be freed. */
static char *
value_text(const json_t *value)
{
	if (value == NULL || json_is_null(value))
		return pg_strdup("");
	if (json_is_string(value))
		return pg_strdup(json_string_value(value));
	return json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
}

static int
text_width(const char *text)
{
	int			width = 0;

	while (*text)
	{
		width += Max(PQdsplen(text, encoding_now), 1);
		text += PQmblenBounded(text, encoding_now);
	}
	return width;
}

static json_t *
cell_value(const ListRow *row, const Column *column)
{
	return json_object_get(column->of_group ? row->group : row->row,
						   column->name);
}

static void
add_columns(Column *columns, int *n, json_t *object, bool of_group)
{
	const char *name;
	json_t	   *value;

	json_object_foreach(object, name, value)
	{
		Column	   *column = &columns[*n];

		if (*n == MAX_COLUMNS)
			break;
		memset(column, 0, sizeof(Column));
		column->name = name;
		column->of_group = of_group;
		column->width = Max(MIN_WIDTH, text_width(name));
		(*n)++;
	}
}

/* The columns of the list, as wide as the rows that show need. */
static int
find_columns(const List *list, int nrows, Column *columns)
{
	int			n = 0;

	if (list->nrows == 0)
		return 0;
	add_columns(columns, &n, list->rows[0]->group, true);
	add_columns(columns, &n, list->rows[0]->row, false);
	for (int i = 0; i < n; i++)
	{
		for (int j = 0; j < nrows; j++)
		{
			json_t	   *value = cell_value(list->rows[j], &columns[i]);
			char	   *text = value_text(value);

			columns[i].number |= json_is_number(value);
			columns[i].width = Max(columns[i].width, text_width(text));
			free(text);
		}
		columns[i].width = Min(columns[i].width, MAX_WIDTH);
	}
	return n;
}

static void
append_row(PQExpBuffer out, const ListRow *row, int number,
		   const Column *columns, int ncolumns, int room, double now)
{
	bool		entered = now - row->entered < HIGHLIGHT_TIME;
	bool		moved = now - row->moved < HIGHLIGHT_TIME;

	appendPQExpBuffer(out, "%s%5d %s ", entered ? BOLD GREEN : "", number,
					  entered ? "+" : !moved ? " " : row->upwards ? "^" : "v");
	room -= 8;
	for (int i = 0; i < ncolumns && room > 0; i++)
	{
		const Column *column = &columns[i];
		json_t	   *at = json_object_get(row->changed, column->name);
		bool		changed = now - json_real_value(at) < HIGHLIGHT_TIME;
		char	   *text = value_text(cell_value(row, column));
		int			width = Min(column->width, room);

		if (changed && !entered)
			appendPQExpBufferStr(out, BOLD YELLOW);
		append_cell(out, text, width, column->number);
		if (changed && !entered)
			appendPQExpBufferStr(out, PLAIN);
		if (room > width + 2)
			appendPQExpBufferStr(out, "  ");
		room -= width + 2;
		free(text);
	}
	appendPQExpBufferStr(out, PLAIN "\033[K\r\n");
}

void
screen_draw(const List *list, const char *title, const char *status,
			double now, int encoding)
{
	PQExpBuffer out = createPQExpBuffer();
	Column		columns[MAX_COLUMNS];
	int			lines;
	int			width;
	int			nrows;
	int			ncolumns;
	int			room;

	encoding_now = encoding;
	get_size(&lines, &width);
	nrows = Max(0, Min(lines - 4, (int) list->nrows));
	ncolumns = find_columns(list, nrows, columns);

	appendPQExpBufferStr(out, "\033[H" BOLD);
	append_cell(out, title, width, false);
	appendPQExpBufferStr(out, PLAIN "\033[K\r\n" DIM "        ");
	room = width - 8;
	for (int i = 0; i < ncolumns && room > 0; i++)
	{
		append_cell(out, columns[i].name, Min(columns[i].width, room),
					columns[i].number);
		if (room > columns[i].width + 2)
			appendPQExpBufferStr(out, "  ");
		room -= columns[i].width + 2;
	}
	appendPQExpBufferStr(out, PLAIN "\033[K\r\n");
	for (int i = 0; i < nrows; i++)
	{
		const ListRow *row = list->rows[i];
		int			number = i + 1;

		/* positions are within the group */
		if (row->group)
			for (number = 1; number <= i &&
				 json_equal(list->rows[i - number]->group, row->group);)
				number++;
		append_row(out, row, number, columns, ncolumns, width, now);
	}
	appendPQExpBufferStr(out, "\033[J");
	if ((int) list->nrows > nrows)
		appendPQExpBuffer(out, DIM "        and %d more" PLAIN,
						  (int) list->nrows - nrows);
	if (list->error)
		appendPQExpBuffer(out, "\r\n" BOLD "error: %s" PLAIN, list->error);
	appendPQExpBuffer(out, "\033[%d;1H\033[7m", lines);
	append_cell(out, status, width, false);
	appendPQExpBufferStr(out, PLAIN);

	fwrite(out->data, 1, out->len, stdout);
	fflush(stdout);
	destroyPQExpBuffer(out);
}
