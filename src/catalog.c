/*
 * catalog.c
 *	  The table live_topn.subscription.
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/dependency.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "catalog.h"
#include "intern.h"
#include "commands/extension.h"
#include "query.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/timestamp.h"

/*
 * Anybody who may create a schema could make a table of this name, with rows
 * that claim any owner; so it must belong to the extension.
 */
Oid
catalog_relid(void)
{
	Oid			extension = get_extension_oid("live_topn", true);
	Oid			schema = get_namespace_oid(CATALOG_SCHEMA, true);
	Oid			relid;

	if (!OidIsValid(extension) || !OidIsValid(schema))
		return InvalidOid;
	relid = get_relname_relid(CATALOG_TABLE, schema);
	if (!OidIsValid(relid) ||
		getExtensionOfObject(RelationRelationId, relid) != extension)
		return InvalidOid;
	return relid;
}

/* The elements of a text[]; NULL ones are NULL.  Returns their number. */
static int
text_array(Datum array, char ***elements)
{
	Datum	   *values;
	bool	   *nulls;
	int			n;

	deconstruct_array(DatumGetArrayTypeP(array), TEXTOID, -1, false,
					  TYPALIGN_INT, &values, &nulls, &n);
	*elements = palloc(sizeof(char *) * n);
	for (int i = 0; i < n; i++)
		(*elements)[i] = nulls[i] ? NULL : TextDatumGetCString(values[i]);
	return n;
}

SubscriptionRow *
catalog_row(HeapTuple tuple, TupleDesc desc)
{
	SubscriptionRow *row = palloc0(sizeof(SubscriptionRow));
	Datum	   *values = palloc(sizeof(Datum) * desc->natts);
	bool	   *nulls = palloc(sizeof(bool) * desc->natts);

#define VALUE(column)	values[Anum_subscription_##column - 1]
#define IS_NULL(column) nulls[Anum_subscription_##column - 1]

	if (desc->natts < Natts_subscription)
		elog(ERROR, "table \"%s.%s\" lacks columns", CATALOG_SCHEMA,
			 CATALOG_TABLE);
	heap_deform_tuple(tuple, desc, values, nulls);

	row->id = DatumGetInt64(VALUE(id));
	row->name = TextDatumGetCString(VALUE(name));
	row->owner = DatumGetObjectId(VALUE(owner));
	row->query = TextDatumGetCString(VALUE(query));
	if (!IS_NULL(args))
		row->nargs = text_array(VALUE(args), &row->args);
	row->deliver = TextDatumGetCString(VALUE(deliver));
	row->ranks = TextDatumGetCString(VALUE(ranks));
	row->cushion = IS_NULL(cushion) ? -1 : DatumGetInt32(VALUE(cushion));
	if (!IS_NULL(throttle))
		row->throttle_ms = interval_ms(DatumGetIntervalP(VALUE(throttle)));
	if (!IS_NULL(lease))
		row->lease_ms = interval_ms(DatumGetIntervalP(VALUE(lease)));
	if (!IS_NULL(session))
		row->session = DatumGetInt64(VALUE(session));
	row->nsettings = text_array(VALUE(settings), &row->settings);
	row->old = DatumGetBool(VALUE(old));
	row->offset = DatumGetInt64(VALUE(offset));
	row->limit = IS_NULL(limit) ? NO_LIMIT : DatumGetInt64(VALUE(limit));
	row->grouped = DatumGetBool(VALUE(grouped));

#undef VALUE
#undef IS_NULL
	return row;
}

SubscriptionRow *
catalog_keep_row(const SubscriptionRow *row)
{
	SubscriptionRow *copy = palloc(sizeof(SubscriptionRow));

	*copy = *row;
	copy->name = pstrdup(row->name);
	copy->query = intern(row->query);
	copy->deliver = intern(row->deliver);
	copy->ranks = intern(row->ranks);
	copy->args = palloc(sizeof(char *) * Max(row->nargs, 1));
	for (int i = 0; i < row->nargs; i++)
		copy->args[i] = row->args[i] ? pstrdup(row->args[i]) : NULL;
	copy->settings = palloc(sizeof(char *) * Max(row->nsettings, 1));
	for (int i = 0; i < row->nsettings; i++)
		copy->settings[i] = intern(row->settings[i]);
	return copy;
}

void
catalog_release_row(SubscriptionRow *row)
{
	intern_release(row->query);
	intern_release(row->deliver);
	intern_release(row->ranks);
	for (int i = 0; i < row->nsettings; i++)
		intern_release(row->settings[i]);
}

bool
catalog_is_move(HeapTuple old, HeapTuple new, TupleDesc desc)
{
	for (int i = 0; i < desc->natts; i++)
	{
		AttrNumber	attnum = i + 1;
		Form_pg_attribute att = TupleDescAttr(desc, i);
		Datum		a,
					b;
		bool		anull,
					bnull;

		if (attnum == Anum_subscription_offset ||
			attnum == Anum_subscription_limit)
			continue;
		a = heap_getattr(old, attnum, desc, &anull);
		b = heap_getattr(new, attnum, desc, &bnull);
		if (anull != bnull ||
			(!anull && !datum_image_eq(a, b, att->attbyval, att->attlen)))
			return false;
	}
	return true;
}

int64
interval_ms(const Interval *interval)
{
	int64		days = (int64) interval->month * DAYS_PER_MONTH +
		interval->day;
	double		ms = (double) days * SECS_PER_DAY * 1000.0 +
		interval->time / 1000.0;

	return (int64) Max(Min(ms, 1e15), -1e15);
}

int
catalog_apply_settings(int nsettings, char **settings)
{
	int			nestlevel = NewGUCNestLevel();

	for (int i = 0; i < nsettings; i++)
	{
		char	   *name = pstrdup(settings[i]);
		char	   *value = strchr(name, '=');

		if (value == NULL)
			elog(ERROR, "invalid setting \"%s\" of a subscription", name);
		*value++ = '\0';
		(void) set_config_option(name, value, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	}
	return nestlevel;
}
