/*
 * message.c
 *	  Logical messages of ours in WAL.
 */
#include "postgres.h"

#include <unistd.h>

#include "checkpoint.h"
#include "message.h"
#include "storage/fd.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"

#define SECRET_PATH		CHECKPOINT_DIRECTORY "/secret"
#define SECRET_TEMPORARY	CHECKPOINT_DIRECTORY "/secret.tmp"

/* As in the file: always as long, so that one cut off is not taken for good. */
#define SECRET_FORMAT	"%019lld\n"
#define SECRET_LENGTH	20

/* No secret in a message is longer, with the space before it. */
#define MAX_SECRET_LENGTH	24

static int64 *secret;

void
message_shmem_request(void)
{
	RequestAddinShmemSpace(MAXALIGN(sizeof(int64)));
}

/* False if there is none, or what is there is damaged. */
static bool
read_secret(void)
{
	FILE	   *file = AllocateFile(SECRET_PATH, "r");
	char		text[SECRET_LENGTH + 2];
	char		expected[SECRET_LENGTH + 2];
	size_t		length;

	if (file == NULL)
	{
		if (errno != ENOENT)
			ereport(FATAL,
					(errcode_for_file_access(),
					 errmsg("could not open file \"%s\": %m", SECRET_PATH)));
		return false;
	}
	length = fread(text, 1, sizeof(text) - 1, file);
	FreeFile(file);
	text[length] = '\0';
	*secret = strtoi64(text, NULL, 10);
	snprintf(expected, sizeof(expected), SECRET_FORMAT, (long long) *secret);
	return *secret >= 0 && length == SECRET_LENGTH &&
		strcmp(text, expected) == 0;
}

static void
make_secret(void)
{
	FILE	   *file;

	if (!pg_strong_random(secret, sizeof(int64)))
		ereport(FATAL,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not make a random number")));
	*secret &= PG_INT64_MAX;
	if (MakePGDirectory(CHECKPOINT_DIRECTORY) != 0 && errno != EEXIST)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not create directory \"%s\": %m",
						CHECKPOINT_DIRECTORY)));
	file = AllocateFile(SECRET_TEMPORARY, "w");
	if (file == NULL ||
		fprintf(file, SECRET_FORMAT, (long long) *secret) < 0 ||
		fflush(file) != 0 || pg_fsync(fileno(file)) != 0)
		ereport(FATAL,
				(errcode_for_file_access(),
				 errmsg("could not write file \"%s\": %m",
						SECRET_TEMPORARY)));
	FreeFile(file);
	durable_rename(SECRET_TEMPORARY, SECRET_PATH, FATAL);
}

void
message_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	secret = ShmemInitStruct("live_topn secret", sizeof(int64), &found);
	if (!found && !read_secret())
		make_secret();
	LWLockRelease(AddinShmemInitLock);
}

int64
message_secret(void)
{
	return *secret;
}

const char *
message_numbers(const char *prefix, const char *data, Size size)
{
	const char *at;

	if (strcmp(prefix, MESSAGE_PREFIX) != 0 || size == 0)
		return NULL;
	at = pnstrdup(data + 1, Min(size - 1, MAX_SECRET_LENGTH));
	if (!message_is_genuine(&at))
		return NULL;
	at = pnstrdup(data + 1, size - 1);
	(void) message_is_genuine(&at);
	return at;
}
