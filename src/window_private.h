/*
 * window_private.h
 *	  What the files that make up windows share with each other only.
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

/*
 * Take out a row that compares equal: it is held no longer.  Its reference
 * becomes the caller's.
 */
extern Row *window_take_out(Window *window, const Row *row);

/* The hash of the window's partition keys. */
extern uint32 window_hash_group(const Window *window);

/* Take a window out of its set; and free it, which holds no rows. */
extern void window_unlink(Window *window);
extern void window_free(Window *window);

/* Free the rows of the only window but those added since it was settled. */
extern void window_free_old_rows(Window *window);

/* The rows held now are what the next changes change. */
extern void window_forget_changes(Window *window);

/* Nothing goes on with the window any more. */
extern void window_end_work(Window *window);

#endif							/* LIVE_TOPN_WINDOW_PRIVATE_H */
