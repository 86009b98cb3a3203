/*
 * latency.c
 *	  From commit to notification: how long?
 *
 *	  latency CHANNELS SQL COMMAND [ARGUMENT ...]
 *
 * For each of CHANNELS, separated by spaces, there is a connection that
 * listens on it while COMMAND runs; the same channel may be there many times.
 * Then one of them runs SQL, which must not return before the last
 * notification has been sent.  Prints the number of notifications received and
 * the median, the 99th percentile and the maximum of their latency in
 * milliseconds.
 *
 * The payloads must contain "xid":N.  The latency of a notification is the
 * time at which this client has read it minus the commit time of that
 * transaction, which comes from track_commit_timestamp; so it means the same
 * whoever sends the notification.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <libpq-fe.h>

typedef struct Notification
{
	unsigned long xid;
	double		time;			/* received at, seconds since 1970 */
} Notification;

static PGconn **conns = NULL;
static bool *busy;				/* a query is running */
static struct pollfd *fds;
static int	nconns = 0;
static Notification *notifications = NULL;
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

static void
check_result(PGresult *res)
{
	if (PQresultStatus(res) != PGRES_COMMAND_OK &&
		PQresultStatus(res) != PGRES_TUPLES_OK)
		die(PQresultErrorMessage(res));
}

static void
connect_and_listen(const char *channel)
{
	PGconn	   *conn = PQconnectdb("");
	char		listen[128];
	PGresult   *res;

	if (PQstatus(conn) != CONNECTION_OK)
		die(PQerrorMessage(conn));
	snprintf(listen, sizeof(listen), "LISTEN %s", channel);
	res = PQexec(conn, listen);
	check_result(res);
	PQclear(res);

	conns = realloc(conns, (nconns + 1) * sizeof(conns[0]));
	conns[nconns++] = conn;
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
			notifications = realloc(notifications,
									(2 * count + 1) * sizeof(Notification));
		notifications[count].xid = strtoul(xid + strlen("\"xid\":"), NULL, 10);
		notifications[count++].time = now.tv_sec + now.tv_nsec / 1e9;
		PQfreemem(notify);
	}
}

/* Read what comes on any connection; wait for it, but not forever. */
static void
receive_all(void)
{
	for (int i = 0; i < nconns; i++)
		fds[i] = (struct pollfd) {.fd = PQsocket(conns[i]), .events = POLLIN};
	if (poll(fds, nconns, 100) <= 0)
		return;
	for (int i = 0; i < nconns; i++)
		if (fds[i].revents != 0)
			receive(conns[i]);
}

/* Run a query on the first n connections, while all are read. */
static void
execute(const char *sql, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (!PQsendQuery(conns[i], sql))
			die(PQerrorMessage(conns[i]));
		busy[i] = true;
	}
	for (int done = 0; done < n;)
	{
		receive_all();
		for (int i = 0; i < n; i++)
			while (busy[i] && !PQisBusy(conns[i]))
			{
				PGresult   *res = PQgetResult(conns[i]);

				if (res == NULL)
				{
					busy[i] = false;
					done++;
				}
				else
					check_result(res);
				PQclear(res);
			}
	}
}

static int
compare_xids(const void *a, const void *b)
{
	unsigned long x = ((const Notification *) a)->xid;
	unsigned long y = ((const Notification *) b)->xid;

	return (x > y) - (x < y);
}

static int
compare_times(const void *a, const void *b)
{
	double		x = ((const Notification *) a)->time;
	double		y = ((const Notification *) b)->time;

	return (x > y) - (x < y);
}

/* Turn times into latencies. */
static void
subtract_commit_times(void)
{
	char	   *array = malloc(count * 22 + 3);
	const char *param = array;
	char	   *end = array;
	PGresult   *res;
	int			row = -1;

	qsort(notifications, count, sizeof(Notification), compare_xids);
	for (long i = 0; i < count; i++)
		if (i == 0 || notifications[i].xid != notifications[i - 1].xid)
			end += sprintf(end, "%c%lu", i == 0 ? '{' : ',',
						   notifications[i].xid);
	strcpy(end, "}");
	res = PQexecParams(conns[0],
					   "SELECT extract(epoch FROM"
					   "       pg_xact_commit_timestamp(x::text::xid)), x"
					   "  FROM unnest($1::text[]) WITH ORDINALITY u (x, n)"
					   "  ORDER BY n",
					   1, NULL, &param, NULL, NULL, 0);
	check_result(res);
	for (long i = 0; i < count; i++)
	{
		if (row < 0 ||
			strtoul(PQgetvalue(res, row, 1), NULL, 10) != notifications[i].xid)
			row++;
		notifications[i].time -= strtod(PQgetvalue(res, row, 0), NULL);
	}
	PQclear(res);
	free(array);
}

int
main(int argc, char **argv)
{
	int			status;

	if (argc < 4)
	{
		fprintf(stderr, "usage: latency CHANNELS SQL COMMAND [ARGUMENT ...]\n");
		return 2;
	}

	for (char *channel = strtok(argv[1], " "); channel != NULL;
		 channel = strtok(NULL, " "))
		connect_and_listen(channel);
	busy = calloc(nconns, sizeof(busy[0]));
	fds = calloc(nconns, sizeof(fds[0]));

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
		receive_all();
	command_pid = 0;
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		die("the command failed");

	/* What was sent has come when a further query returns. */
	execute(argv[2], 1);
	execute("SELECT", nconns);
	if (count == 0)
		die("no notification came");

	subtract_commit_times();
	qsort(notifications, count, sizeof(Notification), compare_times);
	printf("%ld %.3f %.3f %.3f\n", count,
		   notifications[count / 2].time * 1000,
		   notifications[(long) (count * 0.99)].time * 1000,
		   notifications[count - 1].time * 1000);
	for (int i = 0; i < nconns; i++)
		PQfinish(conns[i]);
	return 0;
}
