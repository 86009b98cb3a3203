/*
 * cushion.c
 *	  How many rows a window holds beyond those that it needs.
 *
 * Rows beyond the result save refills, and take memory.  The best number
 * follows from how the number of rows changes from commit to commit (a random
 * walk, of which drift and variance are measured), from what a refill costs
 * (measured) and from a price of memory.  doc/cushion.md derives it, says what
 * it assumes, and where that fails.
 */
#include "postgres.h"

#include <math.h>

#include "cushion.h"

#define MEMORY		2048.0		/* commits after which one counts 1/e */
#define PATIENCE	256.0		/* weight of the commits before the first */
#define REFILL_DECAY 0.8		/* what an older refill counts */
#define PLAN_EVERY	256			/* commits */
#define LOOK_EVERY	1024		/* commits, where nothing happens */
#define LOOK_PAUSE	8			/* commits from one such look to the next */
#define TYPICAL_ROW 160			/* bytes of a row, if none is held */
#define MIN_LOT		8			/* rows; the least worth asking for */
#define MAX_LOT		100000
#define HYSTERESIS	1.25		/* smaller changes of the size are left out */
#define GROWTH		1.1			/* step of the search */
#define SAFETY		2.0			/* standard deviations */
#define BYTES_PER_MICROSECOND 16384.0	/* the price of memory for a commit */
#define HEADROOM	0.95		/* memory is shared out again when shares
								 * shrink by this factor */

int			cushion_memory_kb = 64 * 1024;

static double total_wanted;		/* bytes, by all adaptive cushions */
static double shared_out = 1.0; /* the share in this round, or more */
static uint64 round_no;			/* times that it had to be shared out */
static uint64 looked;			/* last commit when a stale one was returned */

/* What the best size depends on. */
typedef struct Situation
{
	double		drift;			/* rows lost per commit; negative: won */
	double		variance;		/* rows squared per commit */
	double		refill;			/* cost of a refill, microseconds */
	double		row;			/* and of each row of it */
	double		holding;		/* cost of holding a row over a commit */
} Situation;

/* Those with rows to give back, and the others; the oldest plan first. */
static dlist_head large = DLIST_STATIC_INIT(large);
static dlist_head small = DLIST_STATIC_INIT(small);

static void
make_adaptive(Cushion *cushion)
{
	cushion->adaptive = true;
	cushion->weight = PATIENCE;
	cushion->delay = -1;
	cushion->wanted.low = 1;
	cushion->wanted.fill = MIN_LOT;
	cushion->wanted.high = MIN_LOT + MIN_LOT / 2;
	cushion->band = cushion->wanted;
}

/* Lots of fixed + 1 rows, so that fixed are held on average. */
static void
make_fixed(Cushion *cushion, uint64 fixed)
{
	cushion_release(cushion);
	cushion->adaptive = false;
	cushion->wanted.low = (fixed + 1) / 2;
	cushion->wanted.fill = fixed + cushion->wanted.low;
	cushion->wanted.high = 2 * fixed;
	cushion->band = cushion->wanted;
}

void
cushion_set(Cushion *cushion, int fixed)
{
	if (fixed >= 0)
		make_fixed(cushion, fixed);
	else if (!cushion->adaptive)
		make_adaptive(cushion);
}

/* Others may have the memory. */
static void
want_nothing(Cushion *cushion)
{
	if (cushion->wanted_bytes == 0)
		return;
	total_wanted -= cushion->wanted_bytes;
	cushion->wanted_bytes = 0;
	dlist_delete(&cushion->node);
}

void
cushion_release(Cushion *cushion)
{
	cushion->size = 0;
	want_nothing(cushion);
}

void
cushion_tighten(Cushion *cushion, bool must_hold)
{
	want_nothing(cushion);
	cushion->tight = true;
	cushion->band.low = cushion->band.fill = cushion->band.high = must_hold;
}

void
cushion_relax(Cushion *cushion)
{
	if (cushion->tight)
		cushion->band = cushion->wanted;
	cushion->tight = false;
}

/* ---- measuring ---- */

/* Let commits up to this one pass. */
static void
pass(Cushion *cushion, uint64 commit)
{
	if (cushion->counted > 0 && commit > cushion->counted)
	{
		double		left = exp(-(double) (commit - cushion->counted) / MEMORY);

		cushion->weight = cushion->weight * left + MEMORY * (1 - left);
		cushion->drift *= left;
		cushion->squares *= left;
	}
	cushion->counted = Max(cushion->counted, commit);
}

void
cushion_count(Cushion *cushion, uint64 size, uint64 commit)
{
	double		change = (double) size - (double) cushion->size;
	double		most = cushion->wanted.high + 1;

	if (change == 0)
		return;
	cushion->size = size;
	if (!cushion->adaptive)
		return;

	/* losing more than there is costs one refill all the same */
	change = Max(Min(change, most), -most);
	pass(cushion, commit);
	cushion->drift += change;
	cushion->squares += change * change;
}

void
cushion_shift(Cushion *cushion, int64 rows)
{
	cushion->size += rows;
}

void
cushion_ask(Cushion *cushion, uint64 commit)
{
	cushion->asked = commit;
}

void
cushion_learn(Cushion *cushion, uint64 commit, uint64 rows,
			  uint64 microseconds)
{
	double		delay = (double) commit - (double) cushion->asked;
	double		n = rows;
	double		t = microseconds;

	cushion->delay = cushion->delay < 0 ? delay :
		REFILL_DECAY * cushion->delay + (1 - REFILL_DECAY) * delay;
	cushion->refills = REFILL_DECAY * cushion->refills + 1;
	cushion->rows = REFILL_DECAY * cushion->rows + n;
	cushion->time = REFILL_DECAY * cushion->time + t;
	cushion->rows_rows = REFILL_DECAY * cushion->rows_rows + n * n;
	cushion->rows_time = REFILL_DECAY * cushion->rows_time + n * t;
}

/* ---- the best size ---- */

/* The costs of refills by linear regression of their times on their rows. */
static void
estimate_refill(const Cushion *cushion, Situation *situation)
{
	double		n = cushion->refills;
	double		spread = n * cushion->rows_rows -
		cushion->rows * cushion->rows;

	situation->refill = situation->row = 0;
	if (n == 0)
		return;
	if (spread > 0.01 * n * cushion->rows_rows)
		situation->row = (n * cushion->rows_time -
						  cushion->rows * cushion->time) / spread;
	situation->row = Max(situation->row, 0);

	/* at least a tenth is for the refill itself */
	situation->refill = Max((cushion->time -
							 situation->row * cushion->rows) / n,
							cushion->time / n / 10);
}

/*
 * The cost per commit of refilling a lot rows at a time, with half as many on
 * top for what arrives.
 *
 * The number of rows above the reorder point is a Brownian motion from lot,
 * reflected at top, that ends at 0.  Here length is the expected time until
 * then, and area the expected integral of the number over that time.
 */
static double
cost(const Situation *situation, double lot)
{
	double		m = situation->drift;
	double		v = situation->variance;
	double		top = 1.5 * lot;
	double		theta = v > 0 ? 2 * m / v : 0;
	double		length;
	double		area;

	if (v == 0)
		return situation->holding * top;

	if (-theta * top > 50)		/* it practically never ends */
		return situation->holding * (top + 1 / theta);

	if (fabs(theta * top) < 1e-3)
	{
		length = lot * (2 * top - lot) / v;
		area = (top * top * lot - lot * lot * lot / 3) / v;
	}
	else
	{
		double		reflected = exp(theta * (lot - top)) - exp(-theta * top);

		length = lot / m - reflected / (m * theta);
		area = lot * lot / (2 * m) + v * lot / (2 * m * m) -
			(top / m + v / (2 * m * m)) * reflected / theta;
	}
	return (situation->refill + situation->row * lot) / length +
		situation->holding * area / length;
}

static double
best_lot(const Situation *situation)
{
	double		best = MIN_LOT;
	double		least = cost(situation, MIN_LOT);

	for (double lot = MIN_LOT * GROWTH; lot <= MAX_LOT; lot *= GROWTH)
	{
		double		this = cost(situation, lot);

		if (this >= least)
			break;
		least = this;
		best = lot;
	}
	return best;
}

static void
want(Cushion *cushion, double row_bytes)
{
	Situation	situation;
	double		chance;
	double		lot;
	double		reserve = 0;
	double		current = cushion->wanted.fill + 1 - cushion->wanted.low;

	/* a drift that may be chance is none */
	situation.drift = -cushion->drift / cushion->weight;
	situation.variance = cushion->squares / cushion->weight;
	chance = sqrt(situation.variance / cushion->weight);
	if (situation.drift > 0)
		situation.drift = Max(situation.drift - chance, 0);
	else
		situation.drift = Min(situation.drift + chance, 0);
	estimate_refill(cushion, &situation);
	situation.holding = row_bytes / BYTES_PER_MICROSECOND;

	lot = best_lot(&situation);
	if (lot < current * HYSTERESIS && lot > current / HYSTERESIS &&
		lot > MIN_LOT)
		lot = current;

	/* what goes while a refill is under way, and a little more */
	if (cushion->delay > 0)
		reserve = Max(situation.drift, 0) * cushion->delay +
			SAFETY * sqrt(situation.variance * cushion->delay);
	reserve = Min(reserve, MAX_LOT);

	cushion->wanted.low = 1 + (uint64) reserve;
	cushion->wanted.fill = (uint64) reserve + (uint64) lot;
	cushion->wanted.high = cushion->wanted.fill + (uint64) lot / 2;
}

/* ---- memory ---- */

static double
get_share(void)
{
	double		memory = HEADROOM * 1024.0 * cushion_memory_kb;

	return total_wanted > memory ? memory / total_wanted : 1.0;
}

void
cushion_plan(Cushion *cushion, uint64 commit, const CushionUse *use, bool now)
{
	double		row_bytes = TYPICAL_ROW;
	double		share;

	if (!cushion->adaptive || cushion->tight ||
		(!now && cushion->wanted_bytes > 0 &&
		 commit < cushion->planned + PLAN_EVERY))
		return;
	cushion->planned = commit;

	if (use->rows > 0)
		row_bytes = (double) use->bytes / use->rows;
	pass(cushion, commit);
	want(cushion, row_bytes);

	/* it takes its place among the others */
	if (cushion->wanted_bytes > 0)
		dlist_delete(&cushion->node);
	dlist_push_tail(cushion->wanted.fill > MIN_LOT ? &large : &small,
					&cushion->node);
	total_wanted -= cushion->wanted_bytes;
	cushion->wanted_bytes = cushion->wanted.high * row_bytes;
	total_wanted += cushion->wanted_bytes;

	share = get_share();
	cushion->round = round_no;
	cushion->band.fill = share * cushion->wanted.fill;
	cushion->band.high = share * cushion->wanted.high;
	cushion->band.low = Min(cushion->wanted.low,
							(cushion->band.fill + 1) / 2);
	if (use->needed == 0)
	{
		cushion->band.fill = Max(cushion->band.fill, 1);
		cushion->band.high = Max(cushion->band.high, 1);
	}
}

static Cushion *
oldest(dlist_head *list)
{
	return dlist_is_empty(list) ? NULL :
		dlist_head_element(Cushion, node, list);
}

Cushion *
cushion_next_stale(uint64 commit)
{
	double		share = get_share();
	Cushion    *cushion;

	if (share < HEADROOM * shared_out)
	{
		round_no++;
		shared_out = share;
	}
	shared_out = Max(shared_out, share);
	cushion = oldest(&large);
	if (cushion && cushion->round != round_no)
		return cushion;
	if (cushion && commit >= cushion->planned + LOOK_EVERY &&
		commit >= looked + LOOK_PAUSE)
	{
		looked = commit;
		return cushion;
	}
	cushion = oldest(&small);
	return cushion && cushion->round != round_no ? cushion : NULL;
}

uint64
cushion_rows(const Cushion *cushion)
{
	return (cushion->band.low + cushion->band.fill) / 2;
}
