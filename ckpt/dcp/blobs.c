/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a distributed checkpoint hold blobs end to end, each of which is a whole
 * file of torch.save with one tensor or object.  Where the elements begin in a blob
 * is read with the first of them, and what the blob says of them is checked then.
 */
#include "ckpt/dcp/blobs.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/io/io.h"
#include "ckpt/pickle/pickle.h"
#include "ckpt/pickle/value.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/tensor/cast.h"

/* Files that stay open; further ones are opened for each read. */
#define DCP_OPEN_MAX 128u

/* Elements that are read at once where they have to be moved. */
#define DCP_BATCH (64u << 10)

struct dcp_file {
	const char *path; /* borrowed from the metadata */
	struct fileid id;
	struct permissions readable_by;
	struct source src; /* if open */
	bool open;
};

/* Find a file, or see that it is what it was at first. */
static int find_file(void *ctx, size_t i, struct errmsg *err)
{
	const struct dcp_blobs *const b = ctx;
	struct dcp_file *const f = &b->v[i];
	struct fileid id;
	struct attrs a = { 0 };
	const int rc = io_stat(b->u, f->path, 0, &a, NULL, err);

	if (beneath_is_missing(rc))
		return errmsg_set(err, -EBADMSG,
				  "%s: is missing, and " DCP_METADATA
				  " says that data is in it", f->path);
	if (rc)
		return rc;
	fileid_from_stat(&a.st, &id);
	if (b->found)
		return fileid_equal(&f->id, &id) ? 0 : -EIO;
	f->id = id;
	f->readable_by = a.readable_by;
	return 0;
}

/* Check that the blobs of an item end within their files. */
static int check_bounds(const struct dcp_blobs *b, const struct dcp_item *t,
			struct errmsg *err)
{
	for (size_t i = 0; i < t->nchunks; i++) {
		const struct dcp_chunk *const c = &t->chunks[i];
		const struct dcp_file *const f = &b->v[c->file];

		if (c->len && !checked_range(c->at, c->len, f->id.size))
			return errmsg_set(err, -EBADMSG,
					  "%s: has %llu bytes, but %s is said to"
					  " end at %llu: truncated?", f->path,
					  (unsigned long long)f->id.size, t->key,
					  (unsigned long long)(c->at + c->len));
	}
	return 0;
}

int dcp_blobs_init(struct dcp_blobs *b, struct uckpt *u, const char *dir,
		   const struct dcp_metadata *m, struct permissions *readable_by,
		   struct errmsg *err)
{
	int rc;

	*b = (struct dcp_blobs){ .u = u, .dir = dir, .n = m->nfiles };
	b->v = calloc(m->nfiles + 1, sizeof(*b->v));
	if (!b->v)
		return errmsg_nomem(err, NULL);
	pthread_mutex_init(&b->lock, NULL);
	for (size_t i = 0; i < m->nfiles; i++)
		b->v[i].path = m->files[i];
	rc = parallel_steps(u, "looking at files", parallel_far, b->n, 1, find_file, b,
			    err);
	b->found = true;
	for (size_t i = 0; !rc && i < b->n; i++)
		permissions_restrict(readable_by, &b->v[i].readable_by);
	for (size_t i = 0; !rc && i < m->nitems; i++)
		rc = check_bounds(b, &m->items[i], err);
	if (rc)
		dcp_blobs_done(b);
	return rc;
}

void dcp_blobs_done(struct dcp_blobs *b)
{
	if (!b->v)
		return;
	for (size_t i = 0; i < b->n; i++)
		if (b->v[i].open)
			source_close(&b->v[i].src);
	free(b->v);
	b->v = NULL;
	pthread_mutex_destroy(&b->lock);
}

bool dcp_blobs_unchanged(const struct dcp_blobs *b)
{
	return parallel_far(b->n, 1, find_file, (void *)b, NULL) == 0;
}

uint64_t dcp_blobs_hash(const struct dcp_blobs *b, uint64_t hash)
{
	for (size_t i = 0; i < b->n; i++) {
		const struct fileid *const id = &b->v[i].id;
		const uint64_t v[] = { id->ino, id->size, (uint64_t)id->mtime_ns };

		hash = hash_bytes(hash, v, sizeof(v));
	}
	return hash;
}

struct timespec dcp_blobs_ctime(const struct dcp_blobs *b, struct timespec newest)
{
	for (size_t i = 0; i < b->n; i++) {
		const int64_t ns = b->v[i].id.ctime_ns;

		if (ns > fileid_time_ns(&newest))
			newest = (struct timespec){ ns / 1000000000, ns % 1000000000 };
	}
	return newest;
}

/* Check that an open file has not been written to: what was read before is of the known
 * generation. */
static int check_unchanged(const struct dcp_file *f, const struct source *s,
			   struct errmsg *err)
{
	struct fileid now;
	struct stat st;

	if (s->fd < 0)
		return 0;
	if (fstat(s->fd, &st))
		return errmsg_errno(err, f->path, "cannot stat");
	fileid_from_stat(&st, &now);
	return fileid_unchanged(&f->id, &now)
		       ? 0
		       : fileid_report_change(f->path, &f->id, &now, err);
}

/* The open file, or NULL; if there is room, keep `own` open as it. */
static struct source *kept_source(struct dcp_blobs *b, struct dcp_file *f,
				  const struct source *own)
{
	struct source *s;

	pthread_mutex_lock(&b->lock);
	if (own && !f->open && b->nopen < DCP_OPEN_MAX) {
		f->src = *own;
		f->open = true;
		b->nopen++;
		own = NULL;
	}
	s = f->open && !own ? &f->src : NULL;
	pthread_mutex_unlock(&b->lock);
	return s;
}

static int file_read(struct dcp_blobs *b, uint32_t number, void *buf, size_t len,
		     uint64_t off, struct errmsg *err)
{
	struct dcp_file *const f = &b->v[number];
	struct source own, *s = kept_source(b, f, NULL);
	int rc;

	if (!s) {
		rc = io_open(b->u, f->path, &f->id, &own, err);
		if (rc)
			return rc;
		s = kept_source(b, f, &own) ?: &own;
	}
	rc = source_read(s, buf, len, off, err) ?: check_unchanged(f, s, err);
	if (s == &own)
		source_close(s);
	return rc;
}

/* A blob as a file of torch.save. */
struct blob {
	struct dcp_blobs *b;
	const struct dcp_chunk *c;
	char *name; /* for messages: the file, and the key */
	struct ptfile pt;
};

static int blob_read(const struct source *s, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	const struct blob *const x = s->ctx;

	return file_read(x->b, x->c->file, buf, len, x->c->at + off, err);
}

static void blob_source_close(struct source *s)
{
	struct blob *const x = s->ctx;

	free(x->name);
}

static int blob_open(struct blob *x, struct dcp_blobs *b, const struct dcp_item *t,
		     const struct dcp_chunk *c, struct errmsg *err)
{
	static const struct source_ops ops = { .read = blob_read,
					       .close = blob_source_close };
	struct source src = { .size = c->len, .fd = -1, .ops = &ops, .ctx = x };

	*x = (struct blob){ .b = b, .c = c };
	if (asprintf(&x->name, "%s: %s", b->v[c->file].path, t->key) < 0)
		return errmsg_nomem(err, t->key);
	src.name = x->name;
	return ptfile_open_source(&x->pt, &src, err);
}

/* Read the tensor that a blob holds, which must be what the metadata says, and where its
 * storage is in the blob. */
static int read_tensor(const struct blob *x, const struct dcp_item *t,
		       const struct dcp_chunk *c, struct tensor *out, uint64_t *at,
		       struct errmsg *err)
{
	struct tensor v;
	bool same;
	int rc;

	if (!tensor_is(x->pt.root))
		return errmsg_set(err, -EBADMSG, "%s: is a %s, not a tensor",
				  x->name, value_kind_name(x->pt.root));
	rc = ptfile_tensor(&x->pt, x->pt.root, "the chunk", &v, at, err);
	if (rc)
		return rc;
	same = v.dtype == t->dtype && v.ndim == t->ndim + t->is_layer;
	for (unsigned d = 0; same && d < t->ndim; d++)
		same = v.shape[d + t->is_layer] == c->size[d];
	if (!same)
		return errmsg_set(err, -EBADMSG,
				  "%s: a chunk has another type or shape than"
				  " " DCP_METADATA " says (%s)", x->name,
				  dtype_name(v.dtype));
	*out = v;
	return 0;
}

/* Check a blob, and note where its elements are.  Those of a buffer in another order than
 * torch's usual one, such as channels-last, are read by their strides. */
static int locate(const struct blob *x, const struct dcp_item *t, struct dcp_chunk *c,
		  struct errmsg *err)
{
	const struct zip_entry *const e =
		x->pt.is_zip ? zip_find(&x->pt.zip, "data/0") : NULL;
	struct tensor v;
	uint64_t at;
	const int rc = read_tensor(x, t, c, &v, &at, err);
	const bool run = !rc && tensor_is_contiguous(&v);

	if (rc)
		return rc;
	if (run)
		at += v.storage_offset * dtype_size(v.dtype);
	atomic_store(&c->strided, !run);
	atomic_store(&c->crc, e && run && v.numel == v.storage_numel ? e->crc : 0);
	atomic_store(&c->data, c->at + at);
	return 0;
}

int dcp_blobs_locate(struct dcp_blobs *b, const struct dcp_item *t,
		     struct dcp_chunk *c, struct errmsg *err)
{
	struct blob x;
	int rc;

	if (atomic_load(&c->data))
		return 0;
	rc = blob_open(&x, b, t, c, err);
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

static int read_summed(void *ctx, void *buf, size_t len, uint64_t off,
		       struct errmsg *err)
{
	const struct summing *const s = ctx;

	return source_read(s->src, buf, len, off, err)
		       ?: progress_add(s->progress, len);
}

/* Read `len` bytes of a blob, and compare them with `crc` unless it is 0. */
static int check_range(struct blob *x, uint64_t off, uint64_t len, uint32_t crc,
		       const char *member, struct progress *progress,
		       struct errmsg *err)
{
	struct crc_range range = { .off = off, .len = len };
	struct summing s = { &x->pt.src, progress };
	const int rc = crc32_ranges(&range, 1, 1, read_summed, &s, err);

	if (rc || !crc || range.crc == crc)
		return rc;
	return errmsg_set(err, -EBADMSG,
			  "%s: member %s: is damaged: the CRC-32 of its %llu bytes"
			  " is %08x, expected %08x", x->name, member,
			  (unsigned long long)len, range.crc, crc);
}

/* torch's container without zip has no checksums. */
static int check_blob(struct blob *x, struct progress *progress, bool *summed,
		      struct errmsg *err)
{
	bool any = false;
	int rc = 0;

	if (!x->pt.is_zip)
		rc = check_range(x, 0, x->pt.src.size, 0, "", progress, err);
	for (size_t k = 0; !rc && k < x->pt.zip.n; k++) {
		const struct zip_entry *const e = &x->pt.zip.entries[k];
		uint64_t off;

		any |= e->crc;
		rc = zip_locate(&x->pt.zip, e, &off, err) ?:
		     check_range(x, off, e->size, e->crc, e->name, progress, err);
	}
	*summed &= any;
	return rc;
}

int dcp_blobs_check(struct dcp_blobs *b, const struct dcp_item *t,
		    struct progress *progress, bool *summed, struct errmsg *err)
{
	int rc = 0;

	*summed = true;
	for (size_t i = 0; !rc && i < t->nchunks; i++) {
		struct blob x;

		if (!t->chunks[i].len)
			continue;
		rc = blob_open(&x, b, t, &t->chunks[i], err);
		if (rc)
			break;
		if (t->is_tensor && t->dtype != DTYPE_OTHER)
			rc = locate(&x, t, &t->chunks[i], err);
		if (rc == -ENOTSUP) /* no damage: it is shown nowhere, or with an error */
			rc = 0;
		rc = rc ?: check_blob(&x, progress, summed, err);
		ptfile_close(&x.pt);
	}
	return rc;
}

/* Elements [from, end) of a chunk, and where they go: `buf` begins with element `first` of
 * the tensor. */
struct part {
	const struct dcp_item *t;
	struct dcp_chunk *c;
	uint64_t from, end;
	enum dtype to;
	uint8_t *buf;
	uint64_t first;
};

static uint8_t *place_in(const struct part *p, uint64_t e, uint64_t *run)
{
	uint64_t at;

	*run = dcp_place(p->t, p->c, e, &at);
	return p->buf + (at - p->first) * dtype_size(p->to);
}

/* Move elements [e, e + n) of the chunk to their places. */
static void scatter(const struct part *p, const uint8_t *elements, uint64_t e,
		    uint64_t n)
{
	const size_t item = dtype_size(p->t->dtype);

	for (uint64_t k = 0, run; k < n; k += run) {
		uint8_t *const to = place_in(p, e + k, &run);

		run = run < n - k ? run : n - k;
		if (p->to == p->t->dtype)
			memcpy(to, elements + k * item, run * item);
		else
			cast(p->t->dtype, elements + k * item, p->to, to, run);
	}
}

/* The place in its storage of element `e` of a tensor. */
static uint64_t place_of(const struct tensor *v, uint64_t e)
{
	uint64_t at = v->storage_offset;

	for (unsigned d = v->ndim; d--; e /= v->shape[d])
		at += e % v->shape[d] * v->stride[d];
	return at;
}

/* Read elements [e, e + n) of a chunk by their strides: all that lie between them, too. */
static int gather(struct dcp_blobs *b, const struct part *p, const struct tensor *v,
		  uint64_t e, uint64_t n, uint8_t *out, struct errmsg *err)
{
	const size_t item = dtype_size(v->dtype);
	uint64_t low = UINT64_MAX, high = 0;
	uint8_t *span;
	int rc;

	for (uint64_t k = 0, at; k < n; k++) {
		at = place_of(v, e + k);
		low = at < low ? at : low;
		high = at > high ? at : high;
	}
	span = malloc((high - low + 1) * item);
	if (!span)
		return errmsg_nomem(err, p->t->key);
	rc = file_read(b, p->c->file, span, (high - low + 1) * item,
		       p->c->data + low * item, err);
	for (uint64_t k = 0; !rc && k < n; k++)
		memcpy(out + k * item, span + (place_of(v, e + k) - low) * item, item);
	free(span);
	return rc;
}

/* Find the strides of a chunk, which is read by them. */
static int find_strides(struct dcp_blobs *b, const struct part *p, struct tensor *v,
			struct errmsg *err)
{
	struct blob x;
	uint64_t at;
	int rc = blob_open(&x, b, p->t, p->c, err);

	if (rc)
		return rc;
	rc = read_tensor(&x, p->t, p->c, v, &at, err);
	ptfile_close(&x.pt);
	return rc;
}

static int read_part(struct dcp_blobs *b, const struct part *p, struct errmsg *err)
{
	const size_t item = dtype_size(p->t->dtype);
	uint64_t run, n = p->end - p->from;
	uint8_t *const to = place_in(p, p->from, &run);
	uint8_t *elements;
	struct tensor v;
	int rc = dcp_blobs_locate(b, p->t, p->c, err);

	if (!rc && p->c->strided)
		rc = find_strides(b, p, &v, err);
	if (rc)
		return rc;
	if (!p->c->strided && run >= n && p->to == p->t->dtype)
		return file_read(b, p->c->file, to, n * item,
				 p->c->data + p->from * item, err);
	n = n < DCP_BATCH ? n : DCP_BATCH;
	elements = malloc(n * item);
	if (!elements)
		return errmsg_nomem(err, p->t->key);
	for (uint64_t e = p->from; !rc && e < p->end; e += n) {
		n = p->end - e < n ? p->end - e : n;
		rc = p->c->strided ? gather(b, p, &v, e, n, elements, err)
				   : file_read(b, p->c->file, elements, n * item,
					       p->c->data + e * item, err);
		if (!rc)
			scatter(p, elements, e, n);
	}
	free(elements);
	return rc;
}

int dcp_blobs_read(struct dcp_blobs *b, struct dcp_item *t, enum dtype to,
		   void *buf, uint64_t first, size_t n, struct errmsg *err)
{
	int rc = 0;

	assert(t->is_tensor && checked_range(first, n, t->numel));
	if (to != t->dtype && !cast_knows(t->dtype))
		return errmsg_set(err, -ENOTSUP, "%s: %s: is of a type that is not read",
				  b->dir, t->key);
	for (size_t i = 0; !rc && n && i < t->nchunks; i++) {
		struct dcp_chunk *const c = &t->chunks[i];
		const struct part p = {
			.t = t,
			.c = c,
			.from = dcp_place_before(t, c, first),
			.end = dcp_place_before(t, c, first + n),
			.to = to,
			.buf = buf,
			.first = first,
		};

		if (p.from < p.end)
			rc = read_part(b, &p, err);
	}
	return rc;
}

/* Read the number that a tensor of one element holds. */
static int read_number(struct dcp_blobs *b, struct dcp_item *t, struct arena *a,
		       struct value **out, struct errmsg *err)
{
	uint8_t raw[16];
	double number;
	int rc;

	if (t->numel != 1 || !cast_knows(t->dtype))
		return errmsg_set(err, -ENOTSUP, "%s: %s: is no number", b->dir,
				  t->key);
	rc = dcp_blobs_read(b, t, t->dtype, raw, 0, 1, err);
	if (rc)
		return rc;
	cast_to_double(t->dtype, raw, &number, 1);
	*out = value_new_float(a, number);
	return *out ? 0 : errmsg_nomem(err, b->dir);
}

int dcp_blobs_value(struct dcp_blobs *b, struct dcp_item *t, struct arena *a,
		    struct value **out, struct errmsg *err)
{
	struct value *v;
	struct blob x;
	int rc;

	if (t->is_tensor)
		return read_number(b, t, a, out, err);
	if (t->value) {
		*out = t->value;
		return 0;
	}
	if (!t->nchunks)
		return errmsg_set(err, -EBADMSG, "%s: %s: has no data", b->dir,
				  t->key);
	rc = blob_open(&x, b, t, t->chunks, err);
	if (rc)
		return rc;
	v = x.pt.root;
	rc = ptfile_numbers(&x.pt, t->key, &x.pt.arena, &v, err);
	if (!rc || rc == -ENOTSUP) {
		*out = pickle_copy(a, v);
		rc = *out ? 0
			  : errmsg_set(err, -ENOTSUP, "%s: cannot be kept as data",
				       x.name);
	}
	ptfile_close(&x.pt);
	return rc;
}
