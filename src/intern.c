/*
 * intern.c
 *	  Strings that many have in common.
 *
 * Nearly all subscriptions have the same few queries, with other arguments,
 * and the same settings.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "intern.h"
#include "utils/memutils.h"

typedef struct InternEntry
{
	char	   *string;
	uint32		hash;
	int			refs;
	char		status;
} InternEntry;

#define SH_PREFIX strings
#define SH_ELEMENT_TYPE InternEntry
#define SH_KEY_TYPE char *
#define SH_KEY string
#define SH_HASH_KEY(tb, key) hash_bytes((const unsigned char *) (key), strlen(key))
#define SH_EQUAL(tb, a, b) (strcmp(a, b) == 0)
#define SH_STORE_HASH
#define SH_GET_HASH(tb, a) a->hash
#define SH_SCOPE static inline
#define SH_DECLARE
#define SH_DEFINE
#include "lib/simplehash.h"

static MemoryContext context;
static strings_hash *strings;

void
intern_startup(MemoryContext parent)
{
	context = AllocSetContextCreate(parent, "live_topn strings",
									ALLOCSET_DEFAULT_SIZES);
	strings = strings_create(context, 64, NULL);
}

char *
intern(const char *string)
{
	bool		found;
	InternEntry *entry = strings_insert(strings, unconstify(char *, string),
										&found);

	if (!found)
	{
		entry->string = MemoryContextStrdup(context, string);
		entry->refs = 0;
	}
	entry->refs++;
	return entry->string;
}

void
intern_release(char *string)
{
	InternEntry *entry = strings_lookup(strings, string);

	Assert(entry && entry->string == string);
	if (--entry->refs > 0)
		return;
	strings_delete_item(strings, entry);
	pfree(string);
}
