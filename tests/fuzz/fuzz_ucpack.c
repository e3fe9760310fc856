/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pack of arbitrary bytes, whose checksums are corrected first: a fuzzer cannot guess them and
 * would reach nothing behind them.  Whatever the index says, reads stay within the pack and give
 * the same bytes whole and in parts.
 */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack.h"
#include "tests/support/context.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Limit of the bytes read from a file: an index may claim any number. */
#define READ_MAX ((size_t)300000)

#define HEAD_SIZE 24
#define ENTRY_SIZE 64
#define EXTENT_SIZE 48

static void seal(uint8_t *bytes, size_t size)
{
	const uint64_t at = get_le64(bytes + 24);

	memcpy(bytes, PACK_MAGIC, 8);
	put_le64(bytes + 8, PACK_VERSION | (uint64_t)BLOCK_SIZE << 32);
	put_le64(bytes + 16, size);
	if (at <= size) {
		put_le64(bytes + 32, size - at);
		put_le64(bytes + 40, XXH3_64bits(bytes + at, size - at));
	}
	put_le64(bytes + 48, XXH3_64bits(bytes, 48));
}

static int open_bytes(const uint8_t *bytes, size_t size, struct pack **p)
{
	struct errmsg err = { "" };
	struct source src;
	int rc;

	source_init_span(&src, "fuzz", (struct span){ bytes, size });
	rc = pack_open_source(test_context(), &src, p, &err);
	assert(!rc == !*err.text);
	return rc;
}

/* The index contains the checksums of tables. */
static void seal_tables(uint8_t *bytes, size_t size, const struct pack *p)
{
	const struct pack_index *const x = pack_index_of(p);
	uint8_t *const extents = bytes + get_le64(bytes + 24) + HEAD_SIZE +
				 (size_t)x->nentries * ENTRY_SIZE;

	for (uint32_t i = 0; i < x->nextents; i++) {
		const struct pack_extent *const e = &x->extents[i];

		if (e->kind == PACK_STORED)
			put_le64(extents + (size_t)i * EXTENT_SIZE + 40,
				 XXH3_64bits(bytes + e->table,
					     (size_t)pack_extent_blocks(e) *
						     PACK_TABLE_RECORD));
	}
	seal(bytes, size);
}

static void read_entry(struct pack *p, uint32_t i)
{
	const uint64_t size = pack_index_of(p)->entries[i].size;
	const size_t n = size < READ_MAX ? (size_t)size : READ_MAX;
	uint8_t *const whole = malloc(n + 1), *const part = malloc(n + 1);
	struct errmsg err = { "" };
	const size_t half = n / 2;

	assert(whole && part);
	if (pack_read(p, i, whole, n, 0, &err) == 0) {
		assert(pack_read(p, i, part, half, 0, NULL) == 0);
		assert(pack_read(p, i, part + half, n - half, half, NULL) == 0);
		assert(memcmp(whole, part, n) == 0);
	} else {
		assert(*err.text);
	}
	if (size > n)
		pack_read(p, i, part, n, size - n, NULL);
	free(whole);
	free(part);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *const bytes = malloc(size + 1);
	struct pack *p;

	assert(bytes);
	memcpy(bytes, data, size);
	if (size >= PACK_HEADER_SIZE)
		seal(bytes, size);
	if (open_bytes(bytes, size, &p) == 0) {
		seal_tables(bytes, size, p);
		pack_close(p);
		if (open_bytes(bytes, size, &p) == 0) {
			for (uint32_t i = 0; i < pack_index_of(p)->nentries;
			     i++)
				read_entry(p, i);
			pack_close(p);
		}
	}
	free(bytes);
	return 0;
}
