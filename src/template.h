/*
 * template.h
 *	  What subscriptions that differ in constants have in common.
 */
#ifndef LIVE_TOPN_TEMPLATE_H
#define LIVE_TOPN_TEMPLATE_H

#include "batch.h"
#include "catalog.h"
#include "evaluate.h"
#include "lib/ilist.h"
#include "nodes/params.h"

/*
 * A query analysed, compiled and ready to be printed.  If it is shared, the
 * constants of its filter are parameters, and each subscription has its own
 * values for them.
 */
typedef struct Template
{
	MemoryContext context;		/* holds all of this */
	MemoryContext rows;			/* for rows and windows.  Those of a template
								 * that is not shared go with it. */
	bool		shared;
	char	   *key;			/* query, owner and settings */
	uint64		hash;			/* of that */
	struct Template *next;		/* with the same hash, if it is shared */
	int			refs;
	dlist_node	node;			/* among all templates */
	dlist_head	feeds;			/* by their template_node, see feed.c */
	TopnQuery  *query;
	List	   *constants;		/* of Const, what the parameters stand for */
	char	   *text_before;	/* what the query means as text, without its
								 * filter */
	char	   *text_after;
	RowFormat  *format;
	Evaluator  *evaluator;
	BatchFormat *batch_format;
	bool		partitioned;	/* the table is */
	uint64		depends_at;		/* feed_catalog_changes, when more was known
								 * that the query depends on */
} Template;

extern void template_startup(MemoryContext parent);

/* All of them, by their node. */
extern dlist_head *template_list(void);

/*
 * The template of a query given as text, for the owner and under the settings
 * of a subscription, with a reference; and the values of its parameters, in
 * CurrentMemoryContext.  Looks up functions: needs a transaction, as the
 * owner.
 */
extern Template *template_acquire(const SubscriptionRow *row,
								  const char *text, ParamListInfo *params);
extern void template_release(Template *template);

/* Another reference, and a copy of values in CurrentMemoryContext. */
extern Template *template_share(Template *template, ParamListInfo params,
								ParamListInfo *copy);

/* Is it the same query, of the same owner and under the same settings? */
extern bool template_is_equal(const Template *a, const Template *b);

/* Of one template: are the values the same? */
extern bool template_params_equal(const Template *template, ParamListInfo a,
								  ParamListInfo b);
extern uint64 template_params_hash(const Template *template,
								   ParamListInfo params);

/* Free what template_acquire has made of values. */
extern void template_free_params(const Template *template,
								 ParamListInfo params);

/* The query with the values in place, in CurrentMemoryContext; as text. */
extern TopnQuery *template_query(const Template *template,
								 ParamListInfo params);
extern char *template_text(const Template *template, ParamListInfo params);

#endif							/* LIVE_TOPN_TEMPLATE_H */
