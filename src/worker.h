/*
 * worker.h
 *	  The database worker: decodes, applies, publishes.
 */
#ifndef LIVE_TOPN_WORKER_H
#define LIVE_TOPN_WORKER_H

#include "postgres.h"

extern PGDLLEXPORT void live_topn_worker_main(Datum main_arg);

#endif							/* LIVE_TOPN_WORKER_H */
