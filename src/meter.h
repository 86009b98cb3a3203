/*
 * meter.h
 *	  The time that the database worker spends on each subscription.
 *
 * Reading the clock twice for each change of each subscription would cost
 * more than many a change.  So only some changes are timed, at random, and
 * count for those that are not.
 */
#ifndef LIVE_TOPN_METER_H
#define LIVE_TOPN_METER_H

#include "portability/instr_time.h"

#define METER_RATE			64	/* of so many changes one is timed */

/* How many changes are not timed before the next one that is. */
extern uint32 meter_skip;

extern void meter_choose(void);

/* Is this change to be timed? */
static inline bool
meter_samples(void)
{
	if (likely(meter_skip-- > 0))
		return false;
	meter_choose();
	return true;
}

/* Nanoseconds since start. */
static inline int64
meter_elapsed(instr_time start)
{
	instr_time	end;

	INSTR_TIME_SET_CURRENT(end);
	INSTR_TIME_SUBTRACT(end, start);
	return INSTR_TIME_GET_DOUBLE(end) * 1e9;
}

#endif							/* LIVE_TOPN_METER_H */
