/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's samples of an indexed dataset: three arrays give their positions, and inconsistent
 * arrays are refused.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "gpu/data/tokens.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

static char *dir;

static const char *in_dir(const char *name)
{
	static char paths[4][PATH_MAX];
	static unsigned next;
	char *const path = paths[next++ % COUNT(paths)];

	snprintf(path, PATH_MAX, "%s/%s", dir, name);
	return path;
}

/* Write three documents of uint16: 1 2 3 | 4 | 5 6 */
static void write_data(void)
{
	static const uint32_t lengths[] = { 3, 1, 2 }, at[] = { 0, 6, 8 };
	struct bytebuf b = { 0 };

	bytebuf_add(&b, "MMIDIDX\0", 9);
	bytebuf_add_le64(&b, 1);
	bytebuf_add_u8(&b, 8);
	bytebuf_add_le64(&b, 3);
	bytebuf_add_le64(&b, 4);
	for (size_t i = 0; i < 3; i++)
		bytebuf_add_le32(&b, lengths[i]);
	for (size_t i = 0; i < 3; i++)
		bytebuf_add_le64(&b, at[i]);
	for (size_t i = 0; i < 4; i++)
		bytebuf_add_le64(&b, i);
	mkpt_save(in_dir("data.idx"), b.data, b.len);
	mkpt_save(in_dir("data.bin"), "\1\0\2\0\3\0\4\0\5\0\6\0", 12);
	bytebuf_done(&b);
}

/* An array that is written like numpy.save's. */
struct array {
	const char *type, *shape;
	size_t n;
	int64_t v[12];
	size_t cut;      /* bytes missing at the end */
	uint8_t version; /* 0: version 1 */
};

static void write_array(const char *name, const struct array *a)
{
	struct bytebuf b = { 0 };
	char header[119];

	memset(header, ' ', sizeof(header));
	snprintf(header, sizeof(header), "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
		 a->type, a->shape);
	header[strlen(header)] = ' ';
	header[sizeof(header) - 1] = '\n';
	bytebuf_add(&b, "\x93NUMPY", 6);
	bytebuf_add_u8(&b, a->version ? a->version : 1);
	bytebuf_add_u8(&b, 0);
	bytebuf_add_u8(&b, sizeof(header));
	bytebuf_add_u8(&b, 0);
	bytebuf_add(&b, header, sizeof(header));
	for (size_t i = 0; i < a->n; i++)
		if (strcmp(a->type, "<i8") == 0)
			bytebuf_add_le64(&b, (uint64_t)a->v[i]);
		else
			bytebuf_add_le32(&b, (uint32_t)a->v[i]);
	mkpt_save(in_dir(name), b.data, b.len - a->cut);
	bytebuf_done(&b);
}

/* Documents 5 6 | 1 2 3 | 4, and samples of them that overlap by a token. */
struct arrays {
	struct array documents, starts, order;
};

static const struct arrays good = {
	{ "<i4", "(3,)", 3, { 2, 0, 1 }, 0, 0 },
	{ "<i8", "(6, 2)", 12, { 0, 0, 0, 1, 1, 0, 1, 1, 1, 2, 2, 0 }, 0, 0 },
	{ "<u4", "(5,)", 5, { 3, 0, 4, 1, 2 }, 0, 0 },
};

static int open_arrays(const struct arrays *a, unsigned seq, struct tokens **t, struct errmsg *err)
{
	static char samples[PATH_MAX], source[PATH_MAX];
	const struct tokens_options o = {
		.source = source, .samples = samples, .batch = 1, .seq = seq, .vocab = 7
	};

	snprintf(samples, sizeof(samples), "%s", in_dir("some"));
	snprintf(source, sizeof(source), "%s", in_dir("data"));
	write_array("some_doc_idx.npy", &a->documents);
	write_array("some_sample_idx.npy", &a->starts);
	write_array("some_shuffle_idx.npy", &a->order);
	return tokens_open(t, &o, err);
}

static void rows_are_samples_in_the_order_of_training(void **state)
{
	static const int32_t want[][2] = { { 2, 3 }, { 5, 6 }, { 3, 4 },
					   { 6, 1 }, { 1, 2 }, { 2, 3 } };
	struct tokens *t;
	struct errmsg err;

	if (open_arrays(&good, 1, &t, &err))
		fail_msg("%s", err.text);
	assert_int_equal(tokens_row_len(t), 2);
	assert_int_equal(tokens_valid_rows(t), 0);
	for (uint64_t row = 0; row < COUNT(want); row++) {
		int32_t got[2];

		assert_int_equal(tokens_row(t, false, row, got, &err), 0);
		assert_memory_equal(got, want[row], sizeof(got));
	}
	tokens_close(t);
}

static void arrays_that_do_not_hold_together_are_refused(void **state)
{
	struct arrays a;
	struct tokens *t;
	struct errmsg err;

#define REFUSED(change, says)                                    \
	do {                                                     \
		a = good;                                        \
		change;                                          \
		if (open_arrays(&a, 1, &t, &err) == 0)           \
			fail_msg("%s: was accepted", #change);   \
		if (!strstr(err.text, says))                     \
			fail_msg("%s: '%s'", #change, err.text); \
	} while (0)

	REFUSED(a.documents.v[1] = 3, "sample 0 is not 2 tokens");
	REFUSED(a.documents.v[1] = -1, "sample 0 is not 2 tokens");
	REFUSED(a.documents.n = 1, "sample 0 is not 2 tokens");
	REFUSED(a.starts.v[7] = 3, "sample 0 is not 2 tokens");
	REFUSED(a.starts.v[7] = -1, "sample 0 is not 2 tokens");
	REFUSED(a.starts.v[8] = INT64_MAX, "sample 0 is not 2 tokens");
	REFUSED(a.starts.v[8] = 0, "sample 0 is not 2 tokens");
	REFUSED(a.order.v[0] = 5, "sample 0 is not 2 tokens");
	REFUSED(a.order.v[0] = -1, "sample 0 is not 2 tokens");
	REFUSED(a.starts.n = 10, "have 5 samples and 5 starts");
	REFUSED(a.order.n = 0, "have 0 samples");
	REFUSED(a.starts.shape = "(12,)", "another shape");
	REFUSED(a.documents.shape = "(3, 2)", "another shape");
	REFUSED(a.documents.type = "<f4", "no integers of 4 or 8 bytes");
	REFUSED(a.documents.cut = 1, "cut off");
	REFUSED(a.starts.cut = 8, "cut off");
	REFUSED(a.starts.cut = 12 * 8 + 100, "some_sample_idx.npy");
	REFUSED(a.starts.version = 3, "not an array of NumPy");
#undef REFUSED
	a = good;
	if (open_arrays(&a, 2, &t, &err) == 0)
		fail_msg("rows of another length: were accepted");
	assert_non_null(strstr(err.text, "sample 0 is not 3 tokens"));
}

/* Samples after the first are checked when they are read. */
static void bad_samples_are_errors(void **state)
{
	struct arrays a = good;
	struct tokens *t;
	struct errmsg err;
	int32_t row[2];

	a.documents.v[0] = 7;
	if (open_arrays(&a, 1, &t, &err))
		fail_msg("%s", err.text);
	assert_int_equal(tokens_row(t, false, 0, row, &err), 0);
	assert_int_equal(tokens_row(t, false, 1, row, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "some: sample 1 is not 2 tokens"));
	tokens_close(t);
}

static int set_up(void **state)
{
	dir = mkckpt_new_dir();
	write_data();
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
		cmocka_unit_test(rows_are_samples_in_the_order_of_training),
		cmocka_unit_test(arrays_that_do_not_hold_together_are_refused),
		cmocka_unit_test(bad_samples_are_errors),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
