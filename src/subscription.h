/*
 * subscription.h
 *	  Finding subscriptions for the user who names them.
 */
#ifndef LIVE_TOPN_SUBSCRIPTION_H
#define LIVE_TOPN_SUBSCRIPTION_H

#include "catalog.h"

/*
 * A committed or own subscription by name, of which the current user is the
 * owner or a member of his role.  own, if given, says whether the row was
 * written by the current transaction.  Raises an error otherwise.
 */
extern SubscriptionRow *subscription_find(const char *name, bool *own);

/* Is there any subscription that others can see? */
extern bool subscription_exists(void);

#endif							/* LIVE_TOPN_SUBSCRIPTION_H */
