/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VFILE_IMPL_H
#define UCKPT_VFILE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"

/*
 * The progress of a file's checksums, shared by all handles of the file, so that each
 * byte is summed once, however many readers there are.
 */
struct crc_progress {
	pthread_mutex_t lock; /* held while bytes are read and summed; protects: */
	size_t storage;       /* being summed; the number of storages: none */
	uint64_t next;        /* offset of the next byte to sum */
	uint32_t sum;         /* CRC-32 of the storage up to `next` */
	atomic_bool noted; /* a note has said that a reader waits */

	/* Protected by the context's lock: */
	const vfile_crc *file;
	unsigned refs;
	struct crc_progress *link;
};

/* Shared by vfile.c (reading), vfile_map.c (mapping) and vfile_crc.c (checksums). */
struct vfile {
	struct shards *shards;
	struct extent_map map;
	struct ptwrite w; /* of a .pt file */
	struct gathers gathers; /* to which extents refer */
	size_t nstorages;
	vfile_crc *crc; /* NULL: zero checksums, or none at all */
	char *name;	/* vfile_set_name */

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

/* Join the progress of the file's checksums; -ENOMEM.  vfile_crc_end leaves it. */
int vfile_crc_begin(struct vfile *f, struct errmsg *err);
void vfile_crc_end(struct vfile *f);

/* Render the late literals unless they are rendered. */
int vfile_render_trailer(struct vfile *f, struct errmsg *err);

#endif
