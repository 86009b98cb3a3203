/*
 * meter.c
 *	  The time that the database worker spends on each subscription.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "meter.h"

uint32		meter_skip = 0;

/*
 * At random, lest it keep step with a commit that concerns the same
 * subscriptions in the same order again and again.
 */
void
meter_choose(void)
{
	meter_skip = pg_prng_uint64_range(&pg_global_prng_state, 0,
									  2 * (METER_RATE - 1));
}
