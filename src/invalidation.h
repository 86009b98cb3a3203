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
	bool		members;		/* who is a member of which role */
	List	   *names;			/* schemas, as hash values of NAMESPACENAME;
								 * roles, of AUTHOID */
	bool		functions;
	int			labels;			/* rows of pg_enum inserted, changed, deleted */
	int			label_names;	/* names there, old and new ones */
	List	   *relids;
	List	   *ancestors;		/* what they are or were partitions of */
	List	   *relations;		/* names, as hash values of RELNAMENSP */
	List	   *classes;		/* rows of pg_class, as hash values of RELOID */
	bool		more;			/* other catalogs than that and statistics */
	bool		live;			/* not by a commit, but as of now */
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

/* Were roles or schemas changed, of whatever name? */
static inline bool
invalidation_has_names(const Invalidation *invalidation)
{
	return invalidation->members || invalidation->names != NIL;
}

/* May a query that is in error mean something again? */
extern bool invalidation_concerns_error(const Invalidation *invalidation);

#endif							/* LIVE_TOPN_INVALIDATION_H */
