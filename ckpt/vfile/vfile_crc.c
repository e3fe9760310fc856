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
 * Who needs a sum that is missing waits while another, who has the same file
 * open, computes it (crc_progress.h).
 */
#include "ckpt/vfile/vfile.h"

#include <errno.h>
#include <stdlib.h>
#include <zlib.h>

#include "ckpt/sys/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/crc_progress.h"
#include "ckpt/vfile/vfile_impl.h"

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

/* The next storage to be summed in passing.  Of zeros no byte needs to be looked
 * at.  Called with the lock held, as are those below that take no lock. */
static void begin_sum(struct vfile *f, size_t storage)
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
	f->sums->storage = storage;
	f->sums->sum = 0;
	f->sums->next = storage < f->nstorages ? f->w.offset[storage] :
						 UINT64_MAX;
}

int vfile_begin_sums(struct vfile *f, struct errmsg *err)
{
	f->sums = sums_get(f->crc);
	if (!f->sums)
		return errmsg_set(err, -ENOMEM, "out of memory");
	atomic_store(&f->ready, false);
	pthread_mutex_lock(&f->sums->lock);
	if (!f->sums->begun)
		begin_sum(f, 0);
	f->sums->begun = true;
	pthread_mutex_unlock(&f->sums->lock);
	return 0;
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

/* The sum of storage `i', going on from what was summed in passing. */
static int sum_storage(struct vfile *f, size_t i, uint32_t *crc,
		       struct errmsg *err)
{
	const bool begun = i == f->sums->storage;
	const uint64_t end = f->w.offset[i] + f->w.len[i];
	const uint64_t off = begun ? f->sums->next : f->w.offset[i];

	*crc = begun ? f->sums->sum : 0;
	return sum_range(f, off, end - off, parallel_width(), crc, err);
}

/* Render what follows the first storage. */
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
	if (rc) { /* try again at the next read */
		f->literal.len = f->early;
	} else {
		atomic_store(&f->ready, true);
		begin_sum(f, f->nstorages); /* nobody needs to go on */
	}
	return rc;
}

int vfile_prepare(struct vfile *f, struct errmsg *err)
{
	int rc = 0;

	if (atomic_load(&f->ready))
		return 0;
	pthread_mutex_lock(&f->sums->lock);
	if (!atomic_load(&f->ready))
		rc = render_late(f, err);
	pthread_mutex_unlock(&f->sums->lock);
	return rc;
}

/* Does [off, off + len) hold bytes that continue the sum?  `*n` of them. */
static bool continues_sum(const struct vfile *f, size_t len, uint64_t off,
			  size_t *n)
{
	const struct sums *const s = f->sums;
	uint64_t end = off + len, stop;

	if (atomic_load(&f->ready) || s->storage == f->nstorages ||
	    off > s->next || end <= s->next)
		return false;
	stop = f->w.offset[s->storage] + f->w.len[s->storage];
	*n = (size_t)((end < stop ? end : stop) - s->next);
	return true;
}

/* `n` more bytes have been summed. */
static void advance_sum(struct vfile *f, size_t n)
{
	struct sums *const s = f->sums;
	const size_t i = s->storage;

	s->next += n;
	if (s->next < f->w.offset[i] + f->w.len[i])
		return;
	atomic_store(&f->crc[i], VFILE_CRC_KNOWN | s->sum);
	begin_sum(f, i + 1);
}

/* Sum what has been mapped since; false if there was nothing, or it cannot be
 * read (whoever wants the data will see why). */
static bool catch_up(struct vfile *f)
{
	struct sums *const s = f->sums;
	const uint64_t to = atomic_load(&f->mapped);
	struct errmsg ignored;
	size_t n;

	if (to <= s->next ||
	    !continues_sum(f, (size_t)(to - s->next), s->next, &n))
		return false;
	if (sum_range(f, s->next, n, 1, &s->sum, &ignored)) {
		s->storage = f->nstorages;
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
	while (more && pthread_mutex_trylock(&f->sums->lock) == 0) {
		more = catch_up(f);
		pthread_mutex_unlock(&f->sums->lock);
	}
}

void vfile_sum(struct vfile *f, const void *buf, size_t len, uint64_t off)
{
	const uint8_t *const p = buf;
	size_t n;

	if (atomic_load(&f->ready))
		return;
	pthread_mutex_lock(&f->sums->lock);
	while (continues_sum(f, len, off, &n)) {
		f->sums->sum = checksum_add(f->sums->sum,
					    p + (f->sums->next - off), n);
		advance_sum(f, n);
	}
	pthread_mutex_unlock(&f->sums->lock);
}

bool vfile_wants_sums(const struct vfile *f)
{
	return !atomic_load(&f->ready);
}

/* The sum of bytes [off, end) if they are made up of parts from `*p` on, which
 * comes to be the one behind. */
static bool join_parts(const struct checksum **p, const struct checksum *last,
		       uint64_t off, uint64_t end, uint32_t *crc)
{
	*crc = 0;
	while (*p < last && (*p)->off < off)
		(*p)++;
	for (; off < end; (*p)++) {
		if (*p == last || (*p)->off != off || (*p)->unsummed)
			return false;
		*crc = (uint32_t)crc32_combine(*crc, (*p)->crc,
					       (z_off_t)(*p)->len);
		off += (*p)->len;
	}
	return off == end;
}

void vfile_sum_parts(struct vfile *f, const struct checksum *parts, size_t n)
{
	const struct checksum *p = parts;
	uint32_t crc;

	if (atomic_load(&f->ready))
		return;
	pthread_mutex_lock(&f->sums->lock);
	for (size_t i = 0; i < f->nstorages; i++) {
		const uint64_t off = f->w.offset[i];

		if (join_parts(&p, parts + n, off, off + f->w.len[i], &crc) &&
		    !vfile_sum_known(f, i))
			atomic_store(&f->crc[i], VFILE_CRC_KNOWN | crc);
	}
	begin_sum(f, 0);
	pthread_mutex_unlock(&f->sums->lock);
}
