/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VFILE_IMPL_H
#define UCKPT_VFILE_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"

/* Shared by vfile.c (reading), vfile_map.c (mapping) and vfile_crc.c (checksums). */
struct vfile {
	struct shardcache *shards;
	struct extent_map map;
	struct ptwrite w; /* of a .pt file */
	struct gathers gathers; /* to which extents refer */
	size_t nstorages;
	vfile_crc *crc; /* NULL: zero checksums, or none at all */

	struct crc_progress *sums; /* NULL: no checksums.  Its lock protects: */
	struct bytebuf literal; /* all literals, end to end */

	size_t header_len; /* bytes of `literal' that need no checksum */
	atomic_bool trailer_ready; /* the late literals are rendered */
	_Atomic uint64_t mapped; /* every byte below has been mapped, in sequence */
};

/* The number of bytes of [off, off + len) that the file has. */
size_t vfile_clamp(const struct vfile *f, size_t len, uint64_t off);

/* Read exactly [off, off + len), which lies within the file. */
int vfile_read_exact(struct vfile *f, void *buf, size_t len, uint64_t off,
		     struct errmsg *err);

/* Is the CRC of storage i known?  The file must have checksums. */
bool vfile_crc_known(const struct vfile *f, size_t i);

/* Join the progress of the file's checksums; -ENOMEM. */
int vfile_crc_begin(struct vfile *f, struct errmsg *err);

/* Render the late literals unless they are rendered. */
int vfile_render_trailer(struct vfile *f, struct errmsg *err);

#endif
