/*
 * session.c
 *	  Is the session of a subscriber still there?
 *
 * A session that has subscriptions which are to end with it puts a number into
 * its place in shared memory, and takes it out when it ends, however it does.
 * Where it cannot, because the server crashes, shared memory is made anew,
 * with other numbers: they begin at random.
 */
#include "postgres.h"

#include "compat.h"
#include "launcher.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "session.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"

/* A number is a count and, in so many bits, the place. */
#define PLACE_BITS		18		/* MAX_BACKENDS in postmaster.h */
#define COUNT_BITS		40

/* The lock protects all but ends. */
typedef struct SessionPlace
{
	int64		number;			/* 0: none */
	Oid			dboid;
} SessionPlace;

typedef struct SessionArray
{
	LWLock	   *lock;
	int64		count;			/* of the last number */
	pg_atomic_uint32 ends;
	SessionPlace places[FLEXIBLE_ARRAY_MEMBER]; /* MaxBackends */
} SessionArray;

static SessionArray *session_array = NULL;
static int64 my_number = 0;

static Size
session_array_size(void)
{
	return add_size(offsetof(SessionArray, places),
					mul_size(sizeof(SessionPlace), MaxBackends));
}

void
session_shmem_request(void)
{
	RequestAddinShmemSpace(session_array_size());
	RequestNamedLWLockTranche("live_topn_sessions", 1);
}

void
session_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	session_array = ShmemInitStruct("live_topn sessions",
									session_array_size(), &found);
	if (!found)
	{
		uint64		random;

		memset(session_array, 0, session_array_size());
		session_array->lock =
			&GetNamedLWLockTranche("live_topn_sessions")->lock;
		if (!pg_strong_random(&random, sizeof(random)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a random number")));
		session_array->count = random >> (64 - COUNT_BITS);
		pg_atomic_init_u32(&session_array->ends, 0);
	}
	LWLockRelease(AddinShmemInitLock);
}

/* before_shmem_exit */
static void
end_session(int code, Datum arg)
{
	LWLockAcquire(session_array->lock, LW_EXCLUSIVE);
	session_array->places[MyProcNumber].number = 0;
	LWLockRelease(session_array->lock);
	pg_atomic_fetch_add_u32(&session_array->ends, 1);
	launcher_wake_worker();
}

int64
session_number(void)
{
	if (my_number == 0)
	{
		SessionPlace *place = &session_array->places[MyProcNumber];

		before_shmem_exit(end_session, (Datum) 0);
		LWLockAcquire(session_array->lock, LW_EXCLUSIVE);
		my_number = (++session_array->count << PLACE_BITS) | MyProcNumber;
		place->number = my_number;
		place->dboid = MyDatabaseId;
		LWLockRelease(session_array->lock);
	}
	return my_number;
}

uint32
session_ends(void)
{
	return pg_atomic_read_u32(&session_array->ends);
}

bool
session_is_alive(int64 number)
{
	int64		i = number & ((1 << PLACE_BITS) - 1);
	bool		alive = false;

	if (i < MaxBackends)
	{
		SessionPlace *place = &session_array->places[i];

		LWLockAcquire(session_array->lock, LW_SHARED);
		alive = place->number == number && place->dboid == MyDatabaseId;
		LWLockRelease(session_array->lock);
	}
	return alive;
}
