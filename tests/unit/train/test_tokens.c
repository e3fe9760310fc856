/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of tokens from torch's generator, binary files, Megatron's indexed datasets and text.  All
 * tokens come from the data, and none beyond the vocabulary is returned.
 */
#include <errno.h>
#include <limits.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "gpu/data/tokens.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

static char *dir;

static const char *in_dir(const char *name)
{
	static char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

static struct tokens *must_open(const struct tokens_options *o)
{
	struct tokens *t;
	struct errmsg err;

	if (tokens_open(&t, o, &err))
		fail_msg("%s", err.text);
	return t;
}

static void must_not_open(const struct tokens_options *o, const char *says)
{
	struct tokens *t;
	struct errmsg err;

	if (tokens_open(&t, o, &err) == 0)
		fail_msg("%s was accepted", o->source);
	if (!strstr(err.text, says))
		fail_msg("said '%s', not '%s'", err.text, says);
}

static void must_read(struct tokens *t, bool valid, uint64_t row, int32_t *out)
{
	struct errmsg err;

	if (tokens_row(t, valid, row, out, &err))
		fail_msg("%s", err.text);
}

/* DeepSpeed's reference runs used these tokens, 20 batches of 16 rows; the digest is that of
 * their file. */
static void the_demos_batch_is_torchs(void **state)
{
	static const uint8_t want[SHA256_DIGEST_SIZE] = {
		0xc0, 0x61, 0x8d, 0xdd, 0xf6, 0xfc, 0x8b, 0x12, 0xc8, 0xd3, 0x99,
		0x85, 0xde, 0x80, 0x8e, 0x41, 0xee, 0x43, 0x2c, 0xbd, 0xe9, 0x50,
		0x0e, 0x72, 0xef, 0x8a, 0x49, 0x37, 0x06, 0xba, 0x00, 0x35,
	};
	const struct tokens_options o = {
		.source = "synthetic", .batch = 16, .seq = 32, .vocab = 256, .seed = 42
	};
	struct tokens *const t = must_open(&o);
	uint8_t got[SHA256_DIGEST_SIZE];
	struct sha256_ctx sha;

	sha256_init(&sha);
	for (uint64_t row = 0; row < 20 * 16; row++) {
		int32_t tokens[32];
		uint8_t bytes[32 * 4];

		must_read(t, false, row, tokens);
		for (size_t i = 0; i < sizeof(bytes); i++)
			bytes[i] = (uint8_t)((uint32_t)tokens[i / 4] >> 8 * (i % 4));
		sha256_update(&sha, sizeof(bytes), bytes);
	}
	sha256_digest(&sha, sizeof(got), got);
	assert_memory_equal(got, want, sizeof(want));
	assert_int_equal(tokens_valid_rows(t), 0);
	tokens_close(t);
}

static void fresh_rows_go_on_and_are_the_same_from_anywhere(void **state)
{
	const struct tokens_options o = {
		.source = "synthetic:fresh", .batch = 4, .seq = 8, .vocab = 50257, .seed = 1
	};
	static const uint64_t order[] = { 99999, 3, 4, 0, 1234567, 4, 99999 };
	struct tokens *const t = must_open(&o);

	for (size_t i = 0; i < COUNT(order); i++) {
		struct tokens *const reopened = must_open(&o);
		int32_t a[8], b[8], next[8];

		must_read(t, false, order[i], a);
		must_read(reopened, false, order[i], b);
		must_read(reopened, false, order[i] + 4, next);
		assert_memory_equal(a, b, sizeof(a));
		assert_memory_not_equal(a, next, sizeof(a));
		tokens_close(reopened);
	}
	tokens_close(t);
}

static void synthetic_validation_is_another_batch(void **state)
{
	const struct tokens_options o = { .source = "synthetic",
					  .batch = 4,
					  .seq = 8,
					  .vocab = 1000,
					  .seed = 1,
					  .held_out = 0.1 };
	struct tokens *const t = must_open(&o);
	int32_t train[8], valid[8];

	assert_int_equal(tokens_valid_rows(t), 4);
	must_read(t, false, 0, train);
	must_read(t, true, 0, valid);
	assert_memory_not_equal(train, valid, sizeof(train));
	tokens_close(t);
}

static void rows_of_numbers_and_of_bytes(void **state)
{
	static const struct {
		const char *name, *bytes;
		size_t len;
		int32_t row1[3];
	} cases[] = {
		{ "a.u16", "\1\0\2\0\3\0\4\1\5\0\6\0\7\0", 14, { 260, 5, 6 } },
		{ "a.i32", "\1\0\0\0\2\0\0\0\3\0\0\0\4\1\0\0\5\0\0\0\6\0\0\0", 24, { 260, 5, 6 } },
		{ "a.txt", "text\nxyz", 8, { 't', '\n', 'x' } },
		{ "noname", "text\nxyz", 8, { 't', '\n', 'x' } },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct tokens_options o = {
			.source = in_dir(cases[i].name),
			.seq = 3,
			.vocab = 261,
		};
		struct tokens *t;
		int32_t row[3], again[3];

		mkpt_save(o.source, cases[i].bytes, cases[i].len);
		t = must_open(&o);
		must_read(t, false, 1, row);
		assert_memory_equal(row, cases[i].row1, sizeof(row));
		/* The data has two rows, so row 3 repeats row 1. */
		must_read(t, false, 0, row);
		must_read(t, false, 2, again);
		assert_memory_equal(row, again, sizeof(row));
		tokens_close(t);
	}
}

static void rows_at_the_end_are_held_out(void **state)
{
	static const struct {
		double held_out;
		uint64_t valid;
	} cases[] = { { 0, 0 }, { 0.01, 1 }, { 0.2, 2 }, { 0.9, 9 } };
	char bytes[20];

	for (int i = 0; i < 20; i++)
		bytes[i] = (char)i;
	mkpt_save(in_dir("text"), bytes, sizeof(bytes));
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct tokens_options o = {
			.source = in_dir("text"),
			.seq = 2,
			.vocab = 20,
			.held_out = cases[i].held_out,
		};
		const uint64_t train = 10 - cases[i].valid;
		struct tokens *const t = must_open(&o);
		int32_t row[2];

		assert_int_equal(tokens_valid_rows(t), cases[i].valid);
		must_read(t, false, train - 1, row);
		assert_int_equal(row[0], 2 * train - 2);
		must_read(t, false, train, row);
		assert_int_equal(row[0], 0);
		for (uint64_t v = 0; v < cases[i].valid; v++) {
			must_read(t, true, v, row);
			assert_int_equal(row[0], 2 * (train + v));
		}
		tokens_close(t);
	}
}

static void files_that_cannot_be_rows_are_refused(void **state)
{
	static const struct {
		const char *name, *bytes;
		size_t len;
		const char *says;
	} cases[] = {
		{ "b.u16", "abc", 3, "3 bytes are not a multiple of a token's 2" },
		{ "b.i32", "", 0, "has 0 tokens" },
		{ "b.txt", "abc", 3, "has 3 tokens, 0 rows of 4" },
		{ "b.bin", "abcdefgh", 8, "is named without .bin and .idx" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct tokens_options o = {
			.source = in_dir(cases[i].name),
			.seq = 4,
			.vocab = 256,
		};

		mkpt_save(o.source, cases[i].bytes, cases[i].len);
		must_not_open(&o, cases[i].says);
	}
	must_not_open(&(struct tokens_options){ .source = in_dir("none"), .seq = 4, .vocab = 256 },
		      "No such file");
	must_not_open(&(struct tokens_options){ .source = dir, .seq = 4, .vocab = 256 },
		      "not a regular file");
}

static void tokens_that_the_model_has_not_are_named(void **state)
{
	static const char bytes[] = "\0\0\0\0\1\0\0\0\1\0\0\0\12\0\0\0\377\377\377\377\1\0\0\0";
	struct tokens_options o = { .source = in_dir("c.i32"), .seq = 2, .vocab = 10 };
	struct tokens *t;
	struct errmsg err;
	int32_t row[2];

	mkpt_save(o.source, bytes, 24);
	t = must_open(&o);
	must_read(t, false, 0, row);
	assert_int_equal(tokens_row(t, false, 1, row, &err), -ERANGE);
	assert_non_null(strstr(err.text, "c.i32: row 1, token 1 of it is 10;"
					 " the model has 0 to 9"));
	assert_int_equal(tokens_row(t, false, 2, row, &err), -ERANGE);
	assert_non_null(strstr(err.text, "row 2, token 0 of it is -1"));
	tokens_close(t);
}

static void a_file_that_becomes_shorter_is_an_error(void **state)
{
	const struct tokens_options o = { .source = in_dir("d.txt"), .seq = 4, .vocab = 256 };
	struct tokens *t;
	struct errmsg err;
	int32_t row[4];

	mkpt_save(o.source, "abcdefgh", 8);
	t = must_open(&o);
	must_read(t, false, 1, row);
	assert_int_equal(truncate(o.source, 6), 0);
	must_read(t, false, 0, row);
	assert_true(tokens_row(t, false, 1, row, &err) < 0);
	assert_non_null(strstr(err.text, "d.txt"));
	tokens_close(t);
}

struct index {
	uint64_t version;
	uint8_t type;
	uint64_t sequences, documents; /* as recorded in the header */
	size_t n, d;                   /* actually written */
	uint32_t lengths[4];
	uint64_t pointers[4];
	uint64_t boundaries[4];
};

static void write_index(const char *prefix, const struct index *x, const char *bin, size_t bin_len)
{
	struct bytebuf b = { 0 };
	char name[64];

	bytebuf_add(&b, "MMIDIDX\0", 9);
	bytebuf_add_le64(&b, x->version);
	bytebuf_add_u8(&b, x->type);
	bytebuf_add_le64(&b, x->sequences);
	bytebuf_add_le64(&b, x->documents);
	for (size_t i = 0; i < x->n; i++)
		bytebuf_add_le32(&b, x->lengths[i]);
	for (size_t i = 0; i < x->n; i++)
		bytebuf_add_le64(&b, x->pointers[i]);
	for (size_t i = 0; i < x->d; i++)
		bytebuf_add_le64(&b, x->boundaries[i]);
	snprintf(name, sizeof(name), "%s.idx", prefix);
	mkpt_save(in_dir(name), b.data, b.len);
	snprintf(name, sizeof(name), "%s.bin", prefix);
	mkpt_save(in_dir(name), bin, bin_len);
	bytebuf_done(&b);
}

/* Three documents of uint16: 1 2 3 | 4 | 5 6 */
static const struct index good = { .version = 1,
				   .type = 8,
				   .sequences = 3,
				   .documents = 4,
				   .n = 3,
				   .d = 4,
				   .lengths = { 3, 1, 2 },
				   .pointers = { 0, 6, 8 },
				   .boundaries = { 0, 1, 2, 3 } };
static const char good_bin[] = "\1\0\2\0\3\0\4\0\5\0\6\0";

static void documents_are_read_end_to_end(void **state)
{
	const struct {
		struct index x;
		const char *bin;
		size_t len;
	} cases[] = {
		{ good, good_bin, 12 },
		/* Sequences at other offsets, with gaps and an empty sequence. */
		{ { .version = 1,
		    .type = 1,
		    .sequences = 4,
		    .documents = 3,
		    .n = 4,
		    .d = 3,
		    .lengths = { 3, 0, 1, 2 },
		    .pointers = { 5, 0, 0, 2 },
		    .boundaries = { 0, 1, 4 } },
		  "\4\0\5\6\0\1\2\3",
		  8 },
		{ { .version = 1,
		    .type = 5,
		    .sequences = 1,
		    .documents = 2,
		    .n = 1,
		    .d = 2,
		    .lengths = { 6 },
		    .boundaries = { 0, 1 } },
		  "\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0"
		  "\4\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0",
		  48 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct tokens_options o = { .source = in_dir("data"), .vocab = 7 };

		write_index("data", &cases[i].x, cases[i].bin, cases[i].len);
		o.source = in_dir("data");
		for (o.seq = 2; o.seq <= 6; o.seq++) {
			struct tokens *const t = must_open(&o);
			int32_t row[6];

			for (unsigned r = 0; r < 6 / o.seq; r++) {
				must_read(t, false, r, row);
				for (unsigned k = 0; k < o.seq; k++)
					assert_int_equal(row[k], r * o.seq + k + 1);
			}
			tokens_close(t);
		}
	}
}

static void indices_that_do_not_hold_together_are_refused(void **state)
{
	struct index x = good;
	struct tokens_options o = { .seq = 2, .vocab = 7 };

	write_index("bad", &x, good_bin, 12);
	o.source = in_dir("bad");
	tokens_close(must_open(&o));

#define REFUSED(member, value, says)                  \
	do {                                          \
		x = good;                             \
		x.member = value;                     \
		write_index("bad", &x, good_bin, 12); \
		o.source = in_dir("bad");             \
		must_not_open(&o, says);              \
	} while (0)

	REFUSED(version, 2, "unknown version 2");
	REFUSED(type, 0, "unknown token type 0");
	REFUSED(type, 9, "unknown token type 9");
	REFUSED(type, 7, "its tokens are float32");
	REFUSED(sequences, 1000, "too short for the tables");
	REFUSED(sequences, UINT64_MAX, "too short for the tables");
	REFUSED(sequences, UINT64_MAX / 4 + 2, "too short for the tables");
	REFUSED(documents, UINT64_MAX / 8 + 3, "too short for the tables");
	REFUSED(documents, 3, "longer than the tables");
	REFUSED(lengths[2], 3,
		"sequence 2, 3 tokens at byte 8, is not within"
		" the 12 bytes");
	REFUSED(lengths[1], UINT32_MAX, "sequence 1, -1 tokens");
	REFUSED(pointers[0], UINT64_MAX - 1, "sequence 0, 3 tokens at byte -2");
	REFUSED(boundaries[0], 1, "document boundary 0 is out of order");
	REFUSED(boundaries[2], 0, "document boundary 2 is out of order");
	REFUSED(boundaries[3], 4, "document boundary 3 is out of order");
	REFUSED(boundaries[3], 2, "its documents do not cover");
#undef REFUSED

	mkpt_save(in_dir("bad.idx"), "MMIDIDX", 7);
	o.source = in_dir("bad");
	must_not_open(&o, "shorter than the header");
	mkpt_save(in_dir("bad.idx"),
		  "NOTIT\0\0\0\0\1\0\0\0\0\0\0\0"
		  "\10\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
		  34);
	o.source = in_dir("bad");
	must_not_open(&o, "is not the index");
	assert_int_equal(unlink(in_dir("bad.bin")), 0);
	o.source = in_dir("bad");
	must_not_open(&o, "bad.bin");
}

static int set_up(void **state)
{
	dir = mkckpt_new_dir();
	return 0;
}

static int tear_down(void **state)
{
	mkckpt_free_dir(dir);
	return 0;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_demos_batch_is_torchs),
		cmocka_unit_test(fresh_rows_go_on_and_are_the_same_from_anywhere),
		cmocka_unit_test(synthetic_validation_is_another_batch),
		cmocka_unit_test(rows_of_numbers_and_of_bytes),
		cmocka_unit_test(rows_at_the_end_are_held_out),
		cmocka_unit_test(files_that_cannot_be_rows_are_refused),
		cmocka_unit_test(tokens_that_the_model_has_not_are_named),
		cmocka_unit_test(a_file_that_becomes_shorter_is_an_error),
		cmocka_unit_test(documents_are_read_end_to_end),
		cmocka_unit_test(indices_that_do_not_hold_together_are_refused),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
