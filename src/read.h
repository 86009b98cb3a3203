/*
 * read.h
 *	  The result of a subscription, for a backend.
 */
#ifndef LIVE_TOPN_READ_H
#define LIVE_TOPN_READ_H

#include "postgres.h"

/*
 * A reset batch with the result as of now, numbered as the last batch of the
 * subscription.  Rights and errors are those of topn_snapshot.
 */
extern char *read_reset_batch(const char *name, int64 *seq);

#endif							/* LIVE_TOPN_READ_H */
