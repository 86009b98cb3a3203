/*
 * output_plugin.h
 *	  The plugin in a consumer's slot: prints batches from WAL.
 */
#ifndef LIVE_TOPN_OUTPUT_PLUGIN_H
#define LIVE_TOPN_OUTPUT_PLUGIN_H

#include "replication/output_plugin.h"

/* For _PG_output_plugin_init in any process but the database worker. */
extern void output_plugin_init(OutputPluginCallbacks *callbacks);

#endif							/* LIVE_TOPN_OUTPUT_PLUGIN_H */
