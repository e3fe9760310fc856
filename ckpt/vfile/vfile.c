/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading virtual files.
 *
 *   literal 0 | storage 0 | literal 1 | ... | storage n-1 | literal n
 *   `early'                 `late': hold checksums of storages
 *
 * User code reads shards with pread, so that a shard that shrinks causes an error, not a signal.
 * The kernel takes the same bytes from mapped shards (vfile_map.c).  Checksums are in vfile_crc.c.
 */
#include "ckpt/vfile/vfile.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/io/shards.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile_impl.h"

/* Bytes compared at a time. */
#define COMPARE_CHUNK (256u << 10)

static struct vfile *new_vfile(struct shards *c)
{
	struct vfile *f = calloc(1, sizeof(*f));

	if (f) {
		f->shards = c;
		pthread_mutex_init(&f->lock, NULL);
		atomic_init(&f->trailer_ready, true);
	}
	return f;
}

void vfile_free(struct vfile *f)
{
	if (!f)
		return;
	extent_done(&f->map);
	ptwrite_done(&f->w);
	gathers_done(&f->gathers);
	bytebuf_done(&f->literal);
	pthread_mutex_destroy(&f->lock);
	free(f->name);
	free(f);
}

void vfile_set_name(struct vfile *f, char *name)
{
	free(f->name);
	f->name = name;
}

/* Memory ran out: free the file, which may be NULL, and return NULL. */
static struct vfile *drop_vfile(struct vfile *f, struct errmsg *err)
{
	errmsg_nomem(err, NULL);
	vfile_free(f);
	return NULL;
}

struct vfile *vfile_new_copy(struct shards *c, uint32_t shard, struct errmsg *err)
{
	struct vfile *f = new_vfile(c);

	return f && extent_add(&f->map, EXTENT_SHARD, shards_id(c, shard)->size, shard, 0, DTYPE_U8)
		       ? f
		       : drop_vfile(f, err);
}

struct vfile *vfile_new_bytes(struct bytebuf *bytes, struct errmsg *err)
{
	return vfile_new_tensors(NULL, bytes, NULL, NULL, 0, &(struct gathers){ 0 }, err);
}

struct vfile *vfile_new_tensors(struct shards *c, struct bytebuf *head,
				const struct extent_map *tensors, const size_t *after, size_t n,
				struct gathers *gathers, struct errmsg *err)
{
	struct vfile *f = new_vfile(c);
	bool ok = f;
	size_t at = 0;

	for (size_t i = 0; ok && i <= n; i++) {
		const size_t end = i < n ? after[i] : head->len;

		assert(at <= end && end <= head->len);
		ok = extent_add(&f->map, EXTENT_LITERAL, end - at, 0, at, DTYPE_U8) &&
		     (i == n || extent_add_map(&f->map, &tensors[i]));
		at = end;
	}
	if (!ok)
		return drop_vfile(f, err);
	f->literal = *head;
	f->header_len = head->len;
	*head = (struct bytebuf){ 0 };
	f->gathers = *gathers;
	*gathers = (struct gathers){ 0 };
	return f;
}

struct vfile *vfile_new_pt(struct shards *c, struct ptwrite *w, const struct extent_map *storages,
			   struct gathers *gathers, vfile_crc *crc, struct errmsg *err)
{
	struct vfile *f = new_vfile(c);
	uint64_t at = 0;
	bool ok = true;

	if (!f)
		return drop_vfile(f, err);
	for (size_t i = 0; ok && i <= w->n; i++) {
		const uint64_t len = ptwrite_literal_len(w, i);

		ok = extent_add(&f->map, EXTENT_LITERAL, len, 0, at, DTYPE_U8);
		at += len;
		if (!ok || i == w->n)
			break;
		assert(extent_size(&storages[i]) == w->len[i]);
		ok = extent_add_map(&f->map, &storages[i]);
	}
	/* Readers hold pointers to early literals while late ones are added, so the bytes must
	 * not move. */
	bytebuf_reserve(&f->literal, (size_t)at);
	/* A file without checksums, or without storages, is ready at once. */
	for (size_t i = 0; ok && i <= w->n; i++) {
		ok = ptwrite_literal(w, i, crc ? (const uint32_t[1]){ 0 } : NULL, &f->literal,
				     err) == 0;
		if (i == 0)
			f->header_len = f->literal.len;
		if (crc && w->n)
			break;
	}
	if (!ok)
		return drop_vfile(f, err);
	assert(extent_size(&f->map) == w->size);
	f->crc = crc;
	f->nstorages = w->n;
	f->w = *w;
	*w = (struct ptwrite){ 0 };
	f->gathers = *gathers;
	*gathers = (struct gathers){ 0 };
	if (!crc || !f->nstorages) {
		f->header_len = f->literal.len;
	} else {
		atomic_store(&f->trailer_ready, false);
		vfile_crc_begin(f, 0);
	}
	return f;
}

struct shards *vfile_shards(const struct vfile *f)
{
	return f->shards;
}

uint64_t vfile_size(const struct vfile *f)
{
	return extent_size(&f->map);
}

const struct extent_map *vfile_extents(const struct vfile *f)
{
	return &f->map;
}

int64_t vfile_copied_shard(const struct vfile *f)
{
	const struct extent_map *m = &f->map;

	/* Other files begin with a literal. */
	return m->n == 1 && m->v[0].kind == EXTENT_SHARD ? (int64_t)m->v[0].shard : -1;
}

static int each_shard_of(const struct extent_map *m, vfile_shard_fn *step, void *ctx)
{
	uint32_t last = UINT32_MAX;
	int rc = 0;

	for (size_t i = 0; !rc && i < m->n; i++) {
		const struct extent *e = &m->v[i];

		if (e->kind != EXTENT_SHARD || e->shard == last)
			continue;
		last = e->shard;
		rc = step(ctx, last);
	}
	return rc;
}

int vfile_each_shard(const struct vfile *f, vfile_shard_fn *step, void *ctx)
{
	int rc = each_shard_of(&f->map, step, ctx);

	for (size_t i = 0; i < f->gathers.n; i++) {
		const struct gather *x = f->gathers.v[i];

		for (size_t t = 0; !rc && t < x->nsources; t++)
			rc = each_shard_of(&x->sources[t], step, ctx);
	}
	return rc;
}

struct shard_list {
	uint32_t *v;
	size_t n, cap;
};

static int list_shard(void *ctx, uint32_t shard)
{
	struct shard_list *l = ctx;

	if (!array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v)))
		return -ENOMEM;
	l->v[l->n++] = shard;
	return 0;
}

int vfile_check(struct vfile *f, struct errmsg *err)
{
	struct shard_list l = { 0 };
	int rc = vfile_each_shard(f, list_shard, &l);

	if (rc)
		rc = errmsg_nomem(err, NULL);
	else if (l.n) /* other files may have no shards */
		rc = shards_check_paths(f->shards, l.v, l.n, err);
	free(l.v);
	return rc;
}

/* Read bytes [off, off + len) of an extent's shard or gather, before conversion. */
static int read_source(void *ctx, const struct extent *e, void *buf, size_t len, uint64_t off,
		       struct errmsg *err)
{
	struct vfile *f = ctx;

	if (e->kind == EXTENT_SHARD)
		return shards_read(f->shards, e->shard, buf, len, e->from + off, err);
	return gather_read(f->gathers.v[e->shard], extent_read, f->shards, buf, len, e->from + off,
			   err);
}

/* Is this a part of a literal that holds checksums? */
static bool is_late(const struct vfile *f, const struct extent *e, uint64_t skip, size_t len)
{
	return e->kind == EXTENT_LITERAL && e->from + skip + len > f->header_len;
}

static int read_extent(struct vfile *f, const struct extent *e, uint64_t skip, void *buf,
		       size_t len, struct errmsg *err)
{
	int rc;

	switch (e->kind) {
	case EXTENT_SHARD:
	case EXTENT_GATHER:
		return extent_is_cast(e) ? extent_read_cast(e, skip, buf, len, read_source, f, err)
					 : read_source(f, e, buf, len, skip, err);
	case EXTENT_ZERO:
		memset(buf, 0, len);
		return 0;
	case EXTENT_LITERAL:
		break;
	}
	if (is_late(f, e, skip, len)) {
		rc = vfile_render_trailer(f, err);
		if (rc)
			return rc;
	}
	memcpy(buf, f->literal.data + e->from + skip, len);
	return 0;
}

size_t vfile_clamp(const struct vfile *f, size_t len, uint64_t off)
{
	const uint64_t size = vfile_size(f);

	if (off >= size)
		return 0;
	return len < size - off ? len : (size_t)(size - off);
}

int vfile_read_exact(struct vfile *f, void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	struct extent_walk w = extent_walk(&f->map, off, len);
	uint8_t *to = buf;
	int rc = 0;

	while (!rc && extent_next(&w)) {
		/* Bytes that were just read need not be read again for the checksum. */
		if (is_late(f, w.e, w.skip, w.len))
			vfile_crc_add(f, buf, (size_t)(w.off - off), off);
		rc = read_extent(f, w.e, w.skip, to + (w.off - off), w.len, err);
	}
	return rc;
}

int64_t vfile_read(struct vfile *f, void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	const size_t n = vfile_clamp(f, len, off);
	int rc;

	/* A file with data of many ranks has few bytes of each: reading them one by one would take
	 * a request each. */
	if (vfile_is_slow(f))
		vfile_prefetch(f, off, n, WANT_NOW);
	rc = vfile_read_exact(f, buf, n, off, err);
	if (rc)
		return rc;
	vfile_crc_add(f, buf, n, off);
	return (int64_t)n;
}

int vfile_compare(struct vfile *f, const struct source *with, struct progress *progress,
		  uint64_t *at, struct errmsg *err)
{
	const uint64_t size = vfile_size(f);
	uint8_t *a = malloc(2 * COMPARE_CHUNK), *b = a + COMPARE_CHUNK;
	int rc = a ? 0 : errmsg_nomem(err, with->name);

	assert(with->size == size);
	for (*at = 0; !rc && *at < size;) {
		const uint64_t left = size - *at;
		const size_t len = left < COMPARE_CHUNK ? (size_t)left : COMPARE_CHUNK;
		const int64_t n = vfile_read(f, a, len, *at, err);

		rc = n < 0 ? (int)n : source_read(with, b, len, *at, err);
		if (!rc && memcmp(a, b, len) != 0) {
			for (size_t i = 0; a[i] == b[i]; i++)
				++*at;
			rc = 1;
		} else if (!rc) {
			rc = progress_add(progress, len);
			*at += len;
		}
	}
	free(a);
	return rc;
}
