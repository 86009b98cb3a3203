/*
 * catalog.h
 *	  The table live_topn.subscription, one row per subscription.
 *
 * The table has REPLICA IDENTITY FULL: the database worker learns of
 * subscriptions from the rows that it decodes, and needs them whole.
 */
#ifndef LIVE_TOPN_CATALOG_H
#define LIVE_TOPN_CATALOG_H

#include "access/htup.h"
#include "access/tupdesc.h"
#include "datatype/timestamp.h"

#define CATALOG_SCHEMA	"live_topn"
#define CATALOG_TABLE	"subscription"

#define Anum_subscription_id		1	/* bigint */
#define Anum_subscription_name		2	/* text */
#define Anum_subscription_owner		3	/* regrole */
#define Anum_subscription_query		4	/* text */
#define Anum_subscription_args		5	/* text[] or null */
#define Anum_subscription_deliver	6	/* text */
#define Anum_subscription_ranks		7	/* text */
#define Anum_subscription_cushion	8	/* integer or null */
#define Anum_subscription_throttle	9	/* interval or null */
#define Anum_subscription_lease		10	/* interval or null */
#define Anum_subscription_settings	11	/* text[] of name=value */
#define Anum_subscription_old		12	/* boolean */
#define Anum_subscription_offset	13	/* bigint */
#define Anum_subscription_limit		14	/* bigint or null */
#define Anum_subscription_session	15	/* bigint or null */
#define Anum_subscription_grouped	16	/* boolean */
#define Natts_subscription			16

typedef struct SubscriptionRow
{
	int64		id;
	char	   *name;
	Oid			owner;
	char	   *query;
	int			nargs;
	char	  **args;			/* NULL elements are nulls */
	char	   *deliver;
	char	   *ranks;
	int			cushion;		/* rows; -1: by itself */
	int64		throttle_ms;	/* 0: none */
	int64		lease_ms;		/* 0: none */
	int			nsettings;
	char	  **settings;		/* name=value */
	bool		old;			/* deltas tell old values, too */
	int64		offset;			/* at first those of the query */
	int64		limit;
	int64		session;		/* see session.h; 0: not tied to one */
	bool		grouped;		/* these are of each group */
} SubscriptionRow;

/* The table's OID by today's catalogs, InvalidOid without the extension. */
extern Oid	catalog_relid(void);

/* An interval in milliseconds, months counted as 30 days. */
extern int64 interval_ms(const Interval *interval);

/* A row of the table, copied into CurrentMemoryContext. */
extern SubscriptionRow *catalog_row(HeapTuple tuple, TupleDesc desc);

/*
 * The same of a row, sharing what many have in common, which must be given
 * back before that memory is.
 */
extern SubscriptionRow *catalog_keep_row(const SubscriptionRow *row);
extern void catalog_release_row(SubscriptionRow *row);

/* Do two rows of the table differ in nothing but offset and limit? */
extern bool catalog_is_move(HeapTuple old, HeapTuple new, TupleDesc desc);

/*
 * Put the settings in force that a subscription was made under, until
 * AtEOXact_GUC(…, nestlevel) or the end of the transaction.  Returns nestlevel.
 */
extern int	catalog_apply_settings(int nsettings, char **settings);

#endif							/* LIVE_TOPN_CATALOG_H */
