/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle machine reads arbitrary bytes or refuses them with a message.  Writing what it read
 * reaches a fixed point: the result is read and written to the same bytes.
 */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/value.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int dump(const struct value *root, struct bytebuf *out)
{
	struct pickle_storages storages = { 0 };
	const int rc = pickle_dump(root, out, &storages, NULL);

	pickle_storages_done(&storages);
	return rc;
}

static void write_and_read_again(const struct value *root)
{
	struct bytebuf once = { 0 }, twice = { 0 };
	struct arena arena = { 0 };
	struct value *again;
	int rc = dump(root, &once);

	if (rc == 0) {
		rc = pickle_load((struct span){ once.data, once.len }, "again",
				 &arena, &again, NULL);
		/* A graph built bottom up may nest deeper than the reader allows. */
		assert(rc == 0 || rc == -E2BIG);
	}
	if (rc == 0) {
		assert(dump(again, &twice) == 0);
		assert(once.len == twice.len);
		assert(memcmp(once.data, twice.data, once.len) == 0);
	}
	arena_done(&arena);
	bytebuf_done(&once);
	bytebuf_done(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct span bytes = { data, size };
	struct arena arena = { 0 };
	struct errmsg err = { "" };
	struct value *root;

	if (pickle_load(bytes, "fuzz", &arena, &root, &err) == 0)
		write_and_read_again(root);
	else
		assert(strlen(err.text) > 0);
	arena_done(&arena);
	return 0;
}
