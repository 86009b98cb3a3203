/*
 * topn_watch.c
 *	  Shows the result of a query live on a terminal.
 *
 * Subscribes to a query, or joins a subscription that is there, and keeps the
 * result up to date from its batches alone: those that are notified, or those
 * of a temporary replication slot.  What is subscribed here lives as long as
 * the session.  After losing the connection, everything starts anew.
 */
#include "postgres_fe.h"

#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "common/logging.h"
#include "common/string.h"
#include "getopt_long.h"
#include "libpq-fe.h"
#include "list.h"
#include "pqexpbuffer.h"
#include "screen.h"
#include "stream.h"

#define MAX_RETRY_MS	5000
#define FRAME_MS		50		/* between two drawings, at least */
#define NLATENCIES		1000	/* the last ones, for the status line */

/* Options. */
static const char *progname;
static const char *dbname;
static const char *host;
static const char *port;
static const char *user;
static char *password;
static const char *query;		/* NULL: follow */
static const char *follow;
static bool streaming;
static bool json;
static bool force_password;
static bool never_password;

/* The subscription. */
static PGconn *conn;			/* listens, and runs functions */
static PGconn *replication;		/* if streaming */
static char *name;
static List list;

/* What the status line says. */
static double latencies[NLATENCIES];
static long nlatencies;
static long reconnections;
static long resyncs;
static double rate;				/* batches per second */

static volatile sig_atomic_t ended;

static void
handle_signal(int signo)
{
	ended = signo;
}

static double
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec + ts.tv_nsec / 1e9;
}

/* ---- the connection ---- */

/* NULL if it cannot be made, with *error a message to be freed. */
static PGconn *
try_connect(bool for_replication, char **error)
{
	for (;;)
	{
		const char *keywords[] = {"dbname", "host", "port", "user", "password",
			"fallback_application_name", "replication", NULL};
		const char *values[] = {dbname, host, port, user, password,
			progname, for_replication ? "database" : NULL, NULL};
		PGconn	   *result;

		if (force_password && password == NULL)
			password = simple_prompt("Password: ", false);
		result = PQconnectdbParams(keywords, values, true);
		if (PQstatus(result) == CONNECTION_OK)
			return result;
		if (PQconnectionNeedsPassword(result) && password == NULL &&
			!never_password)
		{
			PQfinish(result);
			password = simple_prompt("Password: ", false);
			continue;
		}
		*error = pg_strdup(PQerrorMessage(result));
		PQfinish(result);
		return NULL;
	}
}

static PGresult *
run(PGconn *connection, const char *sql, const char *param)
{
	return PQexecParams(connection, sql, param ? 1 : 0, NULL, &param, NULL,
						NULL, 0);
}

static bool
succeeded(const PGresult *res)
{
	return PQresultStatus(res) == PGRES_COMMAND_OK ||
		PQresultStatus(res) == PGRES_TUPLES_OK;
}

/* Run a statement; false with the error if it fails. */
static bool
execute(const char *sql, const char *param, PGresult **res, char **error)
{
	*res = run(conn, sql, param);
	if (succeeded(*res))
		return true;
	*error = pg_strdup(PQresultErrorMessage(*res));
	PQclear(*res);
	return false;
}

static bool
take_snapshot(char **error)
{
	PGresult   *res;

	if (!execute("SELECT seq, rows FROM topn_snapshot($1)", name, &res, error))
		return false;
	if (!list_start(&list, strtoll(PQgetvalue(res, 0, 0), NULL, 10),
					PQgetvalue(res, 0, 1)))
		pg_fatal("the server's snapshot is no JSON array");
	if (json)
		printf("{\"sub\":\"%s\",\"seq\":%s,\"deltas\":[{\"op\":\"reset\",\"rows\":%s}]}\n",
			   name, PQgetvalue(res, 0, 0), PQgetvalue(res, 0, 1));
	PQclear(res);
	return true;
}

static bool
listen_to(char **error)
{
	PQExpBuffer command = createPQExpBuffer();
	char	   *channel = PQescapeIdentifier(conn, name, strlen(name));
	PGresult   *res;
	bool		good;

	appendPQExpBuffer(command, "LISTEN %s", channel);
	good = execute(command->data, NULL, &res, error);
	if (good)
		PQclear(res);
	PQfreemem(channel);
	destroyPQExpBuffer(command);
	return good;
}

/* Without it, the error would be about a function with unknown arguments. */
static bool
has_extension(char **error)
{
	PGresult   *res;
	bool		found;

	if (!execute("SELECT FROM pg_extension WHERE extname = 'live_topn'", NULL,
				 &res, error))
		return false;
	found = PQntuples(res) > 0;
	PQclear(res);
	if (!found)
		*error = psprintf("database \"%s\" lacks the extension: CREATE EXTENSION live_topn",
						  PQdb(conn));
	return found;
}

/* Make or find the subscription, and begin with its result. */
static bool
start(char **error)
{
	PGresult   *res;

	if (!has_extension(error))
		return false;
	if (query)
	{
		if (!execute(streaming ?
					 "SELECT subscribe_topn($1, deliver => 'stream', session => true)" :
					 "SELECT subscribe_topn($1, session => true)",
					 query, &res, error))
			return false;
		free(name);
		name = pg_strdup(PQgetvalue(res, 0, 0));
		PQclear(res);
	}
	if (!execute("SELECT ranks = 'absolute' FROM topn_subscriptions WHERE name = $1",
				 name, &res, error))
		return false;
	list_free(&list);
	list_init(&list, PQntuples(res) > 0 &&
			  strcmp(PQgetvalue(res, 0, 0), "t") == 0);
	PQclear(res);

	if (!streaming)
		return listen_to(error) && take_snapshot(error);

	replication = try_connect(true, error);
	if (replication == NULL)
		return false;
	if (stream_start(replication, name))
		return true;
	*error = pg_strdup(PQerrorMessage(replication));
	return false;
}

static void
disconnect(void)
{
	if (replication)
		PQfinish(replication);
	if (conn)
		PQfinish(conn);
	conn = replication = NULL;
}

static void
say(const char *what)
{
	if (json)
		pg_log_info("%s", what);
	else
		screen_draw(&list, query ? query : name, what, now(), 0);
}

/*
 * Connect again, for as long as it takes; but a subscription that is refused
 * would be refused again.
 */
static void
reconnect(const char *reason)
{
	int			delay_ms = 100;
	char	   *lost = pg_strdup(reason);	/* it may be the connection's own */

	for (bool first = true; !ended; first = false)
	{
		PQExpBuffer message = createPQExpBuffer();
		char	   *error = NULL;

		disconnect();
		conn = try_connect(false, &error);
		if (conn && start(&error))
		{
			destroyPQExpBuffer(message);
			reconnections++;
			break;
		}
		if (conn && PQstatus(conn) == CONNECTION_OK && !replication)
			pg_fatal("%s", error);
		appendPQExpBuffer(message, "connection lost, trying again: %s",
						  first && *lost ? lost : error);
		message->data[strcspn(message->data, "\n")] = '\0';
		say(message->data);
		destroyPQExpBuffer(message);
		free(error);
		pg_usleep(delay_ms * 1000L);
		delay_ms = Min(delay_ms * 2, MAX_RETRY_MS);
	}
	free(lost);
}

/* ---- batches ---- */

static void
take(const char *payload)
{
	const char *batch;
	char	   *error;
	double		received = now();

	switch (list_take(&list, payload, received, &batch))
	{
		case LIST_APPLIED:
			if (json)
				puts(batch);
			if (list.at > 0)
				latencies[nlatencies++ % NLATENCIES] = received - list.at;
			break;
		case LIST_IGNORED:
			break;
		case LIST_GAP:
		case LIST_MALFORMED:
			resyncs++;
			if (streaming)
				reconnect("a batch was missing");
			else if (!take_snapshot(&error))
				reconnect(error);
			break;
	}
}

/* Take what has come in; false if a connection is lost. */
static bool
receive(void)
{
	PGnotify   *notify;
	char	   *line;
	StreamResult result = STREAM_NOTHING;

	if (!PQconsumeInput(conn))
		return false;
	while (!streaming && conn && (notify = PQnotifies(conn)) != NULL)
	{
		if (strcmp(notify->relname, name) == 0)
			take(notify->extra);
		PQfreemem(notify);
	}
	if (!streaming)
		return true;
	if (!PQconsumeInput(replication))
		return false;
	while ((result = stream_next(replication, &line)) == STREAM_LINE)
	{
		take(line);
		pg_free(line);
	}
	return result == STREAM_NOTHING;
}

/* ---- the screen ---- */

static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/* The quantile of the last latencies, in milliseconds. */
static double
latency(double quantile)
{
	double		sorted[NLATENCIES];
	int			n = Min(nlatencies, NLATENCIES);

	if (n == 0)
		return 0;
	memcpy(sorted, latencies, n * sizeof(double));
	qsort(sorted, n, sizeof(double), compare_doubles);
	return sorted[(int) (quantile * (n - 1))] * 1000;
}

static void
draw(double at)
{
	static double counted_at;
	static long counted;
	static long total;
	static long last_nbatches;
	PQExpBuffer status = createPQExpBuffer();

	if (list.nbatches < last_nbatches)
		last_nbatches = 0;		/* after a reconnection */
	total += list.nbatches - last_nbatches;
	last_nbatches = list.nbatches;
	if (at - counted_at >= 1)
	{
		rate = counted_at > 0 ? (total - counted) / (at - counted_at) : 0;
		counted = total;
		counted_at = at;
	}
	appendPQExpBuffer(status, " %s  %zu rows  %ld batches, %.0f/s  ",
					  name, list.nrows, total, rate);
	appendPQExpBuffer(status, "latency %.1f ms, p99 %.1f ms  seq %lld",
					  latency(0.5), latency(0.99), (long long) list.seq);
	if (reconnections > 0)
		appendPQExpBuffer(status, "  reconnected %ld times", reconnections);
	if (resyncs > 0)
		appendPQExpBuffer(status, "  resynced %ld times", resyncs);
	appendPQExpBufferStr(status, "  q quits");
	screen_draw(&list, query ? query : name, status->data, at,
				PQclientEncoding(conn));
	destroyPQExpBuffer(status);
}

static void
watch(void)
{
	double		next_draw = 0;

	while (!ended)
	{
		struct pollfd fds[3] = {
			{.fd = PQsocket(conn), .events = POLLIN},
			{.fd = json ? -1 : STDIN_FILENO, .events = POLLIN},
			{.fd = streaming ? PQsocket(replication) : -1, .events = POLLIN}
		};

		poll(fds, 3, json ? -1 : FRAME_MS);
		if (ended)
			break;
		if (!receive())
			reconnect(PQerrorMessage(conn));
		if (!json && (fds[1].revents & POLLIN))
		{
			char		key = screen_key();

			if (key == 'q' || key == 'Q' || key == 0)
				break;
		}
		if (!json && !ended && now() >= next_draw)
		{
			draw(now());
			next_draw = now() + FRAME_MS / 1000.0;
		}
	}
}

/* ---- options ---- */

static void
usage(void)
{
	printf("%s shows the result of a query live.\n\n"
		   "Usage:\n"
		   "  %s [OPTION]... QUERY          subscribe to the query\n"
		   "  %s [OPTION]... --follow NAME  join a subscription that is there\n"
		   "\nOptions:\n"
		   "  -f, --follow=NAME    join the subscription of this name\n"
		   "      --json           print batches, one a line, beginning with a reset\n"
		   "  -s, --stream         read from a temporary replication slot, not from NOTIFY\n"
		   "  -V, --version        output version information, then exit\n"
		   "  -?, --help           show this help, then exit\n"
		   "\nConnection options:\n"
		   "  -d, --dbname=DBNAME  database, or connection string\n"
		   "  -h, --host=HOSTNAME  database server host or socket directory\n"
		   "  -p, --port=PORT      database server port\n"
		   "  -U, --username=NAME  user name\n"
		   "  -w, --no-password    never prompt for password\n"
		   "  -W, --password       force password prompt\n",
		   progname, progname, progname);
}

static void
parse_options(int argc, char **argv)
{
	enum
	{
		OPTION_JSON = 1
	};
	static const struct option options[] = {
		{"dbname", required_argument, NULL, 'd'},
		{"follow", required_argument, NULL, 'f'},
		{"host", required_argument, NULL, 'h'},
		{"json", no_argument, NULL, OPTION_JSON},
		{"port", required_argument, NULL, 'p'},
		{"stream", no_argument, NULL, 's'},
		{"username", required_argument, NULL, 'U'},
		{"no-password", no_argument, NULL, 'w'},
		{"password", no_argument, NULL, 'W'},
		{NULL, 0, NULL, 0}
	};
	int			c;

	while ((c = getopt_long(argc, argv, "d:f:h:p:sU:wW", options,
							NULL)) != -1)
	{
		switch (c)
		{
			case 'd':
				dbname = optarg;
				break;
			case 'f':
				follow = optarg;
				break;
			case 'h':
				host = optarg;
				break;
			case OPTION_JSON:
				json = true;
				break;
			case 'p':
				port = optarg;
				break;
			case 's':
				streaming = true;
				break;
			case 'U':
				user = optarg;
				break;
			case 'w':
				never_password = true;
				break;
			case 'W':
				force_password = true;
				break;
			default:
				pg_log_error_hint("Try \"%s --help\" for more information.",
								  progname);
				exit(2);
		}
	}
	if (optind < argc)
		query = argv[optind++];
	if (optind < argc || (query == NULL) == (follow == NULL))
	{
		pg_log_error("give one query, or a subscription with --follow");
		pg_log_error_hint("Try \"%s --help\" for more information.", progname);
		exit(2);
	}
	if (!json && !isatty(STDOUT_FILENO))
	{
		pg_log_error("standard output is no terminal");
		pg_log_error_hint("Use --json to print batches.");
		exit(2);
	}
}

int
main(int argc, char **argv)
{
	char	   *error;
	PGresult   *res;

	pg_logging_init(argv[0]);
	progname = get_progname(argv[0]);
	if (argc > 1 && (strcmp(argv[1], "--help") == 0 ||
					 strcmp(argv[1], "-?") == 0))
	{
		usage();
		exit(0);
	}
	if (argc > 1 && (strcmp(argv[1], "--version") == 0 ||
					 strcmp(argv[1], "-V") == 0))
	{
		printf("topn_watch (live_topn) " LIVE_TOPN_VERSION "\n");
		exit(0);
	}
	parse_options(argc, argv);
	if (json)
		setvbuf(stdout, NULL, PG_IOLBF, BUFSIZ);
	if (follow)
		name = pg_strdup(follow);
	list_init(&list, false);

	conn = try_connect(false, &error);
	if (conn == NULL || !start(&error))
		pg_fatal("%s", error);
	if (!json)
		screen_open();
	signal(SIGINT, handle_signal);
	signal(SIGTERM, handle_signal);
	signal(SIGHUP, handle_signal);
	signal(SIGPIPE, SIG_IGN);
	watch();

	/* the session's end would do it as well, a little later */
	if (query && conn && PQstatus(conn) == CONNECTION_OK)
	{
		res = run(conn, "SELECT unsubscribe_topn($1)", name);
		PQclear(res);
	}
	disconnect();
	return 0;
}
