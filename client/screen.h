/*
 * screen.h
 *	  A list on a terminal.
 */
#ifndef SCREEN_H
#define SCREEN_H

#include "list.h"

/*
 * Take over the terminal: another screen, no cursor, keys without Enter.  It
 * is given back at exit.
 */
extern void screen_open(void);
extern void screen_close(void);

/* The next key pressed, 0 if none; stdin must be readable. */
extern char screen_key(void);

/*
 * Draw the list as of now, in seconds since 1970, with a status line.  Values
 * are in the given encoding of libpq.
 */
extern void screen_draw(const List *list, const char *title,
						const char *status, double now, int encoding);

#endif							/* SCREEN_H */
