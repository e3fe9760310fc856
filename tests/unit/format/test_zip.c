/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The zip reader on archives in memory that are wrong in one place each.  They
 * are assembled field by field (PKWARE APPNOTE 4.3); the library's writer could
 * not write them.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/zip.h"
#include "tests/support/unit.h"

#define MEMBERS_MAX 8

/* A member as the directory describes it; the member itself was written when it
 * was added. */
struct member {
	const char *name;
	size_t name_len;
	uint64_t size, csize, header;
	uint16_t method, flags;
	bool zip64;          /* sizes and offset go to the extra field */
	const char *comment; /* NULL: none */
};

struct archive {
	struct bytebuf b;
	struct member m[MEMBERS_MAX];
	size_t n;
	/* Values of the end records; UINT64_MAX: the true ones. */
	uint64_t count, size, offset;
	uint64_t end64_at;
	bool no_zip64;
	const char *comment;
};

static struct archive archive_new(void)
{
	return (struct archive){ .count = UINT64_MAX,
				 .size = UINT64_MAX,
				 .offset = UINT64_MAX,
				 .end64_at = UINT64_MAX,
				 .comment = "" };
}

static struct member *add(struct archive *a, const char *name, const char *data)
{
	const size_t len = strlen(data), name_len = strlen(name);
	struct member *const m = &a->m[a->n++];

	assert_true(a->n <= MEMBERS_MAX);
	*m = (struct member){ .name = name,
			      .name_len = name_len,
			      .size = len,
			      .csize = len,
			      .header = a->b.len };
	bytebuf_add_le32(&a->b, 0x04034b50);
	bytebuf_add_fill(&a->b, 0, 22);
	bytebuf_add_le16(&a->b, (uint16_t)name_len);
	bytebuf_add_le16(&a->b, 5); /* length of an extra field, such as torch's padding */
	bytebuf_add(&a->b, name, name_len);
	bytebuf_add(&a->b, "FB\1\0Z", 5);
	bytebuf_add(&a->b, data, len);
	return m;
}

static void add_central(struct bytebuf *b, const struct member *m)
{
	const size_t comment = m->comment ? strlen(m->comment) : 0;
	const uint32_t ones = UINT32_MAX;

	bytebuf_add_le32(b, 0x02014b50);
	bytebuf_add_le32(b, 0);
	bytebuf_add_le16(b, m->flags);
	bytebuf_add_le16(b, m->method);
	bytebuf_add_le32(b, 0);
	bytebuf_add_le32(b, 0x1234); /* CRC, which the reader ignores */
	bytebuf_add_le32(b, m->zip64 ? ones : (uint32_t)m->csize);
	bytebuf_add_le32(b, m->zip64 ? ones : (uint32_t)m->size);
	bytebuf_add_le16(b, (uint16_t)m->name_len);
	bytebuf_add_le16(b, m->zip64 ? 28 : 0);
	bytebuf_add_le16(b, (uint16_t)comment);
	bytebuf_add_fill(b, 0, 8);
	bytebuf_add_le32(b, m->zip64 ? ones : (uint32_t)m->header);
	bytebuf_add(b, m->name, m->name_len);
	if (m->zip64) {
		bytebuf_add_le16(b, 1);
		bytebuf_add_le16(b, 24);
		bytebuf_add_le64(b, m->size);
		bytebuf_add_le64(b, m->csize);
		bytebuf_add_le64(b, m->header);
	}
	bytebuf_add(b, m->comment ? m->comment : "", comment);
}

static uint64_t truth_or(uint64_t claim, uint64_t truth)
{
	return claim == UINT64_MAX ? truth : claim;
}

static void finish(struct archive *a)
{
	struct bytebuf *const b = &a->b;
	const uint64_t offset = truth_or(a->offset, b->len);
	const uint64_t at = b->len;

	for (size_t i = 0; i < a->n; i++)
		add_central(b, &a->m[i]);

	const uint64_t size = truth_or(a->size, b->len - at);
	const uint64_t count = truth_or(a->count, a->n);
	const uint64_t end64 = truth_or(a->end64_at, b->len);

	if (!a->no_zip64) {
		bytebuf_add_le32(b, 0x06064b50);
		bytebuf_add_le64(b, 44);
		bytebuf_add_fill(b, 0, 12);
		bytebuf_add_le64(b, count);
		bytebuf_add_le64(b, count);
		bytebuf_add_le64(b, size);
		bytebuf_add_le64(b, offset);
		bytebuf_add_le32(b, 0x07064b50);
		bytebuf_add_le32(b, 0);
		bytebuf_add_le64(b, end64);
		bytebuf_add_le32(b, 1);
	}
	bytebuf_add_le32(b, 0x06054b50);
	bytebuf_add_le32(b, 0);
	bytebuf_add_le16(b, (uint16_t)count);
	bytebuf_add_le16(b, (uint16_t)count);
	bytebuf_add_le32(b, (uint32_t)size);
	bytebuf_add_le32(b, (uint32_t)offset);
	bytebuf_add_le16(b, (uint16_t)strlen(a->comment));
	bytebuf_add(b, a->comment, strlen(a->comment));
}

/* Call zip_open on a heap copy of exactly the archive's length, so that ASan reports reads beyond
 * it. */
struct opened {
	uint8_t *copy;
	struct source src;
	struct zip zip;
	struct errmsg err;
	int rc;
};

static void open_bytes(struct opened *o, const uint8_t *p, size_t len)
{
	*o = (struct opened){ .copy = malloc(len ? len : 1) };
	if (len)
		memcpy(o->copy, p, len);
	source_init_span(&o->src, "a.pt", (struct span){ o->copy, len });
	o->rc = zip_open(&o->zip, &o->src, &o->err);
}

static void opened_done(struct opened *o)
{
	if (!o->rc)
		zip_close(&o->zip);
	free(o->copy);
}

/* The same for an archive, which is freed. */
static void open_archive(struct opened *o, struct archive *a)
{
	finish(a);
	open_bytes(o, a->b.data, a->b.len);
	bytebuf_done(&a->b);
}

static void check_refused(struct archive *a, int rc, const char *says)
{
	struct opened o;

	open_archive(&o, a);
	if (o.rc != rc || !strstr(o.err.text, says) ||
	    strncmp(o.err.text, "a.pt: ", 6) != 0)
		fail_msg("expected \"%s\", got \"%s\" (%s)", says, o.err.text,
			 strerror(-o.rc));
	opened_done(&o);
}

static void check_member(const struct opened *o, const char *name,
			 const char *data)
{
	const struct zip_entry *const e = zip_find(&o->zip, name);
	struct errmsg err = { "" };
	uint64_t at = 0;

	assert_non_null(e);
	assert_int_equal(e->size, strlen(data));
	if (zip_locate(&o->zip, e, &at, &err))
		fail_msg("%s", err.text);
	assert_memory_equal(o->copy + at, data, strlen(data));
}

static void members_are_found(void **state)
{
	/* With and without ZIP64 records, comments, ZIP64 entry fields. */
	for (unsigned variant = 0; variant < 8; variant++) {
		struct archive a = archive_new();
		struct opened o;

		add(&a, "p/data.pkl", "pickle");
		add(&a, "p/data/0", "")->zip64 = variant & 1;
		add(&a, "p/data/1", "one")->comment = variant & 4 ? "c" : NULL;
		add(&a, "p/version", "3\n")->zip64 = variant & 1;
		a.no_zip64 = variant & 2;
		a.comment = variant & 4 ? "written by hand" : "";
		open_archive(&o, &a);
		assert_int_equal(o.rc, 0);
		assert_int_equal(o.zip.n, 4);
		assert_string_equal(o.zip.prefix, "p/");
		check_member(&o, "data.pkl", "pickle");
		check_member(&o, "data/0", "");
		check_member(&o, "data/1", "one");
		check_member(&o, "version", "3\n");
		assert_null(zip_find(&o.zip, "data/2"));
		assert_null(zip_find(&o.zip, ""));
		assert_null(zip_find(&o.zip, "p/version"));
		opened_done(&o);
	}
}

/* Like torch, read only the folder of the first member. */
static void members_of_other_folders_are_ignored(void **state)
{
	struct archive a = archive_new();
	struct opened o;

	add(&a, "p/version", "3\n");
	add(&a, "q/data.pkl", "evil");
	add(&a, "pp/data.pkl", "evil");
	add(&a, "p/", "a folder");
	open_archive(&o, &a);
	assert_int_equal(o.rc, 0);
	assert_int_equal(o.zip.n, 1);
	assert_null(zip_find(&o.zip, "data.pkl"));
	opened_done(&o);
}

static void directory_in_any_order_is_read(void **state)
{
	struct archive a = archive_new();
	struct member swap;
	struct opened o;

	add(&a, "p/a", "AA");
	add(&a, "p/b", "B");
	swap = a.m[0];
	a.m[0] = a.m[1];
	a.m[1] = swap;
	open_archive(&o, &a);
	assert_int_equal(o.rc, 0);
	check_member(&o, "a", "AA");
	check_member(&o, "b", "B");
	opened_done(&o);
}

/* The end record is found behind a comment of maximal length. */
static void longest_comment_is_skipped(void **state)
{
	struct archive a = archive_new();
	char *const comment = malloc(65536);
	struct opened o;

	memset(comment, 'x', 65535);
	comment[65535] = '\0';
	add(&a, "p/a", "A");
	a.comment = comment;
	open_archive(&o, &a);
	assert_int_equal(o.rc, 0);
	check_member(&o, "a", "A");
	opened_done(&o);
	free(comment);
}

static void every_truncation_is_refused(void **state)
{
	struct archive a = archive_new();

	add(&a, "p/data.pkl", "pickle");
	add(&a, "p/data/0", "0123456789");
	finish(&a);
	for (size_t n = 0; n < a.b.len; n++) {
		struct opened o;

		open_bytes(&o, a.b.data, n);
		assert_int_equal(o.rc, -EBADMSG);
		assert_non_null(strstr(o.err.text, "truncated?"));
		opened_done(&o);
	}
	bytebuf_done(&a.b);
}

/* Flip one bit at a time: an archive that still opens must not point outside itself. */
static void no_flipped_bit_leads_outside(void **state)
{
	struct archive a = archive_new();

	add(&a, "p/data.pkl", "pickle");
	add(&a, "p/data/0", "0123456789")->zip64 = true;
	finish(&a);
	for (size_t bit = 0; bit < 8 * a.b.len; bit++) {
		struct opened o;

		a.b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
		open_bytes(&o, a.b.data, a.b.len);
		for (size_t i = 0; !o.rc && i < o.zip.n; i++) {
			const struct zip_entry *const e = &o.zip.entries[i];
			uint64_t at;

			if (zip_locate(&o.zip, e, &at, &o.err) == 0)
				assert_true(at <= a.b.len &&
					    e->size <= a.b.len - at);
		}
		opened_done(&o);
		a.b.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	bytebuf_done(&a.b);
}

static struct archive two_members(void)
{
	struct archive a = archive_new();

	add(&a, "p/data.pkl", "pickle");
	add(&a, "p/data/0", "0123456789");
	return a;
}

static void lying_members_are_refused(void **state)
{
	static const struct {
		const char *says;
		size_t field; /* offset of a field in the second member's entry */
		uint64_t value;
		unsigned width;
		bool zip64;
	} cases[] = {
#define FIELD(f, v) \
	offsetof(struct member, f), (v), sizeof(((struct member *)0)->f)
		{ "data/0: 11 bytes", FIELD(size, 11), false },
		{ "do not fit", FIELD(csize, 9), false },
		{ "data/0 is compressed", FIELD(method, 8), false },
		{ "data/0 is encrypted", FIELD(flags, 1), false },
		{ "do not fit", FIELD(header, 1000000), false },
		{ "do not fit", FIELD(header, UINT64_MAX), true },
		{ "do not fit", FIELD(header, UINT64_MAX - 47), true },
		{ "overlap", FIELD(header, 0), false },
		{ "overlap", FIELD(header, 3), false },
		{ "malformed", FIELD(name_len, 0), false },
#undef FIELD
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct archive a = two_members();

		a.m[1].zip64 = cases[i].zip64;
		memcpy((char *)&a.m[1] + cases[i].field, &cases[i].value,
		       cases[i].width);
		check_refused(&a, -EBADMSG, cases[i].says);
	}
}

/* Sizes that overflow only when they are added up. */
static void huge_sizes_do_not_wrap(void **state)
{
	static const uint64_t sizes[] = { UINT64_MAX, UINT64_MAX - 38,
					  UINT64_MAX - 37, INT64_MAX,
					  UINT64_C(1) << 32 };

	for (size_t i = 0; i < COUNT(sizes); i++) {
		struct archive a = two_members();

		a.m[1].zip64 = true;
		a.m[1].size = a.m[1].csize = sizes[i];
		check_refused(&a, -EBADMSG, "do not fit");
	}
}

static void a_member_is_there_once(void **state)
{
	struct archive a = archive_new();

	add(&a, "p/data.pkl", "one");
	add(&a, "p/data/0", "x");
	add(&a, "p/data.pkl", "two");
	check_refused(&a, -EBADMSG, "data.pkl is there twice");
}

/* Two entries with one local header would return the same bytes. */
static void members_do_not_share_bytes(void **state)
{
	struct archive a = two_members();

	a.m[a.n] = a.m[1];
	a.m[a.n++].name = "p/data/1";
	check_refused(&a, -EBADMSG, "overlap");
}

static void names_are_checked(void **state)
{
	struct archive a = two_members();

	a.m[1].name = "p/da\0a/0";
	a.m[1].name_len = 8;
	check_refused(&a, -EBADMSG, "malformed");
	a = archive_new();
	add(&a, "data.pkl", "x");
	check_refused(&a, -EBADMSG, "in no folder");
	a = archive_new();
	check_refused(&a, -EBADMSG, "empty zip archive");
	a = archive_new();
	add(&a, "p/", "nothing else");
	check_refused(&a, -EBADMSG, "empty zip archive");
}

static void lying_end_records_are_refused(void **state)
{
	static const struct {
		uint64_t count, size, offset;
		int rc;
		const char *says;
	} cases[] = {
#define TRUE_ UINT64_MAX
		{ 3, TRUE_, TRUE_, -E2BIG, "over the limit" },
		{ ZIP_ENTRIES_MAX + 1, TRUE_, TRUE_, -E2BIG, "over the limit" },
		{ UINT64_MAX - 1, TRUE_, TRUE_, -E2BIG, "over the limit" },
		{ TRUE_, 1000000, TRUE_, -EBADMSG, "truncated?" },
		{ TRUE_, UINT64_MAX - 1, TRUE_, -EBADMSG, "truncated?" },
		{ TRUE_, TRUE_, 1000000, -EBADMSG, "truncated?" },
		{ TRUE_, TRUE_, UINT64_MAX - 1, -EBADMSG, "truncated?" },
		{ TRUE_, TRUE_, 0, -EBADMSG, "entry 0 is malformed" },
		{ TRUE_, 92, TRUE_, -EBADMSG, "malformed" },
		{ TRUE_, 10, TRUE_, -E2BIG, "over the limit" },
#undef TRUE_
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct archive a = two_members();

		a.count = cases[i].count;
		a.size = cases[i].size;
		a.offset = cases[i].offset;
		check_refused(&a, cases[i].rc, cases[i].says);
	}
}

static void zip64_locator_must_lead_to_its_record(void **state)
{
	static const uint64_t places[] = { 0, 1, 1000000, UINT64_MAX - 1,
					   UINT64_MAX - 60 };

	for (size_t i = 0; i < COUNT(places); i++) {
		struct archive a = two_members();

		a.end64_at = places[i];
		check_refused(&a, -EBADMSG, "zip64 end record");
	}
}

static void zip64_field_must_hold_what_is_asked_of_it(void **state)
{
	struct archive a = two_members();
	struct opened o;
	uint8_t *at;

	a.m[1].zip64 = true;
	finish(&a);
	/* The extra field's own length: 24 becomes 16, the offset is gone. */
	at = memmem(a.b.data, a.b.len, "\1\0\x18\0", 4);
	assert_non_null(at);
	for (unsigned n = 0; n < 65536; n += n < 40 ? 1 : 13107) {
		if (n == 24)
			continue;
		at[2] = (uint8_t)n;
		at[3] = (uint8_t)(n >> 8);
		open_bytes(&o, a.b.data, a.b.len);
		assert_int_equal(o.rc, -EBADMSG);
		assert_non_null(strstr(o.err.text, "bad zip64 field"));
		opened_done(&o);
	}
	bytebuf_done(&a.b);
}

static void local_header_must_agree(void **state)
{
	static const struct {
		size_t off; /* offset in the second member's local header */
		uint8_t byte;
		const char *says;
	} cases[] = {
		{ 0, 'X', "no local header of member data/0" },
		{ 26, 7, "no local header" },   /* name length */
		{ 30, 'q', "no local header" }, /* prefix */
		{ 37, '1', "no local header" }, /* name */
		{ 28, 6, "run into" },          /* extra length */
		{ 29, 255, "run into" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct archive a = two_members();
		struct errmsg err = { "" };
		struct opened o;
		uint64_t at;

		a.b.data[a.m[1].header + cases[i].off] = cases[i].byte;
		open_archive(&o, &a);
		assert_int_equal(o.rc, 0);
		assert_int_equal(zip_locate(&o.zip, zip_find(&o.zip, "data/0"),
					    &at, &err),
				 -EBADMSG);
		assert_non_null(strstr(err.text, cases[i].says));
		check_member(&o, "data.pkl", "pickle");
		opened_done(&o);
	}
}

/* A local extra field, which the directory does not show, must not extend a member into the next
 * one. */
static void local_extra_may_not_push_data_into_the_next(void **state)
{
	struct archive a = two_members();
	struct errmsg err = { "" };
	struct opened o;
	uint64_t at;

	a.b.data[28] = 6;
	open_archive(&o, &a);
	assert_int_equal(o.rc, 0);
	assert_int_equal(
		zip_locate(&o.zip, zip_find(&o.zip, "data.pkl"), &at, &err),
		-EBADMSG);
	assert_non_null(strstr(err.text, "run into what follows"));
	opened_done(&o);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_are_found),
		cmocka_unit_test(members_of_other_folders_are_ignored),
		cmocka_unit_test(directory_in_any_order_is_read),
		cmocka_unit_test(longest_comment_is_skipped),
		cmocka_unit_test(every_truncation_is_refused),
		cmocka_unit_test(no_flipped_bit_leads_outside),
		cmocka_unit_test(lying_members_are_refused),
		cmocka_unit_test(huge_sizes_do_not_wrap),
		cmocka_unit_test(a_member_is_there_once),
		cmocka_unit_test(members_do_not_share_bytes),
		cmocka_unit_test(names_are_checked),
		cmocka_unit_test(lying_end_records_are_refused),
		cmocka_unit_test(zip64_locator_must_lead_to_its_record),
		cmocka_unit_test(zip64_field_must_hold_what_is_asked_of_it),
		cmocka_unit_test(local_header_must_agree),
		cmocka_unit_test(local_extra_may_not_push_data_into_the_next),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
