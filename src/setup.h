/*
 * setup.h
 *	  Are the server and the database set up so that live_topn can work?
 */
#ifndef LIVE_TOPN_SETUP_H
#define LIVE_TOPN_SETUP_H

/*
 * Why no worker can run in this database of this server, NULL if one can.  If
 * hint is given, it says what to do, or is NULL.
 */
extern char *setup_obstacle(char **hint);

/* Raise what setup_obstacle says. */
extern void setup_check(void);

/*
 * In a background process: make it independent of defaults that are meant for
 * the sessions of users.
 */
extern void setup_process(void);

/* The name of the background process is to be seen in pg_stat_activity. */
extern void setup_application_name(void);

#endif							/* LIVE_TOPN_SETUP_H */
