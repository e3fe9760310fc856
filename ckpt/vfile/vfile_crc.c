/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of virtual files, which the last literal holds.
 *
 * The view keeps them (vfile_crc), so each is computed once, however often the file is opened.  A
 * checksum is computed either incrementally, while the file is read from front to back, or at once
 * on all cores, when the trailer is read first, as torch.load does.  The second way continues where
 * the first stopped.
 *
 * Reading a checksum first requires all bytes before it.  They are kept for the reader as far as
 * memory permits; the others are read from the shards again.
 *
 * One handle at a time computes the checksums of a file; other handles wait for it.
 */
#include "ckpt/vfile/vfile.h"

#include <stdlib.h>
#include <zlib.h>

#include "ckpt/base/context.h"
#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/system.h"
#include "ckpt/base/text.h"
#include "ckpt/io/shards.h"
#include "ckpt/vfile/vfile_impl.h"

/* Is the CRC of storage i known?  The file must have checksums. */
static bool crc_known(const struct vfile *f, size_t i)
{
	return atomic_load(&f->crc[i]) & VFILE_CRC_KNOWN;
}

/* Is the storage empty, or all zeros? */
static bool is_zero(const struct vfile *f, size_t storage)
{
	const uint64_t off = f->w.offset[storage], len = f->w.len[storage];
	const struct extent *e;

	if (len == 0)
		return true;
	e = &f->map.v[extent_find(&f->map, off)];
	return e->kind == EXTENT_ZERO && e[1].start - off >= len;
}

void vfile_crc_begin(struct vfile *f, size_t storage)
{
	/* Skip storages of zeros, which need no reading. */
	for (; storage < f->nstorages && (crc_known(f, storage) || is_zero(f, storage)); storage++)
		if (!crc_known(f, storage))
			atomic_store(&f->crc[storage],
				     VFILE_CRC_KNOWN | crc32_zeros(f->w.len[storage]));
	f->storage = storage;
	f->sum = 0;
	f->next = storage < f->nstorages ? f->w.offset[storage] : UINT64_MAX;
}

/* Return how many bytes of [off, end) extend the checksum.  The caller of this function, and of the
 * following ones that take no lock, holds the file's lock. */
static uint64_t count_next(struct vfile *f, uint64_t off, uint64_t end)
{
	uint64_t stop;

	/* Another handle may have computed this checksum. */
	if (f->storage < f->nstorages && crc_known(f, f->storage))
		vfile_crc_begin(f, f->storage);
	if (f->storage == f->nstorages || off > f->next || end <= f->next)
		return 0;
	stop = f->w.offset[f->storage] + f->w.len[f->storage];
	return (end < stop ? end : stop) - f->next;
}

/* Advance by `n` bytes, after which the checksum is `sum`. */
static void advance_to(struct vfile *f, uint64_t n, uint32_t sum)
{
	f->next += n;
	f->sum = sum;
	if (f->next < f->w.offset[f->storage] + f->w.len[f->storage])
		return;
	atomic_store(&f->crc[f->storage], VFILE_CRC_KNOWN | sum);
	vfile_crc_begin(f, f->storage + 1);
}

/* After this time, log a note with the file whose checksum delays a reader. */
#define TELL_NS UINT64_C(2000000000)

struct summing {
	struct vfile *f;
	struct vfile_ahead ahead;
	bool waits;               /* a reader is waiting */
	uint64_t window;          /* bytes to read ahead */
	_Atomic uint64_t tell_ns; /* when to report that a reader waits; 0: already reported */
	_Atomic uint64_t end;     /* approximate number of bytes summed */
};

/* Count summed bytes, and note once that the checksums take long. */
static void note_wait(struct summing *s, uint64_t len)
{
	const struct errmsg_sink notes = context_notes(shards_context(s->f->shards));
	const uint64_t size = vfile_size(s->f), end = atomic_fetch_add(&s->end, len) + len;
	uint64_t tell_ns = atomic_load(&s->tell_ns);
	char text[SIZE_TEXT_LEN];

	if (!tell_ns || clock_ns() < tell_ns ||
	    !atomic_compare_exchange_strong(&s->tell_ns, &tell_ns, 0))
		return;
	errmsg_put(&notes,
		   "computing the zip checksum of %s (%u %% of %s); mount with -o crc=zero to skip it",
		   s->f->name ?: s->f->w.prefix, (unsigned)(100.0 * (double)end / (double)size),
		   size_text(size, text));
}

static int read_bytes(void *ctx, void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	struct summing *s = ctx;
	int rc;

	vfile_read_ahead(s->f, &s->ahead, off, len, s->window);
	/* The waiting reader reads these bytes next, starting with the first. */
	if (s->waits && vfile_is_slow(s->f))
		vfile_prefetch(s->f, off, len, WANT_LATER);
	rc = vfile_read_exact(s->f, buf, len, off, err);
	note_wait(s, len);
	return rc;
}

/* Sum up to byte `to`, from where the checksums end.  `waits`: a reader is waiting for them. */
static int sum_to(struct vfile *f, uint64_t to, bool waits, struct errmsg *err)
{
	const uint64_t most = vfile_readahead_bytes(f);
	struct summing s = {
		.f = f,
		.waits = waits,
		.window = waits ? cache_limit(shards_context(f->shards)) : most,
		.tell_ns = waits ? clock_ns() + TELL_NS : 0,
	};
	unsigned width = waits ? parallel_width() : 1;
	struct crc_range sum;
	int rc = 0;

	while (!rc && (sum.len = count_next(f, f->next, to))) {
		sum.off = s.end = f->next;
		sum.crc = f->sum;
		if (waits && vfile_is_slow(f)) {
			s.ahead.at = sum.off + vfile_prefetch(f, sum.off, sum.len, WANT_NEXT);
			/* Limit the threads so that the bytes they read together fit in memory. */
			if (width > 1 + most / CRC32_PIECE)
				width = (unsigned)(1 + most / CRC32_PIECE);
		}
		rc = crc32_ranges(&sum, 1, width, read_bytes, &s, err);
		if (!rc)
			advance_to(f, sum.len, sum.crc);
	}
	return rc;
}

/* Render the literals after the first storage. */
static int render_late(struct vfile *f, struct errmsg *err)
{
	uint32_t *crc = calloc(f->nstorages, sizeof(*crc));
	int rc = crc ? sum_to(f, UINT64_MAX, true, err) : errmsg_nomem(err, NULL);

	for (size_t i = 0; !rc && i < f->nstorages; i++)
		crc[i] = (uint32_t)atomic_load(&f->crc[i]);
	for (size_t i = 1; !rc && i <= f->nstorages; i++)
		rc = ptwrite_literal(&f->w, i, crc, &f->literal, err);
	free(crc);
	if (rc) /* try again at the next read */
		f->literal.len = f->header_len;
	else
		atomic_store(&f->trailer_ready, true);
	return rc;
}

int vfile_render_trailer(struct vfile *f, struct errmsg *err)
{
	/* Held by the handle that computes a file's checksums; several files may share a lock. */
	static pthread_mutex_t computing[256];
	pthread_mutex_t *of_file = &computing[(uintptr_t)f->crc / sizeof(*f->crc) %
					      (sizeof(computing) / sizeof(*computing))];
	int rc = 0;

	if (atomic_load(&f->trailer_ready))
		return 0;
	pthread_mutex_lock(of_file);
	pthread_mutex_lock(&f->lock);
	if (!atomic_load(&f->trailer_ready))
		rc = render_late(f, err);
	pthread_mutex_unlock(&f->lock);
	pthread_mutex_unlock(of_file);
	return rc;
}

int vfile_skip_sums(struct vfile *f, struct errmsg *err)
{
	int rc = 0;

	if (atomic_load(&f->trailer_ready))
		return 0;
	for (size_t i = 1; !rc && i <= f->nstorages; i++)
		rc = ptwrite_literal(&f->w, i, NULL, &f->literal, err);
	if (!rc)
		atomic_store(&f->trailer_ready, true);
	return rc;
}

void vfile_crc_add(struct vfile *f, const void *buf, size_t len, uint64_t off)
{
	uint64_t n;

	if (atomic_load(&f->trailer_ready))
		return;
	pthread_mutex_lock(&f->lock);
	while ((n = count_next(f, off, off + len)))
		advance_to(f, n, crc32_add(f->sum, (const uint8_t *)buf + (f->next - off), n));
	pthread_mutex_unlock(&f->lock);
}

/* Sum the bytes that were mapped in sequence.  False if there are none, or they cannot be read;
 * readers report that error. */
static bool sum_mapped(struct vfile *f)
{
	const uint64_t to = atomic_load(&f->mapped);
	struct errmsg ignored;

	return count_next(f, f->next, to) && sum_to(f, to, false, &ignored) == 0;
}

void vfile_crc_add_pieces(struct vfile *f, const struct reply_pieces *w)
{
	uint64_t off = w->off;
	bool more = true;

	for (int i = 0; !w->nmaps && i < w->n; off += w->iov[i++].iov_len)
		vfile_crc_add(f, w->iov[i].iov_base, w->iov[i].iov_len, off);
	/* One thread sums.  The others return at once to serve reads, and leave their bytes to that
	 * thread. */
	while (more && !atomic_load(&f->trailer_ready) && pthread_mutex_trylock(&f->lock) == 0) {
		more = sum_mapped(f);
		pthread_mutex_unlock(&f->lock);
	}
}
