/*
 * invalidation.c
 *	  Which queries are concerned by changes of the system catalogs.
 */
#include "postgres.h"

#include "invalidation.h"
#include "utils/syscache.h"

void
invalidation_note(Invalidation *invalidation,
				  const SharedInvalidationMessage *message)
{
	if (message->id != SHAREDINVALRELCACHE_ID &&
		message->id != SHAREDINVALSMGR_ID && message->id != RELOID &&
		message->id != RELNAMENSP && message->id != STATRELATTINH)
		invalidation->more = true;
	switch (message->id)
	{
		case SHAREDINVALRELCACHE_ID:
			if (message->rc.relId == InvalidOid)
				invalidation->tables = true;
			else
				invalidation->relids =
					list_append_unique_oid(invalidation->relids,
										   message->rc.relId);
			break;
		case RELOID:
			invalidation->classes =
				lappend_int(invalidation->classes, message->cc.hashValue);
			break;
		case RELNAMENSP:
			invalidation->relations =
				lappend_int(invalidation->relations, message->cc.hashValue);
			break;
		case AUTHMEMROLEMEM:
		case AUTHMEMMEMROLE:
			invalidation->members = true;
			break;
		case AUTHOID:
		case NAMESPACENAME:
			invalidation->names =
				lappend_int(invalidation->names, message->cc.hashValue);
			break;
		case PROCOID:
		case OPEROID:
			invalidation->functions = true;
			break;
		case ENUMOID:
			invalidation->labels++;
			break;
		case ENUMTYPOIDNAME:
			invalidation->label_names++;
			break;
	}
}

bool
invalidation_concerns_table(const Invalidation *invalidation,
							const TopnQuery *query)
{
	return invalidation->tables ||
		list_member_oid(invalidation->relids, query->relid) ||
		list_member_oid(invalidation->ancestors, query->relid);
}

static bool
concerns_names(const Invalidation *invalidation, const TopnQuery *query)
{
	ListCell   *lc;

	if (invalidation->members ||
		(invalidation->names != NIL && query->any_name))
		return true;
	foreach(lc, invalidation->names)
		if (list_member_int(query->names, lfirst_int(lc)))
			return true;
	return false;
}

bool
invalidation_concerns_query(const Invalidation *invalidation,
							const TopnQuery *query)
{
	ListCell   *lc;

	if (concerns_names(invalidation, query))
		return true;
	foreach(lc, query->depends)
		if (list_member_oid(invalidation->relids, lfirst_oid(lc)))
			return true;
	foreach(lc, query->shadows)
		if (list_member_int(invalidation->relations, lfirst_int(lc)))
			return true;
	return invalidation->functions && (query->functions || query->calls);
}

bool
invalidation_concerns_error(const Invalidation *invalidation)
{
	return invalidation->functions || invalidation->relids != NIL ||
		invalidation_has_names(invalidation);
}
