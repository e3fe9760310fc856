/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_STORAGE_H
#define UCKPT_DCP_STORAGE_H

#include <stdint.h>

#include "ckpt/base/source.h"
#include "ckpt/foreign/dcp_metadata.h"

struct arena;
struct errmsg;
struct progress;
struct shards;
struct uckpt;
struct value;

/* Where the data of a checkpoint is. */
struct dcp_storage {
	struct uckpt *u;
	const char *dir;       /* of the checkpoint, for messages */
	struct shards *shards; /* its files, by number */
	struct dcp_small *small; /* DCP_SMALL of these while one thread loads it, else NULL */
};

/* Small records that lie close together are read together: objects, steps of an optimizer, small
 * tensors, in files that are read in turn, and not kept open: there may be one for each.  Begins
 * with zeros. */
#define DCP_SMALL 4
struct dcp_small {
	struct source src; /* without a name: not open */
	uint32_t file;
	uint64_t at, end; /* of the bytes; the end of the record that was read last */
	size_t len;
	uint8_t bytes[65536];
};

/* End the reading of small records. */
void dcp_storage_loaded(struct dcp_storage *b);

/* Read an entry as a value in `a`: a copy of the object, or the number that a tensor of one
 * element holds.  -EBADMSG if it has no data, -ENOTSUP if the tensor is no number. */
int dcp_storage_value(const struct dcp_storage *b, const struct dcp_entry *t, struct arena *a,
		      struct value **out, struct errmsg *err);

/* Read the element of a tensor of one, in its own type. */
int dcp_storage_element(const struct dcp_storage *b, const struct dcp_entry *t, uint8_t raw[16],
			struct errmsg *err);

/* Find where the elements of a chunk are, and what their checksum is.  -EBADMSG if its record
 * does not hold what the metadata says.  Thread-safe. */
int dcp_storage_locate(const struct dcp_storage *b, const struct dcp_entry *t, struct dcp_chunk *c,
		       struct errmsg *err);

/* Find how the elements of a chunk lie in its storage. */
int dcp_storage_view(const struct dcp_storage *b, const struct dcp_entry *t,
		     const struct dcp_chunk *c, struct tensor *out, struct errmsg *err);

/*
 * Read all records of an entry, and compare them with the checksums in them and with the
 * metadata.  `*summed`: all of them have checksums.  -EBADMSG for the first that is
 * damaged; -EINTR as progress_add.
 */
int dcp_storage_check(const struct dcp_storage *b, const struct dcp_entry *t,
		      struct progress *progress, bool *summed, struct errmsg *err);

#endif
