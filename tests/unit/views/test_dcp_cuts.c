/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunks of a PyTorch distributed checkpoint's tensors, and the bytes that ranks read:
 * ceil(rows / N) rows of each tensor, as in FSDP2, in whole chunks, and `.metadata`.
 */
#include <inttypes.h>
#include <stdio.h>

#include "ckpt/base/bytes.h"
#include "ckpt/format/legacy.h"
#include "ckpt/views/view_dcp_metadata.h"
#include "ckpt/views/view_dcp_state.h"
#include "tests/support/sampled.h"
#include "tests/support/unit.h"

static void chunks_end_where_shares_do(void **state)
{
	/* Expected rows of each chunk of a float32 tensor. */
	static const struct {
		unsigned ndim;
		uint64_t shape[2];
		unsigned ranks;
		const char *rows;
	} cases[] = {
		{ 0, { 0 }, 8, "1" },
		{ 1, { 0 }, 8, "0" },
		{ 2, { 5, 0 }, 8, "5" },
		{ 1, { 700 }, 8, "700" },             /* small */
		{ 2, { 10, 1 << 16 }, 4, "3 3 3 1" }, /* like torch.chunk */
		{ 2, { 10, 1 << 16 }, 8, "2 2 2 2 2" },
		{ 2, { 10, 1 << 7 }, 4, "6 4" },                  /* at least 3 KiB */
		{ 2, { 10, 1 << 20 }, 1, "1 1 1 1 1 1 1 1 1 1" }, /* at most 4 MiB */
		{ 2, { 14, 3 << 18 }, 2, "2 2 2 1 2 2 2 1" }, /* never across a border */
		{ 2, { 3, 1 << 22 }, 1, "1 1 1" },            /* at least one row */
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct view_dcp_cut c =
			view_dcp_cut(DTYPE_F32, cases[i].shape, cases[i].ndim,
				    cases[i].ranks);
		uint64_t row = 0, next;
		char text[64];
		size_t n = 0;

		do {
			next = view_dcp_cut_end(&c, row);
			n += (size_t)snprintf(text + n, sizeof(text) - n,
					      n ? " %" PRIu64 : "%" PRIu64,
					      next - row);
			row = next;
		} while (row < c.rows && n < sizeof(text) - 24);
		assert_string_equal(text, cases[i].rows);
	}
}

/* GPT-2 with 124 million parameters and Adam's two states. */
#define LAYERS 12
static const struct {
	uint64_t shape[2];
	unsigned ndim, n;
} gpt2[] = {
	{ { 50257, 768 }, 2, 1 },     { { 1024, 768 }, 2, 1 },
	{ { 768, 2304 }, 2, LAYERS }, { { 768, 768 }, 2, LAYERS },
	{ { 768, 3072 }, 2, LAYERS }, { { 3072, 768 }, 2, LAYERS },
	{ { 2304 }, 1, LAYERS },      { { 3072 }, 1, LAYERS },
	{ { 768 }, 1, 6 * LAYERS + 2 },
};
#define STATES 3
#define TENSORS (STATES * (2 + 4 * LAYERS + 2 * LAYERS + 6 * LAYERS + 2))

static void make_gpt2(struct view_dcp_state *s, struct view_dcp_entry v[TENSORS])
{
	*s = (struct view_dcp_state){ .ndirs = 1, .dirs = { { .v = v } } };
	for (size_t i = 0; i < COUNT(gpt2); i++)
		for (unsigned k = 0; k < STATES * gpt2[i].n; k++)
			v[s->dirs[0].n++] = (struct view_dcp_entry){
				.key = "optim.state.transformer.h.0.attn.weight",
				.path = { { .text = "transformer.h.0.attn" } },
				.nsteps = 1,
				.file = "optim.state.transformer.h.0.attn.distcp",
				.is_tensor = true,
				.dtype = DTYPE_F32,
				.ndim = gpt2[i].ndim,
				.shape = gpt2[i].shape,
			};
	assert_int_equal(s->dirs[0].n, TENSORS);
}

static uint64_t metadata_size(const struct view_dcp_dir *d, unsigned cut)
{
	struct bytebuf b = { 0 };
	uint64_t size;

	assert_int_equal(view_dcp_metadata_write(d->v, d->n, cut, &b, NULL), 0);
	size = b.len;
	bytebuf_done(&b);
	return size;
}

/* Return the bytes of the chunks that rank `i` of `n` needs. */
static uint64_t bytes_of_rank(const struct view_dcp_entry *e, unsigned cut, uint64_t i,
			      uint64_t n)
{
	const struct view_dcp_cut c = view_dcp_cut(e->dtype, e->shape, e->ndim, cut);
	const uint64_t share = (c.rows + n - 1) / n;
	const uint64_t from = i * share;
	const uint64_t end = from + share < c.rows ? from + share : c.rows;
	struct bytebuf head = { 0 };
	uint64_t row, next, bytes = 0;

	if (from >= end)
		return 0;
	legacy_add_tensor(&head, e->dtype, e->shape, e->ndim);
	row = from - from % c.unit % c.piece;
	do {
		next = view_dcp_cut_end(&c, row);
		bytes += head.len + (next - row) * c.row * sizeof(float);
		row = next;
	} while (row < end);
	bytebuf_done(&head);
	return bytes;
}

/* Return the bytes that the busiest rank reads, relative to an equal share, of tensors cut for
 * `cut` ranks. */
static double most(const struct view_dcp_dir *d, unsigned cut, uint64_t n)
{
	uint64_t worst = 0, all = 0;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t bytes = 0;

		for (size_t k = 0; k < d->n; k++)
			bytes += bytes_of_rank(&d->v[k], cut, i, n);
		worst = worst < bytes ? bytes : worst;
	}
	for (size_t k = 0; k < d->n; k++)
		all += d->v[k].shape[0] * sizeof(float) *
		       (d->v[k].ndim == 2 ? d->v[k].shape[1] : 1);
	return (double)(worst + metadata_size(d, cut)) * (double)n / (double)all;
}

static void ranks_read_little_more_than_their_share(void **state)
{
	static struct view_dcp_entry v[TENSORS];
	struct view_dcp_state s;

	make_gpt2(&s, v);
	for (unsigned n = 1; n <= 64; n += sampled_step(7)) {
		/* Other numbers of ranks read whole chunks that they need only in part. */
		const double any = n <= 2 || n == 4 || n == 8 ? 1.1 : n < 8 ? 2.0 : 1.0 + n / 4.0;

		if (most(&s.dirs[0], n, n) > 1.1 || most(&s.dirs[0], 8, n) > any)
			fail_msg("%u ranks: %.3f, %.3f", n, most(&s.dirs[0], n, n),
				 most(&s.dirs[0], 8, n));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chunks_end_where_shares_do),
		cmocka_unit_test(ranks_read_little_more_than_their_share),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
