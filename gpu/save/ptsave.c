/* SPDX-License-Identifier: Apache-2.0 */
/* Storages are fetched, checksummed and written piece by piece, so that no file is ever in memory
 * as a whole. */
#include "gpu/save/ptsave.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/ptwrite.h"
#include "gpu/backend/backend.h"

#define PIECE_ELEMENTS ((size_t)1 << 18)
#define ALIGN ((size_t)64)

size_t ptsave_storage(struct ptsave *s, struct ptsave_storage storage)
{
	struct tensor t = { .dtype = storage.dtype, .storage_numel = storage.numel };

	if (!arena_reserve(&s->layout.a, &s->storages, s->nstorages, &s->cap, s->nstorages + 1,
			   sizeof(*s->storages)))
		return 0;
	layout_add_storage(&s->layout, &t);
	s->storages[s->nstorages] = storage;
	return s->nstorages++;
}

struct value *ptsave_view(struct ptsave *s, size_t storage, uint64_t offset, const uint64_t *shape,
			  unsigned ndim, bool requires_grad)
{
	struct tensor t;

	if (s->layout.a.failed)
		return NULL;
	assert(storage < s->nstorages && s->nstorages == s->layout.nfresh);
	tensor_init(&t, s->storages[storage].dtype, shape, ndim, requires_grad);
	t.storage_key = s->layout.fresh[storage]->key;
	t.storage_offset = offset;
	t.storage_numel = s->storages[storage].numel;
	return tensor_to_value(&s->layout.a, &t);
}

struct value *ptsave_tensor(struct ptsave *s, struct ptsave_storage storage, const uint64_t *shape,
			    unsigned ndim)
{
	return ptsave_view(s, ptsave_storage(s, storage), 0, shape, ndim, false);
}

/* Size of an element in memory. */
static size_t size_of(const struct ptsave_storage *s)
{
	return s->wide ? sizeof(float) : dtype_size(s->dtype);
}

/* Host memory for a device storage, including padding to the next one. */
static size_t room(const struct ptsave_storage *s)
{
	const size_t n = s->numel * size_of(s);

	return s->from ? (n + ALIGN - 1) / ALIGN * ALIGN : 0;
}

size_t ptsave_device_bytes(const struct ptsave *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->nstorages; i++)
		n += room(&s->storages[i]);
	return n;
}

void *ptsave_detach(struct ptsave *s, void *to)
{
	uint8_t *at = to;

	for (size_t i = 0; i < s->nstorages; i++) {
		struct ptsave_storage *one = &s->storages[i];
		struct backend *from = one->from;
		const size_t n = room(one);

		if (!from)
			continue;
		/* Without elements `to` may be NULL. */
		if (n)
			from->ops->copy(from, QUEUE_COPY, at, one->p, one->numel * size_of(one));
		one->p = at;
		one->from = NULL;
		at += n;
	}
	return at;
}

struct file {
	const char *path;
	int fd;
	const struct ptsave *s;
	uint32_t *crc; /* one per storage, in file order */
	uint8_t *piece, *wide; /* PIECE_ELEMENTS elements each */
	struct errmsg *err;
};

static int ptsave_put(const struct file *f, const void *p, size_t n)
{
	return write_all(f->fd, p, n) < 0 ? errmsg_errno(f->err, f->path, "cannot write") : 0;
}

/* Get elements [at, at + n) of a storage in the file's type. */
static const void *fetch(const struct file *f, const struct ptsave_storage *s, uint64_t at,
			 size_t n)
{
	const size_t size = size_of(s);
	const uint8_t *p = (const uint8_t *)s->p + at * size;

	assert(at + n <= s->numel && n <= PIECE_ELEMENTS);
	if (s->from) {
		void *to = s->wide ? f->wide : f->piece;

		s->from->ops->to_host(s->from, to, p, n * size);
		p = to;
	}
	if (s->wide) {
		cast_from_float(s->dtype, (const float *)p, f->piece, n);
		p = f->piece;
	}
	return p;
}

static int put_storage(const struct file *f, size_t i)
{
	const struct ptsave_storage *s = &f->s->storages[f->s->layout.placed[i]->number];
	const size_t size = dtype_size(s->dtype);
	int rc = 0;

	for (uint64_t at = 0; at < s->numel && !rc; at += PIECE_ELEMENTS) {
		const uint64_t left = s->numel - at;
		const size_t n = left < PIECE_ELEMENTS ? left : PIECE_ELEMENTS;
		const void *p = fetch(f, s, at, n);

		f->crc[i] = crc32_add(f->crc[i], p, n * size);
		rc = ptsave_put(f, p, n * size);
	}
	return rc;
}

static int put_literal(const struct file *f, size_t i)
{
	struct bytebuf b = { 0 };
	int rc = ptwrite_literal(&f->s->layout.w, i, f->crc, &b, f->err)
			 ?: ptsave_put(f, b.data, b.len);

	bytebuf_done(&b);
	return rc;
}

static int put_all(const struct file *f)
{
	int rc = put_literal(f, 0);

	for (size_t i = 0; i < f->s->layout.nstorages && !rc; i++)
		rc = put_storage(f, i) ?: put_literal(f, i + 1);
	if (!rc && fsync(f->fd) < 0)
		rc = errmsg_errno(f->err, f->path, "cannot write");
	return rc;
}

static int ptsave_create(struct file *f)
{
	int rc;

	f->fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (f->fd < 0)
		return errmsg_errno(f->err, f->path, "cannot create");
	rc = put_all(f);
	if (close(f->fd) < 0 && !rc)
		rc = errmsg_errno(f->err, f->path, "cannot write");
	if (rc)
		unlink(f->path);
	return rc;
}

/* Return a file's name without directory and extension. */
static char *stem(struct arena *a, const char *path)
{
	const char *const slash = strrchr(path, '/');
	const char *const name = slash ? slash + 1 : path;
	const char *const dot = strrchr(name, '.');

	return arena_strndup(a, name, dot ? (size_t)(dot - name) : strlen(name));
}

int ptsave_write(struct ptsave *s, const struct value *root, const char *path, struct errmsg *err)
{
	struct file f = { .path = path, .s = s, .err = err };
	struct arena a = { 0 }; /* temporary memory of this function */
	const char *prefix = stem(&a, path);
	int rc;

	f.crc = arena_alloc(&a, (s->nstorages + 1) * sizeof(*f.crc));
	f.piece = arena_alloc(&a, PIECE_ELEMENTS * sizeof(double));
	f.wide = arena_alloc(&a, PIECE_ELEMENTS * sizeof(float));
	s->layout.err = err;
	rc = a.failed || s->layout.a.failed ? errmsg_nomem(err, path)
					    : layout_finish(&s->layout, root, prefix);
	rc = rc ?: ptsave_create(&f);
	arena_done(&a);
	return rc;
}
