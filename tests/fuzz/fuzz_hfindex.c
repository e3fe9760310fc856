/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a sharded model, of arbitrary bytes: file names are sorted and stay
 * in the directory, and each tensor is in one file.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/dirs/hfindex.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct errmsg err = { "" };
	struct hfindex x;
	struct source src;

	source_init_span(&src, "fuzz", (struct span){ data, size });
	if (hfindex_read(&x, &src, &err)) {
		assert(*err.text);
		return 0;
	}
	assert(x.n && x.nfiles && x.nfiles <= x.n);
	for (size_t i = 0; i < x.nfiles; i++) {
		assert(*x.files[i] && !strchr(x.files[i], '/'));
		assert(strcmp(x.files[i], "..") != 0);
		assert(!i || strcmp(x.files[i - 1], x.files[i]) < 0);
	}
	for (size_t i = 0; i < x.n; i++) {
		assert(x.v[i].file < x.nfiles);
		assert(!i || strcmp(x.v[i - 1].tensor, x.v[i].tensor) < 0);
	}
	hfindex_done(&x);
	return 0;
}
