/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a new file: reads the old file of the same kind, replaces what depends on
 * the number of ranks, and pickles the result.  Storages that are not replaced are
 * read from the old file.
 */
#include "ckpt/reshard/reshard_file.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/zero/checkpoint.h"

/* --- file names ----------------------------------------------------------- */

/* Does a kind have a file of every data-parallel rank? */
static bool is_per_rank(enum reshard_kind kind, bool zero3)
{
	return kind == RESHARD_OPTIM || zero3;
}

static unsigned files_per_mp(const struct reshard *s, enum reshard_kind kind)
{
	return is_per_rank(kind, reshard_zero3(s)) ? s->ranks : 1;
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
	    is_per_rank(kind, reshard_zero3(s)))
		rename_rank(f->name, rank, name);
	else if (reshard_zero3(s))
		snprintf(name, NAME_MAX + 1,
			 "zero_pp_rank_%u_mp_rank_%02u_model_states.pt", rank,
			 f->id.mp);
	else
		snprintf(name, NAME_MAX + 1, "mp_rank_%02u_model_states.pt",
			 f->id.mp);
}

/* --- values --------------------------------------------------------------- */

struct value *reshard_nomem(struct reshard_builder *b)
{
	if (!b->rc)
		b->rc = errmsg_nomem(b->err, b->file->path);
	return NULL;
}

bool reshard_add_storage(struct reshard_builder *b, struct tensor *t,
			 struct extent_map **map)
{
	struct reshard_storage *s;
	char key[24];

	if (b->nstorages == b->cap) {
		const size_t cap = b->cap ? b->cap * 2 : 16;
		void *const grown =
			arena_alloc(&b->a, cap * sizeof(*b->storages));

		if (!grown)
			return false;
		if (b->nstorages)
			memcpy(grown, b->storages,
			       b->nstorages * sizeof(*b->storages));
		b->storages = grown;
		b->cap = cap;
	}
	s = &b->storages[b->nstorages];
	*s = (struct reshard_storage){
		.len = t->storage_numel * dtype_size(t->dtype),
	};
	snprintf(key, sizeof(key), "new%zu", b->nstorages);
	s->key = t->storage_key = arena_strndup(&b->a, key, strlen(key));
	b->nstorages++;
	*map = &s->map;
	return s->key;
}

struct value *reshard_copy_tensor(struct reshard_builder *b,
				  const struct value *v)
{
	struct extent_map *map;
	struct tensor old, t;
	uint64_t storage;

	if (b->rc)
		return NULL;
	b->rc = ptfile_tensor(&b->pt, v, "tensor", &old, &storage, b->err);
	if (b->rc)
		return NULL;
	tensor_init(&t, old.dtype, old.shape, old.ndim, old.requires_grad);
	if (!reshard_add_storage(b, &t, &map))
		return NULL;
	if (b->extents &&
	    !extent_add(
		    map, EXTENT_SHARD, t.numel * dtype_size(t.dtype), b->number,
		    storage + old.storage_offset * dtype_size(t.dtype), t.dtype))
		return NULL;
	return tensor_to_value_like(&b->a, v, &t);
}

struct value *reshard_edit(struct reshard_builder *b, const struct value *from,
			   const struct reshard_edit *edits, size_t n)
{
	const struct value_dict *const old = value_pairs(from);
	struct value *out;
	struct value_dict *to;
	bool ok = true;

	if (b->rc)
		return NULL;
	if (!old) {
		b->rc = errmsg_set(b->err, -EBADMSG,
				   "%s: found %s in place of a dict",
				   b->file->path, value_kind_name(from));
		return NULL;
	}
	if (from->kind == VALUE_DICT) {
		out = value_new(&b->a, VALUE_DICT);
		to = out ? &out->dict : NULL;
	} else {
		out = value_new_reduce(&b->a, from->obj->callable,
				       from->obj->args);
		to = out ? &out->obj->pairs : NULL;
	}
	for (size_t i = 0; to && ok && i < old->n; i++) {
		struct value *val = old->v[i].val;

		for (size_t k = 0; k < n; k++)
			if (value_is_str(old->v[i].key, edits[k].key))
				val = edits[k].value;
		ok = value_dict_add(&b->a, to, old->v[i].key, val);
	}
	return to && ok ? out : NULL;
}

bool reshard_take(struct reshard_builder *b, struct value *to,
		  const struct value *from, const char *key)
{
	const struct value_dict *const d = value_pairs(from);

	for (size_t i = 0; d && i < d->n; i++)
		if (value_is_str(d->v[i].key, key))
			return value_dict_add(&b->a, &to->dict, d->v[i].key,
					      d->v[i].val);
	return true;
}

struct value *reshard_config(struct reshard_builder *b)
{
	const struct value *const config = value_find(b->pt.root, KEY_DS_CONFIG);
	const struct value *const zero = value_find(config, "zero_optimization");
	const struct reshard_edit stage = { "stage",
					    value_new_int(&b->a, b->s->stage) };
	struct reshard_edit edit = { "zero_optimization", NULL };

	if (!value_find(zero, "stage"))
		return (struct value *)config;
	edit.value = reshard_edit(b, zero, &stage, 1);
	return reshard_edit(b, config, &edit, 1);
}

/* --- elements ------------------------------------------------------------- */

/* Load the shard maps of all old ranks that the runs refer to. */
static int load_shards(struct reshard_builder *b,
		       const struct reshard_runs *runs)
{
	unsigned first = UINT32_MAX, last = 0, step = 1;

	for (size_t i = 0; i < runs->n; i++) {
		const struct reshard_run *const run = &runs->v[i];

		if (run->zeros)
			continue;
		step = rank_stripe_step(
			&b->s->r->layouts[b->mp].stripe[run->group]);
		first = run->rank < first ? run->rank : first;
		last = run->rank > last ? run->rank : last;
	}
	return first > last ? 0
			    : zckpt_load_shards(b->s->r, b->mp, first, last + 1,
						step, b->err);
}

static int add_run(struct reshard_builder *b, const struct reshard_run *run,
		   const char *state, enum dtype dtype, enum dtype to,
		   struct extent_map *map)
{
	struct zero_checkpoint *const r = b->s->r;
	const size_t item = dtype_size(dtype);
	const struct flat *flat;
	unsigned number;

	if (run->zeros)
		return extent_add(map, EXTENT_ZERO, run->numel * dtype_size(to),
				  0, 0, to)
			       ? 0
			       : -ENOMEM;
	number = zckpt_shard_number(r, b->mp, run->rank);
	flat = shard_find_flat(
		&zckpt_shard(r, b->mp, run->rank)->groups[run->group], state);
	if (!flat || flat->dtype != dtype)
		return errmsg_set(b->err, -EBADMSG,
				  "%s: %s of group %" PRIu32 " is missing or of"
				  " another type than on other ranks",
				  r->dir.optim[number].path,
				  state ? state : "fp32", run->group);
	assert(run->start + run->numel <= flat->numel);
	return extent_add_cast(map, run->numel,
			       zckpt_file_number(r, number, flat),
			       flat->offset + run->start * item, dtype, to)
		       ? 0
		       : -ENOMEM;
}

bool reshard_add_runs(struct reshard_builder *b,
		      const struct reshard_runs *runs, const char *state,
		      enum dtype dtype, enum dtype to, struct extent_map *map)
{
	int rc;

	if (b->rc)
		return false;
	rc = load_shards(b, runs);
	for (size_t i = 0; !rc && i < runs->n; i++)
		rc = add_run(b, &runs->v[i], state, dtype, to, map);
	if (rc == -ENOMEM)
		reshard_nomem(b);
	else
		b->rc = rc;
	return !rc;
}

/* --- the file ------------------------------------------------------------- */

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
	for (unsigned i = 0; b->frozen && i < b->s->r->dir.dp_degree; i++)
		if (b->frozen[i].root)
			ptfile_close(&b->frozen[i]);
	free(b->frozen);
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
		reshard_nomem(&b);
	/* A value that could not be made may not be part of the graph. */
	rc = b.rc ? b.rc : dump(&b, root, prefix, out);
	if (rc)
		reshard_file_done(out);
	builder_done(&b);
	return rc;
}
