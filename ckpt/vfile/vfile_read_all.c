/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual file put together in memory.
 *
 * Straight from the mapped shards, past the caches: that takes two thirds of
 * what it takes the kernel to copy (tests/bench/RESULTS.md), so that a file can
 * be assembled as fast as the one before it is read.  It is the one place where
 * user code touches the mappings, and so the one with a guard.
 */
#include "ckpt/vfile/vfile.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "ckpt/sys/sigbus.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/sys/copy_nt.h"
#include "ckpt/vfile/vfile_impl.h"

/* What is summed at a time, just after it was copied: the copy fetches bytes to
 * the cache faster than the sum would, and then they cost it next to nothing. */
#define BLOCK (64u << 10)

struct filling {
	struct vfile *f;
	uint8_t *at; /* the whole file's memory */
};

struct copying {
	const struct vfile_window *w;
	uint8_t *to;
	uint32_t *crc; /* extended; NULL: not wanted */
};

static void copy_and_sum(uint8_t *to, const uint8_t *from, size_t len,
			 uint32_t *crc)
{
	for (size_t n; len; to += n, from += n, len -= n) {
		n = len < BLOCK ? len : BLOCK;
		streamcopy(to, from, n);
		*crc = checksum_add(*crc, from, n);
	}
}

static void copy_window(void *ctx)
{
	const struct copying *const x = ctx;
	uint8_t *to = x->to;

	for (int i = 0; i < x->w->n; i++) {
		const struct iovec *const v = &x->w->iov[i];

		if (x->crc)
			copy_and_sum(to, v->iov_base, v->iov_len, x->crc);
		else
			streamcopy(to, v->iov_base, v->iov_len);
		to += v->iov_len;
	}
}

/* Bytes [off, off + len) to their place. */
static int fill_chunk(const struct filling *x, size_t len, uint64_t off,
		      uint32_t *crc, struct errmsg *err)
{
	struct vfile_window w;
	struct copying copying = { .w = &w, .to = x->at + off, .crc = crc };
	int rc = vfile_map_pieces(x->f, len, off, &w, err);

	if (rc == -E2BIG) { /* computed, or many small pieces */
		rc = vfile_read_exact(x->f, x->at + off, len, off, err);
		if (!rc && crc)
			*crc = checksum_add(*crc, x->at + off, len);
		return rc;
	}
	if (rc)
		return rc;
	rc = busguard_run(copy_window, &copying);
	vfile_unmap(x->f, &w);
	if (rc) {
		errmsg_set(err, -EIO, "cannot assemble: a file was cut short");
		/* If it was a shard that is what was wrong. */
		vfile_check_shards(x->f, err);
		rc = -EIO;
	}
	return rc;
}

/* For checksum_pieces. */
static int fill_piece(void *ctx, struct checksum *p, struct errmsg *err)
{
	uint32_t *const crc = p->unsummed ? NULL : &p->crc;
	int rc = 0;

	for (uint64_t done = 0; !rc && done < p->len;) {
		const uint64_t left = p->len - done;
		const size_t n = left < CHECKSUM_CHUNK ? (size_t)left :
							 CHECKSUM_CHUNK;

		rc = fill_chunk(ctx, n, p->off + done, crc, err);
		done += n;
	}
	return rc;
}

/* All storages, with the sums that are not known. */
static int fill_storages(struct filling *x, unsigned width, struct crew *crew,
			 struct errmsg *err)
{
	struct vfile *const f = x->f;
	struct checksum *const v = calloc(f->nstorages, sizeof(*v));
	int rc;

	if (!v)
		return errmsg_set(err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < f->nstorages; i++)
		v[i] = (struct checksum){
			.off = f->w.offset[i],
			.len = f->w.len[i],
			.unsummed = !f->crc || vfile_sum_known(f, i),
		};
	rc = checksum_pieces(v, f->nstorages, width, crew, fill_piece, x, err);
	for (size_t i = 0; !rc && i < f->nstorages; i++)
		if (!v[i].unsummed)
			atomic_store(&f->crc[i], VFILE_CRC_KNOWN | v[i].crc);
	free(v);
	return rc;
}

/* What lies between the storages, and holds their sums. */
static int fill_literals(struct filling *x, struct errmsg *err)
{
	const struct extent_map *const m = &x->f->map;
	int rc = 0;

	for (size_t i = 0; !rc && i < m->n; i++) {
		const struct extent *const e = &m->v[i];

		if (e->kind == EXTENT_LITERAL)
			rc = vfile_read_exact(x->f, x->at + e->start,
					      (size_t)(e[1].start - e->start),
					      e->start, err);
	}
	return rc;
}

int vfile_fill(struct vfile *f, void *at, unsigned width, struct crew *crew,
	       struct errmsg *err)
{
	struct filling x = { .f = f, .at = at };
	struct checksum all = { .len = vfile_size(f), .unsummed = true };
	int rc;

	if (f->nstorages == 0)
		rc = checksum_pieces(&all, 1, width, crew, fill_piece, &x, err);
	else
		rc = fill_storages(&x, width, crew, err);
	if (!rc && f->nstorages)
		rc = fill_literals(&x, err);
	return rc ? rc : vfile_check_shards(f, err);
}
