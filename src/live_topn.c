/*
 * live_topn.c
 *	  Module entry: settings, shared memory, hooks.
 *
 * The library must be preloaded to do anything.  Where it is not, the
 * functions say so; see setup.c.
 */
#include "postgres.h"

#include <limits.h>

#include "checkpoint.h"
#include "commit_log.h"
#include "cushion.h"
#include "decoder.h"
#include "feed.h"
#include "fmgr.h"
#include "history.h"
#include "hooks.h"
#include "launcher.h"
#include "message.h"
#include "miscadmin.h"
#include "reconcile.h"
#include "refill.h"
#include "replication/output_plugin.h"
#include "request.h"
#include "route.h"
#include "session.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "worker.h"

PG_MODULE_MAGIC;

extern PGDLLEXPORT void _PG_init(void);
extern PGDLLEXPORT void _PG_output_plugin_init(OutputPluginCallbacks *cb);

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static const struct config_enum_entry fact_options[] = {
	{"none", IGNORE_NONE, false},
	{"redo", IGNORE_REDO, false},
	{"undo", IGNORE_UNDO, false},
	{"lsn", IGNORE_SNAPSHOT, false},
	{NULL, 0, false}
};

static void
live_topn_shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	launcher_shmem_request();
	request_shmem_request();
	message_shmem_request();
	session_shmem_request();
}

static void
live_topn_shmem_startup(void)
{
	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();
	launcher_shmem_startup();
	request_shmem_startup();
	message_shmem_startup();
	session_shmem_startup();
}

static void
define_settings(void)
{
	DefineCustomIntVariable("live_topn.request_timeout",
							"Sets how long topn_snapshot, topn_rows and the views wait for the database worker.",
							NULL,
							&request_timeout_ms,
							10000, 1, INT_MAX,
							PGC_USERSET, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.max_refill_workers",
							"Sets how many queries for more rows run at once in a database.",
							"Each takes one of max_worker_processes, and one more looks at queries after DDL.",
							&refill_max_workers,
							3, 1, 64,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.refill_timeout",
							"Sets how long a query for more rows may run.",
							"Zero means without limit.",
							&refill_timeout_ms,
							0, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.evaluation_timeout",
							"Sets how long the worker may spend on a query's expressions for one row.",
							"The subscription is in error then. Zero means without limit.",
							&feed_evaluation_timeout_ms,
							10000, 0, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.slice_offset",
							"Sets the OFFSET from which on skipped rows are counted instead of held.",
							"Only for tables with a key and REPLICA IDENTITY FULL.",
							&feed_slice_offset,
							1000, 0, INT_MAX,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.memory_limit",
							"Sets how much of the commit log a database worker keeps in memory.",
							"What is beyond that goes to temporary files. A result without LIMIT that is held must not be larger, either.",
							&commit_log_memory_kb,
							65536, 64, MAX_KILOBYTES,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.result_memory",
							"Sets how much memory the rows of one subscription may take.",
							"One that would need more is in error.",
							&feed_result_memory_kb,
							1024 * 1024, 64, MAX_KILOBYTES,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.group_memory",
							"Sets how much memory the groups of one subscription may take.",
							"Beyond that, groups that were not touched for long are dropped, and read again when they are; only for tables with a key and REPLICA IDENTITY FULL.",
							&feed_group_memory_kb,
							256 * 1024, 0, MAX_KILOBYTES,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.cushion_memory",
							"Sets how much memory a database worker spends on adaptive cushions.",
							"When it is short, all of them shrink by the same factor.",
							&cushion_memory_kb,
							65536, 0, MAX_KILOBYTES,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.poll_memory",
							"Sets how much memory a database worker spends on batches for topn_poll.",
							"A client that lacks older ones gets the whole result.",
							&history_memory_kb,
							16384, 0, MAX_KILOBYTES,
							PGC_SIGHUP, GUC_UNIT_KB,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.poll_batches",
							"Sets how many batches of a subscription are kept for topn_poll.",
							NULL,
							&history_batches,
							1000, 0, INT_MAX,
							PGC_SIGHUP, 0,
							NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.checkpoint_interval",
							"Sets how often a database worker saves its windows.",
							"WAL since then is read again when it starts.",
							&checkpoint_interval_ms,
							60000, 1, INT_MAX,
							PGC_SIGHUP, GUC_UNIT_MS,
							NULL, NULL, NULL);
	DefineCustomBoolVariable("live_topn.allow_procedural_functions",
							 "Allows functions in procedural languages in subscribed queries.",
							 "One that never ends stops all subscriptions of its database.",
							 &query_allow_procedural,
							 false,
							 PGC_SUSET, 0,
							 NULL, NULL, NULL);

	/* For tests. */
	DefineCustomBoolVariable("live_topn.debug_abandon",
							 "Makes a database worker that is told to end do so at once, as if it crashed.",
							 NULL,
							 &worker_debug_abandon,
							 false,
							 PGC_SIGHUP, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);
	DefineCustomBoolVariable("live_topn.debug_refill_stops",
							 "Makes queries for more rows stop at advisory locks.",
							 NULL,
							 &refill_debug_stops,
							 false,
							 PGC_SUSET, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);
	DefineCustomIntVariable("live_topn.debug_refill_delay",
							"Delays queries for more rows.",
							NULL,
							&refill_debug_delay,
							0, 0, INT_MAX,
							PGC_SUSET, GUC_UNIT_MS | GUC_NOT_IN_SAMPLE,
							NULL, NULL, NULL);
	DefineCustomBoolVariable("live_topn.debug_check_routing",
							 "Looks whether a change concerns subscriptions that are not told of it.",
							 "That takes what telling all of them would.",
							 &route_debug_check,
							 route_debug_check,
							 PGC_SUSET, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);
	DefineCustomEnumVariable("live_topn.debug_ignore_fact",
							 "Makes reconciliation ignore one of the facts that it rests on.",
							 NULL,
							 &reconcile_ignore_fact,
							 IGNORE_NONE, fact_options,
							 PGC_SUSET, GUC_NOT_IN_SAMPLE,
							 NULL, NULL, NULL);

	MarkGUCPrefixReserved("live_topn");
}

void
_PG_init(void)
{
	define_settings();
	if (!process_shared_preload_libraries_in_progress)
		return;

	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = live_topn_shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = live_topn_shmem_startup;
	launcher_register();
	hooks_install();
}

void
_PG_output_plugin_init(OutputPluginCallbacks *cb)
{
	decoder_output_plugin_init(cb);
}
