/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A zip directory of arbitrary bytes: members lie within the archive, do not
 * overlap, and are found by name.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Mark the bytes [at, at + len); abort if one belongs to another member. */
static void take(uint8_t *taken, uint64_t at, uint64_t len)
{
	for (uint64_t i = at; i < at + len; i++)
		assert(!taken[i]++);
}

static void check(const struct zip *z, uint64_t size)
{
	uint8_t *const taken = calloc(size + 1, 1);

	assert(taken && z->n > 0);
	assert(z->prefix[strlen(z->prefix) - 1] == '/');
	for (size_t i = 0; i < z->n; i++) {
		const struct zip_entry *const e = &z->entries[i];
		struct errmsg err = { "" };
		uint64_t at;

		assert(zip_find(z, e->name) == e);
		if (zip_locate(z, e, &at, &err)) {
			assert(*err.text);
			continue;
		}
		assert(at <= size && e->size <= size - at);
		take(taken, at, e->size);
	}
	free(taken);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct errmsg err = { "" };
	struct source src;
	struct zip zip;

	source_init_span(&src, "fuzz", (struct span){ data, size });
	if (zip_open(&zip, &src, &err)) {
		assert(*err.text);
		return 0;
	}
	check(&zip, size);
	zip_close(&zip);
	return 0;
}
