/*
 * wakeup.h
 *	  How long to sleep: time-outs in milliseconds, of which -1 is none.
 */
#ifndef LIVE_TOPN_WAKEUP_H
#define LIVE_TOPN_WAKEUP_H

#include "utils/timestamp.h"

/* The shorter of two time-outs. */
static inline long
shorter_timeout(long a, long b)
{
	if (a < 0 || b < 0)
		return Max(a, b);
	return Min(a, b);
}

/* The shorter of a time-out and the time until then. */
static inline long
timeout_until(long timeout, TimestampTz now, TimestampTz then)
{
	return shorter_timeout(timeout,
						   TimestampDifferenceMilliseconds(now, then) + 1);
}

#endif							/* LIVE_TOPN_WAKEUP_H */
