/* SPDX-License-Identifier: Apache-2.0 */
/* Event files are read back as written; damage is detected, and records before it are not
 * lost. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "gpu/metrics/tbevents.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

/* The scalars that a reader receives, as text: "tag step value; " and "from step; ". */
struct events {
	char text[512];
	int stop; /* the callback's result */
};

static int note(void *ctx, const char *tag, size_t tag_len, uint64_t step, double value)
{
	struct events *const t = ctx;
	const size_t n = strlen(t->text);

	if (tag)
		snprintf(t->text + n, sizeof(t->text) - n, "%.*s %llu %g; ", (int)tag_len, tag,
			 (unsigned long long)step, value);
	else
		snprintf(t->text + n, sizeof(t->text) - n, "from %llu; ", (unsigned long long)step);
	return t->stop;
}

static int read_bytes(const void *p, size_t len, struct events *t, struct errmsg *err)
{
	struct source src;

	t->text[0] = '\0';
	snprintf(err->text, sizeof(err->text), "not set");
	source_init_span(&src, "events", (struct span){ p, len });
	return tbevents_read(&src, note, t, err);
}

/* Make a file of two steps, starting with step 5. */
static struct bytebuf make_file(void)
{
	const struct tbevents_scalar one[] = { { "train/loss", 4.5 } };
	const struct tbevents_scalar two[] = { { "train/loss", 4.25 }, { "valid/loss", -1 } };
	char *const dir = mkckpt_new_dir();
	struct tbevents t;
	struct dirent **names;
	struct bytebuf b;
	char path[PATH_MAX];
	struct errmsg err;
	int n;

	assert_int_equal(tbevents_create(&t, dir, 5, &err), 0);
	assert_int_equal(tbevents_add(&t, 5, one, 1, &err), 0);
	assert_int_equal(tbevents_add(&t, 300, two, 2, &err), 0);
	assert_int_equal(tbevents_close(&t, &err), 0);
	n = scandir(dir, &names, NULL, alphasort);
	assert_int_equal(n, 3);
	assert_non_null(strstr(names[2]->d_name, "events.out.tfevents."));
	snprintf(path, sizeof(path), "%s/%s", dir, names[2]->d_name);
	b = mkpt_load(path);
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	mkckpt_free_dir(dir);
	return b;
}

#define FIRST "from 5; train/loss 5 4.5; "
#define SECOND "train/loss 300 4.25; valid/loss 300 -1; "

static void checksums_are_tensorflows(void **state)
{
	/* RFC 3720's check value of CRC-32C is e3069283; masked as in
	 * tensorflow/core/lib/hash/crc32c.h. */
	const uint32_t crc = 0xe3069283u;

	assert_int_equal(tfrecord_crc("123456789", 9),
			 (uint32_t)((crc >> 15 | crc << 17) + 0xa282ead8u));
}

static void what_is_written_is_read(void **state)
{
	struct bytebuf b = make_file();
	struct events t = { "", 0 };
	struct errmsg err;

	assert_int_equal(read_bytes(b.data, b.len, &t, &err), 0);
	assert_string_equal(t.text, FIRST SECOND);
	assert_string_equal(err.text, "");
	t.stop = 3;
	assert_int_equal(read_bytes(b.data, b.len, &t, &err), 3);
	assert_string_equal(t.text, "from 5; ");
	bytebuf_done(&b);
}

static void a_file_that_was_cut_is_read_up_to_there(void **state)
{
	struct bytebuf b = make_file();
	struct events t = { "", 0 };
	struct errmsg err;

	for (size_t len = 0; len < b.len; len++) {
		assert_int_equal(read_bytes(b.data, len, &t, &err), 0);
		assert_int_equal(strncmp(FIRST SECOND, t.text, strlen(t.text)), 0);
		/* A file that ends between records causes no message. */
		assert_true(!*err.text || strstr(err.text, "ends within the record"));
	}
	assert_string_equal(t.text, FIRST);
	assert_non_null(strstr(err.text, "events: ends within"));
	bytebuf_done(&b);
}

static void damage_is_noticed_and_what_came_before_is_kept(void **state)
{
	struct bytebuf b = make_file();
	struct events t = { "", 0 };
	struct errmsg err;

	for (size_t i = 0; i < b.len; i++) {
		b.data[i] ^= 0x10;
		assert_int_equal(read_bytes(b.data, b.len, &t, &err), -EBADMSG);
		assert_int_equal(strncmp(FIRST SECOND, t.text, strlen(t.text)), 0);
		assert_non_null(strstr(err.text, "events: record at byte"));
		b.data[i] ^= 0x10;
	}
	assert_string_equal(t.text, FIRST);
	bytebuf_done(&b);
}

static void add_record(struct bytebuf *b, const void *p, size_t len)
{
	struct bytebuf head = { 0 };

	bytebuf_add_le64(&head, len);
	bytebuf_add(b, head.data, 8);
	bytebuf_add_le32(b, tfrecord_crc(head.data, 8));
	bytebuf_add(b, p, len);
	bytebuf_add_le32(b, tfrecord_crc(p, len));
	bytebuf_done(&head);
}

/* Messages that other programs may write. */
static void other_programs_events(void **state)
{
	static const struct {
		const char *event;
		size_t len;
		const char *expect;
		int rc;
	} cases[] = {
		{ "", 0, "", 0 },
		/* summary before step, value before tag */
		{ "\x2a\x0a\x0a\x08\x15\0\0\x80\x3f\x0a\1a\x10\7", 14, "a 7 1; ", 0 },
		/* a tensor: dtype float, float_val packed; then not packed */
		{ "\x2a\x0f\x0a\x0d\x0a\1t\x42\x08\x08\1\x2a\4\0\0\0\x40\x10\7", 19, "t 7 2; ", 0 },
		{ "\x2a\x0e\x0a\x0c\x0a\1t\x42\7\x08\1\x2d\0\0\0\x40\x10\7", 18, "t 7 2; ", 0 },
		/* dtype double, tensor_content */
		{ "\x2a\x13\x0a\x11\x0a\1t\x42\x0c\x08\2\x22\x08\0\0\0\0\0\0\x08\x40", 21,
		  "t 0 3; ", 0 },
		/* a tensor of two: no scalar; an image; unknown fields */
		{ "\x2a\x13\x0a\x11\x0a\1t\x42\x0c\x08\1\x22\x08\0\0\0\0\0\0\x08\x40", 21, "", 0 },
		{ "\x2a\x07\x0a\x05\x0a\1i\x22\0", 9, "", 0 },
		{ "\x78\1\x7d\1\2\3\4\x79\1\2\3\4\5\6\7\x08", 16, "", 0 },
		/* malformed: a length beyond the end, a varint without one, a group */
		{ "\x2a\x40\x0a", 3, "", -EBADMSG },
		{ "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12, "", -EBADMSG },
		{ "\x2b", 1, "", -EBADMSG },
		{ "\x2a\x03\x0a\x01\x0a", 5, "", -EBADMSG },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf b = { 0 };
		struct events t = { "", 0 };
		struct errmsg err;

		add_record(&b, cases[i].event, cases[i].len);
		if (read_bytes(b.data, b.len, &t, &err) != cases[i].rc ||
		    strcmp(t.text, cases[i].expect) != 0)
			fail_msg("case %zu: '%s' %s", i, t.text, err.text);
		bytebuf_done(&b);
	}
}

static void a_record_is_not_larger_than_the_limit(void **state)
{
	struct bytebuf b = { 0 };
	struct events t = { "", 0 };
	struct errmsg err;

	bytebuf_add_le64(&b, UINT64_MAX - 2);
	bytebuf_add_le32(&b, tfrecord_crc(b.data, 8));
	assert_int_equal(read_bytes(b.data, b.len, &t, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "too large"));
	bytebuf_done(&b);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(checksums_are_tensorflows),
		cmocka_unit_test(what_is_written_is_read),
		cmocka_unit_test(a_file_that_was_cut_is_read_up_to_there),
		cmocka_unit_test(damage_is_noticed_and_what_came_before_is_kept),
		cmocka_unit_test(other_programs_events),
		cmocka_unit_test(a_record_is_not_larger_than_the_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
