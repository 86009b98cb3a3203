/*
 * worker.h
 *	  The database worker: decodes, applies, publishes.
 */
#ifndef LIVE_TOPN_WORKER_H
#define LIVE_TOPN_WORKER_H

#include "postgres.h"

extern bool worker_debug_abandon;	/* live_topn.debug_abandon */

extern PGDLLEXPORT void live_topn_worker_main(Datum main_arg);

#endif							/* LIVE_TOPN_WORKER_H */
