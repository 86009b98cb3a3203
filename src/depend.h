/*
 * depend.h
 *	  What else than its table a query means something by.
 */
#ifndef LIVE_TOPN_DEPEND_H
#define LIVE_TOPN_DEPEND_H

#include "query.h"

/* The schemas that are written in a statement, before analysis alters it. */
extern void find_written_schemas(TopnQuery *query, RawStmt *raw);

/*
 * Fill in what an analysed query depends on.  relation is the one that the
 * statement names, source the analysed statement, rewritten what became of it.
 */
extern void find_dependencies(TopnQuery *query, const RangeVar *relation,
							  Query *source, Query *rewritten);

#endif							/* LIVE_TOPN_DEPEND_H */
