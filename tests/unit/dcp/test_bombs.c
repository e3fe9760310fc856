/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata that expands a few shared bytes to much memory is refused, and bytes after the pickle
 * are not read.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_metadata.h"
#include "ckpt/foreign/dcp_unpickle.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define CLASS "ctorch.distributed.checkpoint.metadata\n"
#define TYPE CLASS "TensorProperties\n(ctorch\nfloat32\ntR"
#define INFO "ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n("

static void put(struct bytebuf *b, const char *opcodes)
{
	bytebuf_add_str(b, opcodes);
}

static void put_text(struct bytebuf *b, const char *fmt, unsigned i)
{
	char text[64];
	const int n = snprintf(text, sizeof(text), fmt, i);

	put(b, "X");
	bytebuf_add_le32(b, (uint32_t)n);
	put(b, text);
}

static void put_long_text(struct bytebuf *b, size_t n)
{
	put(b, "X");
	bytebuf_add_le32(b, (uint32_t)n);
	bytebuf_add_fill(b, 'y', n);
}

static void put_number(struct bytebuf *b, unsigned i)
{
	put(b, "J");
	bytebuf_add_le32(b, i);
}

static void put_size(struct bytebuf *b, unsigned x, unsigned y)
{
	put(b, "ctorch\nSize\n(");
	put_number(b, x);
	put_number(b, y);
	put(b, "t\x85R");
}

static void put_chunk(struct bytebuf *b, unsigned x, unsigned y, unsigned rows,
		      unsigned columns)
{
	put(b, CLASS "ChunkStorageMetadata\n(");
	put_size(b, x, y);
	put_size(b, rows, columns);
	put(b, "tR");
}

/* Write the key and the beginning of a tensor; its list of chunks and "tRs" follow. */
static void begin_tensor(struct bytebuf *b, unsigned i, unsigned rows, unsigned columns)
{
	put_text(b, "w%u", i);
	put(b, CLASS "TensorStorageMetadata\n(" TYPE);
	put_size(b, rows, columns);
}

/* Tensors share a list of chunks of two columns each that form no grid. */
static void no_grid(struct bytebuf *b)
{
	const unsigned n = 2000;

	for (unsigned i = 0; i < 8; i++) {
		begin_tensor(b, i, 2, n + 1);
		if (i) {
			put(b, "h\x01tRs");
			continue;
		}
		put(b, "](");
		for (unsigned k = 0; k < n; k++)
			put_chunk(b, 0, k, 2, 1);
		put_chunk(b, 0, n, 1, 1);
		put_chunk(b, 1, n, 1, 1);
		put(b, "eq\x01tRs");
	}
	put(b, "}}");
}

/* The same for a grid: each tensor has its own chunks in memory. */
static void many_chunks(struct bytebuf *b)
{
	const unsigned n = 2000;

	for (unsigned i = 0; i < 2000; i++) {
		begin_tensor(b, i, n, 1);
		if (i) {
			put(b, "h\x01tRs");
			continue;
		}
		put(b, "](");
		for (unsigned k = 0; k < n; k++)
			put_chunk(b, k, 0, 1, 1);
		put(b, "eq\x01tRs");
	}
	put(b, "}}");
}

/* Paths share long elements. */
static void long_paths(struct bytebuf *b)
{
	for (unsigned i = 0; i < 2000; i++) {
		put_text(b, "k%u", i);
		put(b, "Ns");
	}
	put(b, "}");
	for (unsigned i = 0; i < 2000; i++) {
		put_text(b, "k%u", i);
		put(b, "(");
		if (i)
			put(b, "h\x01");
		else
			put_long_text(b, 100000), put(b, "q\x01");
		put_text(b, "%u", i);
		put(b, "ts");
	}
	put(b, "}");
}

/* One state is given to many objects in turn. */
static void shared_state(struct bytebuf *b)
{
	put(b, "}q\x01(");
	for (unsigned i = 0; i < 100; i++) {
		put_text(b, "a%u", i);
		put(b, "N");
	}
	put(b, "u0");
	put_text(b, "w", 0);
	put(b, CLASS "TensorStorageMetadata\n)\x81h\x01" "bs}}");
}

/* Memoize one object with one byte each. */
static void memos(struct bytebuf *b)
{
	put(b, "N");
	bytebuf_add_fill(b, 0x94, 8u << 20);
	put(b, "0}}");
}

/* Objects, entries and globals share texts: each text is scanned once. */
static void shared_texts(struct bytebuf *b)
{
	put(b, "}(");
	put_long_text(b, 8u << 20);
	put(b, "q\x01Nuq\x02" "0");
	for (unsigned i = 0; i < 20000; i++)
		put(b, CLASS "ChunkStorageMetadata\n)\x81h\x02" "b0");
	put(b, "}}");
	for (unsigned i = 0; i < 20000; i++) {
		put(b, CLASS "MetadataIndex\n(h\x01tR" INFO "h\x01");
		put_number(b, 0);
		put_number(b, 7);
		put(b, "tRs");
	}
}

/* One tensor, whose data is in a file with a long name that many entries share. */
static void one_tensor(struct bytebuf *b)
{
	begin_tensor(b, 0, 2, 1);
	put(b, "](");
	put_chunk(b, 0, 0, 2, 1);
	put(b, "etRs}}");
	for (unsigned i = 0; i < 3; i++) {
		put(b, CLASS "MetadataIndex\n(");
		put_text(b, i ? "other%u" : "w%u", i);
		put_size(b, 0, 0);
		put(b, "tR" INFO);
		put_text(b, "__%u_0.distcp", 0);
		put_number(b, 0);
		put_number(b, 7);
		put(b, "tRs");
	}
}

static const struct bomb {
	const char *what;
	void (*put)(struct bytebuf *b);
	int rc;
	const char *words;
	uint64_t hole; /* bytes of the file, most of which are a hole */
} bombs[] = {
	{ "no grid", no_grid, -E2BIG, "w0: 2002 chunks in no grid", 0 },
	{ "many chunks", many_chunks, -E2BIG, "describes too much for its size", 0 },
	{ "long paths", long_paths, -E2BIG, "describes too much for its size", 0 },
	{ "shared state", shared_state, -E2BIG, "more than 64 attributes", 0 },
	{ "shared texts", shared_texts, 0, "", 0 },
	{ "memos", memos, -E2BIG, "describes too much for its size", 0 },
	{ "one tensor", one_tensor, 0, "", 0 },
	{ "a hole", one_tensor, 0, "", 500u << 20 },
	{ "a larger hole", one_tensor, -E2BIG, "bytes", 600u << 20 },
};

static void check_bomb(const struct bomb *x, const char *dir)
{
	struct bytebuf b = { 0 };
	struct dcp_metadata m = { 0 };
	struct errmsg err = { "" };
	char path[256];
	int rc;

	put(&b, "\x80\x02" CLASS "Metadata\n(}");
	x->put(&b);
	put(&b, "tR.");
	snprintf(path, sizeof(path), "%s/.metadata", dir);
	mkpt_save(path, b.data, b.len);
	if (x->hole)
		assert_int_equal(truncate(path, (off_t)x->hole), 0);
	rc = dcp_metadata_add(&m, test_context(), dir, &err);
	if (rc != x->rc || !strstr(err.text, x->words))
		fail_msg("%s: %d: %s", x->what, rc, err.text);
	if (!rc && m.nentries)
		assert_int_equal(m.entries[0].chunks->len, 7);
	assert_true(m.arena.used <= b.len * DCP_MEMORY_PER_BYTE + DCP_MEMORY_LEAST);
	dcp_metadata_done(&m);
	bytebuf_done(&b);
}

static void test_bombs(void **state)
{
	char *const dir = mkckpt_new_dir();

	for (size_t i = 0; i < COUNT(bombs); i++)
		check_bomb(&bombs[i], dir);
	mkckpt_free_dir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bombs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
