/* SPDX-License-Identifier: Apache-2.0 */
/* Number of requests for opening a file and finding its storages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/ptwrite.h"
#include "tests/support/unit.h"

#define STORAGES 6
#define STORAGE_LEN (200u << 10)

/* A file in memory that counts requests. */
struct counted {
	struct bytebuf bytes;
	uint64_t offset[STORAGES];
	unsigned reads;
};

static int counted_read(const struct source *s, void *buf, size_t len,
			uint64_t off, struct errmsg *err)
{
	struct counted *const c = s->ctx;

	(void)err;
	c->reads++;
	memcpy(buf, c->bytes.data + off, len);
	return 0;
}

static void counted_close(struct source *s)
{
	(void)s;
}

/* Make a torch.save file whose object is a string of `text` bytes. */
static void make_file(struct counted *c, uint32_t text)
{
	uint64_t len[STORAGES];
	struct bytebuf pickle = { 0 };
	struct ptwrite w;

	*c = (struct counted){ 0 };
	bytebuf_add(&pickle, "\x80\2X", 3);
	bytebuf_add_le32(&pickle, text);
	bytebuf_add_fill(&pickle, 'n', text);
	bytebuf_add_u8(&pickle, '.');
	for (size_t i = 0; i < STORAGES; i++)
		len[i] = STORAGE_LEN + 4 * i;
	assert_int_equal(
		ptwrite_init(&w, "shard", &pickle, len, STORAGES, NULL), 0);
	memcpy(c->offset, w.offset, sizeof(c->offset));
	for (size_t i = 0; i <= STORAGES; i++) {
		assert_int_equal(ptwrite_literal(&w, i, NULL, &c->bytes, NULL),
				 0);
		if (i < STORAGES)
			bytebuf_add_fill(&c->bytes, 's', len[i]);
	}
	ptwrite_done(&w);
}

static void open_file(struct counted *c, struct ptfile *pt)
{
	static const struct source_ops ops = { .read = counted_read,
					       .close = counted_close };
	const struct source src = { .name = "shard.pt",
				    .size = c->bytes.len,
				    .fd = -1,
				    .ops = &ops,
				    .ctx = c };
	struct errmsg err = { "" };

	if (ptfile_open_source(pt, &src, &err))
		fail_msg("%s", err.text);
}

/* Requests read both ends, and the part of the pickle beyond the first read. */
static void three_requests_find_all_storages(void **state)
{
	static const struct {
		uint32_t text;
		unsigned reads;
	} cases[] = { { 100, 2 }, { 15000, 2 }, { 16200, 3 }, { 3000000, 3 } };

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct counted c;
		struct ptfile pt;

		make_file(&c, cases[i].text);
		open_file(&c, &pt);
		for (size_t k = 0; k < STORAGES; k++) {
			char key[8];
			uint64_t at;

			snprintf(key, sizeof(key), "%zu", k);
			assert_int_equal(ptfile_storage(&pt, key, STORAGE_LEN,
							&at, NULL),
					 0);
			assert_int_equal(at, c.offset[k]);
		}
		assert_int_equal(c.reads, cases[i].reads);
		ptfile_close(&pt);
		bytebuf_done(&c.bytes);
	}
}

/* Extra bytes between members: only the local header says where the first one begins. */
static void another_layout_is_read_from_headers(void **state)
{
	struct counted c;
	struct ptfile pt;
	uint64_t at;

	(void)state;
	make_file(&c, 100);
	open_file(&c, &pt);
	pt.zip.entries[zip_find(&pt.zip, "data/3") - pt.zip.entries].end += 64;
	assert_int_equal(ptfile_storage(&pt, "3", STORAGE_LEN, &at, NULL), 0);
	assert_int_equal(at, c.offset[3]);
	assert_int_equal(c.reads, 3);
	ptfile_close(&pt);
	bytebuf_done(&c.bytes);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(three_requests_find_all_storages),
		cmocka_unit_test(another_layout_is_read_from_headers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
