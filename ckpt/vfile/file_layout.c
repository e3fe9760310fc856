/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lays out the files of trees.  torch numbers storages in the order in which it meets them in the
 * object, so the object decides which storages a file has, and their order.
 */
#include "ckpt/vfile/file_layout.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/pickle.h"
#include "ckpt/io/io.h"

bool layout_use_file(struct file_layout *d, const struct ckpt_file *f, size_t number)
{
	d->old_shard = (uint32_t)number;
	return layout_note(d, ckpt_file_open(f, &d->old, d->err));
}

bool layout_note(struct file_layout *d, int rc)
{
	d->rc = d->rc ?: rc;
	return !rc;
}

struct extent_map *layout_add_storage(struct file_layout *d, struct tensor *t)
{
	struct layout_storage *s = arena_alloc(&d->a, sizeof(*s));

	if (!s || !arena_reserve(&d->a, &d->fresh, d->nfresh, &d->cap, d->nfresh + 1,
				 sizeof(struct layout_storage *)))
		return &d->lost;
	s->number = d->nfresh;
	snprintf(s->key, sizeof(s->key), "new%zu", s->number);
	s->len = t->storage_numel * dtype_size(t->dtype);
	s->after = d->head.len;
	t->storage_key = s->key;
	d->fresh[d->nfresh++] = s;
	return &s->map;
}

void layout_add_old(struct file_layout *d, struct extent_map *map, uint64_t len, uint64_t at)
{
	layout_need_memory(d, extent_add(map, EXTENT_SHARD, len, d->old_shard, at, DTYPE_U8));
}

void layout_add_zeros(struct file_layout *d, struct extent_map *map, uint64_t len)
{
	layout_need_memory(d, extent_add(map, EXTENT_ZERO, len, 0, 0, DTYPE_U8));
}

/* Take the extents of a new storage. */
static struct extent_map take_map(const struct file_layout *d, struct layout_storage *s)
{
	const struct extent_map map = s->map;

	assert(!d->extents || extent_size(&map) == s->len);
	s->map = (struct extent_map){ 0 };
	return map;
}

static int map_old(struct file_layout *d, const struct value *pid, uint64_t *len,
		   struct extent_map *map)
{
	const char *path = d->old.src.name;
	uint64_t numel, at;
	enum dtype dtype;
	const char *key;
	int rc = tensor_storage(pid, path, &dtype, &key, &numel, d->err);

	if (rc)
		return rc;
	if (numel > INT64_MAX / 16)
		return errmsg_set(d->err, -EBADMSG, "%s: storage of %" PRIu64 " elements", path,
				  numel);
	*len = numel * dtype_size(dtype);
	rc = ptfile_storage(&d->old, key, *len, &at, d->err);
	if (!rc && d->extents && !extent_add(map, EXTENT_SHARD, *len, d->old_shard, at, dtype))
		rc = errmsg_nomem(d->err, path);
	return rc;
}

/* Map a storage of the object: a new one, or one of the old file.  A new storage may have the same
 * key as an old one. */
static int map_storage(struct file_layout *d, const struct value *pid, uint64_t *len, size_t at)
{
	const char *key = pid->pid->seq.v[2]->str.p;
	size_t i;

	if (sscanf(key, "new%zu", &i) != 1 || i >= d->nfresh)
		return map_old(d, pid, len, &d->storages[at]);
	if (d->fresh[i]->key != key)
		return errmsg_set(d->err, -EBADMSG, "%s: a storage is called %s", d->old.src.name,
				  key);
	*len = d->fresh[i]->len;
	d->placed[at] = d->fresh[i];
	d->storages[at] = take_map(d, d->fresh[i]);
	return 0;
}

static int save(struct file_layout *d, const struct value *root, const char *stem)
{
	struct pickle_storages s = { 0 };
	struct bytebuf pickle = { 0 };
	struct errmsg why = { "" };
	uint64_t *len = NULL;
	int rc = pickle_dump(root, &pickle, &s, &why);

	if (rc)
		errmsg_set(d->err, rc, "%s%s%s", d->old.root ? d->old.src.name : "",
			   d->old.root ? ": " : "", why.text);
	if (!rc) {
		d->storages = calloc(s.n + 1, sizeof(*d->storages));
		d->placed = arena_alloc(&d->a, (s.n + 1) * sizeof(struct layout_storage *));
		d->nstorages = s.n;
		len = calloc(s.n + 1, sizeof(*len));
		if (!d->storages || !d->placed || !len)
			rc = errmsg_nomem(d->err, stem);
	}
	for (size_t i = 0; !rc && i < s.n; i++)
		rc = map_storage(d, s.pid[i], &len[i], i);
	if (!rc)
		rc = ptwrite_init(&d->w, stem, &pickle, len, s.n, d->err);
	d->size = d->w.size;
	pickle_storages_done(&s);
	bytebuf_done(&pickle);
	free(len);
	return rc;
}

/* Append the storages to a file that is not torch's. */
static int append(struct file_layout *d, const char *stem)
{
	d->storages = calloc(d->nfresh + 1, sizeof(*d->storages));
	d->after = calloc(d->nfresh + 1, sizeof(*d->after));
	if (!d->storages || !d->after || d->head.failed)
		return errmsg_nomem(d->err, stem);
	d->nstorages = d->nfresh;
	d->size = d->head.len;
	for (size_t i = 0; i < d->nfresh; i++) {
		d->size += d->fresh[i]->len;
		d->after[i] = d->fresh[i]->after;
		d->storages[i] = take_map(d, d->fresh[i]);
	}
	return 0;
}

int layout_finish(struct file_layout *d, const struct value *root, const char *stem)
{
	/* A missing value may not show in the object, so check for failures. */
	if (!d->rc && (d->a.failed || (!root && !d->head.len)))
		d->rc = errmsg_nomem(d->err, d->old.root ? d->old.src.name : stem);
	return d->rc ?: root ? save(d, root, stem) : append(d, stem);
}

void layout_done(struct file_layout *d)
{
	for (size_t i = 0; i < d->nfresh; i++)
		extent_done(&d->fresh[i]->map);
	for (size_t i = 0; d->storages && i < d->nstorages; i++)
		extent_done(&d->storages[i]);
	free(d->storages);
	free(d->after);
	extent_done(&d->lost);
	ptwrite_done(&d->w);
	bytebuf_done(&d->head);
	gathers_done(&d->gathers);
	arena_done(&d->a);
	if (d->old.root)
		ptfile_close(&d->old);
}
