/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index of a sharded model, of arbitrary bytes: file names are sorted and stay in the
 * directory, and each tensor is in one file.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/source.h"
#include "ckpt/table/hfdir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct errmsg err = { "" };
	const cJSON *entry;
	struct hfindex x;
	struct source src;

	source_init_span(&src, "fuzz", (struct span){ data, size });
	if (hfindex_read(&x, &src, &err)) {
		assert(*err.text);
		return 0;
	}
	assert(x.nfiles && x.nfiles <= (size_t)cJSON_GetArraySize(x.map));
	for (size_t i = 0; i < x.nfiles; i++) {
		assert(*x.files[i] && !strchr(x.files[i], '/'));
		assert(strcmp(x.files[i], "..") != 0);
		assert(!i || strcmp(x.files[i - 1], x.files[i]) < 0);
	}
	cJSON_ArrayForEach(entry, x.map)
	{
		assert(entry->string);
		assert(array_find(x.files, x.nfiles, sizeof(*x.files),
				  entry->valuestring));
	}
	hfindex_done(&x);
	return 0;
}
