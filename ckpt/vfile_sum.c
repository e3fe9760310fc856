/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of virtual files: what the last literal waits for.
 *
 * Known ones are kept with the plan (vfile_crc), so each is computed once
 * however often the file is opened.  There are two ways to come by one: in
 * passing, while a reader goes through the file from front to back, and at
 * once, with all cores, when somebody reads the trailer first (torch.load
 * does).  The second goes on from where the first has come to.
 *
 * Who needs a sum that is missing waits on the file's lock while it is
 * computed.  Each handle has its own, so two handles may at worst both compute
 * one, with the same result.
 */
#include "ckpt/vfile.h"

#include <errno.h>
#include <stdlib.h>

#include "ckpt/checksum.h"
#include "ckpt/errmsg.h"
#include "ckpt/parallel.h"
#include "ckpt/vfile_impl.h"

bool vfile_sum_known(const struct vfile *f, size_t i)
{
	return atomic_load(&f->crc[i]) & VFILE_CRC_KNOWN;
}

/* Has the storage nothing but zeros, or nothing at all? */
static bool is_zero(const struct vfile *f, size_t storage)
{
	const uint64_t off = f->w.offset[storage], len = f->w.len[storage];
	const struct extent *e;

	if (len == 0)
		return true;
	e = &f->map.v[extent_find(&f->map, off)];
	return e->kind == EXTENT_ZERO && e[1].start - off >= len;
}

/* Of zeros no byte needs to be looked at. */
void vfile_begin_sum(struct vfile *f, size_t storage)
{
	for (; storage < f->nstorages; storage++) {
		if (vfile_sum_known(f, storage))
			continue;
		if (!is_zero(f, storage))
			break;
		atomic_store(&f->crc[storage],
			     VFILE_CRC_KNOWN |
				     checksum_zeros(f->w.len[storage]));
	}
	f->sum_storage = storage;
	f->sum = 0;
	f->sum_next = storage < f->nstorages ? f->w.offset[storage] :
					       UINT64_MAX;
}

static int read_bytes(void *ctx, void *buf, size_t len, uint64_t off,
		      struct errmsg *err)
{
	return vfile_read_exact(ctx, buf, len, off, err);
}

/* Extend `*crc` by the file's bytes [off, off + len). */
static int sum_range(struct vfile *f, uint64_t off, uint64_t len,
		     unsigned width, uint32_t *crc, struct errmsg *err)
{
	struct checksum sum = { .off = off, .len = len, .crc = *crc };
	const int rc = checksum_ranges(&sum, 1, width, read_bytes, f, err);

	if (!rc)
		*crc = sum.crc;
	return rc;
}

/* The sum of storage `i', going on from what was summed in passing.  Called
 * with the lock held. */
static int sum_storage(struct vfile *f, size_t i, uint32_t *crc,
		       struct errmsg *err)
{
	const bool begun = i == f->sum_storage;
	const uint64_t end = f->w.offset[i] + f->w.len[i];
	const uint64_t off = begun ? f->sum_next : f->w.offset[i];

	*crc = begun ? f->sum : 0;
	return sum_range(f, off, end - off, parallel_width(), crc, err);
}

/* Render what follows the first storage.  Called with the lock held. */
static int render_late(struct vfile *f, struct errmsg *err)
{
	uint32_t *const crc = calloc(f->nstorages, sizeof(*crc));
	int rc = crc ? 0 : errmsg_set(err, -ENOMEM, "out of memory");

	for (size_t i = 0; !rc && i < f->nstorages; i++) {
		if (vfile_sum_known(f, i)) {
			crc[i] = (uint32_t)atomic_load(&f->crc[i]);
			continue;
		}
		rc = sum_storage(f, i, &crc[i], err);
		if (!rc)
			atomic_store(&f->crc[i], VFILE_CRC_KNOWN | crc[i]);
	}
	for (size_t i = 1; !rc && i <= f->nstorages; i++)
		rc = ptwrite_literal(&f->w, i, crc, &f->literal, err);
	free(crc);
	if (rc) /* try again at the next read */
		f->literal.len = f->early;
	else
		atomic_store(&f->ready, true);
	return rc;
}

int vfile_prepare(struct vfile *f, struct errmsg *err)
{
	int rc = 0;

	if (atomic_load(&f->ready))
		return 0;
	pthread_mutex_lock(&f->lock);
	if (!atomic_load(&f->ready))
		rc = render_late(f, err);
	pthread_mutex_unlock(&f->lock);
	return rc;
}

/* Does [off, off + len) hold bytes that continue the sum?  `*n` of them, from
 * sum_next.  Called with the lock held. */
static bool continues_sum(const struct vfile *f, size_t len, uint64_t off,
			  size_t *n)
{
	const size_t i = f->sum_storage;
	uint64_t end = off + len;

	if (atomic_load(&f->ready) || i == f->nstorages ||
	    off > f->sum_next || end <= f->sum_next)
		return false;
	if (end > f->w.offset[i] + f->w.len[i])
		end = f->w.offset[i] + f->w.len[i];
	*n = (size_t)(end - f->sum_next);
	return true;
}

/* `n` more bytes have been summed.  Called with the lock held. */
static void advance_sum(struct vfile *f, size_t n)
{
	const size_t i = f->sum_storage;

	f->sum_next += n;
	if (f->sum_next < f->w.offset[i] + f->w.len[i])
		return;
	atomic_store(&f->crc[i], VFILE_CRC_KNOWN | f->sum);
	vfile_begin_sum(f, i + 1);
}

/* Sum what has been mapped since.  Called with the lock held; false if there
 * was nothing, or it cannot be read (whoever wants the data will see why). */
static bool catch_up(struct vfile *f)
{
	const uint64_t to = atomic_load(&f->mapped);
	struct errmsg ignored;
	size_t n;

	if (to <= f->sum_next ||
	    !continues_sum(f, (size_t)(to - f->sum_next), f->sum_next, &n))
		return false;
	if (sum_range(f, f->sum_next, n, 1, &f->sum, &ignored)) {
		f->sum_storage = f->nstorages;
		return false;
	}
	advance_sum(f, n);
	return true;
}

void vfile_sum_behind(struct vfile *f)
{
	bool more = true;

	/* Files with several storages are few, and read by their trailers. */
	if (atomic_load(&f->ready) || f->nstorages != 1 || vfile_sum_known(f, 0))
		return;
	/* One thread sums; the others are free to answer the reader, and
	 * leave their bytes to it, or at worst to the next one. */
	while (more && pthread_mutex_trylock(&f->lock) == 0) {
		more = catch_up(f);
		pthread_mutex_unlock(&f->lock);
	}
}

void vfile_sum(struct vfile *f, const void *buf, size_t len, uint64_t off)
{
	const uint8_t *const p = buf;
	size_t n;

	if (atomic_load(&f->ready))
		return;
	pthread_mutex_lock(&f->lock);
	while (continues_sum(f, len, off, &n)) {
		f->sum = checksum_add(f->sum, p + (f->sum_next - off), n);
		advance_sum(f, n);
	}
	pthread_mutex_unlock(&f->lock);
}
