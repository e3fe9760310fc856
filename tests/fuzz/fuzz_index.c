/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of an indexed dataset, of arbitrary bytes: accepted runs lie within the
 * data file, in order, and none is empty.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "gpu/data/tokens_impl.h"

#define BIN_SIZE 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct tokens_file f = { 0 };
	struct errmsg err = { "" };
	struct source src;

	source_init_span(&src, "fuzz", (struct span){ data, size });
	if (tokens_index_read(&f, &src, BIN_SIZE, &err)) {
		assert(*err.text);
		free(f.runs);
		return 0;
	}
	assert(f.width == 1 || f.width == 2 || f.width == 4 || f.width == 8);
	for (size_t i = 0; i < f.nruns; i++) {
		const uint64_t tokens = f.runs[i + 1].token - f.runs[i].token;

		assert(f.runs[i + 1].token > f.runs[i].token);
		assert(f.runs[i].at <= BIN_SIZE &&
		       tokens <= (BIN_SIZE - f.runs[i].at) / f.width);
	}
	free(f.runs);
	return 0;
}
