/*
 * message.h
 *	  Logical messages of ours in WAL.
 *
 * They are transactional, and text, so that other output plugins can print
 * them: the kind, then numbers, each after a space.  Everybody may write
 * logical messages; ours begin with a secret number.
 */
#ifndef LIVE_TOPN_MESSAGE_H
#define LIVE_TOPN_MESSAGE_H

#include "postgres.h"

#define MESSAGE_PREFIX	"live_topn"

#define MESSAGE_RESYNC		'R' /* by a backend: the secret; id of the
								 * subscription */
#define MESSAGE_RENEW		'L' /* likewise, to extend the lease */
#define MESSAGE_PUBLISHED	'P' /* by a worker, in the transaction that
								 * publishes: the secret; for each batch id,
								 * seq, lsn; seq 0 where the result at birth
								 * became known */
#define MESSAGE_BATCH		'B' /* by a worker: the secret; owner, id, seq,
								 * length of the name; then after a space name
								 * and batch */

/*
 * The next number of a message, which needs a zero after its end; advances
 * *at.  False if there is none.
 */
static inline bool
message_number(const char **at, int64 *number)
{
	char	   *end;

	if (**at != ' ')
		return false;
	*number = strtoi64(*at + 1, &end, 10);
	*at = end;
	return true;
}

/* Shared memory for the secret, in the hooks of that name. */
extern void message_shmem_request(void);
extern void message_shmem_startup(void);

/*
 * The secret of this cluster, from a file in the data directory; made when
 * the server first starts with the library.
 */
extern int64 message_secret(void);

/* Skip the secret; false if it is another. */
static inline bool
message_is_genuine(const char **at)
{
	int64		number;

	return message_number(at, &number) && number == message_secret();
}

/*
 * The numbers of a logical message, for message_number, in
 * CurrentMemoryContext; NULL if the message is not a genuine one of ours.
 */
extern const char *message_numbers(const char *prefix, const char *data,
								   Size size);

#endif							/* LIVE_TOPN_MESSAGE_H */
