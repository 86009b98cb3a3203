/*
 * subscription.c
 *	  SQL functions that make, change, drop and refresh subscriptions.
 *
 * A subscription is a row of live_topn.subscription.  Nobody but the owner of
 * the extension has rights on that table; the functions write it in his name
 * after they have checked what the caller may do.  The database worker learns
 * of the rows from WAL.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "compat.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "launcher.h"
#include "message.h"
#include "miscadmin.h"
#include "query.h"
#include "query_check.h"
#include "replication/message.h"
#include "session.h"
#include "setup.h"
#include "subscription.h"
#include "utils/acl.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(live_topn_subscribe);
PG_FUNCTION_INFO_V1(live_topn_unsubscribe);
PG_FUNCTION_INFO_V1(live_topn_resync);
PG_FUNCTION_INFO_V1(live_topn_renew);
PG_FUNCTION_INFO_V1(live_topn_move);
PG_FUNCTION_INFO_V1(live_topn_subscription_changed);

/* What names in a query and the text of values depend on. */
static const char *const recorded_settings[] = {
	"search_path",
	"TimeZone",
	"DateStyle",
	"IntervalStyle",
	"extra_float_digits",
	"bytea_output",
	"standard_conforming_strings",
	"transform_null_equals"
};

/* ---- the table ---- */

static Oid
subscription_relid(void)
{
	Oid			relid = catalog_relid();

	if (!OidIsValid(relid))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"live_topn\" is not installed in this database")));
	return relid;
}

static Oid
subscription_object(Oid relid, const char *name)
{
	Oid			object = get_relname_relid(name, get_rel_namespace(relid));

	if (!OidIsValid(object))
		elog(ERROR, "relation \"%s.%s\" does not exist", CATALOG_SCHEMA, name);
	return object;
}

/* Was the row written by the current transaction? */
static bool
is_own_row(HeapTuple tuple)
{
	TransactionId xmin = HeapTupleHeaderGetXmin(tuple->t_data);

	return TransactionIdIsCurrentTransactionId(xmin);
}

pg_noreturn static void
does_not_exist(const char *name)
{
	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_OBJECT),
			 errmsg("subscription \"%s\" does not exist", name)));
}

SubscriptionRow *
subscription_find(const char *name, bool *own)
{
	Oid			relid = subscription_relid();
	Oid			index = subscription_object(relid, "subscription_name_key");
	Relation	rel = table_open(relid, AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	SubscriptionRow *row = NULL;
	SysScanDesc scan;
	ScanKeyData key;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_subscription_name, BTEqualStrategyNumber, F_TEXTEQ,
				CStringGetTextDatum(name));
	scan = systable_beginscan(rel, index, true, snapshot, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		row = catalog_row(tuple, RelationGetDescr(rel));
		if (own != NULL)
			*own = is_own_row(tuple);
	}
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);

	if (row == NULL)
		does_not_exist(name);
	if (!has_privs_of_role(GetUserId(), row->owner))
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("must be owner of subscription \"%s\"", name)));
	return row;
}

bool
subscription_exists(void)
{
	Oid			relid = catalog_relid();
	bool		found = false;
	Relation	rel;
	Snapshot	snapshot;
	SysScanDesc scan;
	HeapTuple	tuple;

	if (!OidIsValid(relid))
		return false;
	rel = table_open(relid, AccessShareLock);
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	scan = systable_beginscan(rel, InvalidOid, false, snapshot, 0, NULL);
	while (!found && (tuple = systable_getnext(scan)) != NULL)
		found = !is_own_row(tuple);
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	return found;
}

/*
 * AFTER INSERT OR UPDATE, for each statement: also when a dump is restored.
 * The worker is wanted now, so that it is up at commit, and again at commit in
 * case it saw nothing and left.
 */
Datum
live_topn_subscription_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("must be called as a trigger")));
	launcher_want_worker();
	launcher_want_worker_at_commit();
	return PointerGetDatum(NULL);
}

/* ---- subscribe_topn ---- */

static void
check_not_null(FunctionCallInfo fcinfo, int n, const char *name)
{
	if (PG_ARGISNULL(n))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
}

static char *
text_argument(FunctionCallInfo fcinfo, int n, const char *name)
{
	check_not_null(fcinfo, n, name);
	return text_to_cstring(PG_GETARG_TEXT_PP(n));
}

static void
check_name(const char *name)
{
	if (name[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("name of a subscription must not be empty")));
	if (strlen(name) >= NAMEDATALEN)
		ereport(ERROR,
				(errcode(ERRCODE_NAME_TOO_LONG),
				 errmsg("name of a subscription must be shorter than %d bytes",
						NAMEDATALEN),
				 errdetail("It is the name of a NOTIFY channel as well.")));
}

static void
check_deliver(const char *deliver)
{
	if (strcmp(deliver, "notify") != 0 && strcmp(deliver, "stream") != 0 &&
		strcmp(deliver, "both") != 0 && strcmp(deliver, "none") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for deliver: \"%s\"", deliver),
				 errhint("Valid values are \"notify\", \"stream\", \"both\" and \"none\".")));
}

static void
check_ranks(const char *ranks)
{
	if (strcmp(ranks, "relative") != 0 && strcmp(ranks, "absolute") != 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("invalid value for ranks: \"%s\"", ranks),
				 errhint("Valid values are \"relative\" and \"absolute\".")));
}

static void
check_positive(FunctionCallInfo fcinfo, int arg, const char *name)
{
	if (!PG_ARGISNULL(arg) && interval_ms(PG_GETARG_INTERVAL_P(arg)) <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must be at least a millisecond", name)));
}

/* Positions in the subscribed query, not in the calling statement. */
static void
query_error_callback(void *arg)
{
	int			position = geterrposition();

	if (position > 0)
	{
		errposition(0);
		internalerrposition(position);
		internalerrquery((const char *) arg);
	}
}

/*
 * Analyse a query.  Raises an error if it cannot be subscribed to by the
 * current user.
 */
static TopnQuery *
check_query(char *query, ArrayType *args)
{
	ErrorContextCallback callback;
	Oid			userid;
	int			sec_context;
	int			nestlevel;
	Datum	   *values = NULL;
	bool	   *nulls = NULL;
	int			nargs = 0;
	char	  **texts;
	TopnQuery  *result;

	if (args != NULL)
	{
		if (ARR_NDIM(args) > 1)
			ereport(ERROR,
					(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
					 errmsg("args must be a one-dimensional array")));
		deconstruct_array(args, TEXTOID, -1, false, TYPALIGN_INT,
						  &values, &nulls, &nargs);
	}
	texts = palloc(sizeof(char *) * nargs);
	for (int i = 0; i < nargs; i++)
		texts[i] = nulls[i] ? NULL : TextDatumGetCString(values[i]);

	callback.callback = query_error_callback;
	callback.arg = query;
	callback.previous = error_context_stack;
	error_context_stack = &callback;
	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(userid,
						   sec_context | SECURITY_RESTRICTED_OPERATION);
	nestlevel = NewGUCNestLevel();

	result = query_analyze(query, nargs, texts);

	AtEOXact_GUC(false, nestlevel);
	SetUserIdAndSecContext(userid, sec_context);
	error_context_stack = callback.previous;
	return result;
}

static Datum
current_settings(void)
{
	Datum		settings[lengthof(recorded_settings)];

	for (int i = 0; i < lengthof(recorded_settings); i++)
	{
		const char *name = recorded_settings[i];
		const char *value = GetConfigOption(name, false, false);

		settings[i] = CStringGetTextDatum(psprintf("%s=%s", name, value));
	}
	return PointerGetDatum(construct_array(settings,
										   lengthof(recorded_settings),
										   TEXTOID, -1, false, TYPALIGN_INT));
}

/* Run a statement on the table as its owner; returns the rows it touched. */
static uint64
execute_as_table_owner(Oid relid, const char *sql, int nargs, Oid *types,
					   Datum *values, const char *nulls, int expected)
{
	Relation	rel = table_open(relid, AccessShareLock);
	Oid			userid;
	int			sec_context;
	uint64		processed;

	SPI_connect();
	GetUserIdAndSecContext(&userid, &sec_context);
	SetUserIdAndSecContext(rel->rd_rel->relowner,
						   sec_context | SECURITY_LOCAL_USERID_CHANGE);
	if (SPI_execute_with_args(sql, nargs, types, values, nulls, false,
							  0) != expected)
		elog(ERROR, "SPI_execute_with_args failed: %s", sql);
	processed = SPI_processed;
	SetUserIdAndSecContext(userid, sec_context);
	SPI_finish();
	table_close(rel, AccessShareLock);
	return processed;
}

/* False if the name is taken. */
static bool
insert_subscription(Oid relid, Datum *values, bool *isnull)
{
	static const char *const sql =
	"INSERT INTO live_topn.subscription (id, name, owner, query, args,"
	" deliver, ranks, cushion, throttle, lease, settings, old, \"offset\","
	" \"limit\", session, grouped)"
	" VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14,"
	" $15, $16)"
	" ON CONFLICT ON CONSTRAINT subscription_name_key DO NOTHING";
	Oid			types[Natts_subscription] = {
		INT8OID, TEXTOID, REGROLEOID, TEXTOID, TEXTARRAYOID, TEXTOID, TEXTOID,
		INT4OID, INTERVALOID, INTERVALOID, TEXTARRAYOID, BOOLOID, INT8OID,
		INT8OID, INT8OID, BOOLOID
	};
	char		nulls[Natts_subscription];

	for (int i = 0; i < Natts_subscription; i++)
		nulls[i] = isnull[i] ? 'n' : ' ';
	return execute_as_table_owner(relid, sql, Natts_subscription, types,
								  values, nulls, SPI_OK_INSERT) == 1;
}

#define VALUE(column)	values[Anum_subscription_##column - 1]
#define IS_NULL(column) nulls[Anum_subscription_##column - 1]

/* With a new id, and the name, or one of our own making if that is NULL. */
static void
insert_named(Oid relid, const char *name, Datum *values, bool *nulls)
{
	Oid			sequence = subscription_object(relid, "subscription_id_seq");
	bool		inserted;

	/* a name of our own making may be taken: try the next number */
	do
	{
		int64		id = nextval_internal(sequence, false);
		const char *try = name != NULL ? name :
		psprintf("topn_" INT64_FORMAT, id);

		CHECK_FOR_INTERRUPTS();
		VALUE(id) = Int64GetDatum(id);
		VALUE(name) = CStringGetTextDatum(try);
		inserted = insert_subscription(relid, values, nulls);
	} while (!inserted && name == NULL);
	if (!inserted)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_OBJECT),
				 errmsg("subscription \"%s\" already exists", name)));
}

Datum
live_topn_subscribe(PG_FUNCTION_ARGS)
{
	char	   *query = text_argument(fcinfo, 0, "query");
	char	   *name = NULL;
	ArrayType  *args = PG_ARGISNULL(2) ? NULL : PG_GETARG_ARRAYTYPE_P(2);
	char	   *deliver = text_argument(fcinfo, 3, "deliver");
	const char *ranks = text_argument(fcinfo, 4, "ranks");
	Datum		values[Natts_subscription] = {0};
	bool		nulls[Natts_subscription] = {0};
	TopnQuery  *analyzed;
	Oid			relid;

	setup_check();
	if (!PG_ARGISNULL(1))
	{
		name = text_to_cstring(PG_GETARG_TEXT_PP(1));
		check_name(name);
	}
	check_deliver(deliver);
	check_ranks(ranks);
	if (!PG_ARGISNULL(5) && PG_GETARG_INT32(5) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("cushion must not be negative")));
	check_positive(fcinfo, 6, "throttle");
	check_positive(fcinfo, 7, "lease");
	check_not_null(fcinfo, 8, "old");
	check_not_null(fcinfo, 9, "session");
	analyzed = check_query(query, args);
	if (analyzed->unranked)
	{
		if (strcmp(ranks, "absolute") == 0)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("rows have no ranks without ORDER BY and LIMIT"),
					 errhint("Leave out ranks, or add ORDER BY.")));
		ranks = "none";
	}

	relid = subscription_relid();
	VALUE(owner) = ObjectIdGetDatum(GetUserId());
	VALUE(query) = CStringGetTextDatum(query);
	VALUE(args) = PointerGetDatum(args);
	IS_NULL(args) = args == NULL;
	VALUE(deliver) = CStringGetTextDatum(deliver);
	VALUE(ranks) = CStringGetTextDatum(ranks);
	IS_NULL(cushion) = PG_ARGISNULL(5);
	if (!PG_ARGISNULL(5))
		VALUE(cushion) = PG_GETARG_DATUM(5);
	IS_NULL(throttle) = PG_ARGISNULL(6);
	if (!PG_ARGISNULL(6))
		VALUE(throttle) = PG_GETARG_DATUM(6);
	IS_NULL(lease) = PG_ARGISNULL(7);
	if (!PG_ARGISNULL(7))
		VALUE(lease) = PG_GETARG_DATUM(7);
	VALUE(settings) = current_settings();
	VALUE(old) = PG_GETARG_DATUM(8);
	VALUE(offset) = Int64GetDatum(analyzed->offset);
	IS_NULL(limit) = analyzed->limit == NO_LIMIT;
	VALUE(limit) = Int64GetDatum(analyzed->limit);
	IS_NULL(session) = !PG_GETARG_BOOL(9);
	if (PG_GETARG_BOOL(9))
		VALUE(session) = Int64GetDatum(session_number());
	VALUE(grouped) = BoolGetDatum(analyzed->ngroups > 0);

	insert_named(relid, name, values, nulls);
	return VALUE(name);
#undef VALUE
#undef IS_NULL
}

/* ---- the others ---- */

Datum
live_topn_unsubscribe(PG_FUNCTION_ARGS)
{
	char	   *name = text_argument(fcinfo, 0, "name");
	SubscriptionRow *row = subscription_find(name, NULL);
	Oid			types[1] = {INT8OID};
	Datum		values[1] = {Int64GetDatum(row->id)};

	if (execute_as_table_owner(subscription_relid(),
							   "DELETE FROM live_topn.subscription"
							   " WHERE id OPERATOR(pg_catalog.=) $1",
							   1, types, values, NULL, SPI_OK_DELETE) == 0)
		does_not_exist(name);
	PG_RETURN_VOID();
}

/* Ask the worker for something, as of the commit of this transaction. */
static void
log_request(char kind, const SubscriptionRow *row)
{
	char	   *message = psprintf("%c " INT64_FORMAT " " INT64_FORMAT, kind,
								   message_secret(), row->id);

	log_logical_message(MESSAGE_PREFIX, message, strlen(message));
	pfree(message);
}

Datum
live_topn_resync(PG_FUNCTION_ARGS)
{
	char	   *name = text_argument(fcinfo, 0, "name");
	SubscriptionRow *row = subscription_find(name, NULL);

	setup_check();
	log_request(MESSAGE_RESYNC, row);
	PG_RETURN_VOID();
}

Datum
live_topn_renew(PG_FUNCTION_ARGS)
{
	char	   *name = text_argument(fcinfo, 0, "name");
	SubscriptionRow *row = subscription_find(name, NULL);

	setup_check();
	if (row->lease_ms == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("subscription \"%s\" has no lease", name)));
	log_request(MESSAGE_RENEW, row);
	PG_RETURN_VOID();
}

/*
 * The check comes after the change, to see both numbers whoever else changes
 * one of them.
 */
Datum
live_topn_move(PG_FUNCTION_ARGS)
{
	char	   *name = text_argument(fcinfo, 0, "name");
	SubscriptionRow *row = subscription_find(name, NULL);
	Oid			types[3] = {INT8OID, INT8OID, INT8OID};
	Datum		values[3] = {Int64GetDatum(row->id)};
	char		nulls[3] = {' ', ' ', ' '};

	if (PG_ARGISNULL(1) && PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("offset and limit must not both be null")));
	if (strcmp(row->ranks, "none") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("rows of subscription \"%s\" have no positions",
						name),
				 errhint("Subscribe to a query with ORDER BY or LIMIT.")));
	if (!PG_ARGISNULL(1) && PG_GETARG_INT64(1) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_ROW_COUNT_IN_RESULT_OFFSET_CLAUSE),
				 errmsg("OFFSET must not be negative")));
	if (!PG_ARGISNULL(2) && PG_GETARG_INT64(2) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_ROW_COUNT_IN_LIMIT_CLAUSE),
				 errmsg("LIMIT must not be negative")));
	if (row->grouped)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("subscription \"%s\" is of groups and cannot be moved",
						row->name),
				 errhint("Subscribe to the query with another condition on its rank.")));
	setup_check();

	for (int arg = 1; arg <= 2; arg++)
	{
		values[arg] = PG_GETARG_DATUM(arg);
		nulls[arg] = PG_ARGISNULL(arg) ? 'n' : ' ';
	}
	if (execute_as_table_owner(subscription_relid(),
							   "UPDATE live_topn.subscription"
							   " SET \"offset\" = COALESCE($2, \"offset\"),"
							   " \"limit\" = COALESCE($3, \"limit\")"
							   " WHERE id OPERATOR(pg_catalog.=) $1",
							   3, types, values, nulls, SPI_OK_UPDATE) == 0)
		does_not_exist(name);
	row = subscription_find(name, NULL);
	check_page(row->offset, row->limit);
	PG_RETURN_VOID();
}
