/*
 * list.h
 *	  The result of a subscription as a client keeps it.
 */
#ifndef LIST_H
#define LIST_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/* A row, and what has happened to it of late; times are seconds since 1970. */
typedef struct ListRow
{
	json_t	   *key;			/* identity */
	json_t	   *row;			/* the select list */
	json_t	   *group;			/* of a grouped result, else NULL */
	json_t	   *changed;		/* column to the time of its last change */
	double		entered;
	double		moved;
	bool		upwards;		/* the direction of that move */
} ListRow;

/*
 * The rows are the result after batch seq.  With absolute ranks, batches are
 * applied all at once.
 */
typedef struct List
{
	bool		absolute;
	json_int_t	seq;
	size_t		nrows;
	size_t		maxrows;
	ListRow   **rows;
	char	   *parts;			/* data of the parts received so far */
	char	   *error;			/* of a subscription in error, else NULL */

	/* what was received */
	long		nbatches;
	long		ndeltas;
	double		at;				/* when the last batch was committed */
} List;

typedef enum ListResult
{
	LIST_APPLIED,
	LIST_IGNORED,				/* the list has the batch, or it is a part */
	LIST_GAP,					/* batches are missing, or do not fit */
	LIST_MALFORMED
} ListResult;

/* An empty list that has no batch yet: the first must be a reset. */
extern void list_init(List *list, bool absolute);
extern void list_free(List *list);

/* Start from what topn_snapshot has returned; "rows" is JSON. */
extern bool list_start(List *list, json_int_t seq, const char *rows);

/*
 * Take a payload or a line: a batch, or a part of one.  If it is applied, and
 * batch is not NULL, *batch is set to its text: the payload itself, or all
 * parts joined, which are valid until the next call.
 */
extern ListResult list_take(List *list, const char *payload, double now,
							const char **batch);

#endif							/* LIST_H */
