/*
 * demo.c
 *	  Subscribes to a query, shows its result live, checks it at the end.
 *
 *	  demo [-q] [-v query] QUERY COMMAND [ARGUMENT ...]
 *
 * Subscribes to QUERY and keeps its result up to date from NOTIFY alone while
 * COMMAND runs; a terminal shows it.  Then compares it with what the server
 * says: with QUERY, or with the query of -v, where QUERY leaves the order of
 * some rows open.  The exit status is 0 if both are equal, no batch was
 * missing, and the command succeeded.
 *
 * The list begins as the answer of topn_snapshot(), taken after LISTEN, so that
 * no batch is lost in between; batches up to the snapshot's are skipped.
 *
 * The connection comes from libpq's environment variables (PGHOST, ...).
 */
#include "postgres_fe.h"

#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libpq-fe.h"
#include "list.h"
#include "screen.h"

/* The subscription, and what was received. */
static char *name;
static List list;
static long ngaps = 0;
static double *latencies = NULL;	/* seconds, list.nbatches of them */

static volatile sig_atomic_t interrupted = 0;
static pid_t command_pid = 0;

static void die(const char *format,...) pg_attribute_printf(1, 2);

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

/* A batch that does not fit ends the demo: nothing may be lost. */
static void
handle_notification(const char *payload, double received)
{
	switch (list_take(&list, payload, received, NULL))
	{
		case LIST_APPLIED:
			latencies = realloc(latencies, list.nbatches * sizeof(double));
			latencies[list.nbatches - 1] = received - list.at;
			break;
		case LIST_IGNORED:
			break;
		case LIST_GAP:
			ngaps++;
			break;
		case LIST_MALFORMED:
			die("malformed batch: %s", payload);
	}
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
	list_init(&list, false);
	if (!list_start(&list, strtoll(PQgetvalue(res, 0, 0), NULL, 10),
					PQgetvalue(res, 0, 1)))
		die("the snapshot is no JSON array");
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

	if (list.nbatches == 0)
		return 0;
	sorted = malloc(list.nbatches * sizeof(double));
	memcpy(sorted, latencies, list.nbatches * sizeof(double));
	qsort(sorted, list.nbatches, sizeof(double), compare_doubles);
	result = sorted[(long) (quantile * (list.nbatches - 1))] * 1000;
	free(sorted);
	return result;
}

/* The numbers so far, and with a terminal the list above them. */
static void
draw(PGconn *conn, bool terminal, double elapsed)
{
	static double last_elapsed = 0;
	static long last_nbatches = 0;
	static double rate = 0;
	char		status[200];

	if (elapsed - last_elapsed >= 1)
	{
		rate = (list.nbatches - last_nbatches) / (elapsed - last_elapsed);
		last_elapsed = elapsed;
		last_nbatches = list.nbatches;
	}
	snprintf(status, sizeof(status),
			 "%5.1f s  %zu rows  %ld batches, %.0f/s  %ld deltas  "
			 "latency %.1f ms, p99 %.1f ms",
			 elapsed, list.nrows, list.nbatches, rate, list.ndeltas,
			 latency(0.5), latency(0.99));
	if (terminal)
		screen_draw(&list, name, status, now(), PQclientEncoding(conn));
	else
		printf("%s\n", status);
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
watch(PGconn *conn, PGconn *control, bool quiet)
{
	bool		terminal = isatty(STDOUT_FILENO);
	double		start = now();
	double		next_draw = start;
	int			status = 0;
	bool		synced = false;

	if (terminal && !quiet)
		screen_open();
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
			draw(conn, terminal, now() - start);
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
	screen_close();

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

	equal = PQntuples(res) == (int) list.nrows;
	for (int i = 0; equal && i < PQntuples(res); i++)
	{
		json_t	   *expected = json_loads(PQgetvalue(res, i, 0),
										  JSON_ALLOW_NUL, NULL);
		json_t	   *row = list.rows[i]->row;

		equal = json_equal(row, expected);
		if (!equal)
			printf("row %d is %s\nbut should be %s\n", i + 1,
				   json_dumps(row, JSON_COMPACT), PQgetvalue(res, i, 0));
		json_decref(expected);
	}
	printf("comparison:  the client has %zu rows, the query returns %d: %s\n",
		   list.nrows, PQntuples(res),
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
	const char *verify_query = NULL;
	const char *query;
	PGconn	   *conn;
	PGconn	   *control;
	bool		succeeded;
	bool		equal;
	int			c;

	while ((c = getopt(argc, argv, "+qv:")) != -1)
	{
		if (c == 'q')
			quiet = true;
		else if (c == 'v')
			verify_query = optarg;
		else
			exit(2);
	}
	if (argc - optind < 2)
	{
		fprintf(stderr, "usage: demo [-q] [-v query] "
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
	succeeded = watch(conn, control, quiet);

	printf("received:    %ld batches with %ld deltas, %ld missing; "
		   "%" JSON_INTEGER_FORMAT " refills\n",
		   list.nbatches, list.ndeltas, ngaps, get_refills(control));
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
