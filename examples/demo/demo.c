/*
 * demo.c
 *	  Subscribes to a query, shows its result live, checks it at the end.
 *
 *	  demo [-q] [-l lines] [-v query] QUERY COMMAND [ARGUMENT ...]
 *
 * Subscribes to QUERY and keeps its result up to date from NOTIFY alone while
 * COMMAND runs, with at most "lines" rows of it on the terminal.  Then compares
 * the result with what the server says: with QUERY, or with the query of -v,
 * where QUERY leaves the order of some rows open.  The exit status is 0 if
 * both are equal, no batch was missing, and the command succeeded.
 *
 * The invariant: "rows" is the result after batch "seq".  It begins as the
 * answer of topn_snapshot(), taken after LISTEN, so that no batch is lost in
 * between; batches up to the snapshot's are skipped.
 *
 * The connection comes from libpq's environment variables (PGHOST, ...).
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>
#include <libpq-fe.h>

#define HIGHLIGHT_TIME	0.7		/* seconds that a changed row is bold */
#define COLUMN_WIDTH	14

/* The subscription, as a client sees it. */
static char *name;
static json_t *rows;			/* array of {"key":…, "row":…, "changed":…} */
static json_int_t seq;			/* of the last batch applied */
static char *parts = NULL;		/* data of the parts received so far */

/* What was received. */
static long nbatches = 0;
static long ndeltas = 0;
static long ngaps = 0;
static double *latencies = NULL;	/* seconds, nbatches of them */

static volatile sig_atomic_t interrupted = 0;
static pid_t command_pid = 0;

static void
die(const char *format,...)
{
	va_list		args;

	fprintf(stderr, "demo: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	if (command_pid > 0)
		kill(command_pid, SIGTERM);
	exit(1);
}

static void
handle_signal(int signo)
{
	interrupted = signo;
}

static double
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

static PGconn *
connect_to_server(void)
{
	PGconn	   *conn = PQconnectdb("fallback_application_name=demo");

	if (PQstatus(conn) != CONNECTION_OK)
		die("%s", PQerrorMessage(conn));
	return conn;
}

/* Run a statement whose parameter, if any, is $1. */
static PGresult *
execute(PGconn *conn, const char *sql, const char *param)
{
	PGresult   *res = PQexecParams(conn, sql, param ? 1 : 0, NULL, &param,
								   NULL, NULL, 0);

	if (PQresultStatus(res) != PGRES_COMMAND_OK &&
		PQresultStatus(res) != PGRES_TUPLES_OK)
		die("%s", PQresultErrorMessage(res));
	return res;
}

static json_t *
parse(const char *text)
{
	json_error_t error;
	json_t	   *value = json_loads(text, JSON_ALLOW_NUL, &error);

	if (value == NULL)
		die("cannot parse JSON: %s: %s", error.text, text);
	return value;
}

/* ---- the list and its batches ---- */

/* The row at a position that must be there, with the key that it must have. */
static json_t *
row_at(json_int_t pos, json_t *key)
{
	json_t	   *row = json_array_get(rows, pos - 1);

	if (row == NULL)
		die("batch %" JSON_INTEGER_FORMAT ": no row at position %"
			JSON_INTEGER_FORMAT, seq, pos);
	if (!json_equal(json_object_get(row, "key"), key))
		die("batch %" JSON_INTEGER_FORMAT ": another row at position %"
			JSON_INTEGER_FORMAT, seq, pos);
	return row;
}

static void
insert_row(json_int_t pos, json_t *row)
{
	if (json_array_insert(rows, pos - 1, row) != 0)
		die("batch %" JSON_INTEGER_FORMAT ": cannot insert at position %"
			JSON_INTEGER_FORMAT, seq, pos);
}

static void
apply_delta(json_t *delta)
{
	const char *op = "";
	json_int_t	pos = 0;
	json_int_t	from = 0;
	json_int_t	to = 0;
	json_t	   *key = NULL;
	json_t	   *row = NULL;
	json_t	   *set = NULL;

	json_unpack(delta, "{s:s, s?I, s?I, s?I, s?o, s?o, s?o}",
				"op", &op, "pos", &pos, "from", &from, "to", &to,
				"key", &key, "row", &row, "set", &set);

	if (strcmp(op, "reset") == 0)
	{
		json_decref(rows);
		rows = json_incref(json_object_get(delta, "rows"));
		return;
	}
	else if (strcmp(op, "leave") == 0)
	{
		row_at(pos, key);
		json_array_remove(rows, pos - 1);
		return;
	}
	else if (strcmp(op, "enter") == 0)
	{
		row = json_pack("{s:O, s:O}", "key", key, "row", row);
		insert_row(pos, row);
	}
	else if (strcmp(op, "move") == 0)
	{
		row = json_incref(row_at(from, key));
		json_array_remove(rows, from - 1);
		insert_row(to, row);
	}
	else if (strcmp(op, "update") == 0)
		row = json_incref(row_at(pos, key));
	else
		die("unknown delta \"%s\"", op);

	if (set != NULL)
		json_object_update(json_object_get(row, "row"), set);
	json_object_set_new(row, "changed", json_real(now()));
	json_decref(row);
}

/* "2026-11-29T21:26:00.123456+00:00" as seconds since 1970 */
static double
parse_time(const char *text)
{
	struct tm	tm = {0};
	double		seconds;
	int			offset_hours = 0;
	int			offset_minutes = 0;

	if (sscanf(text, "%d-%d-%dT%d:%d:%lf%d:%d",
			   &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min,
			   &seconds, &offset_hours, &offset_minutes) < 6)
		die("cannot parse the time \"%s\"", text);
	if (offset_hours < 0)
		offset_minutes = -offset_minutes;
	tm.tm_year -= 1900;
	tm.tm_mon -= 1;
	return timegm(&tm) + seconds - offset_hours * 3600 - offset_minutes * 60;
}

static void
apply_batch(json_t *batch, double received)
{
	json_int_t	batch_seq;
	const char *at;
	json_t	   *deltas;
	json_t	   *delta;
	size_t		i;

	if (json_unpack(batch, "{s:I, s:s, s:o}", "seq", &batch_seq, "at", &at,
					"deltas", &deltas) != 0)
		die("malformed batch");
	if (batch_seq <= seq)
		return;					/* the snapshot has it */
	if (batch_seq != seq + 1)
		ngaps++;
	seq = batch_seq;

	json_array_foreach(deltas, i, delta)
		apply_delta(delta);

	latencies = realloc(latencies, (nbatches + 1) * sizeof(double));
	latencies[nbatches++] = received - parse_time(at);
	ndeltas += json_array_size(deltas);
}

/* A notification is a batch, or part of a long one. */
static void
handle_notification(const char *payload, double received)
{
	json_t	   *message = parse(payload);
	const char *data;
	int			part;
	int			last;

	if (json_unpack(message, "{s:i, s:i, s:s}", "part", &part,
					"parts", &last, "data", &data) != 0)
		apply_batch(message, received);
	else
	{
		size_t		have = part > 1 && parts ? strlen(parts) : 0;

		parts = realloc(parts, have + strlen(data) + 1);
		strcpy(parts + have, data);
		if (part == last)
		{
			json_t	   *batch = parse(parts);

			apply_batch(batch, received);
			json_decref(batch);
		}
	}
	json_decref(message);
}

static void
handle_notifications(PGconn *conn)
{
	PGnotify   *notify;
	double		received;

	if (!PQconsumeInput(conn))
		die("%s", PQerrorMessage(conn));
	received = now();
	while ((notify = PQnotifies(conn)) != NULL)
	{
		handle_notification(notify->extra, received);
		PQfreemem(notify);
	}
}

static void
subscribe(PGconn *conn, const char *query)
{
	PGresult   *res;
	char	   *channel;
	char	   *listen;

	res = execute(conn, "SELECT subscribe_topn($1)", query);
	name = strdup(PQgetvalue(res, 0, 0));
	PQclear(res);

	channel = PQescapeIdentifier(conn, name, strlen(name));
	listen = malloc(strlen(channel) + 8);
	sprintf(listen, "LISTEN %s", channel);
	PQclear(execute(conn, listen, NULL));
	free(listen);
	PQfreemem(channel);

	res = execute(conn, "SELECT seq, rows FROM topn_snapshot($1)", name);
	seq = strtoll(PQgetvalue(res, 0, 0), NULL, 10);
	rows = parse(PQgetvalue(res, 0, 1));
	PQclear(res);
}

/* ---- the terminal ---- */

static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/* The quantile in milliseconds. */
static double
latency(double quantile)
{
	double	   *sorted;
	double		result;

	if (nbatches == 0)
		return 0;
	sorted = malloc(nbatches * sizeof(double));
	memcpy(sorted, latencies, nbatches * sizeof(double));
	qsort(sorted, nbatches, sizeof(double), compare_doubles);
	result = sorted[(long) (quantile * (nbatches - 1))] * 1000;
	free(sorted);
	return result;
}

static void
draw_value(json_t *value)
{
	char	   *text;

	if (json_is_string(value))
		text = strdup(json_string_value(value));
	else
		text = json_dumps(value, JSON_ENCODE_ANY);
	printf(" %*.*s", COLUMN_WIDTH, COLUMN_WIDTH, text);
	free(text);
}

/*
 * Draw over what was drawn before: a line of column names, the rows, and a
 * line of numbers.  Without a terminal, just the latter.
 */
static void
draw(int lines, double elapsed)
{
	static int	drawn = 0;
	static double last_elapsed = 0;
	static long last_nbatches = 0;
	static double rate = 0;
	const char *column;
	json_t	   *value;

	if (elapsed - last_elapsed >= 1)
	{
		rate = (nbatches - last_nbatches) / (elapsed - last_elapsed);
		last_elapsed = elapsed;
		last_nbatches = nbatches;
	}

	if (drawn > 0)
		printf("\033[%dA", drawn);
	drawn = 0;
	if (lines > 0)
	{
		printf("\033[K    ");
		json_object_foreach(json_object_get(json_array_get(rows, 0), "row"),
							column, value)
			printf(" %*.*s", COLUMN_WIDTH, COLUMN_WIDTH, column);
		printf("\n");
		for (int i = 0; i < lines; i++)
		{
			json_t	   *row = json_array_get(rows, i);
			double		changed;

			printf("\033[K");
			changed = json_real_value(json_object_get(row, "changed"));
			if (now() - changed < HIGHLIGHT_TIME)
				printf("\033[1m");
			if (row != NULL)
				printf("%4d", i + 1);
			json_object_foreach(json_object_get(row, "row"), column, value)
				draw_value(value);
			printf("\033[0m\n");
		}
		drawn = lines + 2;
		printf("\033[K");
	}
	printf("%5.1f s  %zu rows  %ld batches, %.0f/s  %ld deltas  "
		   "latency %.1f ms, p99 %.1f ms\n",
		   elapsed, json_array_size(rows), nbatches, rate, ndeltas,
		   latency(0.5), latency(0.99));
	fflush(stdout);
}

/* ---- the run ---- */

static void
start_command(char **argv)
{
	command_pid = fork();
	if (command_pid < 0)
		die("could not fork: %s", strerror(errno));
	if (command_pid == 0)
	{
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		execvp(argv[0], argv);
		fprintf(stderr, "demo: could not run \"%s\": %s\n", argv[0],
				strerror(errno));
		_exit(127);
	}
}

/*
 * Apply batches until the command has ended and the server has published all
 * that it did.  True if the command succeeded.
 */
static bool
watch(PGconn *conn, PGconn *control, bool quiet, int lines)
{
	bool		terminal = isatty(STDOUT_FILENO);
	double		start = now();
	double		next_draw = start;
	int			status = 0;
	bool		synced = false;

	while (!synced)
	{
		struct pollfd fds[2] = {
			{.fd = PQsocket(conn), .events = POLLIN},
			{.fd = PQsocket(control), .events = POLLIN}
		};

		poll(fds, 2, 100);
		if (interrupted)
		{
			if (command_pid > 0)
			{
				kill(command_pid, SIGTERM);
				waitpid(command_pid, NULL, 0);
			}
			exit(128 + interrupted);
		}
		handle_notifications(conn);

		if (command_pid > 0)
		{
			if (waitpid(command_pid, &status, WNOHANG) == command_pid)
			{
				command_pid = 0;
				if (!PQsendQuery(control, "SELECT topn_sync('5 min')"))
					die("%s", PQerrorMessage(control));
			}
		}
		else
		{
			if (!PQconsumeInput(control))
				die("%s", PQerrorMessage(control));
			synced = !PQisBusy(control);
		}

		if (!quiet && (now() >= next_draw || synced))
		{
			draw(terminal ? lines : 0, now() - start);
			next_draw = now() + (terminal ? 0.1 : 1);
		}
	}

	for (PGresult *res; (res = PQgetResult(control)) != NULL; PQclear(res))
	{
		if (PQresultStatus(res) != PGRES_TUPLES_OK)
			die("%s", PQresultErrorMessage(res));
	}
	/* The server delivers what is pending before it answers. */
	PQclear(execute(conn, "SELECT", NULL));
	handle_notifications(conn);
	if (!quiet)
		printf("\n");

	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Is the list what the query returns? */
static bool
verify(PGconn *conn, const char *query)
{
	char	   *sql = malloc(strlen(query) + 64);
	PGresult   *res;
	bool		equal;

	sprintf(sql, "SELECT row_to_json(q) FROM (%s) q", query);
	res = execute(conn, sql, NULL);
	free(sql);

	equal = PQntuples(res) == (int) json_array_size(rows);
	for (int i = 0; equal && i < PQntuples(res); i++)
	{
		json_t	   *expected = parse(PQgetvalue(res, i, 0));
		json_t	   *row = json_object_get(json_array_get(rows, i), "row");

		equal = json_equal(row, expected);
		if (!equal)
			printf("row %d is %s\nbut should be %s\n", i + 1,
				   json_dumps(row, JSON_COMPACT), PQgetvalue(res, i, 0));
		json_decref(expected);
	}
	printf("comparison:  the client has %zu rows, the query returns %d: %s\n",
		   json_array_size(rows), PQntuples(res),
		   equal ? "equal" : "DIFFERENT");
	PQclear(res);
	return equal;
}

static json_int_t
get_refills(PGconn *conn)
{
	PGresult   *res;
	json_int_t	refills;

	res = execute(conn, "SELECT refills FROM topn_stats WHERE name = $1", name);
	refills = PQntuples(res) > 0 ?
		strtoll(PQgetvalue(res, 0, 0), NULL, 10) : 0;
	PQclear(res);
	return refills;
}

int
main(int argc, char **argv)
{
	bool		quiet = false;
	int			lines = 15;
	const char *verify_query = NULL;
	const char *query;
	PGconn	   *conn;
	PGconn	   *control;
	bool		succeeded;
	bool		equal;
	int			c;

	while ((c = getopt(argc, argv, "+ql:v:")) != -1)
	{
		if (c == 'q')
			quiet = true;
		else if (c == 'l')
			lines = atoi(optarg);
		else if (c == 'v')
			verify_query = optarg;
		else
			exit(2);
	}
	if (argc - optind < 2)
	{
		fprintf(stderr, "usage: demo [-q] [-l lines] [-v query] "
				"QUERY COMMAND [ARGUMENT ...]\n");
		exit(2);
	}
	query = argv[optind];

	signal(SIGINT, handle_signal);
	signal(SIGTERM, handle_signal);

	conn = connect_to_server();
	control = connect_to_server();
	subscribe(conn, query);
	start_command(argv + optind + 1);
	succeeded = watch(conn, control, quiet, lines);

	printf("received:    %ld batches with %ld deltas, %ld missing; "
		   "%" JSON_INTEGER_FORMAT " refills\n",
		   nbatches, ndeltas, ngaps, get_refills(control));
	printf("latency:     %.2f ms from commit to delivery (median), "
		   "p99 %.2f ms\n", latency(0.5), latency(0.99));
	equal = verify(control, verify_query ? verify_query : query);

	PQclear(execute(control, "SELECT unsubscribe_topn($1)", name));
	PQfinish(conn);
	PQfinish(control);
	if (!succeeded)
		die("the command failed");
	return equal && ngaps == 0 ? 0 : 1;
}
