/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/context.h"
#include "tests/support/made.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/crc32.h"
#include "ckpt/format/cast.h"
#include "ckpt/vfile/gather.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"

void made_shards_make(struct made_shards *f)
{
	uint64_t s = 42;

	f->dir = mkckpt_new_dir();
	f->c = shards_new(test_context());
	for (unsigned i = 0; i < SHARDS; i++) {
		struct fileid id;
		struct stat st;

		f->bytes[i] = malloc(SHARD_LEN);
		for (size_t k = 0; k < SHARD_LEN; k++)
			f->bytes[i][k] = (uint8_t)(test_random(&s) >> 32);
		snprintf(f->path[i], sizeof(f->path[i]), "%s/%u", f->dir, i);
		mkpt_save(f->path[i], f->bytes[i], SHARD_LEN);
		assert_int_equal(stat(f->path[i], &st), 0);
		fileid_from_stat(&st, &id);
		assert_int_equal(shards_add(f->c, f->path[i], &id), i);
	}
}

void made_shards_done(struct made_shards *f)
{
	shards_free(f->c);
	for (unsigned i = 0; i < SHARDS; i++)
		free(f->bytes[i]);
	mkckpt_free_dir(f->dir);
}

/* Add a run of a shard at the end of a storage. */
static void add_run(const struct made_shards *f, struct extent_map *m, struct bytebuf *data,
		    uint64_t *s, uint64_t most)
{
	const uint32_t shard = (uint32_t)(test_random(s) % SHARDS);
	const uint64_t n = 1 + test_random(s) % (most / 4);
	const uint64_t from = test_random(s) % (SHARD_LEN - 4 * n);

	if (test_random(s) % 8 == 0) {
		assert_true(extent_add(m, EXTENT_ZERO, 4 * n, 0, 0, DTYPE_U8));
		bytebuf_add_fill(data, 0, 4 * n);
		return;
	}
	if (test_random(s) % 4 == 0) { /* add n elements with a cast */
		static const enum dtype types[][2] = {
			{ DTYPE_BF16, DTYPE_F32 },
			{ DTYPE_F32, DTYPE_BF16 },
			{ DTYPE_F32, DTYPE_F16 },
			{ DTYPE_BF16, DTYPE_F16 },
		};
		const enum dtype *t = types[test_random(s) % 4];
		uint8_t *out = malloc(n * sizeof(float));

		cast(t[0], f->bytes[shard] + from, t[1], out, n);
		assert_true(extent_add_cast(m, n, shard, from, t[0], t[1]));
		bytebuf_add(data, out, n * dtype_size(t[1]));
		free(out);
		return;
	}
	assert_true(extent_add(m, EXTENT_SHARD, 4 * n, shard, from, DTYPE_F32));
	bytebuf_add(data, f->bytes[shard] + from, 4 * n);
}

static void put_together(struct made *m, const struct ptwrite *w, const struct bytebuf *data,
			 bool sums)
{
	struct bytebuf b = { 0 };

	for (size_t i = 0; i <= w->n; i++) {
		assert_int_equal(ptwrite_literal(w, i, sums ? m->sums : NULL, &b, NULL), 0);
		if (i < w->n)
			bytebuf_add(&b, data[i].data, data[i].len);
	}
	m->whole = b.data;
	m->size = b.len;
}

static void make_file(const struct made_shards *f, struct made *m, size_t n, vfile_crc *crc,
		      uint64_t seed)
{
	struct extent_map maps[MADE_STORAGES] = { 0 };
	struct bytebuf data[MADE_STORAGES] = { 0 }, pickle = { 0 };
	uint64_t len[MADE_STORAGES], s = seed * 2654435761 | 1;
	struct ptwrite w;

	*m = (struct made){ .n = n };
	for (size_t i = 0; i < n; i++) {
		const unsigned runs = i == 2 ? 0 : 1 + test_random(&s) % 40;

		for (unsigned k = 0; k < runs; k++)
			add_run(f, &maps[i], &data[i], &s, k % 2 ? 400 : 20000);
		len[i] = data[i].len;
		m->sums[i] = crc32_add(0, data[i].data, data[i].len);
	}
	bytebuf_add(&pickle, "N.", 2);
	assert_int_equal(ptwrite_init(&w, "x", &pickle, len, n, NULL), 0);
	put_together(m, &w, data, crc != NULL);
	m->f = vfile_new_pt(f->c, &w, maps, &(struct gathers){ 0 }, crc, NULL);
	assert_non_null(m->f);
	assert_int_equal(vfile_size(m->f), m->size);
	for (size_t i = 0; i < n; i++) {
		extent_done(&maps[i]);
		bytebuf_done(&data[i]);
	}
}

void made_file(const struct made_shards *f, struct made *m, size_t n, bool sums, uint64_t seed)
{
	make_file(f, m, n, sums ? m->crc : NULL, seed);
}

void made_again(const struct made_shards *f, struct made *m, struct made *of, uint64_t seed)
{
	make_file(f, m, of->n, of->crc, seed);
}

void made_done(struct made *m)
{
	vfile_free(m->f);
	free(m->whole);
}

bool made_read_is_right(struct made *m, uint8_t *buf, size_t len, uint64_t off)
{
	const size_t left = off < m->size ? (size_t)(m->size - off) : 0;
	const size_t expect = len < left ? len : left;
	const int64_t got = vfile_read(m->f, buf, len, off, NULL);

	return got == (int64_t)expect && (!expect || memcmp(buf, m->whole + off, expect) == 0);
}

bool made_map_is_right(struct made *m, size_t len, uint64_t off)
{
	struct reply_pieces *w = malloc(sizeof(*w));
	const size_t left = off < m->size ? (size_t)(m->size - off) : 0;
	const size_t expect = len < left ? len : left;
	size_t at = 0;
	bool ok = w && vfile_map(m->f, len, off, w, NULL) == 0 && w->len == expect;

	for (int i = 0; ok && i < w->n; i++) {
		ok = at + w->iov[i].iov_len <= expect &&
		     memcmp(w->iov[i].iov_base, m->whole + off + at, w->iov[i].iov_len) == 0;
		at += w->iov[i].iov_len;
	}
	ok = ok && at == expect;
	if (w)
		vfile_unmap(m->f, w, ok);
	free(w);
	return ok;
}

bool made_pieces_are_right(struct made *m, uint64_t seed, unsigned n)
{
	uint8_t *buf = malloc(m->size + 16);
	uint64_t s = seed * 2654435761 | 1;
	bool ok = buf != NULL;

	for (unsigned i = 0; ok && i < n; i++) {
		const uint64_t off = test_random(&s) % (m->size + 4);
		const size_t len = test_random(&s) % (i % 2 ? 300 : m->size / 2 + 4);

		ok = i % 3 ? made_read_is_right(m, buf, len, off) : made_map_is_right(m, len, off);
	}
	ok = ok && made_read_is_right(m, buf, m->size + 16, 0);
	free(buf);
	return ok;
}

void made_check_sums(const struct made *m)
{
	for (size_t i = 0; i < m->n; i++)
		assert_true(atomic_load(&m->crc[i]) == (VFILE_CRC_KNOWN | m->sums[i]));
}

uint64_t made_trailer(const struct made *m)
{
	const struct extent_map *map = vfile_extents(m->f);

	return map->v[map->n - 1].start;
}
