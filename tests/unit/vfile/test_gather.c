/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gathers over sources in memory: for any rows, and wherever a read begins and
 * ends, the bytes are those that the geometry names, and computed elements are
 * those of float arithmetic.  (Other types: test_arith.c.)
 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/table/geometry.h"
#include "ckpt/vfile/gather.h"
#include "gpu/backend/splitmix.h"
#include "tests/support/unit.h"

#define SOURCES_MAX 6

static uint64_t seed;

static uint64_t draw(void)
{
	return splitmix64_next(&seed);
}

static uint64_t below(uint64_t n)
{
	return draw() % n;
}

/*
 * The bytes of all sources in one "shard", and a map for each source that
 * divides it into runs, which are stored there in reverse order.
 */
struct memory {
	uint8_t *shard;              /* owned */
	uint8_t *whole[SOURCES_MAX]; /* owned: expected bytes of the sources */
	uint64_t len[SOURCES_MAX];
	struct gather *x;    /* owned */
	unsigned reads_left; /* reads before the first failure */
	uint64_t bad;        /* offset in a source that cannot be read, and 1; 0: none */
	uint64_t bytes_read;
};

static void memory_done(struct memory *m)
{
	gather_free(m->x);
	for (size_t t = 0; t < SOURCES_MAX; t++)
		free(m->whole[t]);
	free(m->shard);
}

/* Make maps of sources of m->len bytes that are in m->whole. */
static struct extent_map *make_maps(struct memory *m, size_t n)
{
	struct extent_map *maps = calloc(n, sizeof(*maps));
	uint64_t total = 0, end;

	assert_non_null(maps);
	for (size_t t = 0; t < n; t++)
		total += m->len[t];
	m->shard = malloc(total + 1);
	assert_non_null(m->shard);
	/* Place runs from the shard's end to its beginning. */
	end = total;
	for (size_t t = 0; t < n; t++)
		for (uint64_t at = 0, run; at < m->len[t]; at += run) {
			run = 1 + below(m->len[t] - at);
			end -= run;
			memcpy(m->shard + end, m->whole[t] + at, run);
			assert_true(extent_add(&maps[t], EXTENT_SHARD, run, 0, end, DTYPE_U8));
		}
	return maps;
}

/* A gather_read_fn: `ctx` is the memory. */
static int read_memory(void *ctx, const struct extent_map *map, void *buf, size_t len, uint64_t off,
		       struct errmsg *err)
{
	struct memory *m = ctx;
	uint8_t *to = buf;

	if (m->reads_left == 0)
		return errmsg_set(err, -EIO, "no more");
	m->reads_left--;
	if (m->bad && off < m->bad && m->bad <= off + len)
		return errmsg_set(err, -EIO, "a byte is bad");
	m->bytes_read += len;
	/* Reads must stay inside the slice. */
	assert_true(off <= extent_size(map) && len <= extent_size(map) - off);
	while (len) {
		const size_t i = extent_find(map, off);
		const uint64_t left = map->v[i + 1].start - off;
		const size_t n = left < len ? (size_t)left : len;

		memcpy(to, m->shard + map->v[i].from + off - map->v[i].start, n);
		to += n;
		off += n;
		len -= n;
	}
	return 0;
}

static void fill(uint8_t *to, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		to[i] = (uint8_t)draw();
}

/* Check reads of all sizes, and of single bytes at the end. */
static void check_reads(struct memory *m, const uint8_t *want, uint64_t len)
{
	uint8_t *got = malloc(len + 2);

	assert_non_null(got);
	for (int i = 0; i < 12; i++) {
		const uint64_t off = i ? below(len + 1) : 0;
		const uint64_t left = len - off;
		const uint64_t n = i == 0       ? len
				   : i % 3 == 0 ? below(left + 1)
				   : left > 20  ? below(20)
						: left;

		/* Only the requested bytes are written. */
		memset(got, 0xa5, len + 2);
		m->reads_left = UINT32_MAX;
		assert_int_equal(gather_read(m->x, read_memory, m, got + 1, n, off, NULL), 0);
		if (got[0] != 0xa5 || got[n + 1] != 0xa5 || memcmp(got + 1, want + off, n) != 0)
			fail_msg("seed %llu: %llu bytes at %llu are others",
				 (unsigned long long)seed, (unsigned long long)n,
				 (unsigned long long)off);
	}
	free(got);
}

/* Make rows of random segments, some long enough to be read separately. */
static void make_rows(struct geometry *g, bool large)
{
	const uint64_t segs = large ? 1 + below(3) : 1 + below(9);
	const uint64_t longest = large ? 90000 : 1 + below(200);

	*g = (struct geometry){ .nsources = 1 + below(SOURCES_MAX) };
	g->rows = large ? 1 + below(4) : 1 + below(20);
	g->stride = calloc(g->nsources, sizeof(*g->stride));
	g->segs = calloc(segs, sizeof(*g->segs));
	assert_non_null(g->stride);
	assert_non_null(g->segs);
	g->cap = g->nsegs = segs;
	for (size_t i = 0; i < segs; i++) {
		struct geometry_segment *s = &g->segs[i];

		s->at = g->row_len;
		s->len = large ? longest / 2 + below(longest / 2) : 1 + below(longest);
		s->from = below(10);
		/* Some sources stay empty, like ranks without elements. */
		s->source = (uint32_t)below(g->nsources);
		if (s->from + s->len > g->stride[s->source])
			g->stride[s->source] = s->from + s->len + below(3) / 2;
		g->row_len += s->len;
	}
	g->numel = g->rows * g->row_len;
	g->ndim = 1;
	g->shape[0] = g->numel;
}

/* Compute the expected bytes element by element. */
static uint8_t *expand(const struct geometry *g, const struct memory *m, size_t item)
{
	uint8_t *v = malloc(g->numel * item + 1);

	assert_non_null(v);
	for (uint64_t r = 0; r < g->rows; r++)
		for (size_t i = 0; i < g->nsegs; i++) {
			const struct geometry_segment *s = &g->segs[i];

			for (uint64_t k = 0; k < s->len; k++)
				memcpy(v + (r * g->row_len + s->at + k) * item,
				       m->whole[s->source] +
					       (r * g->stride[s->source] + s->from + k) * item,
				       item);
		}
	return v;
}

static void check_rows(bool large)
{
	static const enum dtype dtypes[] = { DTYPE_U8,  DTYPE_BF16, DTYPE_F16,
					     DTYPE_F32, DTYPE_F64,  DTYPE_C128 };
	const enum dtype dtype = dtypes[below(COUNT(dtypes))];
	const size_t item = dtype_size(dtype);
	struct memory m = { 0 };
	struct geometry g;
	uint8_t *want;
	uint64_t len;

	make_rows(&g, large);
	for (size_t t = 0; t < g.nsources; t++) {
		m.len[t] = g.rows * g.stride[t] * item;
		m.whole[t] = malloc(m.len[t] + 1);
		assert_non_null(m.whole[t]);
		fill(m.whole[t], m.len[t]);
	}
	want = expand(&g, &m, item);
	len = g.numel * item;
	m.x = gather_new(&g, dtype, 1, make_maps(&m, g.nsources));
	assert_non_null(m.x);
	check_reads(&m, want, len);
	free(want);
	memory_done(&m);
}

static void rows_are_those_of_the_geometry(void **state)
{
	seed = 1;
	for (int i = 0; i < 4000; i++)
		check_rows(false);
}

static void long_segments_are_too(void **state)
{
	seed = 2;
	for (int i = 0; i < 25; i++)
		check_rows(true);
}

/*
 * Rows of many segments, like those of a matrix that is partitioned along its last dimension into
 * single elements, and one row of all segments: a small read at any offset reads little more than
 * it returns.
 */
static void small_reads_read_little(void **state)
{
	static const struct {
		uint64_t rows, segs, len;
	} cases[] = { { 1, 50000, 3 }, { 1000, 50, 3 }, { 2, 600, 3000 } };

	seed = 6;
	for (size_t c = 0; c < COUNT(cases); c++) {
		struct geometry g = { .nsources = 2, .rows = cases[c].rows };
		struct memory m = { 0 };
		uint8_t got[5000];

		g.stride = calloc(2, sizeof(*g.stride));
		g.segs = calloc(cases[c].segs, sizeof(*g.segs));
		assert_non_null(g.stride);
		assert_non_null(g.segs);
		g.nsegs = cases[c].segs;
		for (uint32_t i = 0; i < g.nsegs; i++) {
			g.segs[i] = (struct geometry_segment){ .at = g.row_len,
							       .len = cases[c].len,
							       .from = g.stride[i % 2],
							       .source = i % 2 };
			g.row_len += cases[c].len;
			g.stride[i % 2] += cases[c].len;
		}
		for (size_t t = 0; t < 2; t++) {
			m.len[t] = g.rows * g.stride[t];
			m.whole[t] = calloc(1, m.len[t]);
			assert_non_null(m.whole[t]);
		}
		g.numel = g.rows * g.row_len;
		m.x = gather_new(&g, DTYPE_U8, 1, make_maps(&m, 2));
		assert_non_null(m.x);
		m.reads_left = UINT32_MAX;
		for (int i = 0; i < 50; i++) {
			const uint64_t off = below(m.len[0] + m.len[1] - sizeof(got));

			m.bytes_read = 0;
			assert_int_equal(
				gather_read(m.x, read_memory, &m, got, sizeof(got), off, NULL), 0);
			assert_true(m.bytes_read >= sizeof(got));
			assert_true(m.bytes_read < 2 * sizeof(got));
		}
		memory_done(&m);
	}
}

/*
 * Rows of float32 segments, some of them scaled: unscaled ones are copied, the
 * others are divided by their scale to the power of the state.
 */
static void check_scaled(int power)
{
	static const double scales[] = { 1, 0.1, -3, 0.125 };
	struct memory m = { 0 };
	struct geometry g;
	float *want;

	make_rows(&g, false);
	g.nscales = COUNT(scales);
	g.scales = malloc(sizeof(scales));
	assert_non_null(g.scales);
	memcpy(g.scales, scales, sizeof(scales));
	for (size_t i = 0; i < g.nsegs; i++)
		g.segs[i].scale = (uint32_t)below(COUNT(scales));
	for (size_t t = 0; t < g.nsources; t++) {
		const uint64_t n = g.rows * g.stride[t];
		float *v = calloc(n + 1, sizeof(*v));

		assert_non_null(v);
		for (uint64_t i = 0; i < n; i++)
			v[i] = (float)(int64_t)(draw() >> 20) / 3e12f;
		m.whole[t] = (uint8_t *)v;
		m.len[t] = n * sizeof(*v);
	}
	want = (float *)(void *)expand(&g, &m, sizeof(*want));
	for (uint64_t i = 0; i < g.numel; i++)
		for (size_t k = 0; k < g.nsegs; k++)
			if (i % g.row_len >= g.segs[k].at &&
			    i % g.row_len < g.segs[k].at + g.segs[k].len)
				want[i] /= (float)pow(scales[g.segs[k].scale], power);
	const uint64_t len = g.numel * sizeof(*want);

	m.x = gather_new(&g, DTYPE_F32, power, make_maps(&m, g.nsources));
	assert_non_null(m.x);
	assert_false(gather_is_plain(m.x));
	check_reads(&m, (const uint8_t *)want, len);
	free(want);
	memory_done(&m);
}

static void scaled_segments_are_divided(void **state)
{
	seed = 7;
	for (int i = 0; i < 300; i++)
		check_scaled(i % 3 == 2 ? 1 : -1 - i % 3);
}

/* Make a mean over `n` slices of `numel` elements; fill m->whole. */
static void make_mean(struct memory *m, size_t n, uint64_t numel)
{
	struct geometry g = { .ndim = 1,
			      .shape = { numel },
			      .numel = numel,
			      .mean = true,
			      .rows = 1,
			      .row_len = numel,
			      .nsegs = 1,
			      .cap = 1,
			      .nsources = n };

	g.segs = calloc(1, sizeof(*g.segs));
	g.stride = calloc(n, sizeof(*g.stride));
	assert_non_null(g.segs);
	assert_non_null(g.stride);
	g.segs[0].len = g.stride[0] = numel;
	m->x = gather_new(&g, DTYPE_F32, 1, make_maps(m, n));
	assert_non_null(m->x);
	/* The gather now owns the segments. */
	assert_null(g.segs);
	assert_null(g.stride);
}

static void check_mean(size_t n, uint64_t numel)
{
	/* sums of 2^24 and 1 depend on their order */
	static const float odd[] = { 16777216.0f, 1.0f,  -16777216.0f, -0.0f,
				     0.0f,        3e38f, 1e-45f,       0.1f };
	struct memory m = { 0 };
	float *want = calloc(numel, sizeof(*want));

	assert_non_null(want);
	for (size_t t = 0; t < n; t++) {
		float *v = malloc(numel * sizeof(*v));

		assert_non_null(v);
		for (uint64_t i = 0; i < numel; i++)
			v[i] = below(4) ? (float)((double)draw() / 1e19) - 1
					: odd[below(COUNT(odd))];
		m.whole[t] = (uint8_t *)v;
		m.len[t] = numel * sizeof(*v);
	}
	for (uint64_t i = 0; i < numel; i++) {
		volatile float sum = 0;

		for (size_t t = 0; t < n; t++)
			sum = sum + ((const float *)(const void *)m.whole[t])[i];
		want[i] = sum / (float)n;
	}
	make_mean(&m, n, numel);
	check_reads(&m, (const uint8_t *)want, numel * sizeof(*want));
	free(want);
	memory_done(&m);
}

static void means_are_those_of_floats(void **state)
{
	seed = 3;
	for (int i = 0; i < 300; i++)
		check_mean(2 + below(SOURCES_MAX - 1), 1 + below(200));
	for (int i = 0; i < 10; i++)
		check_mean(2 + below(3), 4090 + below(10));
	check_mean(2, 3 * 4096);
	check_mean(3, 20001);
}

static void a_worked_mean(void **state)
{
	static const float slices[] = { 0.1f, 0.2f };
	struct memory m = { 0 };
	float got;

	for (size_t t = 0; t < 2; t++) {
		m.len[t] = sizeof(float);
		m.whole[t] = malloc(sizeof(float));
		assert_non_null(m.whole[t]);
		memcpy(m.whole[t], &slices[t], sizeof(float));
	}
	make_mean(&m, 2, 1);
	m.reads_left = UINT32_MAX;
	assert_int_equal(gather_read(m.x, read_memory, &m, &got, sizeof(got), 0, NULL), 0);
	/* torch: (0 + 0.1f + 0.2f) / 2 is 0x3e19999a. */
	assert_memory_equal(&got, &(const uint32_t){ 0x3e19999a }, 4);
	memory_done(&m);
}

/* If any read fails, the gather fails. */
static void check_failures(struct memory *m, uint64_t len, unsigned reads)
{
	uint8_t *got = malloc(len);

	assert_non_null(got);
	for (unsigned i = 0; i <= reads; i++) {
		struct errmsg err = { "" };

		m->reads_left = i;
		assert_int_equal(gather_read(m->x, read_memory, m, got, len, 0, &err),
				 i < reads ? -EIO : 0);
		assert_string_equal(err.text, i < reads ? "no more" : "");
	}
	/* An empty read reads nothing. */
	m->reads_left = 0;
	assert_int_equal(gather_read(m->x, read_memory, m, got, 0, len, NULL), 0);
	free(got);
}

static void failed_reads_are_passed_up(void **state)
{
	static const uint64_t lens[] = { 7, 100000 }; /* also without other segments */

	seed = 4;
	for (size_t i = 0; i < COUNT(lens); i++) {
		struct geometry g = { .nsources = 2, .rows = 2, .nsegs = 2 };
		struct memory m = { 0 };

		g.segs = calloc(2, sizeof(*g.segs));
		g.stride = calloc(2, sizeof(*g.stride));
		assert_non_null(g.segs);
		assert_non_null(g.stride);
		for (uint32_t t = 0; t < 2; t++) {
			g.segs[t] = (struct geometry_segment){ .at = t * lens[i],
							       .len = lens[i],
							       .source = t };
			g.stride[t] = lens[i];
			m.len[t] = 2 * lens[i];
			m.whole[t] = calloc(1, m.len[t]);
			assert_non_null(m.whole[t]);
		}
		g.row_len = 2 * lens[i];
		g.numel = 4 * lens[i];
		m.x = gather_new(&g, DTYPE_U8, 1, make_maps(&m, 2));
		assert_non_null(m.x);
		/* one read per source, or one per segment and row */
		check_failures(&m, 4 * lens[i], i ? 4 : 2);
		memory_done(&m);
	}
}

/* Rows of 40 bytes with gaps of 60 are read where a gap is bad, and not where a row is. */
static void gaps_need_not_be_readable(void **state)
{
	static const struct {
		uint64_t byte;
		int rc;
	} cases[] = { { 140, 0 }, { 299, 0 }, { 300, -EIO }, { 339, -EIO }, { 340, 0 },
		      { 939, -EIO } };
	const size_t rows = 10, n = 40, pitch = 100;
	struct geometry g = { .nsources = 1, .rows = rows, .row_len = n, .numel = rows * n,
			      .nsegs = 1 };
	struct memory m = { .reads_left = UINT32_MAX };
	uint8_t got[400];

	seed = 5;
	g.segs = calloc(1, sizeof(*g.segs));
	g.stride = calloc(1, sizeof(*g.stride));
	m.whole[0] = malloc(m.len[0] = rows * pitch);
	assert_non_null(g.segs);
	assert_non_null(g.stride);
	assert_non_null(m.whole[0]);
	g.segs->len = n;
	g.stride[0] = pitch;
	fill(m.whole[0], m.len[0]);
	m.x = gather_new(&g, DTYPE_U8, 1, make_maps(&m, 1));
	assert_non_null(m.x);
	for (size_t k = 0; k < COUNT(cases); k++) {
		struct errmsg err = { "" };

		m.bad = cases[k].byte + 1;
		assert_int_equal(gather_read(m.x, read_memory, &m, got, sizeof(got), 0, &err),
				 cases[k].rc);
		for (size_t i = 0; !cases[k].rc && i < rows; i++)
			assert_memory_equal(got + i * n, m.whole[0] + i * pitch, n);
	}
	memory_done(&m);
}

static void failed_means_are_passed_up(void **state)
{
	const uint64_t numel = 20000; /* 64 KiB are read at a time */
	struct memory m = { 0 };

	seed = 5;
	for (size_t t = 0; t < 3; t++) {
		m.len[t] = numel * sizeof(float);
		m.whole[t] = calloc(1, m.len[t]);
		assert_non_null(m.whole[t]);
	}
	make_mean(&m, 3, numel);
	/* Each of three slices is read twice. */
	check_failures(&m, numel * sizeof(float), 6);
	memory_done(&m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_are_those_of_the_geometry),
		cmocka_unit_test(long_segments_are_too),
		cmocka_unit_test(small_reads_read_little),
		cmocka_unit_test(scaled_segments_are_divided),
		cmocka_unit_test(means_are_those_of_floats),
		cmocka_unit_test(a_worked_mean),
		cmocka_unit_test(failed_reads_are_passed_up),
		cmocka_unit_test(gaps_need_not_be_readable),
		cmocka_unit_test(failed_means_are_passed_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
