/*
 * window_private.h
 *	  What window.c and window_set.c share with each other only.
 */
#ifndef LIVE_TOPN_WINDOW_PRIVATE_H
#define LIVE_TOPN_WINDOW_PRIVATE_H

#include "window.h"

/* The row into the tree. */
extern void window_insert(Window *window, Row *row);

/*
 * Unlink a row that compares equal: in a keyless table one of several, which
 * are alike in every column.
 */
extern Row *window_delete(Window *window, const Row *row);

/* A row of the window that compares equal, or NULL. */
extern Row *window_find_equal(const Window *window, const Row *row);

#endif							/* LIVE_TOPN_WINDOW_PRIVATE_H */
