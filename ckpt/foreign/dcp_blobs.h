/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_BLOBS_H
#define UCKPT_DCP_BLOBS_H

#include <stdint.h>

#include "ckpt/foreign/dcp_metadata.h"

struct arena;
struct errmsg;
struct progress;
struct shards;
struct uckpt;
struct value;

/* Where the data of a checkpoint is. */
struct dcp_blobs {
	struct uckpt *u;
	const char *dir;       /* of the checkpoint, for messages */
	struct shards *shards; /* its files, by number */
	struct dcp_small *small; /* DCP_SMALL of these while one thread loads it, else NULL */
};

/* Small blobs that lie close together are read together: objects, and steps of an optimizer, in
 * files that are read in turn.  Begins with zeros. */
#define DCP_SMALL 4
struct dcp_small {
	uint32_t file;
	uint64_t at, end; /* of the bytes; the end of the blob that was read last */
	size_t len;
	uint8_t bytes[65536];
};

/* Read an item as a value in `a`: a copy of the object, or the number that a tensor of one
 * element holds.  -EBADMSG if it has no data, -ENOTSUP if the tensor is no number. */
int dcp_blobs_value(const struct dcp_blobs *b, const struct dcp_item *t, struct arena *a,
		    struct value **out, struct errmsg *err);

/* Read the element of a tensor of one, in its own type. */
int dcp_blobs_element(const struct dcp_blobs *b, const struct dcp_item *t, uint8_t raw[16],
		      struct errmsg *err);

/* Find where the elements of a chunk are, and what their checksum is.  -EBADMSG if its blob
 * does not hold what the metadata says.  Thread-safe. */
int dcp_blobs_locate(const struct dcp_blobs *b, const struct dcp_item *t, struct dcp_chunk *c,
		     struct errmsg *err);

/* Find how the elements of a chunk lie in its storage. */
int dcp_blobs_view(const struct dcp_blobs *b, const struct dcp_item *t, const struct dcp_chunk *c,
		   struct tensor *out, struct errmsg *err);

/*
 * Read all blobs of an item, and compare them with the checksums in them and with the
 * metadata.  `*summed`: all of them have checksums.  -EBADMSG for the first that is
 * damaged; -EINTR as progress_add.
 */
int dcp_blobs_check(const struct dcp_blobs *b, const struct dcp_item *t, struct progress *progress,
		    bool *summed, struct errmsg *err);

#endif
