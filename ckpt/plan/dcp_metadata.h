/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_METADATA_H
#define UCKPT_DCP_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/tensor/tensor.h"

struct bytebuf;
struct errmsg;

/* A step of the way from the state dict to a value: a key or, if `text` is NULL, the
 * place in a list. */
struct dcp_step {
	const char *text;
	size_t i;
};

#define DCP_STEPS_MAX 4

/* A value of the state dict that was saved.  Texts and shapes are borrowed. */
struct dcp_entry {
	const char *key;
	struct dcp_step path[DCP_STEPS_MAX];
	unsigned nsteps;
	const char *file; /* relative to the directory */
	uint64_t offset; /* of its first blob there; others follow without gaps */
	uint64_t len;    /* of the blob of an object */
	bool is_tensor; /* cut by dcp_cut; `len` is not used */
	enum dtype dtype;
	unsigned ndim;
	const uint64_t *shape;
};

/* Append the `.metadata` of a directory with these entries, whose tensors are cut for
 * `ranks` ranks.  -ENOMEM. */
int dcp_metadata_write(const struct dcp_entry *v, size_t n, unsigned ranks,
		       struct bytebuf *out, struct errmsg *err);

#endif
