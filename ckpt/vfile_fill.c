/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A virtual file put together in another file's memory.
 *
 * One thread has the kernel copy from the mapped shards into the other file, by
 * pwritev: that takes two thirds of what pread into its mapping takes, and a
 * shard that shrinks is an EFAULT.  Several would wait for each other, since a
 * file is written to by one at a time, so they read.  The sums are made of the
 * copy, while it is in the processor's cache.
 */
#include "ckpt/vfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "ckpt/checksum.h"
#include "ckpt/errmsg.h"
#include "ckpt/vfile_impl.h"

struct filling {
	struct vfile *f;
	int fd; /* -1: not to be written to */
	uint8_t *at; /* where it is mapped */
};

/* Write all of a window; it is used up. */
static int write_window(const struct filling *x, struct vfile_window *w,
			uint64_t off, struct errmsg *err)
{
	struct iovec *v = w->iov;
	int n = w->n;

	while (n) {
		ssize_t done = pwritev(x->fd, v, n, (off_t)off);

		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			return errmsg_set(err, -EIO, "cannot assemble: %s",
					  done ? strerror(errno) : "no room");
		off += (uint64_t)done;
		for (; n && (size_t)done >= v->iov_len; v++, n--)
			done -= (ssize_t)v->iov_len;
		if (n) {
			v->iov_base = (uint8_t *)v->iov_base + done;
			v->iov_len -= (size_t)done;
		}
	}
	return 0;
}

/* Bytes [off, off + len), which go to `buf', the same place in the mapping;
 * for checksum_ranges. */
static int fill_range(void *ctx, void *buf, size_t len, uint64_t off,
		      struct errmsg *err)
{
	const struct filling *const x = ctx;
	struct vfile_window w;
	int rc = x->fd < 0 ? -E2BIG :
			     vfile_map_pieces(x->f, len, off, &w, err);

	if (rc == -E2BIG) /* computed, or many small pieces */
		return vfile_read_exact(x->f, buf, len, off, err);
	if (rc)
		return rc;
	rc = write_window(x, &w, off, err);
	vfile_unmap(x->f, &w);
	/* If a shard shrank that is what was wrong. */
	if (rc)
		vfile_check_shards(x->f, err);
	return rc;
}

/* All storages, with the sums that are not known. */
static int fill_storages(struct filling *x, unsigned width, struct errmsg *err)
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
			.into = x->at + f->w.offset[i],
			.unsummed = !f->crc || vfile_sum_known(f, i),
		};
	rc = checksum_ranges(v, f->nstorages, width, fill_range, x, err);
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

int vfile_fill(struct vfile *f, int fd, void *at, unsigned width,
	       struct errmsg *err)
{
	struct filling x = { .f = f, .fd = width > 1 ? -1 : fd, .at = at };
	struct checksum all = { .len = vfile_size(f), .into = at,
				.unsummed = true };
	int rc;

	if (f->nstorages == 0)
		rc = checksum_ranges(&all, 1, width, fill_range, &x, err);
	else
		rc = fill_storages(&x, width, err);
	if (!rc && f->nstorages)
		rc = fill_literals(&x, err);
	return rc ? rc : vfile_check_shards(f, err);
}
