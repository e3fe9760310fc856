/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State dicts that each rank of an FSDP run has saved by torch.save, or rank 0 for all ranks.
 * Their entries are like those of a distributed checkpoint with the same state dicts; chunks are
 * tensors within the ranks' files.  Data that several ranks have is read from the first one.
 *
 *	model		{NAME: tensor}
 *	optimizer	{"state": {NAME or number: {FIELD: tensor or number}},
 *			 "param_groups": [{"params": names or numbers, OPTION: value}]}
 *
 * Files of safetensors have parts of a model's tensors, with their offsets in the whole.
 */
#include "ckpt/foreign/dcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/parallel.h"
#include "ckpt/table/rank_files.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/foreign/dcp_dtensor.h"
#include "ckpt/format/names.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"

#define NUMEL_MAX (UINT64_C(1) << 58) /* limit of a tensor's elements, so that byte counts do not
				       * overflow */
#define BATCH 16                      /* files whose pickles are in memory at once */

/* The state of an entry while files are read. */
struct known {
	size_t cap; /* capacity of its chunks */
	bool shared;
	uint32_t crc;  /* of a plain tensor's storage; 0: unknown */
	uint32_t file; /* last file that had the entry */
};

struct reader {
	struct dcp_checkpoint *x;
	struct dcp_metadata *m;
	struct hashtab by_key;
	struct known *known; /* for each entry */
	size_t cap;
	const struct ptfile *pt; /* the file being read, unless it is safetensors */
	const char *name;        /* of the file */
	uint32_t file;
	struct errmsg *err;
};

int dcp_ranks_list(struct dcp_checkpoint *x, struct errmsg *err)
{
	struct rank_files f = { 0 };
	struct dirlist own = { 0 };
	const struct dirlist *names = x->c.names_there;
	struct arena *a = &x->metadata.arena;
	int rc = names ? 0 : io_list(x->c.u, x->c.path, 0, &own, err);

	rc = rc ?: rank_files_find(&f, names ?: &own, x->c.u->model, x->c.path, err);
	for (size_t i = 0; !rc && i < f.n + f.noptim; i++) {
		const char *path = arena_format(a, "%s/%s", x->c.path, f.v[i]);

		if (!path || dcp_metadata_add_file(&x->metadata, path) != (int64_t)i)
			rc = errmsg_nomem(err, x->c.path);
	}
	x->nranks = f.n;
	x->rank_model = f.model ? arena_strdup(a, f.model) : NULL;
	if (!rc && f.others)
		x->rank_note = arena_format(a,
			"the weights are those of %.40s; also in it, and not shown: %.300s (option model=NAME shows another)",
			f.model, f.others);
	if (!rc && f.kind == RANK_FILE_SHARD)
		x->rank_note =
			"the files do not say how many ranks saved them: were those of the last ones missing, tensors would end early";
	rank_files_done(&f);
	dirlist_done(&own);
	return rc ?: a->failed ? errmsg_nomem(err, x->c.path) : 0;
}

static int fail(const struct reader *r, const struct dcp_entry *t, const char *what)
{
	return errmsg_set(r->err, -EBADMSG, "%s: %s: %s", r->name, t->key, what);
}

/* Find or add the entry with this path; NULL when memory runs out. */
static struct dcp_entry *find_entry(struct reader *r, const char *const *path, unsigned depth)
{
	struct dcp_metadata *m = r->m;
	const char *copy[4] = { 0 };
	size_t pos = 0, len = 0;
	struct dcp_entry *t;
	uint64_t hash = 0;
	uint32_t i;
	char *key;

	for (unsigned d = 0; d < depth; d++) {
		hash = hash_bytes(hash, path[d], strlen(path[d]) + 1);
		len += strlen(path[d]) + 1;
	}
	while (hashtab_next(&r->by_key, hash, &pos, &i)) {
		unsigned d = 0;

		t = &m->entries[i];
		while (d < depth && t->depth == depth && strcmp(t->path[d], path[d]) == 0)
			d++;
		if (d == depth)
			return t;
	}
	key = arena_alloc(&m->arena, len);
	for (unsigned d = 0; d < depth; d++)
		copy[d] = arena_strdup(&m->arena, path[d]);
	if (!key || m->arena.failed ||
	    !arena_reserve(&m->arena, &m->entries, m->nentries, &m->cap, m->nentries + 1,
			   sizeof(*m->entries)) ||
	    !arena_reserve(&m->arena, &r->known, m->nentries, &r->cap, m->nentries + 1,
			   sizeof(*r->known)) ||
	    !hashtab_add(&r->by_key, hash, (uint32_t)m->nentries))
		return NULL;
	for (unsigned d = 0; d < depth; d++) {
		strcat(key, d ? "." : "");
		strcat(key, path[d]);
	}
	t = &m->entries[m->nentries];
	r->known[m->nentries++] = (struct known){ 0 };
	*t = (struct dcp_entry){ .key = key,
				 .path = arena_copy(&m->arena, copy, depth * sizeof(*copy)),
				 .depth = depth };
	return t->path ? t : NULL;
}

/* Add a part of a tensor, which begins at `at` in the file; NULL when memory runs out. */
static struct dcp_chunk *add_chunk(struct reader *r, struct dcp_entry *t, struct known *k,
				   const uint64_t *offset, const uint64_t *size, uint64_t numel,
				   uint64_t at)
{
	struct arena *a = &r->m->arena;
	struct dcp_chunk c = { .offset = arena_copy(a, offset, t->ndim * sizeof(*offset)),
			       .size = arena_copy(a, size, t->ndim * sizeof(*size)),
			       .numel = numel,
			       .file = r->file,
			       .at = at,
			       .len = numel * dtype_size(t->dtype) };

	atomic_store(&c.data, at);
	if (!arena_reserve(a, &t->chunks, t->nchunks, &k->cap, t->nchunks + 1, sizeof(c)) ||
	    a->failed)
		return NULL;
	memcpy(&t->chunks[t->nchunks], &c, sizeof(c));
	return &t->chunks[t->nchunks++];
}

/* Add a pickle's part of a tensor. */
static int add_part(struct reader *r, struct dcp_entry *t, struct known *k, const struct dtensor *d)
{
	struct dcp_chunk *c;
	struct stored *view;
	struct tensor local;
	uint64_t at;
	int rc = ptfile_tensor(r->pt, d->local, t->key, &local, &at, r->err);

	if (rc)
		return rc;
	if (local.dtype != d->dtype || local.ndim != d->ndim ||
	    memcmp(local.shape, d->size, d->ndim * sizeof(*d->size)))
		return fail(r, t, "the rank's part has another shape or type than its place");
	if (!local.numel || d->replica)
		return 0;
	c = add_chunk(r, t, k, d->offset, d->size, local.numel,
		      at + local.storage_offset * dtype_size(local.dtype));
	if (!c)
		return errmsg_nomem(r->err, r->name);
	if (tensor_is_contiguous(&local))
		return 0;
	view = arena_alloc(&r->m->arena, sizeof(*view));
	if (!view || !stored_init(view, &r->m->arena, &local, at))
		return errmsg_nomem(r->err, r->name);
	c->view = view;
	atomic_store(&c->strided, true);
	atomic_store(&c->data, at);
	return 0;
}

/* Return the checksum of a plain tensor's storage, which shows whether ranks have the same data. */
static uint32_t sum_of(const struct reader *r, const struct value *v)
{
	struct tensor t;

	return tensor_from_value(v, "", &t, NULL) ? 0 : ptfile_storage_crc(r->pt, t.storage_key);
}

/* Refuse FSDP1's flat parameter: a tensor with different elements on each rank, without their
 * places in the whole. */
static int refuse_flat(struct reader *r, const struct dcp_entry *t)
{
	r->m->refused = arena_format(&r->m->arena,
		"%.200s: ranks have different elements, and do not say which: FSDP1's flat parameters; save the optimizer's state as FSDP.optim_state_dict returns it",
		t->key);
	return r->m->refused ? 0 : errmsg_nomem(r->err, r->name);
}

static int add_parts(struct reader *r, struct dcp_entry *t, struct known *k, struct dtensor *d)
{
	const struct value_seq *shards = value_items(d->shards);
	int rc = 0;

	if (!d->shards)
		return add_part(r, t, k, d);
	for (size_t i = 0; !rc && i < shards->n; i++)
		rc = dtensor_shard(d, i, t->key, r->err) ?: add_part(r, t, k, d);
	return rc;
}

static int add_tensor(struct reader *r, const char *const *path, unsigned depth,
		      const struct value *v)
{
	const size_t n = r->m->nentries;
	struct dcp_entry *t = find_entry(r, path, depth);
	const bool is_new = r->m->nentries > n;
	struct errmsg why = { "" };
	struct known *k;
	struct dtensor d;
	uint32_t crc;
	int rc;

	if (!t)
		return errmsg_nomem(r->err, r->name);
	k = &r->known[t - r->m->entries];
	rc = dtensor_read(v, t->key, &d, &why);
	if (rc == -ENOTSUP && !d.shared) { /* for example a quantized tensor */
		if (is_new) {
			t->is_tensor = true;
			t->dtype = DTYPE_OTHER;
		}
		return 0;
	}
	if (rc)
		return errmsg_set(r->err, rc, "%s: %s", r->name, why.text);
	crc = d.shared ? 0 : sum_of(r, v);
	if (is_new) {
		t->is_tensor = true;
		t->dtype = d.dtype;
		t->ndim = d.ndim;
		t->numel = d.numel;
		t->shape = arena_copy(&r->m->arena, d.shape, d.ndim * sizeof(*d.shape));
		*k = (struct known){ .shared = d.shared, .crc = crc, .file = r->file };
		return t->shape ? add_parts(r, t, k, &d) : errmsg_nomem(r->err, r->name);
	}
	/* A second entry of a name: Python's dict would keep only the last. */
	if (k->file == r->file)
		return fail(r, t, "is there twice");
	k->file = r->file;
	if (!d.shared && depth == 4 && d.ndim &&
	    (d.numel != t->numel || !crc != !k->crc || (crc && crc != k->crc)))
		return refuse_flat(r, t);
	/* The number of steps must be equal on all ranks; a model's own numbers may differ. */
	if (depth == 4 && strcmp(path[3], "step") == 0 && crc && k->crc && crc != k->crc)
		return fail(r, t, "is another number than on other ranks: their files are of different saves");
	if (!t->is_tensor || t->dtype != d.dtype || t->ndim != d.ndim || k->shared != d.shared ||
	    memcmp(t->shape, d.shape, d.ndim * sizeof(*d.shape)))
		return fail(r, t, "has another shape or type on another rank");
	return d.shared ? add_parts(r, t, k, &d) : 0;
}

/* Add an object, unless an earlier rank had it. */
static int add_value(struct reader *r, const char *const *path, unsigned depth, struct value *v)
{
	const size_t n = r->m->nentries;
	struct dcp_entry *t = find_entry(r, path, depth);
	int rc;

	if (!t)
		return errmsg_nomem(r->err, r->name);
	if (r->m->nentries == n)
		return 0;
	rc = ptfile_numbers(r->pt, t->key, &r->x->arena, &v, r->err);
	if (rc && rc != -ENOTSUP)
		return rc;
	t->value = rc ? NULL : pickle_copy(&r->m->arena, v);
	if (!t->value) /* a tensor among options, which no file contains */
		t->value = value_new(&r->m->arena, VALUE_TUPLE);
	return t->value ? 0 : errmsg_nomem(r->err, r->name);
}

static int add_model(struct reader *r)
{
	const struct value_dict *d = value_pairs(r->pt->root);
	int rc = 0;

	if (!d)
		return errmsg_set(r->err, -ENOTSUP, "%s: has no dict of tensors", r->name);
	for (size_t i = 0; !rc && i < d->n; i++) {
		const char *path[] = { r->x->rank_model, value_cstr(d->v[i].key) };
		const char *dot = strrchr(path[1], '.');

		if (!tensor_is_any(d->v[i].val))
			continue;
		if (!value_is_cstr(d->v[i].key))
			return errmsg_set(r->err, -ENOTSUP,
					  "%s: has a tensor whose key is no name", r->name);
		dot = dot ? dot + 1 : path[1];
		if (strcmp(dot, "_flat_param") == 0 || strcmp(dot, "flat_param") == 0)
			return errmsg_set(
				r->err, -ENOTSUP,
				"%s: %s: a flat parameter of FSDP1's LOCAL_STATE_DICT, which does not say what it holds: save SHARDED_STATE_DICT or FULL_STATE_DICT",
				r->name, path[1]);
		rc = add_tensor(r, path, COUNT(path), d->v[i].val);
	}
	return rc;
}

/* A parameter's name, or its number as a text; NULL if it is neither. */
static const char *param_name(const struct value *v, char number[24])
{
	if (value_is_cstr(v))
		return v->str.p;
	if (v->kind != VALUE_INT)
		return NULL;
	snprintf(number, 24, "%lld", (long long)v->i);
	return number;
}

static int add_optimizer(struct reader *r)
{
	const struct value_dict *states = value_find_pairs(r->pt->root, "state");
	const struct value_seq *groups = value_find_items(r->pt->root, "param_groups");
	char number[24];
	int rc = 0;

	for (size_t i = 0; !rc && states && i < states->n; i++) {
		const char *name = param_name(states->v[i].key, number);
		const struct value_dict *d = name ? value_pairs(states->v[i].val) : NULL;

		for (size_t k = 0; !rc && d && k < d->n; k++) {
			const char *path[] = { "optimizer", "state", name, value_cstr(d->v[k].key) };

			rc = tensor_is_any(d->v[k].val)
				     ? add_tensor(r, path, COUNT(path), d->v[k].val)
				     : add_value(r, path, COUNT(path), d->v[k].val);
		}
	}
	for (size_t i = 0; !rc && groups && i < groups->n; i++) {
		const struct value_dict *d = value_pairs(groups->v[i]);

		snprintf(number, sizeof(number), "%zu", i);
		for (size_t k = 0; !rc && d && k < d->n; k++) {
			const char *path[] = { "optimizer", "param_groups", number,
					       value_cstr(d->v[k].key) };

			rc = add_value(r, path, COUNT(path), d->v[k].val);
		}
	}
	return rc;
}

struct batch {
	const struct dcp_checkpoint *x;
	size_t first;
	struct ptfile pt[BATCH];
	bool open[BATCH];
};

static int open_one(void *ctx, size_t i, struct errmsg *err)
{
	struct batch *b = ctx;
	const int rc = ckpt_file_open(&b->x->files[b->first + i], &b->pt[i], err);

	b->open[i] = !rc;
	return rc;
}

static int read_batch(struct reader *r, struct batch *b, size_t n)
{
	int rc = parallel_far(n, 1, open_one, b, r->err);

	for (size_t i = 0; i < n; i++) {
		if (!b->open[i])
			continue;
		r->pt = &b->pt[i];
		r->name = b->pt[i].src.name;
		r->file = (uint32_t)(b->first + i);
		rc = rc ?: b->first + i < b->x->nranks ? add_model(r) : add_optimizer(r);
		ptfile_close(&b->pt[i]);
	}
	return rc;
}

/* Add a tensor of safetensors at `saved_offsets` of the whole, which ends where its last part
 * does. */
static int add_shard(struct reader *r, const struct stored *v, const cJSON *saved_offsets)
{
	const char *path[] = { r->x->rank_model, v->name };
	const size_t n = r->m->nentries;
	struct dcp_entry *t = find_entry(r, path, COUNT(path));
	uint64_t offset[TENSOR_DIMS_MAX] = { 0 }, *shape;
	const cJSON *at = cJSON_IsArray(saved_offsets) ? saved_offsets->child : NULL;

	if (!t)
		return errmsg_nomem(r->err, r->name);
	if (r->m->nentries > n) {
		t->is_tensor = true;
		t->dtype = v->dtype;
		t->ndim = v->ndim;
		t->shape = arena_alloc(&r->m->arena, v->ndim * sizeof(*t->shape));
	}
	if (!t->shape)
		return errmsg_nomem(r->err, r->name);
	if (t->dtype != v->dtype || t->ndim != v->ndim)
		return fail(r, t, "has another type or number of dimensions in another file");
	if (t->dtype == DTYPE_OTHER)
		return 0;
	shape = (uint64_t *)t->shape;
	for (unsigned d = 0; d < t->ndim; d++, at = at ? at->next : NULL) {
		uint64_t end;

		if ((saved_offsets && !json_get_count(at, &offset[d])) ||
		    !checked_add(offset[d], v->shape[d], &end))
			return fail(r, t, "DCP_SHARDING_INFO has no usable place for it");
		shape[d] = shape[d] < end ? end : shape[d];
	}
	return !v->numel || add_chunk(r, t, &r->known[t - r->m->entries], offset, v->shape,
				      v->numel, v->storage)
		       ? 0
		       : errmsg_nomem(r->err, r->name);
}

static int read_shards(struct reader *r, const struct ckpt_file *f)
{
	struct safetensors s = { 0 };
	cJSON *info = NULL;
	struct source src;
	int rc = io_open(r->x->c.u, f->path, &f->file, &src, r->err);

	if (rc)
		return rc;
	r->name = f->path;
	rc = safetensors_read(&s, &src, r->err);
	if (!rc && s.sharding)
		rc = json_parse(f->path, s.sharding, strlen(s.sharding), &info, r->err);
	for (size_t i = 0; !rc && i < s.n; i++) {
		const cJSON *own = cJSON_GetObjectItemCaseSensitive(info, s.v[i].name);

		rc = add_shard(r, &s.v[i], cJSON_GetObjectItemCaseSensitive(own, "saved_offsets"));
	}
	cJSON_Delete(info);
	safetensors_done(&s);
	source_close(&src);
	return rc;
}

/* The sizes of whole tensors are known only after all parts. */
static int count_elements(struct reader *r)
{
	for (size_t i = 0; i < r->m->nentries; i++) {
		struct dcp_entry *t = &r->m->entries[i];

		t->numel = 1;
		for (unsigned d = 0; d < t->ndim; d++)
			if (!checked_mul(t->numel, t->shape[d], &t->numel) || t->numel > NUMEL_MAX)
				return fail(r, t, "its parts do not fit together");
	}
	return 0;
}

static int by_place(const void *a, const void *b, void *ctx)
{
	const struct dcp_chunk *x = a, *y = b;
	const struct dcp_entry *t = ctx;
	const size_t size = t->ndim * sizeof(*x->offset);
	const int order = memcmp(x->offset, y->offset, size) ?: memcmp(x->size, y->size, size);

	return order ?: ORDER(x->file, y->file);
}

/* Keep only one of several equal chunks of ranks; their mesh may be part of a larger one. */
static void drop_replicas(struct dcp_entry *t)
{
	const size_t size = t->ndim * sizeof(*t->shape);
	size_t kept = 0;

	if (t->nchunks > 1)
		qsort_r(t->chunks, t->nchunks, sizeof(*t->chunks), by_place, t);
	for (size_t i = 0; i < t->nchunks; i++) {
		const struct dcp_chunk *c = &t->chunks[i], *last = &t->chunks[kept - (kept > 0)];

		if (!kept || c->file == last->file || memcmp(c->offset, last->offset, size) ||
		    memcmp(c->size, last->size, size))
			memmove(&t->chunks[kept++], c, sizeof(*c));
	}
	t->nchunks = kept;
}

/* A plain tensor beside DTensors is a buffer, unless FSDP was configured to ignore it. */
static int end(struct reader *r)
{
	bool shared = false;
	int rc = 0;

	for (size_t i = 0; !rc && i < r->m->nentries; i++) {
		struct dcp_entry *t = &r->m->entries[i];

		shared |= t->depth == 2 && r->known[i].shared;
		drop_replicas(t);
		if (t->is_tensor && t->dtype != DTYPE_OTHER)
			rc = dcp_chunks_check(t, r->x->c.path, r->err);
	}
	for (size_t i = 0; shared && i < r->m->nentries; i++)
		r->m->entries[i].is_buffer = r->m->entries[i].depth == 2 && !r->known[i].shared;
	return rc;
}

int dcp_ranks_read(struct dcp_checkpoint *x, struct errmsg *err)
{
	struct reader r = { .x = x, .m = &x->metadata, .err = err };
	const bool shards = x->c.nfiles && names_ends_with(x->files->path, ".safetensors");
	struct batch *b = calloc(1, sizeof(*b));
	int rc = b ? 0 : errmsg_nomem(err, x->c.path);

	for (size_t i = 0; shards && !rc && i < x->c.nfiles; i++) {
		r.file = (uint32_t)i;
		rc = read_shards(&r, &x->files[i]);
	}
	if (shards)
		rc = rc ?: count_elements(&r);
	for (size_t i = 0; !shards && !rc && i < x->c.nfiles; i += BATCH) {
		*b = (struct batch){ .x = x, .first = i };
		rc = read_batch(&r, b, x->c.nfiles - i < BATCH ? x->c.nfiles - i : BATCH);
	}
	free(b);
	rc = rc ?: end(&r);
	hashtab_done(&r.by_key);
	return rc;
}
