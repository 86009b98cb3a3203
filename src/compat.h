/*
 * compat.h
 *	  Differences between the PostgreSQL versions that live_topn builds with.
 */
#ifndef LIVE_TOPN_COMPAT_H
#define LIVE_TOPN_COMPAT_H

#if PG_VERSION_NUM < 150000
#error "live_topn needs PostgreSQL 15 or later"
#endif

/* 18: pg_noreturn goes before a function, pg_attribute_noreturn went */
#if PG_VERSION_NUM < 180000
#define pg_noreturn				__attribute__((noreturn))
#endif

/* 024c52111: PGPROC.pgprocno became MyProcNumber and GetNumberFromPGProc */
#if PG_VERSION_NUM < 170000
#define MyProcNumber			(MyProc->pgprocno)
#endif

/* ab355e3a8: backend IDs became proc numbers */
#if PG_VERSION_NUM < 170000
#define vxid_get_proc(vxid)		BackendIdGetProc((vxid).backendId)
#else
#define vxid_get_proc(vxid)		ProcNumberGetProc((vxid).procNumber)
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

/* the same for functions */
#if PG_VERSION_NUM < 160000
#define function_aclcheck(funcid, roleid, mode) \
	pg_proc_aclcheck(funcid, roleid, mode)
#else
#define function_aclcheck(funcid, roleid, mode) \
	object_aclcheck(ProcedureRelationId, funcid, roleid, mode)
#endif

/* a61b1f748: permissions moved from RangeTblEntry to RTEPermissionInfo */
#if PG_VERSION_NUM < 160000
#define check_query_permissions(query) \
	((void) ExecCheckRTPerms((query)->rtable, true))
#define add_selected_column(query, rte, column) \
	((rte)->selectedCols = bms_add_member((rte)->selectedCols, column))
#else
#include "parser/parse_relation.h"

#define check_query_permissions(query) \
	((void) ExecCheckPermissions((query)->rtable, (query)->rteperminfos, true))
#define add_selected_column(query, rte, column) \
	do { \
		RTEPermissionInfo *perminfo_ = \
			getRTEPermissionInfo((query)->rteperminfos, rte); \
		perminfo_->selectedCols = \
			bms_add_member(perminfo_->selectedCols, column); \
	} while (0)
#endif

/* ad86d159b: was given an argument missing_ok */
#if PG_VERSION_NUM < 160000
#define attrmap_by_name(in, out) build_attrmap_by_name_if_req(in, out)
#else
#define attrmap_by_name(in, out) build_attrmap_by_name_if_req(in, out, false)
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

/* 18: strategies became CompareTypes, which sort in the same order */
#if PG_VERSION_NUM < 180000
#define OrderStrategy			int16
#define STRATEGY_GREATER		BTGreaterStrategyNumber
#else
#define OrderStrategy			CompareType
#define STRATEGY_GREATER		COMPARE_GT
#endif

/* 80feb727c: was given an argument result_relation */
#if PG_VERSION_NUM < 180000
#define replace_vars(node, varno, rte, targetlist) \
	ReplaceVarsFromTargetList(node, varno, 0, rte, targetlist, \
							  REPLACEVARS_REPORT_ERROR, 0, NULL)
#else
#define replace_vars(node, varno, rte, targetlist) \
	ReplaceVarsFromTargetList(node, varno, 0, rte, targetlist, 0, \
							  REPLACEVARS_REPORT_ERROR, 0, NULL)
#endif

/* 18: a deferrable primary key, which is no identity, on request */
#if PG_VERSION_NUM < 180000
#define primary_key_index(rel)	RelationGetPrimaryKeyIndex(rel)
#else
#define primary_key_index(rel)	RelationGetPrimaryKeyIndex(rel, false)
#endif

/* 3eea7a0c9: lost its argument execute_once */
#if PG_VERSION_NUM < 180000
#define executor_run(desc)		ExecutorRun(desc, ForwardScanDirection, 0, true)
#else
#define executor_run(desc)		ExecutorRun(desc, ForwardScanDirection, 0)
#endif

/* 18: heap_form_minimal_tuple was given an argument extra */
#if PG_VERSION_NUM < 180000
#define form_minimal_tuple(desc, values, nulls) \
	heap_form_minimal_tuple(desc, values, nulls)
#else
#define form_minimal_tuple(desc, values, nulls) \
	heap_form_minimal_tuple(desc, values, nulls, 0)
#endif

/* c9af05465: extensions name what they wait for */
#if PG_VERSION_NUM < 170000
#define wait_event_new(name)	((void) (name), PG_WAIT_EXTENSION)
#else
#define wait_event_new(name)	WaitEventExtensionNew(name)
#endif

/* 18: a SortGroupClause says by itself whether its sortop is "greater" */
#if PG_VERSION_NUM < 180000
#define set_reverse_sort(clause, reverse) ((void) (clause))
#else
#define set_reverse_sort(clause, reverse) \
	((clause)->reverse_sort = (reverse))
#endif

/* 18 (99f8f3fbbc8f): relallfrozen */
#if PG_VERSION_NUM < 180000
#define class_clear_frozen(class)	((void) 0)
#else
#define class_clear_frozen(class)	((void) ((class)->relallfrozen = 0))
#endif

/* A hint to the processor: this memory is going to be read. */
#ifdef __GNUC__
#define prefetch(address)		__builtin_prefetch(address)
#else
#define prefetch(address)		((void) (address))
#endif

#endif							/* LIVE_TOPN_COMPAT_H */
