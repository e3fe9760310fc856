/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model as transformers' save_pretrained, or DeepSpeed's zero_to_fp32.py,
 * leaves it:
 *
 *   model.safetensors		or	pytorch_model.bin
 *   model.safetensors.index.json	pytorch_model.bin.index.json
 *     and the files that it names	  and the files that it names
 *
 * The order of preference is that of transformers (modeling_utils.py,
 * _get_resolved_checkpoint_files): safetensors first, and one file before several.
 * Links are followed, because a directory of the hub's cache consists of links.
 */
#include "ckpt/table/hfdir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/parallel.h"
#include "ckpt/table/detect.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"

static const struct layout {
	const char *name;
	bool is_index;
	bool safetensors;
} layouts[] = {
	{ "model.safetensors", false, true },
	{ "model.safetensors.index.json", true, true },
	{ "pytorch_model.bin", false, false },
	{ "pytorch_model.bin.index.json", true, false },
};

/* The tensors of a file, and the memory that they point to. */
struct hfdir_header {
	struct arena arena;
	struct stored *v;
	size_t n;
	struct errmsg_list left_out; /* tensors that were left out, and the reasons */
};

/* Limit of the memory for descriptions of a pickle's tensors.  Several names may
 * share a tensor, so a small file could ask for any amount. */
#define DESCRIPTIONS_MAX(size) ((1u << 20) + 8 * (size))

/* Find which layouts' files are named in a directory; lists it if `names` is NULL.  Most
 * directories have none, and a store may take milliseconds for each lookup.  False if the
 * directory cannot be listed, as on some servers. */
static bool list_layouts(struct uckpt *u, const char *dir, const struct dirlist *names,
			 bool there[COUNT(layouts)])
{
	struct dirlist d = { 0 };

	if (!names && io_list(u, dir, 0, &d, NULL))
		return false;
	names = names ?: &d;
	for (size_t k = 0; k < names->n; k++) {
		char *name = io_dir_name(names->v[k].name);

		for (size_t i = 0; name && i < COUNT(layouts); i++)
			there[i] |= strcmp(name, layouts[i].name) == 0;
		free(name);
	}
	dirlist_done(&d);
	return true;
}

/* Return the first layout whose file exists, or NULL. */
static const struct layout *find_layout(struct uckpt *u, const char *dir,
					const struct dirlist *names)
{
	bool named[COUNT(layouts)] = { false };
	const bool listed = list_layouts(u, dir, names, named);

	for (size_t i = 0; i < COUNT(layouts); i++) {
		struct attrs a;
		char *path;
		bool there;

		if (listed && !named[i])
			continue;
		if (asprintf(&path, "%s/%s", dir, layouts[i].name) < 0)
			return NULL;
		there = io_stat(u, path, 0, &a, NULL, NULL) == 0 &&
			S_ISREG(a.st.st_mode);
		free(path);
		if (there)
			return &layouts[i];
	}
	return NULL;
}

bool hfdir_is_one(struct uckpt *u, const char *path)
{
	return find_layout(u, path, NULL) != NULL;
}

bool hfdir_is_listed(struct uckpt *u, const char *path, const struct dirlist *names)
{
	return find_layout(u, path, names) != NULL;
}

bool hfdir_is_found_by(struct uckpt *u, const char *path, const char *name)
{
	const struct layout *l = find_layout(u, path, NULL);

	return l && (l->is_index || strcmp(l->name, name) == 0);
}

/* Record a tensor that is left out. */
static int leave_out(struct hfdir_header *h, const char *file, const char *name,
		     const char *why, struct errmsg *err)
{
	return errmsg_list_add(&h->left_out, &h->arena, "%.200s: left out: %s", name, why)
		       ? 0
		       : errmsg_nomem(err, file);
}

static int read_safetensors(struct hfdir_header *h, const struct source *src, struct errmsg *err)
{
	struct safetensors s;
	int rc = safetensors_read(&s, src, err);

	if (rc)
		return rc;
	h->arena = s.arena;
	h->v = s.v;
	for (size_t i = 0; !rc && i < s.n; i++)
		if (s.v[i].dtype != DTYPE_OTHER)
			h->v[h->n++] = s.v[i];
		else
			rc = leave_out(h, src->name, s.v[i].name, "torch has no such type", err);
	return rc;
}

static int read_pair(struct hfdir_header *h, const struct ptfile *pt,
		     const struct value_pair *pair, struct errmsg *err)
{
	const char *const file = pt->src.name;
	struct stored *const out = &h->v[h->n];
	struct arena *const a = &h->arena;
	struct errmsg why;
	struct tensor t;
	uint64_t storage;
	int rc;

	if (!value_is_cstr(pair->key))
		return errmsg_set(err, -EBADMSG, "%s: a tensor's name is not a string", file);
	rc = tensor_from_value(pair->val, "no plain tensor", &t, &why);
	if (!rc && t.dtype == DTYPE_OTHER)
		rc = errmsg_set(&why, -ENOTSUP, "elements of unknown type");
	if (rc == -ENOTSUP)
		return leave_out(h, file, pair->key->str.p, why.text, err);
	rc = ptfile_tensor(pt, pair->val, pair->key->str.p, &t, &storage, err);
	if (rc)
		return rc;
	storage += t.storage_offset * dtype_size(t.dtype);
	t.storage_offset = 0;
	t.storage_numel = t.numel;
	h->n++;
	return stored_init(out, a, &t, storage) && (out->name = arena_strdup(a, pair->key->str.p))
		       ? 0
		       : errmsg_nomem(err, file);
}

static int read_torch(struct hfdir_header *h, struct source *src, struct errmsg *err)
{
	const struct value_dict *pairs;
	struct ptfile pt;
	int rc = ptfile_open_source(&pt, src, err);

	*src = (struct source){ .fd = -1 }; /* ptfile_open_source now owns it */
	if (rc)
		return rc;
	h->arena.limit = DESCRIPTIONS_MAX((size_t)pt.src.size);
	pairs = value_pairs(pt.root);
	if (!pairs)
		rc = errmsg_set(err, -EBADMSG, "%s: is no dict of tensors", pt.src.name);
	else if (!(h->v = arena_alloc(&h->arena, pairs->n * sizeof(*h->v) + 1)))
		rc = errmsg_nomem(err, pt.src.name);
	for (size_t i = 0; !rc && i < pairs->n; i++)
		rc = read_pair(h, &pt, &pairs->v[i], err);
	ptfile_close(&pt);
	return rc;
}

struct reading {
	struct hfdir *d;
	bool safetensors;
};

static int read_file(void *ctx, size_t i, struct errmsg *err)
{
	const struct reading *const r = ctx;
	struct ckpt_file *const f = &r->d->files[i];
	struct hfdir_header *const h = &r->d->headers[i];
	struct source src;
	int rc = ckpt_file_find(f, err) ?:
		 io_open(f->u, f->path, &f->file, &src, err);

	if (rc)
		return rc;
	rc = r->safetensors ? read_safetensors(h, &src, err)
			    : read_torch(h, &src, err);
	source_close(&src);
	for (size_t k = 0; k < h->n; k++)
		h->v[k].file = (uint32_t)i;
	return rc;
}

/* Move tensors whose types are no real numbers behind the others. */
static int split_tensors(struct hfdir *d, struct errmsg *err)
{
	struct stored *const odd = malloc((d->n + 1) * sizeof(*odd));
	size_t n = 0;

	if (!odd)
		return errmsg_nomem(err, d->path);
	for (size_t i = 0; i < d->n; i++)
		if (cast_knows(d->v[i].dtype))
			d->v[n++] = d->v[i];
		else
			odd[d->nmore++] = d->v[i];
	memcpy(d->v + n, odd, d->nmore * sizeof(*odd));
	free(odd);
	d->n = n;
	d->more = d->v + n;
	return 0;
}

/* List the tensors of all files, sorted.  Names must be unique. */
static int list_tensors(struct hfdir *d, struct errmsg *err)
{
	size_t n = 0;

	for (size_t i = 0; i < d->nfiles; i++)
		n += d->headers[i].n;
	d->v = malloc((n + 1) * sizeof(*d->v));
	if (!d->v)
		return errmsg_nomem(err, d->path);
	for (size_t i = 0; i < d->nfiles; d->n += d->headers[i++].n)
		if (d->headers[i].n)
			memcpy(d->v + d->n, d->headers[i].v, d->headers[i].n * sizeof(*d->v));
	qsort(d->v, d->n, sizeof(*d->v), array_by_text);
	for (size_t i = 0; i < d->n; i++) {
		const char *const path = d->files[d->v[i].file].path;

		if (!*d->v[i].name)
			return errmsg_set(err, -EBADMSG, "%s: a tensor has no name", path);
		if (i && array_by_text(&d->v[i - 1], &d->v[i]) == 0)
			return errmsg_set(err, -EBADMSG, "%s: tensor %.200s is there twice: see %s",
					  path, d->v[i].name, d->files[d->v[i - 1].file].name);
	}
	return split_tensors(d, err);
}

/* Read the headers of `n` files. */
static int read_files(struct hfdir *d, const struct layout *l,
		      const char *const *names, size_t n, struct errmsg *err)
{
	struct reading r = { d, l->safetensors };

	d->files = calloc(n, sizeof(*d->files));
	d->headers = calloc(n, sizeof(*d->headers));
	if (!d->files || !d->headers)
		return errmsg_nomem(err, d->path);
	for (; d->nfiles < n; d->nfiles++) {
		struct ckpt_file *const f = &d->files[d->nfiles];

		f->u = d->u;
		if (asprintf(&f->path, "%s/%s", d->path, names[d->nfiles]) < 0)
			return errmsg_nomem(err, d->path);
	}
	return parallel_steps(d->u, "reading headers", parallel_for, n, parallel_width(),
			      read_file, &r, err)
		       ?: list_tensors(d, err);
}

/* List the files that the map of an index names. */
static int list_files(struct hfindex *x, const struct source *src, struct errmsg *err)
{
	const cJSON *entry;
	size_t n = 0;

	x->map = cJSON_GetObjectItemCaseSensitive(x->root, "weight_map");
	if (!cJSON_IsObject(x->map) || !x->map->child)
		return errmsg_set(err, -EBADMSG, "%s: weight_map is missing, or empty", src->name);
	x->files = calloc((size_t)cJSON_GetArraySize(x->map), sizeof(*x->files));
	if (!x->files)
		return errmsg_nomem(err, src->name);
	cJSON_ArrayForEach(entry, x->map)
	{
		if (!cJSON_IsString(entry) || !names_is_file(entry->valuestring))
			return errmsg_set(err, -EBADMSG, "%s: weight_map: the file of %.200s is"
					  " no name in this directory",
					  src->name, entry->string);
		x->files[n++] = entry->valuestring;
	}
	qsort(x->files, n, sizeof(*x->files), array_by_text);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || strcmp(x->files[i], x->files[i - 1]) != 0)
			x->files[x->nfiles++] = x->files[i];
	return 0;
}

int hfindex_read(struct hfindex *x, const struct source *src, struct errmsg *err)
{
	int rc;

	*x = (struct hfindex){ 0 };
	if (src->size > HFINDEX_BYTES_MAX)
		return errmsg_set(err, -E2BIG, "%s: %llu bytes", src->name,
				  (unsigned long long)src->size);
	rc = json_read(src, 0, (size_t)src->size, &x->root, err) ?:
	     list_files(x, src, err);
	if (rc)
		hfindex_done(x);
	return rc;
}

void hfindex_done(struct hfindex *x)
{
	cJSON_Delete(x->root);
	free(x->files);
	*x = (struct hfindex){ 0 };
}

/* Check that each file has the tensors that the index lists.  It may have
 * others. */
static int check_index(const struct hfdir *d, const struct hfindex *x,
		       const char *path, struct errmsg *err)
{
	const cJSON *entry;

	cJSON_ArrayForEach(entry, x->map)
	{
		const struct stored *const t = hfdir_find(d, entry->string);

		if (!t || strcmp(d->files[t->file].name, entry->valuestring) != 0)
			return errmsg_set(err, -EBADMSG, "%s: %.200s should be in %s, and is not",
					  path, entry->string,
					  entry->valuestring);
	}
	return 0;
}

static int open_indexed(struct hfdir *d, const struct layout *l,
			const char *path, struct errmsg *err)
{
	struct hfindex x;
	struct source src;
	int rc = io_open(d->u, path, NULL, &src, err);

	if (rc)
		return rc;
	rc = hfindex_read(&x, &src, err);
	source_close(&src);
	if (!rc)
		rc = read_files(d, l, x.files, x.nfiles, err) ?:
		     check_index(d, &x, path, err);
	hfindex_done(&x);
	return rc;
}

static int open_layout(struct hfdir *d, const struct layout *l, struct errmsg *err)
{
	char *path;
	int rc;

	if (!l->is_index)
		return read_files(d, l, &l->name, 1, err);
	if (asprintf(&path, "%s/%s", d->path, l->name) < 0)
		return errmsg_nomem(err, d->path);
	rc = open_indexed(d, l, path, err);
	free(path);
	return rc;
}

int hfdir_open(struct uckpt *u, struct hfdir *d, const char *path, const struct dirlist *names,
	       struct errmsg *err)
{
	const struct layout *l = find_layout(u, path, names);
	struct attrs a;
	int rc;

	if (!l || io_stat(u, path, 0, &a, NULL, NULL))
		return detect_explain(u, path, err);
	*d = (struct hfdir){ .u = u, .path = strdup(path), .st = a.st };
	rc = d->path ? open_layout(d, l, err) : errmsg_nomem(err, path);
	if (!rc)
		d->readable_by = d->files[0].readable_by;
	for (size_t i = 1; !rc && i < d->nfiles; i++)
		permissions_restrict(&d->readable_by, &d->files[i].readable_by);
	if (rc)
		hfdir_done(d);
	return rc;
}

void hfdir_done(struct hfdir *d)
{
	for (size_t i = 0; i < d->nfiles; i++) {
		arena_done(&d->headers[i].arena);
		free(d->files[i].path);
	}
	free(d->files);
	free(d->headers);
	free(d->v);
	free(d->path);
	*d = (struct hfdir){ 0 };
}

void hfdir_warn(const struct hfdir *d, const struct errmsg_sink *to)
{
	for (size_t i = 0; i < d->nfiles; i++)
		for (size_t k = 0; k < d->headers[i].left_out.n; k++)
			errmsg_put(to, "%s: %s", d->files[i].path, d->headers[i].left_out.v[k]);
}

const struct stored *hfdir_find(const struct hfdir *d, const char *name)
{
	return array_find(d->v, d->n, sizeof(*d->v), name);
}
