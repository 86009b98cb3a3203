/*
 * invalidation.h
 *	  Which queries are concerned by changes of the system catalogs.
 */
#ifndef LIVE_TOPN_INVALIDATION_H
#define LIVE_TOPN_INVALIDATION_H

#include "query.h"
#include "storage/sinval.h"

/*
 * What a commit has changed of the system catalogs, by its invalidation
 * messages.
 */
typedef struct Invalidation
{
	bool		tables;			/* all of them */
	bool		names;			/* roles and schemas: what any query looks at */
	bool		functions;
	int			labels;			/* rows of pg_enum inserted, changed, deleted */
	int			label_names;	/* names there, old and new ones */
	List	   *relids;
	List	   *ancestors;		/* what they are or were partitions of */
	List	   *relations;		/* names, as hash values of RELNAMENSP */
	List	   *classes;		/* rows of pg_class, as hash values of RELOID */
	bool		more;			/* other catalogs than that and statistics */
} Invalidation;

/*
 * Add what a message says, in CurrentMemoryContext.  ancestors is left to the
 * caller, who knows what was a partition of what.
 */
extern void invalidation_note(Invalidation *invalidation,
							  const SharedInvalidationMessage *message);

/* The table of a query, or a partition of it? */
extern bool invalidation_concerns_table(const Invalidation *invalidation,
										const TopnQuery *query);

/* Anything else that it depends on? */
extern bool invalidation_concerns_query(const Invalidation *invalidation,
										const TopnQuery *query);

/* May a query that is in error mean something again? */
extern bool invalidation_concerns_error(const Invalidation *invalidation);

#endif							/* LIVE_TOPN_INVALIDATION_H */
