/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a PyTorch distributed checkpoint, of which torch has no other
 * description than torch/distributed/checkpoint/metadata.py and filesystem.py:
 *
 *   Metadata
 *     state_dict_metadata  {key: TensorStorageMetadata | BytesStorageMetadata}
 *       TensorStorageMetadata {properties, size, chunks: [{offsets, sizes}]}
 *       properties           a tuple of 5 or, since torch 2.15, 6; the type is first.
 *			      The rest describes the first rank's part
 *     planner_data         {key: (path elements, ...)}, or None
 *     storage_data         {MetadataIndex {fqn, offset, index}:
 *			      _StorageInfo {relative_path, offset, length,
 *					    transform_descriptors}}
 *
 * Objects are read as data and found by the names of their classes.  Attributes that are
 * not named here, such as Megatron's all_local_plans, are not looked at.  Views of ours
 * have calls of the classes instead, whose arguments are attributes in this order
 * (plan/dcpview_metadata.c).
 */
#include "ckpt/dcp/metadata.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dcp/place.h"
#include "ckpt/pack/pack_index.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"
#include "ckpt/roots/rootfs.h"

#define MODULE "torch.distributed.checkpoint."

struct reader {
	struct dcp_metadata *m;
	const char *dir;
	const char *file; /* the metadata's path */
	struct dcp_item *items; /* the directory's, in `m`; by key until sort_items() */
	size_t n;
	const char *last; /* the file that was found last, as it is named */
	uint32_t last_number;
	struct errmsg *err;
};

/* The attributes of an object of that class, by name, or the arguments of a call of it;
 * NULL if `v` is none. */
static const struct value *attributes(const struct value *v, const char *module,
				      const char *name)
{
	if (!v || !value_is_object(v) ||
	    !value_is_global(v->obj->callable, module, name))
		return NULL;
	return v->kind == VALUE_NEWOBJ ? v->obj->state : v->obj->args;
}

/* An attribute, which is argument `i` of a call; NULL if there is none. */
static const struct value *attribute(const struct value *attributes,
				     const char *name, size_t i)
{
	return attributes && attributes->kind == VALUE_TUPLE
		       ? value_item(attributes, i)
		       : value_find(attributes, name);
}

static int dcp_bad(const struct reader *r, const char *key, const char *what)
{
	return ERRMSG_FILE(r, -EBADMSG, "%s%s%s", key ? key : "", key ? ": " : "",
			   what);
}

static int dcp_nomem(const struct reader *r)
{
	return r->m->arena.refused
		       ? ERRMSG_FILE(r, -E2BIG, "describes too much for its size")
		       : errmsg_nomem(r->err, r->file);
}

/* Read `n` sizes or offsets.  Of tensors without dimensions there may be no list. */
static bool get_dims(const struct value *v, unsigned n, uint64_t *out)
{
	const struct value_seq *const s = value_items(v);

	if ((s ? s->n : 0) != n)
		return false;
	for (unsigned i = 0; i < n; i++)
		if (!value_get_count(s->v[i], &out[i]))
			return false;
	return true;
}

static const uint64_t *read_dims(const struct reader *r, const struct value *v,
				 unsigned n)
{
	uint64_t *const out = arena_alloc(&r->m->arena, n * sizeof(*out) + 1);

	return out && get_dims(v, n, out) ? out : NULL;
}

int64_t dcp_metadata_add_file(struct dcp_metadata *m, const char *path)
{
	const uint64_t hash = hash_text(path);
	const char *copy;
	size_t pos = 0;
	uint32_t i;

	while (hashtab_next(&m->by_path, hash, &pos, &i))
		if (strcmp(m->files[i], path) == 0)
			return i;
	copy = arena_strdup(&m->arena, path);
	if (!copy ||
	    !arena_reserve(&m->arena, &m->files, m->nfiles, &m->files_cap,
			   m->nfiles + 1, sizeof(*m->files)) ||
	    !hashtab_add(&m->by_path, hash, (uint32_t)m->nfiles))
		return -1;
	m->files[m->nfiles] = copy;
	return (int64_t)m->nfiles++;
}

/* Find the number of the file of that name in the directory. */
static int find_file(struct reader *r, const struct value *v, uint32_t *out)
{
	char name[PACK_NAME_MAX];
	int64_t number;
	char *path;

	if (!value_is_cstr(v) || v->str.p[0] == '/' ||
	    !pack_index_name(v->str.p, name) || !*name)
		return ERRMSG_FILE(r, -EBADMSG, "'%.100s' is no file of the"
					        " directory", value_cstr(v));
	if (r->last && strcmp(r->last, v->str.p) == 0) {
		*out = r->last_number;
		return 0;
	}
	if (asprintf(&path, "%s/%s", r->dir, name) < 0)
		return dcp_nomem(r);
	number = dcp_metadata_add_file(r->m, path);
	free(path);
	if (number < 0)
		return dcp_nomem(r);
	r->last = v->str.p;
	r->last_number = *out = (uint32_t)number;
	return 0;
}

/* Take over where a chunk's blob is. */
static int read_info(struct reader *r, const char *key,
		     const struct value *info, struct dcp_chunk *c)
{
	const struct value *const x =
		attributes(info, MODULE "filesystem", "_StorageInfo");
	const struct value_seq *const transforms =
		value_items(attribute(x, "transform_descriptors", 3));
	const struct value *const path = attribute(x, "relative_path", 0);
	const size_t len = value_is_cstr(path) ? path->str.len : 0;

	if (!value_get_count(attribute(x, "offset", 1), &c->at) ||
	    !value_get_count(attribute(x, "length", 2), &c->len))
		return dcp_bad(r, key, "it is not recorded where its data is");
	if (transforms && transforms->n)
		return ERRMSG_FILE(r, -ENOTSUP,
				   "%s: was written with the transform %.60s,"
				   " which is not read: load it with torch and"
				   " save it without _extensions", key,
				   value_cstr(transforms->v[0]));
	if (len > 12 && strcmp(path->str.p + len - 12, ".safetensors") == 0)
		return ERRMSG_FILE(r, -ENOTSUP,
				   "%s: lies in a file of safetensors, which is"
				   " not read here: save it with torch's own"
				   " serialization", key);
	return find_file(r, path, &c->file);
}

static int read_chunk(const struct reader *r, const struct dcp_item *t,
		      const struct value *v, struct dcp_chunk *c)
{
	const struct value *const x =
		attributes(v, MODULE "metadata", "ChunkStorageMetadata");

	c->offset = read_dims(r, attribute(x, "offsets", 0), t->ndim);
	c->size = read_dims(r, attribute(x, "sizes", 1), t->ndim);
	if (!c->offset || !c->size)
		return r->m->arena.failed ? dcp_nomem(r)
					  : dcp_bad(r, t->key, "a chunk has no place");
	c->numel = 1;
	for (unsigned d = 0; d < t->ndim; d++)
		if (!checked_mul(c->numel, c->size[d], &c->numel))
			return dcp_bad(r, t->key, "a chunk is too large");
	return 0;
}

static int read_tensor(const struct reader *r, struct dcp_item *t,
		       const struct value *x)
{
	const struct value *const properties = attributes(
		attribute(x, "properties", 0), MODULE "metadata", "TensorProperties");
	const struct value_seq *const chunks =
		value_items(attribute(x, "chunks", 2));
	struct errmsg why;
	struct tensor shape;
	int rc = 0;

	if (!properties || !chunks)
		return dcp_bad(r, t->key, "no type or no chunks");
	if (tensor_set_shape(&shape, attribute(x, "size", 1), &why))
		return dcp_bad(r, t->key, why.text);
	t->is_tensor = true;
	t->dtype = dtype_from_value(value_item(properties, 0));
	t->ndim = shape.ndim;
	t->numel = shape.numel;
	t->shape = arena_copy(&r->m->arena, shape.shape,
			      shape.ndim * sizeof(*shape.shape));
	t->nchunks = chunks->n;
	t->chunks = arena_alloc(&r->m->arena, (chunks->n + 1) * sizeof(*t->chunks));
	if (!t->shape || !t->chunks)
		return dcp_nomem(r);
	for (size_t i = 0; !rc && i < chunks->n; i++)
		rc = read_chunk(r, t, chunks->v[i], &t->chunks[i]);
	return rc ?: dcp_place_check(t, r->file, r->err);
}

static int read_item(const struct reader *r, const struct value_pair *p,
		     struct dcp_item *t)
{
	const struct value *const tensor =
		attributes(p->val, MODULE "metadata", "TensorStorageMetadata");

	if (!value_is_cstr(p->key))
		return dcp_bad(r, NULL, "state_dict_metadata: a key is no string");
	t->key = arena_strndup(&r->m->arena, p->key->str.p, p->key->str.len);
	return !t->key ? dcp_nomem(r) : tensor ? read_tensor(r, t, tensor) : 0;
}

static int read_items(struct reader *r, const struct value_dict *items)
{
	struct dcp_metadata *const m = r->m;
	int rc = 0;

	if (!arena_reserve(&m->arena, &m->items, m->nitems, &m->cap,
			   m->nitems + items->n + 1, sizeof(*m->items)))
		return dcp_nomem(r);
	r->items = m->items + m->nitems;
	for (; !rc && r->n < items->n; r->n++) {
		r->items[r->n] = (struct dcp_item){ 0 };
		rc = read_item(r, &items->v[r->n], &r->items[r->n]);
	}
	if (rc)
		return rc;
	m->nitems += r->n;
	qsort(r->items, r->n, sizeof(*r->items), array_by_text);
	for (size_t i = 1; i < r->n; i++)
		if (strcmp(r->items[i - 1].key, r->items[i].key) == 0)
			return dcp_bad(r, r->items[i].key, "is there twice");
	return 0;
}

static struct dcp_item *find_item(const struct reader *r, const struct value *key)
{
	return value_is_cstr(key) ? array_find(r->items, r->n, sizeof(*r->items),
					       key->str.p)
				  : NULL;
}

/* Return the chunk that a MetadataIndex names, or NULL; empty chunks need no data. */
static struct dcp_chunk *find_chunk(const struct reader *r, struct dcp_item *t,
				    const struct value *index)
{
	uint64_t at[TENSOR_DIMS_MAX];

	if (t->is_tensor)
		return get_dims(attribute(index, "offset", 1), t->ndim, at)
			       ? dcp_place_find(t, at)
			       : NULL;
	if (!t->nchunks) {
		t->chunks = arena_alloc(&r->m->arena, sizeof(*t->chunks));
		t->nchunks = t->chunks != NULL;
	}
	return t->chunks;
}

static int read_storage(struct reader *r, const struct value_dict *storage)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < storage->n; i++) {
		const struct value *const index =
			attributes(storage->v[i].key, MODULE "metadata",
				   "MetadataIndex");
		const struct value *const key = attribute(index, "fqn", 0);
		struct dcp_item *const t = find_item(r, key);
		struct dcp_chunk *const c = t ? find_chunk(r, t, index) : NULL;

		if (!value_is_cstr(key))
			return dcp_bad(r, NULL, "storage_data: no MetadataIndex");
		if (c && c->len)
			return dcp_bad(r, t->key, "a chunk has data twice");
		if (c)
			rc = read_info(r, t->key, storage->v[i].val, c);
	}
	for (size_t i = 0; !rc && i < r->n; i++)
		for (size_t k = 0; r->items[i].is_tensor && k < r->items[i].nchunks; k++)
			if (r->items[i].chunks[k].numel && !r->items[i].chunks[k].len)
				return dcp_bad(r, r->items[i].key,
					       "a chunk has no data");
	return rc ?: r->m->arena.failed ? dcp_nomem(r) : 0;
}

/* Split a path into texts; a number stands for a place in a list. */
static int read_path(const struct reader *r, struct dcp_item *t,
		     const struct value *path)
{
	const struct value_seq *const s = value_items(path);
	const size_t n = s ? s->n : 1;
	struct arena *const a = &r->m->arena;

	if (n == 0 || n > DCP_PATH_MAX)
		return dcp_bad(r, t->key, "nested too deeply, or no path");
	t->depth = (unsigned)n;
	t->path = arena_alloc(a, n * sizeof(*t->path));
	for (size_t i = 0; t->path && i < n; i++) {
		const struct value *const v = s ? s->v[i] : NULL;
		char number[24];
		int64_t k;

		if (!v || value_is_cstr(v)) {
			t->path[i] = v ? arena_strdup(a, v->str.p) : t->key;
		} else {
			if (!value_get_int(v, &k))
				return dcp_bad(r, t->key, "its path is no path");
			snprintf(number, sizeof(number), "%lld", (long long)k);
			t->path[i] = arena_strdup(a, number);
		}
	}
	return a->failed ? dcp_nomem(r) : 0;
}

/* Of an item in the order of planner_data, by which state_dict_metadata has others. */
struct order {
	size_t at;    /* its place in state_dict_metadata; SIZE_MAX for no tensor */
	size_t least; /* the least of the items before it */
};

/*
 * Copy the items with the stages of a pipeline in their order.  planner_data begins with the
 * last rank, and has of earlier ranks what the later ones have not (torch merges their dicts
 * by a ChainMap); state_dict_metadata begins with the first rank.  A stage begins with a
 * tensor from which on all are in the latter before those that precede it in the former.
 */
static void order_stages(const struct dcp_item *items, const struct order *o, size_t n,
			 struct dcp_item *out)
{
	size_t most = 0, end = n, done = 0;

	for (size_t i = n; i--;) {
		if (o[i].at == SIZE_MAX && i)
			continue;
		most = o[i].at > most ? o[i].at : most;
		if (i && (o[i].least == SIZE_MAX || o[i].least < most))
			continue;
		memcpy(out + done, items + i, (end - i) * sizeof(*out));
		done += end - i;
		end = i;
	}
}

/* Set at[i] to the place of the item `i` by key in state_dict_metadata. */
static void find_places(const struct reader *r, const struct value_dict *items, size_t *at)
{
	for (size_t i = 0; i < items->n; i++) {
		const struct dcp_item *const t = find_item(r, items->v[i].key);

		if (t)
			at[t - r->items] = i;
	}
}

/* Give the items their paths and their order, which is that of planner_data: the order of
 * keys is that in which ranks had parts of them. */
static int sort_items(const struct reader *r, const struct value_dict *items,
		      const struct value_dict *paths)
{
	struct dcp_item *const sorted = calloc(r->n + 1, sizeof(*sorted));
	struct order *const o = calloc(r->n + 1, sizeof(*o));
	size_t *const at = calloc(r->n + 1, sizeof(*at));
	size_t done = 0, least = SIZE_MAX;
	int rc = sorted && o && at ? 0 : dcp_nomem(r);

	if (!rc)
		find_places(r, items, at);
	for (size_t i = 0; !rc && paths && i < paths->n; i++) {
		struct dcp_item *const t = find_item(r, paths->v[i].key);

		if (!t || t->path)
			continue;
		rc = read_path(r, t, paths->v[i].val);
		o[done].at = t->is_tensor ? at[t - r->items] : SIZE_MAX;
		o[done].least = least;
		least = o[done].at < least ? o[done].at : least;
		sorted[done++] = *t;
	}
	for (size_t i = 0; !rc && i < r->n; i++) {
		if (r->items[i].path)
			continue;
		rc = read_path(r, &r->items[i], NULL);
		o[done] = (struct order){ SIZE_MAX, SIZE_MAX };
		sorted[done++] = r->items[i];
	}
	if (!rc)
		order_stages(sorted, o, r->n, r->items);
	free(sorted);
	free(o);
	free(at);
	return rc;
}

static int read_root(struct reader *r, const struct value *root)
{
	const struct value *const x =
		attributes(root, MODULE "metadata", "Metadata");
	const struct value_dict *const items =
		value_pairs(attribute(x, "state_dict_metadata", 0));
	const struct value_dict *const storage =
		value_pairs(attribute(x, "storage_data", 2));
	int rc;

	if (!items || !storage)
		return dcp_bad(r, NULL,
			       "not the metadata of a PyTorch distributed checkpoint");
	rc = read_items(r, items) ?: read_storage(r, storage);
	if (!rc && dcp_metadata_add_file(r->m, r->file) < 0)
		rc = dcp_nomem(r);
	return rc ?: sort_items(r, items, value_pairs(attribute(x, "planner_data", 1)));
}

static int read_pickle(struct reader *r, const struct source *src)
{
	struct pickle_part part = { .file = r->file, .part = "metadata",
				    .is_whole = true };
	struct arena a = { 0 };
	uint8_t *bytes;
	int rc;

	if (src->size > DCP_METADATA_MAX)
		return ERRMSG_FILE(r, -E2BIG, "%llu bytes",
				   (unsigned long long)src->size);
	r->m->arena.limit += (1u << 20) + src->size * DCP_MEMORY_PER_BYTE;
	bytes = malloc((size_t)src->size + 1);
	if (!bytes)
		return errmsg_nomem(r->err, r->file);
	rc = source_read(src, bytes, (size_t)src->size, 0, r->err) ?:
	     pickle_load_part((struct span){ bytes, (size_t)src->size }, &a, &part,
			      r->err) ?:
	     read_root(r, part.root);
	rc = rc == -ENODATA ? -EBADMSG : rc;
	free(bytes);
	arena_done(&a);
	return rc;
}

int dcp_metadata_add(struct dcp_metadata *m, struct uckpt *u, const char *dir,
		     struct errmsg *err)
{
	struct reader r = { .m = m, .dir = dir, .err = err };
	struct source src;
	char *path;
	int rc;

	if (asprintf(&path, "%s/" DCP_METADATA, dir) < 0)
		return errmsg_nomem(err, dir);
	r.file = path;
	rc = rootfs_open(u, &src, path, err);
	if (!rc) {
		rc = read_pickle(&r, &src);
		source_close(&src);
	}
	free(path);
	return rc;
}

void dcp_metadata_done(struct dcp_metadata *m)
{
	hashtab_done(&m->by_path);
	arena_done(&m->arena);
	*m = (struct dcp_metadata){ 0 };
}

bool dcp_same_shape(const struct dcp_item *a, const struct dcp_item *b)
{
	return a->ndim == b->ndim &&
	       memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) == 0;
}

int dcp_item_init(struct dcp_item *t, struct arena *a, const char *key, uint32_t file,
		  enum dtype type, unsigned ndim, const uint64_t *shape, uint64_t numel,
		  uint64_t at)
{
	struct dcp_chunk *const c = arena_alloc(a, sizeof(*c));
	const uint64_t *const offset = arena_alloc(a, (ndim + 1) * sizeof(*offset));
	const uint64_t *const size = arena_copy(a, shape, ndim * sizeof(*size));

	if (!c || !offset || !size)
		return -ENOMEM;
	*c = (struct dcp_chunk){ .offset = offset, .size = size, .numel = numel,
				 .file = file, .data = at };
	*t = (struct dcp_item){ .key = key, .is_tensor = true, .dtype = type,
				.ndim = ndim, .shape = size, .numel = numel,
				.chunks = c, .nchunks = 1 };
	return 0;
}
