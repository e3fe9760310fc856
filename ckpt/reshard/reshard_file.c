/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a new file: reads the old file of the same kind, replaces what depends on
 * the number of ranks, and pickles the result.  Storages that are not replaced are
 * read from the old file.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/reshard/reshard_impl.h"

/* Does a kind have a file of every data-parallel rank? */
static bool is_per_rank(enum reshard_kind kind, bool zero3)
{
	return kind == RESHARD_OPTIM || zero3;
}

static unsigned files_per_mp(const struct reshard *s, enum reshard_kind kind)
{
	return is_per_rank(kind, s->stage == 3) ? s->ranks : 1;
}

size_t reshard_count(const struct reshard *s, enum reshard_kind kind)
{
	return (size_t)s->r->dir.mp_degree * files_per_mp(s, kind);
}

/* The number of the old file that a new one is modelled on. */
static size_t model_number(const struct reshard *s, enum reshard_kind kind,
			   size_t number)
{
	const struct tagdir *const d = &s->r->dir;
	const unsigned files = files_per_mp(s, kind);
	const unsigned old = is_per_rank(kind, d->zero3) ? d->dp_degree : 1;

	return number / files * old + number % files % old;
}

const struct tag_file *reshard_model_of(const struct reshard *s,
					enum reshard_kind kind, size_t number)
{
	const struct tagdir *const d = &s->r->dir;

	return &(kind == RESHARD_OPTIM
			 ? d->optim
			 : d->model)[model_number(s, kind, number)];
}

/* Replace the rank in the name of an old file. */
static void rename_rank(const char *old, unsigned rank, char name[NAME_MAX + 1])
{
	static const char before[] = "zero_pp_rank_";
	const char *const at = strstr(old, before) + sizeof(before) - 1;

	snprintf(name, NAME_MAX + 1, "%.*s%u%s", (int)(at - old), old, rank,
		 at + strspn(at, "0123456789"));
}

void reshard_name(const struct reshard *s, enum reshard_kind kind,
		  size_t number, char name[NAME_MAX + 1])
{
	const struct tag_file *const f = reshard_model_of(s, kind, number);
	const unsigned rank = (unsigned)(number % files_per_mp(s, kind));

	if (is_per_rank(kind, s->r->dir.zero3) &&
	    is_per_rank(kind, s->stage == 3))
		rename_rank(f->name, rank, name);
	else if (s->stage == 3)
		snprintf(name, NAME_MAX + 1,
			 "zero_pp_rank_%u_mp_rank_%02u_model_states.pt", rank,
			 f->id.mp);
	else
		snprintf(name, NAME_MAX + 1, "mp_rank_%02u_model_states.pt",
			 f->id.mp);
}

struct value *const reshard_left_out = &(struct value){ .kind = VALUE_NONE };

struct value *reshard_append(struct reshard_builder *b, struct value *list,
			     struct value *v)
{
	return list && value_seq_add(&b->a, &list->seq, v) ? list : NULL;
}

struct value *reshard_put(struct reshard_builder *b, struct value *dict,
			  struct value *key, struct value *v)
{
	return dict && value_dict_add(&b->a,
				      dict->kind == VALUE_DICT
					      ? &dict->dict
					      : &dict->obj->pairs,
				      key, v)
		       ? dict
		       : NULL;
}

struct value *reshard_new_dict(struct reshard_builder *b)
{
	return value_new_reduce(
		&b->a, value_new_global(&b->a, "collections", "OrderedDict"),
		value_new(&b->a, VALUE_TUPLE));
}

struct value *reshard_new_like(struct reshard_builder *b,
			       const struct value *from)
{
	struct value *out;

	if (!value_pairs(from))
		return RESHARD_FAIL(b, -EBADMSG, "found %s in place of a dict",
				    value_kind_name(from));
	if (from->kind == VALUE_DICT)
		return value_new(&b->a, VALUE_DICT);
	out = value_new_reduce(&b->a, from->obj->callable, from->obj->args);
	if (out)
		out->obj->state = from->obj->state;
	return out;
}

struct value *reshard_map(struct reshard_builder *b, struct value *out,
			  const struct value *from, reshard_make *make,
			  void *ctx)
{
	const struct value_dict *const d = value_pairs(from);

	for (size_t i = 0; out && d && i < d->n; i++) {
		struct value *const v = make(b, ctx, &d->v[i]);

		if (v != reshard_left_out)
			out = reshard_put(b, out, d->v[i].key, v);
	}
	return out;
}

/* Fields and their number. */
struct edits {
	const struct reshard_field *v;
	size_t n;
};

static struct value *edit_pair(struct reshard_builder *b, void *ctx,
			       const struct value_pair *pair)
{
	const struct edits *const e = ctx;

	for (size_t i = 0; i < e->n; i++)
		if (value_is_str(pair->key, e->v[i].key))
			return e->v[i].make(b, pair->val);
	return pair->val;
}

struct value *reshard_edit(struct reshard_builder *b, struct value *from,
			   const struct reshard_field *fields, size_t n)
{
	struct edits edits = { fields, n };

	return reshard_map(b, reshard_new_like(b, from), from, edit_pair,
			   &edits);
}

static struct value *set_pair(struct reshard_builder *b, void *ctx,
			      const struct value_pair *pair)
{
	const struct value_pair *const set = ctx;

	(void)b;
	return value_is_str(pair->key, set->key->str.p) ? set->val : pair->val;
}

struct value *reshard_set(struct reshard_builder *b, struct value *from,
			  const char *key, struct value *value)
{
	struct value_pair set = { value_new_str(&b->a, key), value };

	return set.key ? reshard_map(b, reshard_new_like(b, from), from,
				     set_pair, &set)
		       : NULL;
}

struct value *reshard_list_groups(struct reshard_builder *b,
				  reshard_make_group *make)
{
	struct value *list = value_new(&b->a, VALUE_LIST);

	for (size_t g = 0; list && g < b->m->ngroups; g++)
		list = reshard_append(b, list, make(b, &b->m->groups[g]));
	return list;
}

struct value *reshard_config(struct reshard_builder *b, struct value *old)
{
	struct value *const zero = value_find(old, "zero_optimization");

	if (b->s->stage == b->s->old_stage || !value_find(zero, "stage"))
		return old;
	return reshard_set(b, old, "zero_optimization",
			   reshard_set(b, zero, "stage",
				       value_new_int(&b->a, b->s->stage)));
}

bool reshard_add_storage(struct reshard_builder *b, struct tensor *t,
			 struct extent_map **map)
{
	struct reshard_storage *s;
	char key[24];

	if (!arena_reserve(&b->a, &b->storages, b->nstorages, &b->cap,
			   b->nstorages + 1, sizeof(*b->storages)))
		return false;
	s = &b->storages[b->nstorages];
	*s = (struct reshard_storage){
		.len = t->storage_numel * dtype_size(t->dtype),
	};
	snprintf(key, sizeof(key), "new%zu", b->nstorages);
	s->key = t->storage_key = arena_strdup(&b->a, key);
	b->nstorages++;
	*map = &s->map;
	return s->key;
}

void reshard_names_sort(struct reshard_names *s)
{
	qsort(s->v, s->n, sizeof(*s->v), array_by_text);
}

bool reshard_names_init(struct reshard_names *s, struct arena *a,
			const struct value *v)
{
	const struct value_dict *const d = value_pairs(v);
	const struct value_seq *const list = d ? NULL : value_items(v);
	const size_t n = d ? d->n : list ? list->n : 0;

	*s = (struct reshard_names){ .v = arena_alloc(
					     a, (n + 1) * sizeof(*s->v)) };
	for (size_t i = 0; s->v && i < n; i++) {
		const struct value *const key = d ? d->v[i].key : list->v[i];

		if (value_is_cstr(key))
			s->v[s->n++] = (struct reshard_name){
				.name = key->str.p,
				.value = d ? d->v[i].val : NULL,
				.index = (uint32_t)i,
			};
	}
	if (s->v)
		reshard_names_sort(s);
	return s->v;
}

const struct reshard_name *reshard_names_find(const struct reshard_names *s,
					      const char *name)
{
	return array_find(s->v, s->n, sizeof(*s->v), name);
}

void reshard_file_done(struct reshard_file *f)
{
	for (size_t i = 0; f->storages && i < f->nstorages; i++)
		extent_done(&f->storages[i]);
	free(f->storages);
	ptwrite_done(&f->w);
	*f = (struct reshard_file){ 0 };
}

/* Find a new storage by its key.  An old file may use the same key: the caller must
 * compare the pointers. */
static struct reshard_storage *find_new(struct reshard_builder *b,
					const char *key)
{
	size_t i;

	return sscanf(key, "new%zu", &i) == 1 && i < b->nstorages
		       ? &b->storages[i]
		       : NULL;
}

/* Map a storage of the old file. */
static int map_old(struct reshard_builder *b, const struct value *pid,
		   uint64_t *len, struct extent_map *map)
{
	enum dtype dtype;
	const char *key;
	uint64_t numel, at;
	int rc = tensor_storage(pid, b->file->path, &dtype, &key, &numel,
				b->err);

	if (rc)
		return rc;
	if (numel > INT64_MAX / 16)
		return errmsg_set(b->err, -EBADMSG,
				  "%s: storage of %" PRIu64 " elements",
				  b->file->path, numel);
	*len = numel * dtype_size(dtype);
	rc = ptfile_storage(&b->pt, key, *len, &at, b->err);
	if (!rc && b->extents &&
	    !extent_add(map, EXTENT_SHARD, *len, b->number, at, dtype))
		rc = errmsg_nomem(b->err, b->file->path);
	return rc;
}

static int map_storages(struct reshard_builder *b,
			const struct pickle_storages *s, uint64_t *len,
			struct reshard_file *out)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < s->n; i++) {
		const char *const key = s->pid[i]->pid->seq.v[2]->str.p;
		struct reshard_storage *const x = find_new(b, key);

		if (x && x->key != key)
			return errmsg_set(b->err, -EBADMSG,
					  "%s: a storage is called %s",
					  b->file->path, key);
		if (!x) {
			rc = map_old(b, s->pid[i], &len[i], &out->storages[i]);
			continue;
		}
		len[i] = x->len;
		assert(!b->extents || extent_size(&x->map) == x->len);
		out->storages[i] = x->map;
		x->map = (struct extent_map){ 0 };
	}
	return rc;
}

static int dump(struct reshard_builder *b, const struct value *root,
		const char *prefix, struct reshard_file *out)
{
	struct pickle_storages s = { 0 };
	struct bytebuf pickle = { 0 };
	struct errmsg why = { "" };
	uint64_t *len = NULL;
	int rc = pickle_dump(root, &pickle, &s, &why);

	if (rc)
		errmsg_set(b->err, rc, "%s: %s", b->file->path, why.text);
	if (!rc) {
		out->storages = calloc(s.n + 1, sizeof(*out->storages));
		out->nstorages = s.n;
		len = calloc(s.n + 1, sizeof(*len));
		rc = out->storages && len ? map_storages(b, &s, len, out)
					  : errmsg_nomem(b->err, b->file->path);
	}
	if (!rc)
		rc = ptwrite_init(&out->w, prefix, &pickle, len, s.n, b->err);
	pickle_storages_done(&s);
	bytebuf_done(&pickle);
	free(len);
	return rc;
}

static void builder_done(struct reshard_builder *b)
{
	for (size_t i = 0; i < b->nstorages; i++)
		extent_done(&b->storages[i].map);
	for (unsigned i = 0; b->ranks && i < b->s->r->dir.dp_degree; i++)
		if (b->ranks[i].root)
			ptfile_close(&b->ranks[i]);
	free(b->ranks);
	arena_done(&b->a);
	ptfile_close(&b->pt);
}

int reshard_lay_out(const struct reshard *s, enum reshard_kind kind,
		    size_t number, const char *prefix, bool extents,
		    struct reshard_file *out, struct errmsg *err)
{
	const size_t model = model_number(s, kind, number);
	const unsigned files = files_per_mp(s, kind);
	struct reshard_builder b = {
		.s = s,
		.mp = (unsigned)(number / files),
		.rank = (unsigned)(number % files),
		.file = reshard_model_of(s, kind, number),
		.number = (uint32_t)(kind == RESHARD_OPTIM
					     ? model
					     : s->r->dir.noptim + model),
		.extents = extents,
		.err = err,
	};
	struct value *root;
	int rc;

	*out = (struct reshard_file){ 0 };
	b.m = &s->mp[b.mp];
	/* This checks that the old file is a shard of this checkpoint. */
	rc = kind == RESHARD_OPTIM
		     ? zckpt_load_shards(s->r, b.mp, b.file->id.dp,
					 b.file->id.dp + 1, 1, err)
		     : 0;
	if (!rc)
		rc = tagdir_open_file(b.file, &b.pt, err);
	if (rc)
		return rc;
	root = kind == RESHARD_OPTIM ? reshard_optim_root(&b)
				     : reshard_model_root(&b);
	if (!root && !b.rc)
		b.rc = errmsg_nomem(err, b.file->path);
	/* A value that could not be made may not be part of the graph. */
	rc = b.rc ? b.rc : dump(&b, root, prefix, out);
	if (rc)
		reshard_file_done(out);
	builder_done(&b);
	return rc;
}
