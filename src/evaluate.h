/*
 * evaluate.h
 *	  The expressions of a query, on rows of its table.
 */
#ifndef LIVE_TOPN_EVALUATE_H
#define LIVE_TOPN_EVALUATE_H

#include "nodes/execnodes.h"
#include "table.h"
#include "window.h"

/* What evaluator_accepts has found out about a table. */
typedef struct TableFit
{
	uint64		serial;			/* of the table; 0: none */
	bool		types;			/* the columns have the right types */
	bool		identity;		/* old tuples tell which row it was */
} TableFit;

#define EVALUATOR_FITS	16

/* Counts rows that were evaluated, for a look at whether one takes too long. */
extern volatile uint64 evaluate_progress;

typedef struct Evaluator
{
	const TopnQuery *query;
	RowFormat  *format;
	ExprContext *econtext;
	MemoryContext change_context;	/* reset for each change */
	ExprState  *qual;			/* NULL: always true */
	ExprState  *leading;		/* of the leading sort column */
	ExprState **columns;
	Datum	   *values;
	bool	   *nulls;
	Row		   *old;			/* while the new version is evaluated: an error
								 * leaves it here */

	List	   *vars;			/* all that the query uses */
	TableFit	fits[EVALUATOR_FITS];

	/* columns of the table, offset as by pull_varattnos */
	Bitmapset  *used;
	Bitmapset  *used_by_qual;
	Bitmapset  *used_by_place;	/* by the group and the order */
} Evaluator;

/*
 * Compile a query, in CurrentMemoryContext, which must live as long as the
 * evaluator.  Looks up functions: needs a transaction.
 */
extern Evaluator *evaluator_create(const TopnQuery *query, RowFormat *format);
extern void evaluator_free(Evaluator *evaluator);

/*
 * Do the columns that the query uses have, in the table as it is at this
 * place of the log, the types that the query was analysed with, and does the
 * change say which row it is of?  Nothing else may be evaluated.
 */
extern bool evaluator_accepts(Evaluator *evaluator, const Change *change);

/*
 * The identity in a tuple: arrays of query->nkeys entries, valid until the
 * next call.
 */
extern void evaluate_key(Evaluator *evaluator, Table *table, TableView *view,
						 HeapTuple tuple, Datum **keys, bool **nulls);

/*
 * Would a change of a row do anything to windows?
 */
extern bool evaluate_concerns(Evaluator *evaluator, WindowSet *set,
							  const Change *change);

/*
 * Put a version of a row into the windows, or take it out, by its place in the
 * order.  False if that depends on a value that WAL lacks.  Runs the query's
 * expressions: unless the query is inert, only in a transaction of our own, as
 * the owner.
 */
extern bool evaluate_put_in(Evaluator *evaluator, WindowSet *set,
							const Change *change, HeapTuple tuple);
extern bool evaluate_take_out(Evaluator *evaluator, WindowSet *set,
							  const Change *change, HeapTuple tuple);

/* Has the change the old version, if there was one, as a whole? */
static inline bool
change_has_old(const Change *change)
{
	return change->kind == CHANGE_INSERT ||
		(change->old && !change->old_is_key);
}

/*
 * Apply a change to windows: take out the old version of the row, put in
 * the new one.  False if that depends on a value that WAL lacks; the windows
 * then miss that row.  Runs expressions, as above.
 */
extern bool evaluate_change(Evaluator *evaluator, WindowSet *set,
							const Change *change);

#endif							/* LIVE_TOPN_EVALUATE_H */
