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

/* Shared by vfile.c (reading), vfile_map.c (mapping) and vfile_crc.c (checksums). */
struct vfile {
	struct shards *shards;
	struct extent_map map;
	struct ptwrite w;       /* of a .pt file */
	struct gathers gathers; /* referred to by extents */
	size_t nstorages;
	vfile_crc *crc; /* NULL: zero checksums, or none at all */
	char *name;     /* vfile_set_name */

	pthread_mutex_t lock;   /* held while bytes are read and summed; protects: */
	size_t storage;         /* storage being summed; nstorages: none */
	uint64_t next;          /* offset of the next byte to sum */
	uint32_t sum;           /* CRC-32 of the storage up to `next` */
	struct bytebuf literal; /* all literals, end to end */

	size_t header_len;         /* bytes of `literal' that need no checksum */
	atomic_bool trailer_ready; /* the late literals are rendered */
	_Atomic uint64_t mapped;   /* all bytes below it have been mapped in sequence */
};

/* Return how many bytes of [off, off + len) the file has. */
size_t vfile_clamp(const struct vfile *f, size_t len, uint64_t off);

/* Read exactly [off, off + len), which lies within the file. */
int vfile_read_exact(struct vfile *f, void *buf, size_t len, uint64_t off, struct errmsg *err);

/* Start the checksum of `storage`, or of the next unknown one. */
void vfile_crc_begin(struct vfile *f, size_t storage);

/* Extend the checksums by bytes [off, off + len), if these are the next ones. */
void vfile_crc_add(struct vfile *f, const void *buf, size_t len, uint64_t off);

/* Extend the checksums by the pieces of a reply, after the mapped bytes before them. */
void vfile_crc_add_pieces(struct vfile *f, const struct reply_pieces *w);

/* Render the late literals if they are not rendered yet. */
int vfile_render_trailer(struct vfile *f, struct errmsg *err);

#endif
