/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a PyTorch distributed checkpoint.  Sources:
 * torch/distributed/checkpoint/metadata.py and filesystem.py, the only description:
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
 * Objects are read as data and found by the names of their classes (unpickle.c).  Attributes that
 * are not named here, such as Megatron's all_local_views, are ignored.  Our own views contain calls
 * of the classes instead, with the attributes as arguments in this order
 * (views/view_dcp_metadata.c).
 */
#include "ckpt/foreign/dcp_metadata.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_unpickle.h"
#include "ckpt/io/io.h"
#include "ckpt/pack/pack_index.h"

struct reader {
	struct dcp_metadata *m;
	const char *dir;
	const char *file; /* the metadata's path */
	struct dcp_pickle p;
	struct dcp_entry *entries; /* entries of the directory, in `m`; sorted by key until
				    * sort_entries() */
	size_t n;
	struct hashtab found; /* entries by the words of their keys */
	pickle_word last;     /* word of the last file found */
	uint32_t last_number;
	struct errmsg *err;
};

static int dcp_bad(const struct reader *r, const char *key, const char *what)
{
	return ERRMSG_FILE(r, -EBADMSG, "%s%s%s", key ? key : "", key ? ": " : "", what);
}

static int dcp_nomem(const struct reader *r)
{
	return r->m->arena.refused ? ERRMSG_FILE(r, -E2BIG, "describes too much for its size")
				   : errmsg_nomem(r->err, r->file);
}

/* Return `n` sizes or offsets, or NULL.  A tensor without dimensions may have none. */
static const uint64_t *dims_of(pickle_word w, size_t n)
{
	static const uint64_t none;
	const uint64_t *v;
	size_t have = 0;

	if (!dcp_sizes(w, &v, &have))
		v = NULL;
	return have != n ? NULL : v ?: &none;
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
	if (!copy || !arena_reserve(&m->arena, &m->files, m->nfiles, &m->files_cap, m->nfiles + 1,
			   sizeof(*m->files)) ||
	    !hashtab_add(&m->by_path, hash, (uint32_t)m->nfiles))
		return -1;
	m->files[m->nfiles] = copy;
	return (int64_t)m->nfiles++;
}

/* Find the number of the file with that name in the directory. */
static int find_file(struct reader *r, pickle_word w, uint32_t *out)
{
	struct value_str t = { "", 0 };
	char text[PACK_NAME_MAX], name[PACK_NAME_MAX];
	int64_t number;
	char *path;

	if (w == r->last) {
		*out = r->last_number;
		return 0;
	}
	if (dcp_text_of(&r->p, w, &t) && t.len < sizeof(text)) {
		memcpy(text, t.p, t.len);
		text[t.len] = '\0';
	} else {
		*text = '\0';
	}
	if (*text == '/' || !pack_index_name(text, name) || !*name)
		return ERRMSG_FILE(r, -EBADMSG, "'%.*s' is no file of the directory",
				   t.len < 100 ? (int)t.len : 100, t.p);
	if (asprintf(&path, "%s/%s", r->dir, name) < 0)
		return dcp_nomem(r);
	number = dcp_metadata_add_file(r->m, path);
	free(path);
	if (number < 0)
		return dcp_nomem(r);
	r->last = w;
	r->last_number = *out = (uint32_t)number;
	return 0;
}

static bool ends_with(const struct value_str *t, const char *end)
{
	const size_t n = strlen(end);

	return t->len >= n && memcmp(t->p + t->len - n, end, n) == 0;
}

/* Set the place of a chunk's record. */
static int read_info(struct reader *r, const char *key, pickle_word info, struct dcp_chunk *c)
{
	const pickle_word path = dcp_attribute(info, DCP_INFO, 0);
	const pickle_word *transforms;
	struct value_str t = { "", 0 };
	size_t n;

	if (!dcp_count_of(dcp_attribute(info, DCP_INFO, 1), &c->at) ||
	    !dcp_count_of(dcp_attribute(info, DCP_INFO, 2), &c->len))
		return dcp_bad(r, key, "it is not recorded where its data is");
	dcp_elements(dcp_attribute(info, DCP_INFO, 3), &transforms, &n);
	if (n) {
		dcp_text_of(&r->p, transforms[0], &t);
		return ERRMSG_FILE(r, -ENOTSUP,
			"%s: was written with the transform %.*s, which is not read: load it with torch and save it without _extensions",
			key, t.len < 60 ? (int)t.len : 60, t.p);
	}
	if (path != r->last && dcp_text_of(&r->p, path, &t) && ends_with(&t, ".safetensors"))
		return ERRMSG_FILE(r, -ENOTSUP,
			"%s: lies in a file of safetensors, which is not read here: save it with torch's own serialization",
			key);
	return find_file(r, path, &c->file);
}

static int read_chunk(const struct reader *r, const struct dcp_entry *t, pickle_word v,
		      struct dcp_chunk *c)
{
	const pickle_word offset = dcp_attribute(v, DCP_CHUNK, 0);

	c->offset = dims_of(offset, t->ndim);
	c->size = dims_of(dcp_attribute(v, DCP_CHUNK, 1), t->ndim);
	if (!offset || !c->offset || !c->size)
		return dcp_bad(r, t->key, "a chunk has no place");
	c->numel = 1;
	for (unsigned d = 0; d < t->ndim; d++)
		if (!checked_mul(c->numel, c->size[d], &c->numel))
			return dcp_bad(r, t->key, "a chunk is too large");
	return 0;
}

static int read_shape(const struct reader *r, struct dcp_entry *t, pickle_word size)
{
	size_t n = 0;

	if (!dcp_sizes(size, &t->shape, &n))
		return dcp_bad(r, t->key, "no shape");
	t->ndim = (unsigned)n;
	t->numel = 1;
	for (size_t i = 0; i < n; i++)
		if (!checked_mul(t->numel, t->shape[i], &t->numel) || t->numel > INT64_MAX / 16)
			return dcp_bad(r, t->key, "impossible dimensions");
	return 0;
}

static int read_tensor(const struct reader *r, struct dcp_entry *t, pickle_word v)
{
	const pickle_word type = dcp_attribute(dcp_attribute(v, DCP_TENSOR, 0), DCP_PROPERTIES, 0);
	const pickle_word *chunks;
	size_t n;
	int rc;

	if (!type || !dcp_elements(dcp_attribute(v, DCP_TENSOR, 2), &chunks, &n))
		return dcp_bad(r, t->key, "no type or no chunks");
	rc = read_shape(r, t, dcp_attribute(v, DCP_TENSOR, 1));
	if (rc)
		return rc;
	t->is_tensor = true;
	t->dtype = dcp_dtype_of(type);
	t->nchunks = n;
	t->chunks = arena_alloc(&r->m->arena, (n + 1) * sizeof(*t->chunks));
	if (!t->chunks)
		return dcp_nomem(r);
	for (size_t i = 0; !rc && i < n; i++)
		rc = read_chunk(r, t, chunks[i], &t->chunks[i]);
	return rc ?: dcp_chunks_check(t, r->file, r->err);
}

static int read_entry(const struct reader *r, const pickle_word pair[2], struct dcp_entry *t)
{
	struct value_str key;

	if (!dcp_text_of(&r->p, pair[0], &key))
		return dcp_bad(r, NULL, "state_dict_metadata: a key is no string");
	t->key = arena_strndup(&r->m->arena, key.p, key.len);
	if (!t->key)
		return dcp_nomem(r);
	return dcp_attribute(pair[1], DCP_TENSOR, 0) ? read_tensor(r, t, pair[1]) : 0;
}

static int read_entries(struct reader *r, const struct dcp_pairs *entries)
{
	struct dcp_metadata *m = r->m;
	int rc = 0;

	if (!arena_reserve(&m->arena, &m->entries, m->nentries, &m->cap,
			   m->nentries + entries->n + 1, sizeof(*m->entries)))
		return dcp_nomem(r);
	r->entries = m->entries + m->nentries;
	for (; !rc && r->n < entries->n; r->n++) {
		r->entries[r->n] = (struct dcp_entry){ 0 };
		rc = read_entry(r, &entries->v[2 * r->n], &r->entries[r->n]);
	}
	if (rc)
		return rc;
	m->nentries += r->n;
	qsort(r->entries, r->n, sizeof(*r->entries), array_by_text);
	for (size_t i = 1; i < r->n; i++)
		if (strcmp(r->entries[i - 1].key, r->entries[i].key) == 0)
			return dcp_bad(r, r->entries[i].key, "is there twice");
	return 0;
}

/* Find the entry of a key, or NULL.  Each text of the file is looked up only once. */
static struct dcp_entry *find_entry(struct reader *r, pickle_word key)
{
	const uint64_t hash = hash_number(key);
	struct dcp_entry *found = NULL;
	struct value_str t;
	char *text = NULL;
	size_t pos = 0;
	uint32_t i;

	if (hashtab_next(&r->found, hash, &pos, &i))
		return i < r->n ? &r->entries[i] : NULL;
	if (dcp_text_of(&r->p, key, &t))
		text = strndup(t.p, t.len);
	if (text)
		found = array_find(r->entries, r->n, sizeof(*r->entries), text);
	free(text);
	hashtab_add(&r->found, hash, found ? (uint32_t)(found - r->entries) : UINT32_MAX);
	return found;
}

/* Return the chunk that a MetadataIndex names, or NULL; empty chunks need no data. */
static struct dcp_chunk *find_chunk(const struct reader *r, struct dcp_entry *t, pickle_word index)
{
	if (t->is_tensor) {
		const uint64_t *at = dims_of(dcp_attribute(index, DCP_INDEX, 1), t->ndim);

		return at ? dcp_chunk_find(t, at) : NULL;
	}
	if (!t->nchunks) {
		t->chunks = arena_alloc(&r->m->arena, sizeof(*t->chunks));
		t->nchunks = t->chunks != NULL;
	}
	return t->chunks;
}

static int read_storage(struct reader *r, const struct dcp_pairs *storage)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < storage->n; i++) {
		const pickle_word index = storage->v[2 * i];
		const pickle_word key = dcp_attribute(index, DCP_INDEX, 0);
		struct dcp_entry *t = find_entry(r, key);
		struct dcp_chunk *c = t ? find_chunk(r, t, index) : NULL;

		if (!key)
			return dcp_bad(r, NULL, "storage_data: no MetadataIndex");
		if (c && c->len)
			return dcp_bad(r, t->key, "a chunk has data twice");
		if (c)
			rc = read_info(r, t->key, storage->v[2 * i + 1], c);
	}
	for (size_t i = 0; !rc && i < r->n; i++)
		for (size_t k = 0; r->entries[i].is_tensor && k < r->entries[i].nchunks; k++)
			if (r->entries[i].chunks[k].numel && !r->entries[i].chunks[k].len)
				return dcp_bad(r, r->entries[i].key, "a chunk has no data");
	return rc ?: r->m->arena.failed ? dcp_nomem(r) : 0;
}

/* Copy an element of a path; NULL if it is invalid. */
static const char *read_step(const struct reader *r, pickle_word w)
{
	struct value_str t;
	int64_t k;

	if (dcp_text_of(&r->p, w, &t))
		return arena_strndup(&r->m->arena, t.p, t.len);
	return dcp_int_of(w, &k) ? arena_format(&r->m->arena, "%lld", (long long)k) : NULL;
}

/* Split a path into texts; a number is an index into a list. */
static int read_path(const struct reader *r, struct dcp_entry *t, const pickle_word *path)
{
	struct arena *a = &r->m->arena;
	const pickle_word *v = NULL;
	size_t n = 1;

	if (path && !dcp_elements(*path, &v, &n)) {
		path = NULL;
		n = 1;
	}
	if (n == 0 || n > DCP_PATH_MAX)
		return dcp_bad(r, t->key, "nested too deeply, or no path");
	t->depth = (unsigned)n;
	t->path = arena_alloc(a, n * sizeof(*t->path));
	for (size_t i = 0; t->path && i < n; i++) {
		t->path[i] = path ? read_step(r, v[i]) : t->key;
		if (!t->path[i] && !a->failed)
			return dcp_bad(r, t->key, "its path is no path");
	}
	return a->failed ? dcp_nomem(r) : 0;
}

/* The position of an entry of planner_data in state_dict_metadata. */
struct order {
	size_t at;    /* position in state_dict_metadata; SIZE_MAX if it is not a tensor */
	size_t least; /* lowest position of the preceding entries */
};

/*
 * Copy the entries with the stages of a pipeline in their order.  planner_data begins with the last
 * rank, followed by keys that only earlier ranks have (torch merges their dicts by a ChainMap);
 * state_dict_metadata begins with the first rank.  A stage begins at a tensor of planner_data if it
 * and all later ones precede all earlier ones in state_dict_metadata.
 */
static void order_stages(const struct dcp_entry *entries, const struct order *o, size_t n,
			 struct dcp_entry *out)
{
	size_t most = 0, end = n, done = 0;

	for (size_t i = n; i--;) {
		if (o[i].at == SIZE_MAX && i)
			continue;
		most = o[i].at > most ? o[i].at : most;
		if (i && (o[i].least == SIZE_MAX || o[i].least < most))
			continue;
		memcpy(out + done, entries + i, (end - i) * sizeof(*out));
		done += end - i;
		end = i;
	}
}

/* Set at[i] to the position of entry `i`, by key, in state_dict_metadata. */
static void find_places(struct reader *r, const struct dcp_pairs *entries, size_t *at)
{
	for (size_t i = 0; i < entries->n; i++) {
		const struct dcp_entry *t = find_entry(r, entries->v[2 * i]);

		if (t)
			at[t - r->entries] = i;
	}
}

/* Set the entries' paths and sort them in the order of planner_data: the order of keys depends on
 * which ranks had parts of them. */
static int sort_entries(struct reader *r, const struct dcp_pairs *entries,
			const struct dcp_pairs *paths)
{
	struct dcp_entry *sorted = calloc(r->n + 1, sizeof(*sorted));
	struct order *o = calloc(r->n + 1, sizeof(*o));
	size_t *at = calloc(r->n + 1, sizeof(*at));
	size_t done = 0, least = SIZE_MAX;
	int rc = sorted && o && at ? 0 : dcp_nomem(r);

	if (!rc)
		find_places(r, entries, at);
	for (size_t i = 0; !rc && i < paths->n; i++) {
		struct dcp_entry *t = find_entry(r, paths->v[2 * i]);

		if (!t || t->path)
			continue;
		rc = read_path(r, t, &paths->v[2 * i + 1]);
		o[done].at = t->is_tensor ? at[t - r->entries] : SIZE_MAX;
		o[done].least = least;
		least = o[done].at < least ? o[done].at : least;
		sorted[done++] = *t;
	}
	for (size_t i = 0; !rc && i < r->n; i++) {
		if (r->entries[i].path)
			continue;
		rc = read_path(r, &r->entries[i], NULL);
		o[done] = (struct order){ SIZE_MAX, SIZE_MAX };
		sorted[done++] = r->entries[i];
	}
	if (!rc)
		order_stages(sorted, o, r->n, r->entries);
	free(sorted);
	free(o);
	free(at);
	return rc;
}

static int read_root(struct reader *r)
{
	const pickle_word root = r->p.root;
	struct dcp_pairs entries, paths, storage;
	int rc;

	if (!dcp_pairs(dcp_attribute(root, DCP_ROOT, 0), &entries) ||
	    !dcp_pairs(dcp_attribute(root, DCP_ROOT, 2), &storage))
		return dcp_bad(r, NULL, "not the metadata of a PyTorch distributed checkpoint");
	dcp_pairs(dcp_attribute(root, DCP_ROOT, 1), &paths);
	rc = read_entries(r, &entries) ?: read_storage(r, &storage);
	if (!rc && dcp_metadata_add_file(r->m, r->file) < 0)
		rc = dcp_nomem(r);
	return rc ?: sort_entries(r, &entries, &paths);
}

static int read_pickle(struct reader *r, const struct source *src)
{
	struct arena *a = &r->m->arena;
	int rc;

	if (src->size > DCP_METADATA_MAX)
		return ERRMSG_FILE(r, -E2BIG, "%llu bytes", (unsigned long long)src->size);
	a->limit = 0;
	rc = dcp_unpickle(&r->p, src, a, r->err);
	a->limit = a->used + r->p.budget;
	rc = rc ?: read_root(r);
	a->limit = 0;
	hashtab_done(&r->found);
	dcp_unpickled_done(&r->p);
	return rc;
}

int dcp_metadata_add(struct dcp_metadata *m, struct uckpt *u, const char *dir, struct errmsg *err)
{
	struct reader r = { .m = m, .dir = dir, .err = err };
	struct source src;
	int rc;

	r.file = arena_format(&m->arena, "%s/" DCP_METADATA, dir);
	rc = r.file ? io_open(u, r.file, NULL, &src, err) : errmsg_nomem(err, dir);
	if (!rc) {
		rc = read_pickle(&r, &src);
		source_close(&src);
	}
	return rc;
}

void dcp_metadata_done(struct dcp_metadata *m)
{
	hashtab_done(&m->by_path);
	arena_done(&m->arena);
	*m = (struct dcp_metadata){ 0 };
}

bool dcp_same_shape(const struct dcp_entry *a, const struct dcp_entry *b)
{
	return SHAPE_ORDER(a, b) == 0;
}

struct dcp_key *dcp_entries_by_key(const struct dcp_metadata *m)
{
	struct dcp_key *v = calloc(m->nentries + 1, sizeof(*v));

	for (size_t i = 0; v && i < m->nentries; i++)
		v[i] = (struct dcp_key){ m->entries[i].key, &m->entries[i] };
	if (v)
		qsort(v, m->nentries, sizeof(*v), array_by_text);
	return v;
}
