/*
 * setup.c
 *	  Are the server and the database set up so that live_topn can work?
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "postmaster/bgworker.h"
#include "setup.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/syscache.h"
#include "utils/varlena.h"
#include "worker_slot.h"

/* Not every user may see shared_preload_libraries. */
static char *
preload_obstacle(void)
{
	if (has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_SETTINGS))
		return psprintf("live_topn is not in shared_preload_libraries (\"%s\")",
						GetConfigOption("shared_preload_libraries", false,
										false));
	return pstrdup("live_topn is not in shared_preload_libraries");
}

static bool
plugin_allowed(const char *libraries)
{
	List	   *names;
	ListCell   *lc;

	if (!SplitIdentifierString(pstrdup(libraries), ',', &names))
		return false;
	foreach(lc, names)
	{
		if (strcmp((char *) lfirst(lc), "live_topn") == 0)
			return true;
	}
	return false;
}

static bool
database_is_template(void)
{
	HeapTuple	tuple = SearchSysCache1(DATABASEOID,
										ObjectIdGetDatum(MyDatabaseId));
	bool		result;

	if (!HeapTupleIsValid(tuple))
		elog(ERROR, "cache lookup failed for database %u", MyDatabaseId);
	result = ((Form_pg_database) GETSTRUCT(tuple))->datistemplate;
	ReleaseSysCache(tuple);
	return result;
}

char *
setup_obstacle(char **hint)
{
	const char *libraries;
	char	   *unused;

	if (hint == NULL)
		hint = &unused;
	*hint = NULL;

	if (worker_array == NULL)
	{
		*hint = "Add live_topn to shared_preload_libraries and restart the server.";
		return preload_obstacle();
	}
	if (RecoveryInProgress())
		return pstrdup("the server is in recovery");
	if (!XLogLogicalInfoActive())
	{
		*hint = "Set wal_level to \"logical\" and restart the server.";
		return psprintf("wal_level is \"%s\", live_topn needs \"logical\"",
						GetConfigOption("wal_level", false, false));
	}

	if (database_is_template())
		return pstrdup("the database is a template");

	/* Minor releases of 2026 have this setting, earlier ones do not. */
	libraries = GetConfigOption("output_plugin_libraries", true, false);
	if (libraries != NULL && !plugin_allowed(libraries))
	{
		*hint = psprintf("Use ALTER SYSTEM SET output_plugin_libraries = %s%slive_topn, then SELECT pg_reload_conf().",
						 libraries, libraries[0] != '\0' ? ", " : "");
		return psprintf("output_plugin_libraries (\"%s\") does not list live_topn",
						libraries);
	}
	return NULL;
}

void
setup_check(void)
{
	char	   *hint;
	char	   *obstacle = setup_obstacle(&hint);

	if (obstacle != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("live_topn cannot run: %s", obstacle),
				 hint != NULL ? errhint("%s", hint) : 0));
}

void
setup_application_name(void)
{
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name,
					PGC_USERSET, PGC_S_OVERRIDE);
}

void
setup_process(void)
{
	static const char *const settings[][2] = {
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"session_replication_role", "origin"},
		{"row_security", "on"},
		{"search_path", ""},
	};

	for (int i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET,
						PGC_S_OVERRIDE);

	/* text is passed between processes as it is */
	SetConfigOption("client_encoding", GetDatabaseEncodingName(),
					PGC_USERSET, PGC_S_OVERRIDE);
	setup_application_name();
}
