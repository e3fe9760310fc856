/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VFILE_IMPL_H
#define UCKPT_VFILE_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"

/* What vfile.c (bytes), vfile_map.c (where they are mapped), vfile_crc.c (their
 * checksums) and vfile_read_all.c (all of them) share. */
struct vfile {
	struct shardcache *shards;
	struct extent_map map;
	struct ptwrite w; /* of a .pt file */
	struct gathers gathers; /* that extents refer to */
	size_t nstorages;
	vfile_crc *crc; /* NULL: zero checksums, or none at all */

	struct sums *sums; /* NULL: none is to be computed.  Its lock protects: */
	struct bytebuf literal; /* all literals, end to end */

	size_t early;	   /* bytes of `literal' that need no checksum */
	atomic_bool ready; /* the late literals are rendered */
	_Atomic uint64_t mapped; /* all bytes below have been, in sequence */
};

/* How many of `len` bytes at `off` there are. */
size_t vfile_clamp(const struct vfile *f, size_t len, uint64_t off);

/* Read exactly [off, off + len), which lies within the file. */
int vfile_read_exact(struct vfile *f, void *buf, size_t len, uint64_t off,
		     struct errmsg *err);

/* Is the sum of storage i known?  There must be sums. */
bool vfile_sum_known(const struct vfile *f, size_t i);

/* Take up what has been summed of the file, if it has sums; -ENOMEM. */
int vfile_begin_sums(struct vfile *f, struct errmsg *err);

/* Make sure that the late literals are there. */
int vfile_prepare(struct vfile *f, struct errmsg *err);

/* As vfile_map, but -E2BIG where that would copy: there are casts, or too many
 * or too small pieces. */
int vfile_map_pieces(struct vfile *f, size_t len, uint64_t off,
		     struct vfile_window *w, struct errmsg *err);

/* Are the shards that are open still what was planned? */
int vfile_check_shards(struct vfile *f, struct errmsg *err);

#endif
