/*
 * stream.h
 *	  Batches from a replication slot.
 */
#ifndef STREAM_H
#define STREAM_H

#include <stdbool.h>

#include "libpq-fe.h"

/*
 * Make a temporary slot on a replication connection, and start to stream the
 * batches of a subscription through it, beginning with a reset.  False with
 * the connection's error message if that fails.
 */
extern bool stream_start(PGconn *conn, const char *subscription);

typedef enum StreamResult
{
	STREAM_LINE,				/* *line is a batch, to be freed by caller */
	STREAM_NOTHING,				/* nothing more for now */
	STREAM_ENDED				/* the connection is lost or the stream over */
} StreamResult;

/* The next batch that has come in; confirms what has been taken. */
extern StreamResult stream_next(PGconn *conn, char **line);

#endif							/* STREAM_H */
