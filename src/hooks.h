/*
 * hooks.h
 *	  Other people's commands that the database workers must know of.
 */
#ifndef LIVE_TOPN_HOOKS_H
#define LIVE_TOPN_HOOKS_H

extern void hooks_install(void);

#endif							/* LIVE_TOPN_HOOKS_H */
