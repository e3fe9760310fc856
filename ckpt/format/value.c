/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python values as data: construction and lookup.  There is no evaluation
 * here and there must never be; see pickle_read.c for how a graph is made.
 */
#include "ckpt/format/value.h"

#include <cJSON.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "ckpt/base/arena.h"

#define EXACT_MAX 9007199254740992.0 /* integers up to it are exact as doubles */
#define PLAIN_DEPTH_MAX 4u /* lists in lists */
#define PLAIN_VALUES_MAX 65536u /* values visited; a list may hold another one many times */

bool value_is_object(const struct value *v)
{
	return v->kind == VALUE_REDUCE || v->kind == VALUE_NEWOBJ;
}

/* The whole node is zeros, whichever member its kind uses. */
struct value *value_new(struct arena *a, enum value_kind kind)
{
	struct value *v = arena_alloc(a, sizeof(*v));

	if (v)
		v->kind = kind;
	return v;
}

/* Copy a complete node into the arena. */
static struct value *make(struct arena *a, const struct value *v)
{
	return arena_copy(a, v, sizeof(*v));
}

struct value *value_new_int(struct arena *a, int64_t i)
{
	return make(a, &(struct value){ .kind = VALUE_INT, .i = i });
}

struct value *value_new_bool(struct arena *a, bool b)
{
	return make(a, &(struct value){ .kind = VALUE_BOOL, .b = b });
}

struct value *value_new_float(struct arena *a, double f)
{
	return make(a, &(struct value){ .kind = VALUE_FLOAT, .f = f });
}

struct value *value_new_str(struct arena *a, const char *s)
{
	a->failed |= !s;
	return s ? make(a, &(struct value){ .kind = VALUE_STR, .str = { s, strlen(s) } }) : NULL;
}

struct value *value_new_global(struct arena *a, const char *module, const char *name)
{
	return make(a, &(struct value){ .kind = VALUE_GLOBAL, .global = { module, name } });
}

struct value *value_new_reduce(struct arena *a, struct value *callable, struct value *args)
{
	const struct value_obj obj = { .callable = callable, .args = args };
	struct value v = { .kind = VALUE_REDUCE };

	a->failed |= !callable || !args;
	v.obj = callable && args ? arena_copy(a, &obj, sizeof(obj)) : NULL;
	return v.obj ? make(a, &v) : NULL;
}

struct value *value_new_number(struct arena *a, double x)
{
	const bool whole = fabs(x) <= EXACT_MAX && x == floor(x);

	return whole ? value_new_int(a, (int64_t)x) : value_new_float(a, x);
}

static struct value *from_json(struct arena *a, const cJSON *json, const char *tuples, bool within)
{
	const enum value_kind list = within ? VALUE_TUPLE : VALUE_LIST;
	const cJSON *item;
	struct value *out;

	if (cJSON_IsString(json))
		return value_new_str(a, arena_strdup(a, json->valuestring));
	if (cJSON_IsBool(json))
		return value_new_bool(a, cJSON_IsTrue(json));
	if (cJSON_IsNumber(json))
		return value_new_number(a, json->valuedouble);
	if (!cJSON_IsArray(json) && !cJSON_IsObject(json))
		return value_new(a, VALUE_NONE);
	out = value_new(a, cJSON_IsObject(json) ? VALUE_DICT : list);
	cJSON_ArrayForEach(item, json)
	{
		const char *key = item->string;
		struct value *v = from_json(
			a, item, tuples, within || (key && tuples && !strcmp(key, tuples)));

		if (key)
			value_put(a, out, arena_strdup(a, key), v);
		else
			value_append(a, out, v);
	}
	return out;
}

struct value *value_from_json(struct arena *a, const struct cJSON *json, const char *tuples)
{
	return from_json(a, json, tuples, false);
}

struct value *value_new_object(struct arena *a, struct value *type,
			       struct value *attributes)
{
	struct value *v = value_new_reduce(a, type, value_new(a, VALUE_TUPLE));

	a->failed |= !attributes;
	if (!v || !attributes)
		return NULL;
	v->kind = VALUE_NEWOBJ;
	v->obj->state = attributes;
	return v;
}

struct value *value_new_ordered(struct arena *a)
{
	return value_new_reduce(a,
				value_new_global(a, "collections", "OrderedDict"),
				value_new(a, VALUE_TUPLE));
}

bool value_seq_append(struct arena *a, struct value *list, struct value *v)
{
	struct value_seq *seq = NULL;
	bool ok;

	if (list)
		seq = value_is_object(list) ? &list->obj->items : &list->seq;
	ok = seq && v &&
	     arena_reserve(a, &seq->v, seq->n, &seq->cap, seq->n + 1,
			   sizeof(*seq->v));
	if (ok)
		seq->v[seq->n++] = v;
	a->failed |= !ok;
	return ok;
}

bool value_dict_put(struct arena *a, struct value *dict, struct value *key, struct value *val)
{
	struct value_dict *d = NULL;
	bool ok;

	if (dict)
		d = value_is_object(dict) ? &dict->obj->pairs : &dict->dict;
	ok = d && key && val &&
	     arena_reserve(a, &d->v, d->n, &d->cap, d->n + 1, sizeof(*d->v));
	if (ok)
		d->v[d->n++] = (struct value_pair){ .key = key, .val = val };
	a->failed |= !ok;
	return ok;
}

struct value *value_fill(struct arena *a, struct value *to, struct value *const *v, size_t n)
{
	const bool dict = to && to->kind == VALUE_DICT;

	for (size_t i = 0; i < n; i += 1 + dict)
		if (dict)
			value_dict_put(a, to, v[i], v[i + 1]);
		else
			value_seq_append(a, to, v[i]);
	return to;
}

struct value *value_new_fields(struct arena *a, const struct value_field *f, size_t n)
{
	struct value *out = value_new(a, VALUE_DICT);

	for (size_t i = 0; i < n; i++)
		if (f[i].val)
			value_put(a, out, f[i].key, f[i].val);
	return out;
}

struct value *value_new_like(struct arena *a, const struct value *from)
{
	struct value *out;

	if (from->kind == VALUE_DICT)
		return value_new(a, VALUE_DICT);
	out = value_new_reduce(a, from->obj->callable, from->obj->args);
	if (out)
		out->obj->state = from->obj->state;
	return out;
}

struct value *value_edit(struct arena *a, struct value *from, const struct value_field *f,
			 size_t n)
{
	const struct value_dict *d = value_pairs(from);
	struct value *out = d ? value_new_like(a, from) : from;

	for (size_t i = 0; d && i < d->n; i++) {
		struct value *v = d->v[i].val;

		for (size_t k = 0; k < n; k++)
			if (value_is_str(d->v[i].key, f[k].key))
				v = f[k].val;
		if (v)
			value_put(a, out, d->v[i].key, v);
	}
	return out;
}

const struct value_dict *value_pairs(const struct value *v)
{
	if (v && v->kind == VALUE_DICT)
		return &v->dict;
	if (v && v->kind == VALUE_REDUCE &&
	    value_is_global(v->obj->callable, "collections", "OrderedDict"))
		return &v->obj->pairs;
	return NULL;
}

const struct value_seq *value_items(const struct value *v)
{
	if (!v)
		return NULL;
	if (v->kind == VALUE_TUPLE || v->kind == VALUE_LIST)
		return &v->seq;
	if (v->kind == VALUE_REDUCE &&
	    value_is_global(v->obj->callable, "torch", "Size") &&
	    v->obj->args->kind == VALUE_TUPLE && v->obj->args->seq.n == 1)
		return v->obj->args->seq.v[0]->kind == VALUE_TUPLE
			       ? &v->obj->args->seq.v[0]->seq
			       : NULL;
	return NULL;
}

struct value *value_item(const struct value *v, size_t i)
{
	const struct value_seq *s = value_items(v);

	return s && i < s->n ? s->v[i] : NULL;
}

struct value *value_numbered(const struct value *v, size_t n)
{
	const struct value_dict *d = value_pairs(v);

	for (size_t i = d ? d->n : 0; i > 0; i--)
		if (d->v[i - 1].key->kind == VALUE_INT && d->v[i - 1].key->i == (int64_t)n)
			return d->v[i - 1].val;
	return value_item(v, n);
}

struct value *value_find(const struct value *v, const char *key)
{
	const struct value_dict *d = value_pairs(v);

	for (size_t i = d ? d->n : 0; i > 0; i--)
		if (value_is_str(d->v[i - 1].key, key))
			return d->v[i - 1].val;
	return NULL;
}

const struct value_dict *value_find_pairs(const struct value *v, const char *key)
{
	return value_pairs(value_find(v, key));
}

const struct value_seq *value_find_items(const struct value *v, const char *key)
{
	return value_items(value_find(v, key));
}

struct value *value_find_path(const struct value *v, ...)
{
	const struct value *at = v;
	const char *key;
	va_list ap;

	va_start(ap, v);
	while (at && (key = va_arg(ap, const char *)))
		at = value_find(at, key);
	va_end(ap);
	return (struct value *)at;
}

bool value_is_str(const struct value *v, const char *s)
{
	return v && v->kind == VALUE_STR && v->str.len == strlen(s) &&
	       memcmp(v->str.p, s, v->str.len) == 0;
}

bool value_is_global(const struct value *v, const char *module,
		     const char *name)
{
	return v && v->kind == VALUE_GLOBAL &&
	       strcmp(v->global.module, module) == 0 &&
	       strcmp(v->global.name, name) == 0;
}

bool value_is_cstr(const struct value *v)
{
	return v && v->kind == VALUE_STR && !memchr(v->str.p, 0, v->str.len);
}

const char *value_cstr(const struct value *v)
{
	return value_is_cstr(v) ? v->str.p : "?";
}

bool value_is_true(const struct value *v)
{
	return v && v->kind == VALUE_BOOL && v->b;
}

bool value_get_int(const struct value *v, int64_t *out)
{
	/* An enum member pickles as Class(value). */
	if (v && v->kind == VALUE_REDUCE && v->obj->callable->kind == VALUE_GLOBAL &&
	    v->obj->args->kind == VALUE_TUPLE && v->obj->args->seq.n == 1 &&
	    v->obj->args->seq.v[0]->kind == VALUE_INT)
		v = v->obj->args->seq.v[0];
	if (!v || (v->kind != VALUE_INT && v->kind != VALUE_BOOL))
		return false;
	*out = v->kind == VALUE_INT ? v->i : v->b;
	return true;
}

bool value_get_count(const struct value *v, uint64_t *out)
{
	int64_t i;

	if (!value_get_int(v, &i) || i < 0)
		return false;
	*out = (uint64_t)i;
	return true;
}

const char *value_kind_name(const struct value *v)
{
	static const char *const names[] = {
		[VALUE_NONE] = "None",	    [VALUE_BOOL] = "bool",
		[VALUE_INT] = "int",	    [VALUE_BIGINT] = "int",
		[VALUE_FLOAT] = "float",    [VALUE_STR] = "str",
		[VALUE_BYTES] = "bytes",    [VALUE_TUPLE] = "tuple",
		[VALUE_LIST] = "list",	    [VALUE_DICT] = "dict",
		[VALUE_GLOBAL] = "global",  [VALUE_REDUCE] = "object",
		[VALUE_NEWOBJ] = "object",  [VALUE_STORAGE] = "storage",
	};

	return v ? names[v->kind] : "nothing";
}

static bool is_plain(const struct value *v, unsigned depth, size_t *left)
{
	const bool list = v->kind == VALUE_TUPLE || v->kind == VALUE_LIST;

	if (depth > PLAIN_DEPTH_MAX || !(*left)--)
		return false;
	for (size_t i = 0; list && i < v->seq.n; i++)
		if (!is_plain(v->seq.v[i], depth + 1, left))
			return false;
	return list || v->kind == VALUE_NONE || v->kind == VALUE_BOOL ||
	       v->kind == VALUE_INT || v->kind == VALUE_FLOAT ||
	       v->kind == VALUE_STR;
}

bool value_is_plain(const struct value *v)
{
	size_t left = PLAIN_VALUES_MAX;

	return is_plain(v, 0, &left);
}
