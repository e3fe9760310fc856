/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_DCP_ENTRIES_H
#define TESTS_UNIT_DCP_ENTRIES_H

#include "ckpt/foreign/dcp_metadata.h"
#include "tests/support/unit.h"

/* Fill in a tensor whose elements begin at byte `at` of a file. */
static inline void entry_init(struct dcp_entry *t, struct arena *a, const char *key, uint32_t file,
			      enum dtype type, unsigned ndim, const uint64_t *shape, uint64_t numel,
			      uint64_t at)
{
	struct dcp_chunk *c = arena_alloc(a, sizeof(*c));
	const uint64_t *offset = arena_alloc(a, (ndim + 1) * sizeof(*offset));
	const uint64_t *size = arena_copy(a, shape, ndim * sizeof(*size));

	assert_true(c && offset && size);
	*c = (struct dcp_chunk){
		.offset = offset, .size = size, .numel = numel, .file = file, .data = at
	};
	*t = (struct dcp_entry){ .key = key,
				 .is_tensor = true,
				 .dtype = type,
				 .ndim = ndim,
				 .shape = size,
				 .numel = numel,
				 .chunks = c,
				 .nchunks = 1 };
}

#endif
