/*
 * stream.c
 *	  Batches from a replication slot.
 *
 * The slot is temporary and begins with the result as a reset, so nothing has
 * to be kept: after losing the connection we start anew.  The messages are
 * those of PostgreSQL's streaming replication protocol: 'w' has data, 'k' is a
 * keepalive, and 'r' is our answer to it.
 */
#include "postgres_fe.h"

#include <unistd.h>

#include "port/pg_bswap.h"
#include "pqexpbuffer.h"
#include "stream.h"

#define HEADER_DATA		25		/* 'w', start, end, time */
#define HEADER_KEEPALIVE 18		/* 'k', end, time, reply requested */

static uint64 confirmed;		/* all before this WAL position is taken */

static bool
run(PGconn *conn, const char *command, ExecStatusType expected)
{
	PGresult   *res = PQexec(conn, command);
	bool		good = PQresultStatus(res) == expected;

	PQclear(res);
	return good;
}

bool
stream_start(PGconn *conn, const char *subscription)
{
	PQExpBuffer command = createPQExpBuffer();
	char	   *name = PQescapeIdentifier(conn, subscription,
										  strlen(subscription));
	char	   *option = name ? PQescapeLiteral(conn, name, strlen(name)) : NULL;
	bool		good = false;

	if (option)
	{
		appendPQExpBuffer(command,
						  "CREATE_REPLICATION_SLOT topn_watch_%d TEMPORARY LOGICAL live_topn",
						  PQbackendPID(conn));
		good = run(conn, command->data, PGRES_TUPLES_OK);
		resetPQExpBuffer(command);
		appendPQExpBuffer(command,
						  "START_REPLICATION SLOT topn_watch_%d LOGICAL 0/0 (subscriptions %s, snapshot 'on')",
						  PQbackendPID(conn), option);
		good = good && run(conn, command->data, PGRES_COPY_BOTH);
	}
	PQfreemem(option);
	PQfreemem(name);
	destroyPQExpBuffer(command);
	confirmed = 0;
	return good;
}

static uint64
get_uint64(const char *from)
{
	uint64		value;

	memcpy(&value, from, sizeof(value));
	return pg_ntoh64(value);
}

/* Written, flushed and applied up to the confirmed position; no time. */
static bool
confirm(PGconn *conn)
{
	char		message[34] = {'r'};
	uint64		position = pg_hton64(confirmed);

	for (int i = 0; i < 3; i++)
		memcpy(message + 1 + 8 * i, &position, sizeof(position));
	return PQputCopyData(conn, message, sizeof(message)) == 1 &&
		PQflush(conn) >= 0;
}

StreamResult
stream_next(PGconn *conn, char **line)
{
	for (;;)
	{
		char	   *message;
		int			length = PQgetCopyData(conn, &message, 1);

		if (length == 0)
			return STREAM_NOTHING;
		if (length < 0)
			return STREAM_ENDED;
		if (message[0] == 'w' && length > HEADER_DATA)
		{
			confirmed = Max(confirmed, get_uint64(message + 1));
			*line = pnstrdup(message + HEADER_DATA, length - HEADER_DATA);
			PQfreemem(message);
			return STREAM_LINE;
		}
		if (message[0] == 'k' && length >= HEADER_KEEPALIVE)
		{
			confirmed = Max(confirmed, get_uint64(message + 1));
			if (message[HEADER_KEEPALIVE - 1] && !confirm(conn))
			{
				PQfreemem(message);
				return STREAM_ENDED;
			}
		}
		PQfreemem(message);
	}
}
