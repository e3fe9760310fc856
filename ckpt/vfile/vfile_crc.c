/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums of virtual files, which the last literal holds.
 *
 * They are kept with the plan (vfile_crc), so each is computed once however often
 * the file is opened.  A checksum is computed either incrementally, while the file
 * is read from front to back, or at once on all cores, when the trailer is read
 * first, as torch.load does.  The latter continues where the former stopped.
 *
 * A checksum that is read first needs all bytes before it; so much of them as memory
 * allows stays for the reader, and the others are read from the shards again.
 *
 * One handle computes a checksum; other handles of the same file wait for it.
 */
#include "ckpt/vfile/vfile.h"

#include <stdlib.h>
#include <zlib.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/size.h"
#include "ckpt/sys/clock.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/shards.h"
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

/* Begin with `storage`, or the next one whose checksum is unknown.  Zeros need no
 * reading.  This function and those below that take no lock are called with the
 * progress's held. */
static void begin_sum(struct vfile *f, size_t storage)
{
	for (; storage < f->nstorages; storage++) {
		if (crc_known(f, storage))
			continue;
		if (!is_zero(f, storage))
			break;
		atomic_store(&f->crc[storage],
			     VFILE_CRC_KNOWN | crc32_zeros(f->w.len[storage]));
	}
	f->sums->storage = storage;
	f->sums->sum = 0;
	f->sums->next =
		storage < f->nstorages ? f->w.offset[storage] : UINT64_MAX;
}

int vfile_crc_begin(struct vfile *f, struct errmsg *err)
{
	struct uckpt *u = shards_context(f->shards);
	struct crc_progress *s;

	pthread_mutex_lock(&u->lock);
	for (s = u->sums; s && s->file != f->crc;)
		s = s->link;
	f->sums = s ? s : calloc(1, sizeof(*s));
	if (f->sums && !s) {
		pthread_mutex_init(&f->sums->lock, NULL);
		begin_sum(f, 0);
		f->sums->file = f->crc;
		f->sums->link = u->sums;
		u->sums = f->sums;
	}
	if (f->sums)
		f->sums->refs++;
	pthread_mutex_unlock(&u->lock);
	if (!f->sums)
		return errmsg_nomem(err, NULL);
	atomic_store(&f->trailer_ready, false);
	return 0;
}

void vfile_crc_end(struct vfile *f)
{
	struct crc_progress *s = f->sums, **at;
	struct uckpt *u;

	if (!s)
		return;
	u = shards_context(f->shards);
	pthread_mutex_lock(&u->lock);
	if (--s->refs == 0) {
		for (at = &u->sums; *at != s;)
			at = &(*at)->link;
		*at = s->link;
		pthread_mutex_destroy(&s->lock);
		free(s);
	}
	pthread_mutex_unlock(&u->lock);
}

/* After this time a note names the file whose checksum a reader waits for. */
#define TELL_NS UINT64_C(2000000000)

struct summing {
	struct vfile *f;
	struct vfile_ahead ahead;
	uint64_t began_ns; /* when a reader began to wait; 0: none does */
	_Atomic uint64_t end; /* bytes of the file that are summed, about */
};

/* Count summed bytes.  Note once for each file that its checksums take long. */
static void note_wait(struct summing *s, uint64_t len)
{
	const struct errmsg_sink notes =
		context_notes(shards_context(s->f->shards));
	const uint64_t size = vfile_size(s->f);
	const uint64_t end = atomic_fetch_add(&s->end, len) + len;
	char text[SIZE_TEXT_LEN];

	if (!s->began_ns || clock_ns() - s->began_ns < TELL_NS ||
	    atomic_exchange(&s->f->sums->noted, true))
		return;
	errmsg_put(&notes,
		   "computing the checksum of %s: %u %% of %s; -o crc=zero does without",
		   s->f->name ?: s->f->w.prefix, (unsigned)(100.0 * (double)end / (double)size),
		   size_text(size, text));
}

static int read_bytes(void *ctx, void *buf, size_t len, uint64_t off,
		      struct errmsg *err)
{
	struct summing *s = ctx;
	int rc;

	vfile_read_ahead(s->f, &s->ahead, off, len, vfile_readahead_bytes(s->f));
	rc = vfile_read_exact(s->f, buf, len, off, err);
	note_wait(s, len);
	return rc;
}

/* Extend `*crc` by the file's bytes [off, off + len).  A reader has waited since
 * `began_ns`; 0: none waits. */
static int sum_range(struct vfile *f, uint64_t off, uint64_t len, unsigned width,
		     uint64_t began_ns, uint32_t *crc, struct errmsg *err)
{
	struct crc_range sum = { .off = off, .len = len, .crc = *crc };
	struct summing s = { .f = f, .began_ns = began_ns, .end = off };
	const int rc = crc32_ranges(&sum, 1, width, read_bytes, &s, err);

	if (!rc)
		*crc = sum.crc;
	return rc;
}

/* Compute the checksum of storage `i', continuing the incremental one. */
static int sum_storage(struct vfile *f, size_t i, uint64_t began_ns, uint32_t *crc,
		       struct errmsg *err)
{
	const bool begun = i == f->sums->storage;
	const uint64_t end = f->w.offset[i] + f->w.len[i];
	const uint64_t off = begun ? f->sums->next : f->w.offset[i];
	uint64_t kept;

	*crc = begun ? f->sums->sum : 0;
	/* The reader that waits for the checksum reads the bytes next, from the first on;
	 * torch.load reads the first of them twice. */
	if (vfile_is_far(f)) {
		kept = cache_keeps(shards_context(f->shards), vfile_size(f));
		if (end - off > CACHE_PIECE)
			vfile_prefetch(f, 0, CACHE_PIECE, WANT_TWICE);
		vfile_prefetch(f, off, kept < end - off ? kept : end - off, WANT_TWICE);
	}
	return sum_range(f, off, end - off, parallel_width(), began_ns, crc, err);
}

/* Render the literals after the first storage. */
static int render_late(struct vfile *f, struct errmsg *err)
{
	uint32_t *crc = calloc(f->nstorages, sizeof(*crc));
	const uint64_t began_ns = clock_ns();
	int rc = crc ? 0 : errmsg_nomem(err, NULL);

	for (size_t i = 0; !rc && i < f->nstorages; i++) {
		if (crc_known(f, i)) {
			crc[i] = (uint32_t)atomic_load(&f->crc[i]);
			continue;
		}
		rc = sum_storage(f, i, began_ns, &crc[i], err);
		if (!rc)
			atomic_store(&f->crc[i], VFILE_CRC_KNOWN | crc[i]);
	}
	for (size_t i = 1; !rc && i <= f->nstorages; i++)
		rc = ptwrite_literal(&f->w, i, crc, &f->literal, err);
	free(crc);
	if (rc) { /* try again at the next read */
		f->literal.len = f->header_len;
	} else {
		atomic_store(&f->trailer_ready, true);
		begin_sum(f, f->nstorages); /* nothing is left to sum */
	}
	return rc;
}

int vfile_render_trailer(struct vfile *f, struct errmsg *err)
{
	int rc = 0;

	if (atomic_load(&f->trailer_ready))
		return 0;
	pthread_mutex_lock(&f->sums->lock);
	if (!atomic_load(&f->trailer_ready))
		rc = render_late(f, err);
	pthread_mutex_unlock(&f->sums->lock);
	return rc;
}

int vfile_skip_sums(struct vfile *f, struct errmsg *err)
{
	int rc = 0;

	if (!f->sums || atomic_load(&f->trailer_ready))
		return 0;
	for (size_t i = 1; !rc && i <= f->nstorages; i++)
		rc = ptwrite_literal(&f->w, i, NULL, &f->literal, err);
	if (!rc)
		atomic_store(&f->trailer_ready, true);
	return rc;
}

/* Do bytes of [off, off + len) continue the checksum?  `*n` becomes their number. */
static bool continues_sum(struct vfile *f, size_t len, uint64_t off, size_t *n)
{
	const struct crc_progress *s = f->sums;
	uint64_t end = off + len, stop;

	/* A trailer that could not be rendered may have needed this sum. */
	if (s->storage < f->nstorages && crc_known(f, s->storage))
		begin_sum(f, s->storage);
	if (atomic_load(&f->trailer_ready) || s->storage == f->nstorages ||
	    off > s->next || end <= s->next)
		return false;
	stop = f->w.offset[s->storage] + f->w.len[s->storage];
	*n = (size_t)((end < stop ? end : stop) - s->next);
	return true;
}

/* `n` more bytes have been summed. */
static void advance_sum(struct vfile *f, size_t n)
{
	struct crc_progress *s = f->sums;
	const size_t i = s->storage;

	s->next += n;
	if (s->next < f->w.offset[i] + f->w.len[i])
		return;
	atomic_store(&f->crc[i], VFILE_CRC_KNOWN | s->sum);
	begin_sum(f, i + 1);
}

/* Sum the bytes mapped since the last call.  False if there are none or they
 * cannot be read; a reader gets the error. */
static bool catch_up(struct vfile *f)
{
	struct crc_progress *s = f->sums;
	const uint64_t to = atomic_load(&f->mapped);
	struct errmsg ignored;
	size_t n;

	if (to <= s->next ||
	    !continues_sum(f, (size_t)(to - s->next), s->next, &n))
		return false;
	if (sum_range(f, s->next, n, 1, 0, &s->sum, &ignored)) {
		s->storage = f->nstorages;
		return false;
	}
	advance_sum(f, n);
	return true;
}

void vfile_crc_catch_up(struct vfile *f)
{
	bool more = true;

	/* Files with several storages are few, and their readers begin with the
	 * trailer. */
	if (atomic_load(&f->trailer_ready) || f->nstorages != 1 ||
	    crc_known(f, 0))
		return;
	/* One thread sums.  The others return at once to serve reads and leave
	 * their bytes to it. */
	while (more && pthread_mutex_trylock(&f->sums->lock) == 0) {
		more = catch_up(f);
		pthread_mutex_unlock(&f->sums->lock);
	}
}

void vfile_crc_advance(struct vfile *f, const void *buf, size_t len,
		       uint64_t off)
{
	const uint8_t *p = buf;
	size_t n;

	if (atomic_load(&f->trailer_ready))
		return;
	pthread_mutex_lock(&f->sums->lock);
	while (continues_sum(f, len, off, &n)) {
		f->sums->sum =
			crc32_add(f->sums->sum, p + (f->sums->next - off), n);
		advance_sum(f, n);
	}
	pthread_mutex_unlock(&f->sums->lock);
}

void vfile_crc_advance_pieces(struct vfile *f, const struct reply_pieces *w, uint64_t off)
{
	if (!w->bounce && !w->npins)
		return;
	for (int i = 0; i < w->n; off += w->iov[i++].iov_len)
		vfile_crc_advance(f, w->iov[i].iov_base, w->iov[i].iov_len, off);
}
