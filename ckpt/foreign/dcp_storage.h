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

/* The files with the data of a checkpoint. */
struct dcp_storage {
	struct uckpt *u;
	const char *dir;       /* of the checkpoint, for messages */
	struct shards *shards; /* its files */
	struct dcp_small *small; /* DCP_SMALL buffers while one thread loads the checkpoint, else
				  * NULL */
};

/* Small records that lie close together are read at once: objects, steps of an optimizer, small
 * tensors.  Their files are read one after another and not kept open, since there may be one for
 * each record.  Begins with zeros. */
#define DCP_SMALL 4
struct dcp_small {
	struct source src; /* has no name if it is not open */
	uint32_t file;
	uint64_t at, end; /* offset of the bytes; end of the last record read */
	size_t len;
	uint8_t bytes[65536];
};

/* End the reading of small records. */
void dcp_storage_loaded(struct dcp_storage *b);

/* Read an entry as a value in `a`: a copy of the object, or the number in a tensor of one element.
 * -EBADMSG if it has no data, -ENOTSUP if the tensor is not a number. */
int dcp_storage_value(const struct dcp_storage *b, const struct dcp_entry *t, struct arena *a,
		      struct value **out, struct errmsg *err);

/* Read the element of a tensor with one element, in its own type. */
int dcp_storage_element(const struct dcp_storage *b, const struct dcp_entry *t, uint8_t raw[16],
			struct errmsg *err);

/* Find the elements of a chunk, and their checksum.  -EBADMSG if its record contradicts the
 * metadata.  Thread-safe. */
int dcp_storage_locate(const struct dcp_storage *b, const struct dcp_entry *t, struct dcp_chunk *c,
		       struct errmsg *err);

/* Describe the elements of a chunk as a view of its storage. */
int dcp_storage_view(const struct dcp_storage *b, const struct dcp_entry *t,
		     const struct dcp_chunk *c, struct tensor *out, struct errmsg *err);

/*
 * Read all records of an entry, and compare them with the checksums in them and with the
 * metadata.  `*summed`: all of them have checksums.  -EBADMSG for the first damaged record; -EINTR
 * as progress_add.
 */
int dcp_storage_check(const struct dcp_storage *b, const struct dcp_entry *t,
		      struct progress *progress, bool *summed, struct errmsg *err);

#endif
