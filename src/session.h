/*
 * session.h
 *	  Is the session of a subscriber still there?
 */
#ifndef LIVE_TOPN_SESSION_H
#define LIVE_TOPN_SESSION_H

extern void session_shmem_request(void);	/* in shmem_request_hook */
extern void session_shmem_startup(void);	/* in shmem_startup_hook */

/*
 * The number of this session, which no other has, or will have after a
 * restart.  The database worker is woken when the session ends.
 */
extern int64 session_number(void);

/* How many sessions with a number have ended. */
extern uint32 session_ends(void);

/* Is there a session of this database with the number? */
extern bool session_is_alive(int64 number);

#endif							/* LIVE_TOPN_SESSION_H */
