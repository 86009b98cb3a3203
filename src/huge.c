/*
 * huge.c
 *	  Large arrays that are read at random.
 *
 * What a read at random costs in an array of a few megabytes is mostly the way
 * to the page, several times what the memory itself costs.  Where the
 * system gives huge pages only to those who ask (madvise in
 * /sys/kernel/mm/transparent_hugepage/enabled), we do.
 */
#include "postgres.h"

#include <sys/mman.h>

#include "huge.h"
#include "utils/memutils.h"

#define HUGE_PAGE		(2 * 1024 * 1024)

void *
huge_alloc0(MemoryContext context, Size size)
{
	char	   *array = MemoryContextAllocExtended(context, size,
												   MCXT_ALLOC_HUGE);
#ifdef MADV_HUGEPAGE
	char	   *start = (char *) TYPEALIGN(HUGE_PAGE, array);
	char	   *end = (char *) TYPEALIGN_DOWN(HUGE_PAGE, array + size);

	/* a hint: it does not matter whether it is followed */
	if (start < end)
		(void) madvise(start, end - start, MADV_HUGEPAGE);
#endif
	memset(array, 0, size);
	return array;
}
