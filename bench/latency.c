/*
 * latency.c
 *	  From commit to notification: how long?
 *
 *	  latency CHANNEL SQL COMMAND [ARGUMENT ...]
 *
 * Listens on CHANNEL while COMMAND runs.  Then runs SQL, which must not return
 * before the last notification has been sent, and prints the number of
 * notifications and the median, the 99th percentile and the maximum of their
 * latency in milliseconds.
 *
 * The payloads must contain "xid":N.  The latency of a notification is the
 * time at which this client has read it minus the commit time of that
 * transaction, which comes from track_commit_timestamp; so it means the same
 * whoever sends the notification.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

static unsigned long *xids = NULL;
static double *times = NULL;	/* received at, seconds since 1970 */
static long count = 0;
static pid_t command_pid = 0;

static void
die(const char *message)
{
	fprintf(stderr, "latency: %s\n", message);
	if (command_pid > 0)
		kill(command_pid, SIGTERM);
	exit(1);
}

static PGresult *
execute(PGconn *conn, const char *sql, const char *param)
{
	PGresult   *res = PQexecParams(conn, sql, param ? 1 : 0, NULL, &param,
								   NULL, NULL, 0);

	if (PQresultStatus(res) != PGRES_COMMAND_OK &&
		PQresultStatus(res) != PGRES_TUPLES_OK)
		die(PQresultErrorMessage(res));
	return res;
}

static void
receive(PGconn *conn)
{
	PGnotify   *notify;
	struct timespec now;

	if (!PQconsumeInput(conn))
		die(PQerrorMessage(conn));
	clock_gettime(CLOCK_REALTIME, &now);
	while ((notify = PQnotifies(conn)) != NULL)
	{
		char	   *xid = strstr(notify->extra, "\"xid\":");

		if (xid == NULL)
			die("a payload without \"xid\"");
		if ((count & (count - 1)) == 0)
		{
			xids = realloc(xids, (2 * count + 1) * sizeof(xids[0]));
			times = realloc(times, (2 * count + 1) * sizeof(times[0]));
		}
		xids[count] = strtoul(xid + strlen("\"xid\":"), NULL, 10);
		times[count++] = now.tv_sec + now.tv_nsec / 1e9;
		PQfreemem(notify);
	}
}

static int
compare_doubles(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/* Turn times into latencies. */
static void
subtract_commit_times(PGconn *conn)
{
	char	   *array = malloc(count * 22 + 3);
	char	   *end = array;
	PGresult   *res;

	for (long i = 0; i < count; i++)
		end += sprintf(end, "%c%lu", i == 0 ? '{' : ',', xids[i]);
	strcpy(end, "}");
	res = execute(conn,
				  "SELECT extract(epoch FROM"
				  "               pg_xact_commit_timestamp(x::text::xid))"
				  "  FROM unnest($1::text[]) WITH ORDINALITY u (x, n)"
				  "  ORDER BY n",
				  array);
	for (long i = 0; i < count; i++)
		times[i] -= strtod(PQgetvalue(res, i, 0), NULL);
	PQclear(res);
	free(array);
}

int
main(int argc, char **argv)
{
	PGconn	   *conn;
	int			status;
	char		listen[128];

	if (argc < 4)
	{
		fprintf(stderr, "usage: latency CHANNEL SQL COMMAND [ARGUMENT ...]\n");
		return 2;
	}

	conn = PQconnectdb("");
	if (PQstatus(conn) != CONNECTION_OK)
		die(PQerrorMessage(conn));
	snprintf(listen, sizeof(listen), "LISTEN %s", argv[1]);
	PQclear(execute(conn, listen, NULL));

	command_pid = fork();
	if (command_pid < 0)
		die(strerror(errno));
	if (command_pid == 0)
	{
		execvp(argv[3], argv + 3);
		fprintf(stderr, "latency: %s: %s\n", argv[3], strerror(errno));
		_exit(127);
	}
	while (waitpid(command_pid, &status, WNOHANG) == 0)
	{
		struct pollfd fd = {.fd = PQsocket(conn), .events = POLLIN};

		poll(&fd, 1, 100);
		receive(conn);
	}
	command_pid = 0;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		die("the command failed");
	PQclear(execute(conn, argv[2], NULL));
	PQclear(execute(conn, "SELECT", NULL));
	receive(conn);
	if (count == 0)
		die("no notification came");

	subtract_commit_times(conn);
	qsort(times, count, sizeof(double), compare_doubles);
	printf("%ld %.3f %.3f %.3f\n", count,
		   times[count / 2] * 1000,
		   times[(long) (count * 0.99)] * 1000,
		   times[count - 1] * 1000);
	PQfinish(conn);
	return 0;
}
