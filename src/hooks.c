/*
 * hooks.c
 *	  Other people's commands that the database workers must know of.
 *
 * A connected worker counts as a user of its database, and its replication
 * slot as an active one, though nobody sees either.  So these commands would
 * fail, and before they look the worker is told to step aside:
 *
 *	  DROP DATABASE							in object_access_hook, since the
 *											check for active slots comes next
 *	  ALTER DATABASE ... RENAME				in ProcessUtility_hook
 *	  ALTER DATABASE ... SET TABLESPACE
 *	  CREATE DATABASE ... TEMPLATE
 *
 * It comes back when the transaction ends, whatever came of it: the launcher
 * looks for itself whether the database still exists.  dropdb drops the slot
 * together with its database.
 *
 * A database that was made, or altered in any way, may have subscriptions that
 * nobody has noticed, or may have become a template; the launcher looks when
 * the transaction has committed.
 *
 * COMMIT PREPARED may commit subscriptions that another session made.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "compat.h"
#include "hooks.h"
#include "launcher.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "subscription.h"
#include "tcop/utility.h"
#include "utils/acl.h"
#include "utils/memutils.h"

/* Databases, in TopTransactionContext until the transaction ends. */
static List *held = NIL;
static List *changed = NIL;

static object_access_hook_type prev_object_access_hook = NULL;
static ProcessUtility_hook_type prev_ProcessUtility_hook = NULL;

static List *
remember(List *list, Oid dboid)
{
	MemoryContext old = MemoryContextSwitchTo(TopTransactionContext);

	list = list_append_unique_oid(list, dboid);
	MemoryContextSwitchTo(old);
	return list;
}

static void
step_aside(Oid dboid)
{
	if (!list_member_oid(held, dboid) && launcher_hold(dboid))
		held = remember(held, dboid);
	if (list_member_oid(held, dboid))
		launcher_wait_gone(dboid);
}

/*
 * For a command that is about to check nothing yet: not at the request of one
 * who will be refused.
 */
static void
step_aside_by_name(const char *datname)
{
	Oid			dboid = get_database_oid(datname, true);

	if (OidIsValid(dboid) && database_ownercheck(dboid, GetUserId()))
		step_aside(dboid);
}

static char *
string_option(List *options, const char *name)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *option = lfirst_node(DefElem, lc);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

static void
before_utility(Node *statement)
{
	char	   *template;

	switch (nodeTag(statement))
	{
		case T_CreatedbStmt:
			template = string_option(((CreatedbStmt *) statement)->options,
									 "template");
			if (template != NULL)
				step_aside_by_name(template);
			break;
		case T_AlterDatabaseStmt:
			if (string_option(((AlterDatabaseStmt *) statement)->options,
							  "tablespace") != NULL)
				step_aside_by_name(((AlterDatabaseStmt *) statement)->dbname);
			break;
		case T_RenameStmt:
			if (((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
				step_aside_by_name(((RenameStmt *) statement)->subname);
			break;
		default:
			break;
	}
}

static void
hooks_ProcessUtility(PlannedStmt *pstmt, const char *queryString,
					 bool readOnlyTree, ProcessUtilityContext context,
					 ParamListInfo params, QueryEnvironment *queryEnv,
					 DestReceiver *dest, QueryCompletion *qc)
{
	Node	   *statement = pstmt->utilityStmt;
	bool		commit_prepared = IsA(statement, TransactionStmt) &&
	((TransactionStmt *) statement)->kind == TRANS_STMT_COMMIT_PREPARED;

	before_utility(statement);

	if (prev_ProcessUtility_hook)
		prev_ProcessUtility_hook(pstmt, queryString, readOnlyTree, context,
								 params, queryEnv, dest, qc);
	else
		standard_ProcessUtility(pstmt, queryString, readOnlyTree, context,
								params, queryEnv, dest, qc);

	/* pstmt may be gone by now */
	if (commit_prepared && launcher_find(MyDatabaseId, NULL) == NULL &&
		subscription_exists())
		launcher_want_worker();
}

static void
hooks_object_access(ObjectAccessType access, Oid classid, Oid objectid,
					int subid, void *arg)
{
	if (prev_object_access_hook)
		prev_object_access_hook(access, classid, objectid, subid, arg);

	if (classid != DatabaseRelationId)
		return;
	if (access == OAT_DROP)
		step_aside(objectid);
	else if (access == OAT_POST_CREATE || access == OAT_POST_ALTER)
		changed = remember(changed, objectid);
}

/* Must not raise errors: see launcher_xact_callback. */
static void
hooks_xact_callback(XactEvent event, void *arg)
{
	ListCell   *lc;

	if (event != XACT_EVENT_COMMIT && event != XACT_EVENT_ABORT &&
		event != XACT_EVENT_PREPARE)
		return;

	foreach(lc, held)
		launcher_release(lfirst_oid(lc));
	if (event != XACT_EVENT_ABORT)
	{
		foreach(lc, changed)
			launcher_reconsider(lfirst_oid(lc));
	}
	held = NIL;
	changed = NIL;
}

void
hooks_install(void)
{
	prev_object_access_hook = object_access_hook;
	object_access_hook = hooks_object_access;
	prev_ProcessUtility_hook = ProcessUtility_hook;
	ProcessUtility_hook = hooks_ProcessUtility;
	RegisterXactCallback(hooks_xact_callback, NULL);
}
