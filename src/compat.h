/*
 * compat.h
 *	  Differences between the PostgreSQL versions that live_topn builds with.
 */
#ifndef LIVE_TOPN_COMPAT_H
#define LIVE_TOPN_COMPAT_H

#if PG_VERSION_NUM < 150000
#error "live_topn needs PostgreSQL 15 or later"
#endif

/* 024c52111: PGPROC.pgprocno became MyProcNumber and GetNumberFromPGProc */
#if PG_VERSION_NUM < 170000
#define MyProcNumber			(MyProc->pgprocno)
#endif

/* 173b56f1e: LogLogicalMessage was given an argument flush */
#if PG_VERSION_NUM < 170000
#define log_logical_message(prefix, message, size) \
	LogLogicalMessage(prefix, message, size, true)
#define log_logical_message_now(prefix, message, size) \
	LogLogicalMessage(prefix, message, size, false)
#else
#define log_logical_message(prefix, message, size) \
	LogLogicalMessage(prefix, message, size, true, false)
#define log_logical_message_now(prefix, message, size) \
	LogLogicalMessage(prefix, message, size, false, false)
#endif

/* 8c58624df: from then on the reorder buffer reports progress by itself */
#if PG_VERSION_NUM < 160000
#define output_plugin_progress(ctx) OutputPluginUpdateProgress(ctx, false)
#else
#define output_plugin_progress(ctx) ((void) (ctx))
#endif

/* afbfc0298: one object_ownercheck replaced a function per kind of object */
#if PG_VERSION_NUM < 160000
#define database_ownercheck(dboid, roleid) \
	pg_database_ownercheck(dboid, roleid)
#else
#define database_ownercheck(dboid, roleid) \
	object_ownercheck(DatabaseRelationId, dboid, roleid)
#endif

/* 08e6344fd: tuples of a ReorderBufferChange lost their ReorderBufferTupleBuf */
#if PG_VERSION_NUM < 170000
#define ChangeTuple(buf)		((buf) ? &(buf)->tuple : NULL)
#else
#define ChangeTuple(buf)		(buf)
#endif

/* ddd5f4f54, c393308b6: failover slots; 7c3fb505b: checks on acquisition */
#if PG_VERSION_NUM < 170000
#define replication_slot_create(name, persistency) \
	ReplicationSlotCreate(name, true, persistency, false)
#else
#define replication_slot_create(name, persistency) \
	ReplicationSlotCreate(name, true, persistency, false, false, false)
#endif
/* be87200ef: slots say why they were invalidated */
#if PG_VERSION_NUM < 160000
#define slot_is_invalidated(slot) \
	XLogRecPtrIsInvalid((slot)->data.restart_lsn)
#else
#define slot_is_invalidated(slot) \
	((slot)->data.invalidated != RS_INVAL_NONE)
#endif

#if PG_VERSION_NUM < 180000
#define replication_slot_acquire(name) \
	ReplicationSlotAcquire(name, true)
#else
#define replication_slot_acquire(name) \
	ReplicationSlotAcquire(name, true, true)
#endif

#endif							/* LIVE_TOPN_COMPAT_H */
