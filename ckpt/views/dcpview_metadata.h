/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCPVIEW_METADATA_H
#define UCKPT_DCPVIEW_METADATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/tensor.h"

struct bytebuf;
struct errmsg;

/* An element of a path into the nested state dict: a key or, if `text` is NULL, a list
 * index. */
struct dcpview_step {
	const char *text;
	size_t i;
};

#define DCPVIEW_STEPS_MAX 4

/* A value of the saved state dict.  Strings and shapes are borrowed. */
struct dcpview_entry {
	const char *key;
	struct dcpview_step path[DCPVIEW_STEPS_MAX];
	unsigned nsteps;
	const char *file; /* relative to the directory */
	uint64_t offset; /* of the first blob; the others follow without gaps */
	uint64_t len;    /* bytes of an object's blob; unused for tensors */
	bool is_tensor;
	enum dtype dtype;
	unsigned ndim;
	const uint64_t *shape;
	unsigned pieces; /* as dcpview_cut */
};

/* Append the `.metadata` that describes `n` entries.  -ENOMEM. */
int dcpview_metadata_write(const struct dcpview_entry *v, size_t n, struct bytebuf *out,
			   struct errmsg *err);

#endif
