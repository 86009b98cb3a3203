/*
 * huge.h
 *	  Large arrays that are read at random.
 */
#ifndef LIVE_TOPN_HUGE_H
#define LIVE_TOPN_HUGE_H

/* An array of zeros, of any size; pfree frees it. */
extern void *huge_alloc0(MemoryContext context, Size size);

#endif							/* LIVE_TOPN_HUGE_H */
