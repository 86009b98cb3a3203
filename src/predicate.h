/*
 * predicate.h
 *	  The part of a query's filter by which a row can be looked up.
 */
#ifndef LIVE_TOPN_PREDICATE_H
#define LIVE_TOPN_PREDICATE_H

#include "query.h"

/*
 * No row satisfies the filter unless it satisfies both parts, where they are
 * there.  Everything points into the query.
 */
typedef struct Predicate
{
	/* equal_expr equal_operator one of values */
	Expr	   *equal_expr;		/* NULL: no such part */
	Oid			equal_operator; /* strict; a function hashes each side */
	Oid			equal_collation;
	int			nvalues;		/* 0: no row can satisfy it */
	Datum	   *values;

	/* low <= range_expr <= high, in the order of an operator family */
	Expr	   *range_expr;		/* NULL: no such part */
	Oid			range_family;
	Oid			range_type;		/* of the expression, for the family */
	Oid			limit_type;		/* of low and high, for the family */
	bool		limit_byval;
	int16		limit_len;
	Oid			range_collation;
	bool		has_low;
	bool		has_high;
	Datum		low;
	Datum		high;
} Predicate;

/*
 * What there is of the inert part of a query's filter, in CurrentMemoryContext.
 * Looks up operators: needs a transaction.
 */
extern Predicate *predicate_of(const TopnQuery *query);

#endif							/* LIVE_TOPN_PREDICATE_H */
