/*
 * conversion.h
 *	  Values as text in a subscribed query.
 */
#ifndef LIVE_TOPN_CONVERSION_H
#define LIVE_TOPN_CONVERSION_H

#include "nodes/parsenodes.h"
#include "parser/parse_node.h"

#define TIME_HINT \
	"Pass a time as an argument of the query, and subscribe again when it is to change."

/* Has a value of the type a date or time in it? */
extern bool is_datetime_type(Oid type);

/*
 * Does converting values of the type from text (input), or to text or JSON,
 * depend on recorded settings only?  And that of all arguments to text or JSON?
 */
extern bool is_fixed_conversion(Oid type, bool input);
extern bool are_fixed_arguments(List *args);

/* And the first, also for dates and times that are not words? */
extern bool is_independent_input(Oid type);

/*
 * Is the type built in, or owned by a superuser?  Anybody else who owns a type
 * can at any time make a cast of it to JSON, which to_json would run.
 */
extern bool is_trusted_type(Oid type);

/*
 * Refuse a literal like 'now' for a date or time; or all of them in a query.
 */
extern void check_time_literal(ParseState *pstate, Oid type,
							   const char *literal, int location);
extern void check_time_literals(ParseState *pstate, RawStmt *raw,
								Query *query);

#endif							/* LIVE_TOPN_CONVERSION_H */
