/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_ZEROFILE_H
#define UCKPT_DCP_ZEROFILE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/dcp/model.h"
#include "ckpt/format/ptwrite.h"
#include "ckpt/tensor/tensor.h"

struct dcp_blobs;
struct errmsg;

/* The two files that DeepSpeed would have written for each model-parallel rank, had it
 * saved the checkpoint from one data-parallel rank with ZeRO stage 1. */
enum dcp_zerofile_kind {
	DCP_ZEROFILE_MODEL,
	DCP_ZEROFILE_OPTIM,
	DCP_ZEROFILE_KINDS,
};

/* The name in a tag of the file of the first rank, of a distributed checkpoint. */
const char *dcp_zerofile_name(enum dcp_zerofile_kind kind);

/* Tensors end to end. */
struct dcp_storage {
	enum dtype type;
	uint64_t numel;
	struct piece {
		uint64_t first; /* its first element */
		struct dcp_item *item; /* NULL: zeros */
	} *pieces;
	size_t npieces;
};

/* One of them: what torch.save would write around and between the storages, whose bytes
 * are read from the checkpoint.  It has no checksums.  Immutable. */
struct dcp_zerofile {
	const char *name; /* in a tag */
	struct arena arena;
	struct ptwrite w;
	struct dcp_storage *storages; /* in the order of the file */
	size_t n;
};

/* Lay out a file.  `source` says where it comes from, for people.  -E2BIG, -EFBIG,
 * -ENOMEM.  `o` must outlive it.  Call dcp_zerofile_done in the end. */
int dcp_zerofile_init(struct dcp_zerofile *x, enum dcp_zerofile_kind kind,
		      const struct dcp_model *o, const char *source, struct errmsg *err);
void dcp_zerofile_done(struct dcp_zerofile *x);

/* Read bytes of the file, which must have them; errors as dcp_blobs_read. */
int dcp_zerofile_read(const struct dcp_zerofile *x, struct dcp_blobs *b, void *buf,
		      size_t len, uint64_t off, struct errmsg *err);

#endif
