/*
 * identity.h
 *	  The columns that tell rows of a table apart, and their part in a query.
 */
#ifndef LIVE_TOPN_IDENTITY_H
#define LIVE_TOPN_IDENTITY_H

#include "parser/parse_node.h"
#include "query.h"
#include "utils/relcache.h"

/*
 * Make the identity of a table, which is locked, part of the row and of the
 * order of a query over it, not rewritten; fill in what the query has about
 * its identity.  flat_columns is the select list over the table, location where
 * the query names its relation.
 *
 * Raises an error with the ALTER TABLE that helps if the table has no identity,
 * or if a partition does not write it to WAL; or if a view does not show it.
 * Locks the partitions in AccessShareLock until the end of the transaction.
 */
extern void append_identity(ParseState *pstate, TopnQuery *result,
							Query *source, List *flat_columns, Relation rel,
							int location);

#endif							/* LIVE_TOPN_IDENTITY_H */
