/*
 * template.c
 *	  What subscriptions that differ in constants have in common.
 *
 * Most of the memory that a query takes is for its trees, its expressions made
 * ready for the executor, and its text.  Of a hundred thousand subscriptions
 * nearly all have one of a few queries, with other constants.  So the
 * constants of the filter are taken out, into parameters, and all that have
 * the same query then, the same owner and the same settings, share the rest.
 * How many rows they show, and from which on, makes no difference.
 * The text can be made again at any time.
 *
 * Only robust queries are shared: no error can leave their expressions, or
 * windows in the memory that they share, half-way.
 */
#include "postgres.h"

#include "catalog/pg_class.h"
#include "common/hashfn.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "template.h"
#include "utils/datum.h"
#include "utils/hsearch.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

typedef struct TemplateEntry
{
	uint64		hash;
	Template   *first;
} TemplateEntry;

static MemoryContext template_context;
static HTAB *templates;			/* of TemplateEntry, those that are shared */
static dlist_head all = DLIST_STATIC_INIT(all);

void
template_startup(MemoryContext parent)
{
	HASHCTL		ctl = {0};

	template_context = AllocSetContextCreate(parent, "live_topn templates",
											 ALLOCSET_DEFAULT_SIZES);
	ctl.keysize = sizeof(uint64);
	ctl.entrysize = sizeof(TemplateEntry);
	ctl.hcxt = template_context;
	templates = hash_create("live_topn templates", 64, &ctl,
							HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

dlist_head *
template_list(void)
{
	return &all;
}

/* ---- constants ---- */

/* Put a parameter in the place of each constant. */
static Node *
take_constants(Node *node, List **constants)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Const))
	{
		Const	   *constant = (Const *) node;
		Param	   *param = makeNode(Param);

		*constants = lappend(*constants, constant);
		param->paramkind = PARAM_EXTERN;
		param->paramid = list_length(*constants);
		param->paramtype = constant->consttype;
		param->paramtypmod = constant->consttypmod;
		param->paramcollid = constant->constcollid;
		param->location = -1;
		return (Node *) param;
	}
	return expression_tree_mutator(node, take_constants, constants);
}

typedef struct Values
{
	List	   *constants;
	ParamListInfo params;
} Values;

static Const *
make_constant(const Values *values, int i)
{
	Const	   *constant = makeNode(Const);

	*constant = *list_nth_node(Const, values->constants, i);
	constant->constvalue = values->params->params[i].value;
	constant->constisnull = values->params->params[i].isnull;
	return constant;
}

/* And the other way round. */
static Node *
put_constants(Node *node, Values *values)
{
	if (node == NULL)
		return NULL;
	if (IsA(node, Param))
		return (Node *) make_constant(values, ((Param *) node)->paramid - 1);
	return expression_tree_mutator(node, put_constants, values);
}

static ParamListInfo
make_params(List *constants)
{
	ParamListInfo params;
	ListCell   *lc;

	if (constants == NIL)
		return NULL;
	params = makeParamList(list_length(constants));
	foreach(lc, constants)
	{
		Const	   *constant = lfirst_node(Const, lc);
		ParamExternData *param = &params->params[foreach_current_index(lc)];

		param->ptype = constant->consttype;
		param->pflags = PARAM_FLAG_CONST;
		param->isnull = constant->constisnull;
		param->value = (Datum) 0;
		if (!param->isnull)
			param->value = datumCopy(constant->constvalue,
									 constant->constbyval,
									 constant->constlen);
	}
	return params;
}

Template *
template_share(Template *template, ParamListInfo params, ParamListInfo *copy)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch = AllocSetContextCreate(caller,
												  "live_topn values",
												  ALLOCSET_SMALL_SIZES);
	Values		values = {template->constants, params};
	List	   *constants = NIL;

	Assert(template->shared);
	template->refs++;
	MemoryContextSwitchTo(scratch);
	for (int i = 0; params && i < params->numParams; i++)
		constants = lappend(constants, make_constant(&values, i));
	MemoryContextSwitchTo(caller);
	*copy = make_params(constants);
	MemoryContextDelete(scratch);
	return template;
}

bool
template_is_equal(const Template *a, const Template *b)
{
	return a == b || (!a->shared && !b->shared && a->hash == b->hash &&
					  strcmp(a->key, b->key) == 0);
}

uint64
template_params_hash(const Template *template, ParamListInfo params)
{
	uint64		hash = 0;
	ListCell   *lc;

	foreach(lc, template->constants)
	{
		const Const *constant = lfirst_node(Const, lc);
		const ParamExternData *param =
		&params->params[foreach_current_index(lc)];

		hash = hash_combine64(hash, param->isnull ? 0 :
							  datum_image_hash(param->value,
											   constant->constbyval,
											   constant->constlen));
	}
	return hash;
}

bool
template_params_equal(const Template *template, ParamListInfo a,
					  ParamListInfo b)
{
	ListCell   *lc;

	foreach(lc, template->constants)
	{
		const Const *constant = lfirst_node(Const, lc);
		const ParamExternData *x = &a->params[foreach_current_index(lc)];
		const ParamExternData *y = &b->params[foreach_current_index(lc)];

		if (x->isnull != y->isnull ||
			(!x->isnull && !datum_image_eq(x->value, y->value,
										   constant->constbyval,
										   constant->constlen)))
			return false;
	}
	return true;
}

void
template_free_params(const Template *template, ParamListInfo params)
{
	if (params == NULL)
		return;
	for (int i = 0; i < params->numParams; i++)
		if (!params->params[i].isnull &&
			!list_nth_node(Const, template->constants, i)->constbyval)
			pfree(DatumGetPointer(params->params[i].value));
	pfree(params);
}

TopnQuery *
template_query(const Template *template, ParamListInfo params)
{
	TopnQuery  *query = palloc(sizeof(TopnQuery));
	Values		values = {template->constants, params};

	*query = *template->query;
	if (params)
		query->quals = (List *) put_constants((Node *) query->quals, &values);
	return query;
}

char *
template_text(const Template *template, ParamListInfo params)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch = AllocSetContextCreate(caller,
												  "live_topn query text",
												  ALLOCSET_DEFAULT_SIZES);
	char	   *text;

	MemoryContextSwitchTo(scratch);
	text = psprintf("%s%s%s%s", query_dependencies_to_text(template->query),
					template->text_before,
					nodeToString(template_query(template, params)->quals),
					template->text_after);
	text = MemoryContextStrdup(caller, text);
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
	return text;
}

/* ---- templates ---- */

/* What must be the same. */
static char *
make_key(const SubscriptionRow *row, const TopnQuery *query)
{
	StringInfoData key;

	initStringInfo(&key);
	appendStringInfo(&key, "%u", row->owner);
	for (int i = 0; i < row->nsettings; i++)
		appendStringInfo(&key, "\n%s", row->settings[i]);
	appendStringInfo(&key, "\n%s", query_text_of_meaning(query_to_text(query)));
	return key.data;
}

static uint64
hash_key(const char *key)
{
	return hash_bytes_extended((const unsigned char *) key, strlen(key), 0);
}

static Template *
find_template(uint64 hash, const char *key)
{
	TemplateEntry *entry = hash_search(templates, &hash, HASH_FIND, NULL);
	Template   *template = entry ? entry->first : NULL;

	while (template && strcmp(template->key, key) != 0)
		template = template->next;
	return template;
}

/*
 * The text of the query on both sides of its filter, which alone differs.  A
 * mark is put in its place that occurs nowhere else.  What comes before, on
 * what the query depends, can become more.
 */
static void
cut_text(Template *template)
{
	TopnQuery	query = *template->query;

	for (int i = 0;; i++)
	{
		String	   *filter = makeString(psprintf("filter%d", i));
		char	   *mark = nodeToString(filter);
		const char *text;
		const char *place;

		query.quals = (List *) filter;
		text = query_text_of_meaning(query_to_text(&query));
		place = strstr(text, mark);
		if (strstr(place + 1, mark))
			continue;
		template->text_before = pnstrdup(text, place - text);
		template->text_after = pstrdup(place + strlen(mark));
		return;
	}
}

static Template *
make_template(const TopnQuery *query, List *constants, const char *key)
{
	MemoryContext context = AllocSetContextCreate(template_context,
												  "live_topn template",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	Template   *template = palloc0(sizeof(Template));

	template->context = context;
	template->key = pstrdup(key);
	template->hash = hash_key(key);
	dlist_init(&template->feeds);
	template->rows = AllocSetContextCreate(context, "live_topn rows",
										   ALLOCSET_SMALL_SIZES);

	/* text and back is a copy */
	template->query = query_from_text(query_to_text(query));
	template->constants = copyObject(constants);
	cut_text(template);
	template->format = row_format(template->query, template->rows);
	template->evaluator = evaluator_create(template->query, template->format);
	template->batch_format = batch_format(template->query,
										  template->format->desc);
	template->partitioned = get_rel_relkind(template->query->relid) ==
		RELKIND_PARTITIONED_TABLE;
	MemoryContextSwitchTo(caller);
	dlist_push_tail(&all, &template->node);
	return template;
}

static void
share(Template *template)
{
	bool		found;
	TemplateEntry *entry;

	template->shared = true;
	entry = hash_search(templates, &template->hash, HASH_ENTER, &found);
	template->next = found ? entry->first : NULL;
	entry->first = template;
}

Template *
template_acquire(const SubscriptionRow *row, const char *text,
				 ParamListInfo *params)
{
	MemoryContext caller = CurrentMemoryContext;
	MemoryContext scratch = AllocSetContextCreate(caller,
												  "live_topn query text",
												  ALLOCSET_DEFAULT_SIZES);
	TopnQuery  *query;
	List	   *constants = NIL;
	Template   *template = NULL;
	char	   *key;

	MemoryContextSwitchTo(scratch);
	query = query_from_text(text);
	if (query->robust)
		query->quals = (List *) take_constants((Node *) query->quals,
											   &constants);
	key = make_key(row, query);
	if (query->robust)
		template = find_template(hash_key(key), key);
	if (template)
		query_add_dependencies(template->query, text, template->context);
	else
	{
		template = make_template(query, constants, key);
		if (query->robust)
			share(template);
	}
	template->refs++;

	MemoryContextSwitchTo(caller);
	*params = make_params(constants);
	MemoryContextSwitchTo(scratch);
	Assert(query_text_equal(template_text(template, *params), text));
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(scratch);
	return template;
}

void
template_release(Template *template)
{
	Template  **link;
	TemplateEntry *entry;

	if (--template->refs > 0)
		return;
	Assert(dlist_is_empty(&template->feeds));
	dlist_delete(&template->node);
	if (template->shared)
	{
		entry = hash_search(templates, &template->hash, HASH_FIND, NULL);
		for (link = &entry->first; *link != template; link = &(*link)->next)
			;
		*link = template->next;
		if (entry->first == NULL)
			hash_search(templates, &template->hash, HASH_REMOVE, NULL);
	}
	evaluator_free(template->evaluator);
	MemoryContextDelete(template->context);
}
