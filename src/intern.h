/*
 * intern.h
 *	  Strings that many have in common.
 */
#ifndef LIVE_TOPN_INTERN_H
#define LIVE_TOPN_INTERN_H

#include "utils/palloc.h"

/* Before any other of these.  Strings live below parent. */
extern void intern_startup(MemoryContext parent);

/* The one copy of a string, with a reference; not to be changed. */
extern char *intern(const char *string);

/* Give a reference back. */
extern void intern_release(char *string);

#endif							/* LIVE_TOPN_INTERN_H */
