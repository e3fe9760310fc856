/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts that affine maps place: real checkpoints, whose records are changed and whose tensors are
 * not.  The truth is the tree of the unchanged checkpoint, in another order.  Each of two
 * expert-parallel ranks has two of four experts of 6 x 8 elements (w2: 8 x 6).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/table/geometry.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/support/changed.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

#define EXPERTS "model.layers.0.mlp.experts"
#define LAYER "['ds_autoep_layers'][0]"
#define EXPERT 48         /* elements */
#define RANK (2 * EXPERT) /* elements of a rank's slice */

struct placing {
	const char *what;
	const char *tag;
	const char *change; /* before the maps */
	const char *lost;   /* a file that is no longer there */
	unsigned n;         /* experts */
	const char *w13, *w2; /* the ranks of their maps */
	uint64_t (*find)(uint64_t i, unsigned cols); /* the element in the unchanged tree */
};

static uint64_t same(uint64_t i, unsigned cols)
{
	(void)cols;
	return i;
}

/* Rank r has the columns of half r of all experts. */
static uint64_t halved(uint64_t i, unsigned cols)
{
	const uint64_t half = cols / 2, row = i / cols, col = i % cols;

	return col / half * RANK + row * half + col % half;
}

/* Expert 3 of the unchanged tree is number 2, and its number 2 a copy of expert 1. */
static uint64_t repeated(uint64_t i, unsigned cols)
{
	(void)cols;
	return i < RANK ? i : i + EXPERT;
}

#define PIECE(shape, source, dest, locations) \
	"{'shape': [" shape "], 'source': [" source "], 'dest': [" dest "], 'locations': [" locations "]}"
#define BOTH(first, second)                                                                 \
	"{0: {'shard_shape': [2, 6, 8], 'pieces': [" first "]}, 1: {'shard_shape': [2, 6, 8]," \
	" 'pieces': [" second "]}}"
#define UNPLACED "del " LAYER "['expert_placement']; "
#define THREE                                                                                \
	"['num_experts'][0] = 3; " LAYER "['num_experts'] = 3; " LAYER                     \
	"['expert_placement'] = {'version': 1, 'num_experts': 3, 'ep_size': 2, 'ranks': ["  \
	"{'rank': 1, 'experts': [1, 2]}, {'rank': 0, 'experts': [0, 1]}]}; "

/* The halves of all rows, each a piece. */
#define HALVES_W13                                                                        \
	BOTH(PIECE("2, 6, 4", "0, [48, 8, 1]", "0, [48, 8, 1]", "0") ", "                 \
	     PIECE("2, 6, 4", "4, [48, 8, 1]", "4, [48, 8, 1]", "0"),                     \
	     PIECE("12, 4", "100, [8, 1]", "4, [8, 1]", "1") ", "                         \
	     PIECE("2, 6, 4", "96, [48, 8, 1]", "0, [48, 8, 1]", "1"))
#define HALVES_W2                                                                         \
	BOTH(PIECE("2, 3, 8", "0, [48, 1, 6]", "0, [48, 1, 6]", "0") ", "                 \
	     PIECE("2, 8, 3", "3, [48, 6, 1]", "3, [48, 6, 1]", "0"),                     \
	     PIECE("96", "96, [1]", "0, [1]", "1"))
/* Half of the columns of all experts on each rank. */
#define COLUMNS(rows, cols, half)                                                                \
	BOTH(PIECE("4, " #rows ", " #half, "0, [48, " #cols ", 1]", "0, [24, " #half ", 1]", "0"), \
	     PIECE("4, " #rows ", " #half, #half ", [48, " #cols ", 1]", "0, [24, " #half ", 1]", "1"))
/* Three experts, of which both ranks have the second. */
#define REPEATED                                                                          \
	BOTH(PIECE("48", "0, [1]", "0, [1]", "0") ", " PIECE("48", "48, [1]", "48, [1]", "0, 1"), \
	     PIECE("48", "48, [1]", "0, [1]", "0, 1") ", " PIECE("48", "96, [1]", "48, [1]", "1"))

#define ZERO1 "folded_tp2_ep2_dp2_z1/global_step3"
#define ZERO3 "folded_tp2_ep2_dp2_z3/global_step3"

static const struct placing placings[] = {
	{ "halves, as placed", ZERO1, "", NULL, 4, HALVES_W13, HALVES_W2, same },
	{ "halves, as placed", ZERO3, "", NULL, 4, HALVES_W13, HALVES_W2, same },
	{ "halves", ZERO1, UNPLACED, NULL, 4, HALVES_W13, HALVES_W2, same },
	{ "columns", ZERO1, UNPLACED, NULL, 4, COLUMNS(6, 8, 4), COLUMNS(8, 6, 3), halved },
	{ "columns", ZERO3, UNPLACED, NULL, 4, COLUMNS(6, 8, 4), COLUMNS(8, 6, 3), halved },
	{ "copies", ZERO1, THREE, "layer_0_expert_3_*", 3, REPEATED, REPEATED, repeated },
	{ "copies", ZERO3, THREE, NULL, 3, REPEATED, REPEATED, repeated },
};

static char *change_of(const struct placing *x)
{
	static const char map[] = "'" EXPERTS ".%s': {'logical_shape': [%u, %s], 'ranks': %s}";
	char maps[3][1024], *change;

	snprintf(maps[0], sizeof(*maps), map, "w1", x->n, "6, 8", x->w13);
	snprintf(maps[1], sizeof(*maps), map, "w2", x->n, "8, 6", x->w2);
	snprintf(maps[2], sizeof(*maps), map, "w3", x->n, "6, 8", x->w13);
	assert_true(asprintf(&change,
			     "%s" LAYER "['affine_maps'] = {'version': 1, 'params': {%s, %s, %s}}",
			     x->change, maps[0], maps[1], maps[2]) > 0);
	return change;
}

static struct view *open_tag(const char *tag, struct errmsg *err)
{
	static const struct view_options options = { .crc_zero = true };
	struct view *v;

	if (view_open(test_context(), tag, &options, &v, err))
		fail_msg("%s", err->text);
	return v;
}

/* Return the elements of a state; the caller frees the file. */
static const float *read_state(struct view *v, const char *param, const char *file, uint8_t **whole,
			       uint64_t *n)
{
	struct errmsg err = { "" };
	struct source src;
	struct ptfile pt;
	uint64_t node, size, at;
	struct tensor t;

	if (view_lookup(v, VIEW_ZERO, param, &node, &err) ||
	    !(*whole = walk_read(v, node, file, &size, &err)))
		fail_msg("%s: %s", param, err.text);
	source_init_span(&src, file, (struct span){ *whole, size });
	if (ptfile_open_source(&pt, &src, &err) ||
	    ptfile_tensor(&pt, value_find(pt.root, "param"), param, &t, &at, &err))
		fail_msg("%s: %s", param, err.text);
	assert_int_equal(t.dtype, DTYPE_F32);
	*n = t.numel;
	ptfile_close(&pt);
	return (const float *)(*whole + at);
}

static void check_state(const struct placing *x, struct view *now, struct view *then,
			const char *param, const char *file)
{
	const unsigned cols = param[strlen(param) - 1] == '2' ? 6 : 8;
	uint8_t *a, *b;
	uint64_t n, all;
	const float *got = read_state(now, param, file, &a, &n);
	const float *want = read_state(then, param, file, &b, &all);

	assert_int_equal(n, x->n * EXPERT);
	assert_int_equal(all, 2 * RANK);
	for (uint64_t i = 0; i < n; i++)
		if (memcmp(&got[i], &want[x->find(i, cols)], sizeof(*got)) != 0)
			fail_msg("%s, %s: %s of %s: element %llu is %g, not %g", x->what, x->tag, file,
				 param, (unsigned long long)i, (double)got[i],
				 (double)want[x->find(i, cols)]);
	free(a);
	free(b);
}

static void experts_are_where_their_maps_say(void **state)
{
	static const char *const params[] = { EXPERTS ".w1", EXPERTS ".w2", EXPERTS ".w3" };
	static const char *const files[] = { "fp32.pt", "exp_avg.pt", "exp_avg_sq.pt" };

	for (size_t i = 0; i < COUNT(placings); i++) {
		const struct placing *x = &placings[i];
		char *change = change_of(x);
		char *changed = changed_tag(x->tag, x->lost, "[mz]*_model_states.pt", change);
		char *same_files = changed_tag(x->tag, NULL, NULL, NULL);
		struct errmsg err = { "" };
		struct view *now = open_tag(changed, &err), *then = open_tag(same_files, &err);

		for (size_t p = 0; p < COUNT(params); p++)
			for (size_t f = 0; f < COUNT(files); f++)
				check_state(x, now, then, params[p], files[f]);
		assert_int_equal(checkpoint_find(view_checkpoint(now), params[0])->replicas,
				 x->find == repeated ? 2 : 1);
		if (view_check(now, &err) || walk_view(now, &err) || walk_views(now, &err))
			fail_msg("%s, %s: %s", x->what, x->tag, err.text);
		view_close(now);
		view_close(then);
		mkckpt_free_dir(changed);
		mkckpt_free_dir(same_files);
		free(change);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(experts_are_where_their_maps_say),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
