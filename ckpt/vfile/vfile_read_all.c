/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole virtual file assembled in memory.
 *
 * Bytes are copied from the mapped shards with non-temporal stores, which takes
 * two thirds of the time of a copy by the kernel (tests/bench/RESULTS.md): a file
 * is assembled as fast as the previous one is read.  This is the only place where
 * user code touches the mappings, so it guards against SIGBUS.
 */
#include "ckpt/vfile/vfile.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/copy_nt.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/sys/sigbus.h"
#include "ckpt/vfile/vfile_impl.h"

/* Bytes are summed in blocks right after they were copied, while they are in the
 * processor's cache. */
#define BLOCK (64u << 10)

struct filling {
	struct vfile *f;
	uint8_t *at; /* memory for the whole file */
	struct vfile_ahead ahead;
};

struct copying {
	const struct vfile_window *w;
	uint8_t *to;
	uint32_t *crc; /* updated; NULL: no checksum */
};

static void copy_and_sum(uint8_t *to, const uint8_t *from, size_t len,
			 uint32_t *crc)
{
	for (size_t n; len; to += n, from += n, len -= n) {
		n = len < BLOCK ? len : BLOCK;
		copy_nt(to, from, n);
		*crc = crc32_add(*crc, from, n);
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
			copy_nt(to, v->iov_base, v->iov_len);
		to += v->iov_len;
	}
}

/* Copy bytes [off, off + len) to their place. */
static int fill_chunk(struct filling *x, size_t len, uint64_t off,
		      uint32_t *crc, struct errmsg *err)
{
	struct vfile_window w;
	struct copying copying = { .w = &w, .to = x->at + off, .crc = crc };
	int rc;

	vfile_read_ahead(x->f, &x->ahead, off, len, readahead_window());
	rc = vfile_map_pieces(x->f, len, off, &w, err);
	if (rc == -E2BIG) { /* casts, or too many pieces to map */
		rc = vfile_read_exact(x->f, x->at + off, len, off, err);
		if (!rc && crc)
			*crc = crc32_add(*crc, x->at + off, len);
		return rc;
	}
	if (rc)
		return rc;
	rc = sigbus_run(copy_window, &copying);
	vfile_unmap(x->f, &w);
	if (rc) {
		errmsg_set(err, -EIO, "cannot assemble: a file was truncated");
		/* Name the shard, if it was one. */
		vfile_check_shards(x->f, err);
		rc = -EIO;
	}
	return rc;
}

/* For crc32_pieces. */
static int fill_piece(void *ctx, struct crc_range *p, struct errmsg *err)
{
	uint32_t *const crc = p->unsummed ? NULL : &p->crc;
	int rc = 0;

	for (uint64_t done = 0; !rc && done < p->len;) {
		const uint64_t left = p->len - done;
		const size_t n = left < CRC32_CHUNK ? (size_t)left : CRC32_CHUNK;

		rc = fill_chunk(ctx, n, p->off + done, crc, err);
		done += n;
	}
	return rc;
}

/* Fill all storages, and compute the checksums that are not known yet. */
static int fill_storages(struct filling *x, unsigned width, struct team *team,
			 struct errmsg *err)
{
	struct vfile *const f = x->f;
	struct crc_range *const v = calloc(f->nstorages, sizeof(*v));
	int rc;

	if (!v)
		return errmsg_nomem(err, NULL);
	for (size_t i = 0; i < f->nstorages; i++)
		v[i] = (struct crc_range){
			.off = f->w.offset[i],
			.len = f->w.len[i],
			.unsummed = !f->crc || vfile_crc_known(f, i),
		};
	rc = crc32_pieces(v, f->nstorages, width, team, fill_piece, x, err);
	for (size_t i = 0; !rc && i < f->nstorages; i++)
		if (!v[i].unsummed)
			atomic_store(&f->crc[i], VFILE_CRC_KNOWN | v[i].crc);
	free(v);
	return rc;
}

/* Fill the literals between the storages, which contain the checksums. */
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

int vfile_read_all(struct vfile *f, void *at, unsigned width, struct team *team,
		   struct errmsg *err)
{
	struct filling x = { .f = f, .at = at };
	struct crc_range all = { .len = vfile_size(f), .unsummed = true };
	int rc;

	if (f->nstorages == 0)
		rc = crc32_pieces(&all, 1, width, team, fill_piece, &x, err);
	else
		rc = fill_storages(&x, width, team, err);
	if (!rc && f->nstorages)
		rc = fill_literals(&x, err);
	return rc ? rc : vfile_check_shards(f, err);
}
