/*
 * inert.h
 *	  Queries that can be evaluated anywhere, and again after an error.
 */
#ifndef LIVE_TOPN_INERT_H
#define LIVE_TOPN_INERT_H

#include "query.h"

/*
 * Can evaluating the expressions of a query and comparing its rows neither
 * fail, nor run user code, nor look at catalogs?
 */
extern bool is_inert_query(const TopnQuery *query);

/* Can evaluating the filter, and comparing by the leading sort column? */
extern bool has_inert_end(const TopnQuery *query);

/* Can evaluating an expression? */
extern bool is_inert_expression(Node *node);

/* Can calling a function with a collation? */
extern bool is_inert_function(Oid funcid, Oid collation);

/*
 * Can the expressions of a query be used again after an error, which comparing
 * its rows cannot raise?
 */
extern bool is_robust_query(const TopnQuery *query);

#endif							/* LIVE_TOPN_INERT_H */
