/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HFINDEX_H
#define UCKPT_HFINDEX_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"

struct errmsg;
struct source;

#define HFINDEX_BYTES_MAX 100000000u

/*
 * model.safetensors.index.json, pytorch_model.bin.index.json: which file of a
 * Hugging Face directory holds which tensor.
 */
struct hfindex {
	struct arena arena;
	const char **files; /* names in the directory, in order, each once */
	size_t nfiles;
	struct hfindex_entry {
		const char *tensor;
		uint32_t file;
	} * v; /* by the tensor's name */
	size_t n;
};

/*
 * Read an index.  -EBADMSG if it is damaged or names a file outside of the
 * directory; -E2BIG.  Messages name the source.
 */
int hfindex_read(struct hfindex *x, const struct source *src,
		 struct errmsg *err);
void hfindex_done(struct hfindex *x);

#endif
