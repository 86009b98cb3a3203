/*
 * fingerprint.h
 *	  What a query says, whatever the values of its arguments are.
 */
#ifndef LIVE_TOPN_FINGERPRINT_H
#define LIVE_TOPN_FINGERPRINT_H

#include "nodes/parsenodes.h"

/*
 * Of a rewritten query with the values of arguments at these places of the
 * text.
 */
extern uint64 query_fingerprint(Query *rewritten, List *places);

#endif							/* LIVE_TOPN_FINGERPRINT_H */
