/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a distributed checkpoint hold records end to end, each of which is a whole file of
 * torch.save with one tensor or object.  The offset of the elements in a record is read, and the
 * record checked, when its first element is read.
 */
#include "ckpt/foreign/dcp_storage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/context.h"
#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "ckpt/io/shards.h"

/* A record as a file of torch.save. */
struct record {
	const struct dcp_storage *b;
	const struct dcp_chunk *c;
	bool small;
	char *name; /* for messages: the file, and the key */
	struct ptfile pt;
};

#define SMALL 4096u  /* bytes of a small record */
#define CLOSE 16384u /* gap between two close records, in bytes */

static void close_small(struct dcp_small *s)
{
	if (s->src.name)
		source_close(&s->src);
	s->src.name = NULL;
}

static int open_small(const struct record *x, struct dcp_small *s, struct errmsg *err)
{
	const struct shards *c = x->b->shards;

	close_small(s);
	s->file = x->c->file;
	return io_open(x->b->u, shards_path(c, s->file), shards_id(c, s->file), &s->src, err);
}

void dcp_storage_loaded(struct dcp_storage *b)
{
	for (size_t i = 0; b->small && i < DCP_SMALL; i++)
		close_small(&b->small[i]);
	free(b->small);
	b->small = NULL;
}

static int read_small(const struct record *x, void *buf, size_t len, uint64_t at, struct errmsg *err)
{
	struct dcp_small *s = &x->b->small[x->c->file % DCP_SMALL];
	const bool same = s->src.name && s->file == x->c->file;
	int rc = same ? 0 : open_small(x, s, err);

	if (!rc && (!same || at < s->at || at + len > s->at + s->len)) {
		const uint64_t left = s->src.size - at;

		s->len = !same || at < s->end || at - s->end > CLOSE ? len
			 : left < sizeof(s->bytes)		     ? (size_t)left
								     : sizeof(s->bytes);
		s->at = at;
		rc = source_read(&s->src, s->bytes, s->len, at, err)
			     ?: source_check_still(&s->src, err);
	}
	s->end = at + len;
	if (rc)
		s->len = 0;
	else
		memcpy(buf, s->bytes + (at - s->at), len);
	return rc;
}

static int record_read(const struct source *s, void *buf, size_t len, uint64_t off,
		       struct errmsg *err)
{
	const struct record *x = s->ctx;

	if (x->small && shards_id(x->b->shards, x->c->file)->size >= x->c->at + x->c->len)
		return read_small(x, buf, len, x->c->at + off, err);
	return shards_read(x->b->shards, x->c->file, buf, len, x->c->at + off, err);
}

static void record_source_close(struct source *s)
{
	struct record *x = s->ctx;

	free(x->name);
}

static int record_open(struct record *x, const struct dcp_storage *b, const struct dcp_entry *t,
		       const struct dcp_chunk *c, struct errmsg *err)
{
	static const struct source_ops ops = { .read = record_read, .close = record_source_close };
	struct source src = { .size = c->len, .fd = -1, .ops = &ops, .ctx = x };

	*x = (struct record){ .b = b, .c = c, .small = b->small && c->len <= SMALL };
	if (asprintf(&x->name, "%s: %s", shards_path(b->shards, c->file), t->key) < 0)
		return errmsg_nomem(err, t->key);
	src.name = x->name;
	return ptfile_open_source(&x->pt, &src, err);
}

/* Read the tensor of a record, which must agree with the metadata, and the offset of its storage
 * in the record. */
static int read_tensor(const struct record *x, const struct dcp_entry *t, const struct dcp_chunk *c,
		       struct tensor *out, uint64_t *at, struct errmsg *err)
{
	struct tensor v;
	bool same;
	int rc;

	if (!tensor_is(x->pt.root))
		return errmsg_set(err, -ENOTSUP,
				  "%s: is no plain tensor: is it quantized?", x->name);
	rc = ptfile_tensor(&x->pt, x->pt.root, "the chunk", &v, at, err);
	if (rc)
		return rc;
	same = v.dtype == t->dtype && v.ndim == t->ndim + t->is_layer;
	for (unsigned d = 0; same && d < t->ndim; d++)
		same = v.shape[d + t->is_layer] == c->size[d];
	if (c->of)
		same = v.dtype == t->dtype && v.numel == c->of;
	if (!same)
		return errmsg_set(err, -EBADMSG,
				  "%s: a chunk has another type or shape than " DCP_METADATA
				  " says (%s)",
				  x->name, dtype_name(v.dtype));
	if (c->of && !tensor_is_contiguous(&v))
		return errmsg_set(err, -ENOTSUP,
				  "%s: a chunk is not contiguous, so a part of it cannot be read",
				  x->name);
	*out = v;
	return 0;
}

/* Check a record, and find its elements.  Elements in another order than torch's usual one, such
 * as a channels-last buffer's, are read by their strides. */
static int locate(const struct record *x, const struct dcp_entry *t, struct dcp_chunk *c,
		  struct errmsg *err)
{
	const struct zip_entry *e = x->pt.is_zip ? zip_find(&x->pt.zip, "data/0") : NULL;
	struct tensor v;
	uint64_t at;
	const int rc = read_tensor(x, t, c, &v, &at, err);
	const bool run = !rc && tensor_is_contiguous(&v);

	if (rc)
		return rc;
	if (run)
		at += (v.storage_offset + c->skip) * dtype_size(v.dtype);
	atomic_store(&c->strided, !run);
	atomic_store(&c->crc, e && run && !c->of && v.numel == v.storage_numel ? e->crc : 0);
	atomic_store(&c->data, c->at + at);
	return 0;
}

int dcp_storage_locate(const struct dcp_storage *b, const struct dcp_entry *t, struct dcp_chunk *c,
		       struct errmsg *err)
{
	struct record x;
	int rc;

	if (atomic_load(&c->data))
		return 0;
	rc = record_open(&x, b, t, c, err);
	if (rc)
		return rc;
	rc = locate(&x, t, c, err);
	ptfile_close(&x.pt);
	return rc;
}

struct summing {
	const struct source *src;
	struct progress *progress;
};

static int read_summed(void *ctx, void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	const struct summing *s = ctx;

	return source_read(s->src, buf, len, off, err) ?: progress_add(s->progress, len);
}

/* Read `len` bytes of a record, and compare them with the checksum of a member of its zip. */
static int check_range(struct record *x, uint64_t off, uint64_t len, const struct zip_entry *e,
		       struct progress *progress, struct errmsg *err)
{
	struct crc_range range = { .off = off, .len = len };
	struct summing s = { &x->pt.src, progress };
	const int rc = crc32_ranges(&range, 1, 1, read_summed, &s, err);

	return rc ?: e && e->crc ? zip_check_sum(e, range.crc, off, x->name, err) : 0;
}

/* torch's container without zip has no checksums. */
static int check_record(struct record *x, struct progress *progress, bool *summed,
			struct errmsg *err)
{
	bool any = false;
	int rc = 0;

	if (!x->pt.is_zip)
		rc = check_range(x, 0, x->pt.src.size, NULL, progress, err);
	for (size_t k = 0; !rc && k < x->pt.zip.n; k++) {
		const struct zip_entry *e = &x->pt.zip.entries[k];
		uint64_t off;

		any |= e->crc;
		rc = zip_locate(&x->pt.zip, e, &off, err)
			     ?: check_range(x, off, e->size, e, progress, err);
	}
	*summed &= any;
	return rc;
}

int dcp_storage_check(const struct dcp_storage *b, const struct dcp_entry *t,
		      struct progress *progress, bool *summed, struct errmsg *err)
{
	int rc = 0;

	*summed = true;
	for (size_t i = 0; !rc && i < t->nchunks; i++) {
		struct record x;

		if (!t->chunks[i].len || t->chunks[i].skip)
			continue;
		if (dcp_is_raw(t, &t->chunks[i])) { /* has no checksums */
			*summed = false;
			continue;
		}
		rc = record_open(&x, b, t, &t->chunks[i], err);
		if (rc)
			break;
		if (t->is_tensor && t->dtype != DTYPE_OTHER)
			rc = locate(&x, t, &t->chunks[i], err);
		if (rc == -ENOTSUP) /* not damage: such an entry is not shown, or refused */
			rc = 0;
		rc = rc ?: check_record(&x, progress, summed, err);
		ptfile_close(&x.pt);
	}
	return rc;
}

int dcp_storage_view(const struct dcp_storage *b, const struct dcp_entry *t,
		     const struct dcp_chunk *c, struct tensor *out, struct errmsg *err)
{
	struct record x;
	uint64_t at;
	int rc;

	if (c->view) {
		stored_describe(c->view, out);
		return 0;
	}
	rc = record_open(&x, b, t, c, err);
	if (rc)
		return rc;
	rc = read_tensor(&x, t, c, out, &at, err);
	ptfile_close(&x.pt);
	return rc;
}

int dcp_storage_element(const struct dcp_storage *b, const struct dcp_entry *t, uint8_t raw[16],
			struct errmsg *err)
{
	const struct dcp_chunk *c = t->chunks;
	struct tensor v;
	struct record x;
	uint64_t at;
	int rc;

	while (!c->numel)
		c++;
	if (dcp_is_raw(t, c))
		return shards_read(b->shards, c->file, raw, c->len, c->data, err);
	rc = record_open(&x, b, t, c, err);
	if (rc)
		return rc;
	rc = read_tensor(&x, t, c, &v, &at, err);
	/* Small records are in memory. */
	rc = rc
		     ?: source_read(&x.pt.ends, raw, dtype_size(v.dtype),
				    at + v.storage_offset * dtype_size(v.dtype), err);
	ptfile_close(&x.pt);
	return rc;
}

/* Read the number that a tensor of one element holds. */
static int read_number(const struct dcp_storage *b, const struct dcp_entry *t, struct arena *a,
		       struct value **out, struct errmsg *err)
{
	uint8_t raw[16];
	double number;
	int rc;

	if (t->numel != 1 || !cast_knows(t->dtype))
		return errmsg_set(err, -ENOTSUP, "%s: %s: is no number", b->dir, t->key);
	rc = dcp_storage_element(b, t, raw, err);
	if (rc)
		return rc;
	cast_to_double(t->dtype, raw, &number, 1);
	*out = value_new_float(a, number);
	return *out ? 0 : errmsg_nomem(err, b->dir);
}

int dcp_storage_value(const struct dcp_storage *b, const struct dcp_entry *t, struct arena *a,
		      struct value **out, struct errmsg *err)
{
	struct value *v;
	struct record x;
	int rc;

	if (t->is_tensor)
		return read_number(b, t, a, out, err);
	if (t->value) {
		*out = t->value;
		return 0;
	}
	if (!t->nchunks)
		return errmsg_set(err, -EBADMSG, "%s: %s: has no data", b->dir, t->key);
	rc = record_open(&x, b, t, t->chunks, err);
	if (rc)
		return rc;
	v = x.pt.root;
	rc = ptfile_numbers(&x.pt, t->key, &x.pt.arena, &v, err);
	if (!rc || rc == -ENOTSUP) {
		*out = pickle_copy(a, v);
		rc = *out ? 0 : errmsg_set(err, -ENOTSUP, "%s: cannot be kept as data", x.name);
	}
	ptfile_close(&x.pt);
	return rc;
}
