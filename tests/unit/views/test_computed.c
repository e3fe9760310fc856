/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files whose elements are computed: means, and pieces that a slice stores scaled.  Two
 * tensor-parallel ranks have a bias of four elements each; impossible computations are refused
 * before anything is read.
 */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"
#include "tests/make/literal.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define RANKS 2
#define NUMEL 4

/* The ranks' parts of every state, and the merge rule. */
struct bias {
	enum dtype dtype;
	const void *slices[RANKS];
	double scale;       /* scale of the only piece; 0: a mean */
	const char *second; /* name of the second state */
};

static void set_rule(struct mkpt *m, struct value *root, const struct bias *b)
{
	/* Each rank has the whole in one piece. */
	static const char rank[] = "{'pieces': [{'shape': [4], 'source': [0, [1]], 'dest': [0, [1]],"
				   " 'locations': [0, 1], 'scale': %1$.60f}]}";
	char ranks[2 * sizeof(rank) + 32], map[1024];

	if (!b->scale) {
		literal_change(m, root,
		"['universal_checkpoint_info']['parameter_to_average_patterns'] = ['bias']");
		return;
	}
	snprintf(ranks, sizeof(ranks), "{0: %s, 1: %s}", rank, rank);
	snprintf(map, sizeof(map),
		 "['universal_checkpoint_info']['affine_map'] = {'version': 1,"
		 " 'params': {'bias': {'logical_shape': [4], 'ranks': ");
	snprintf(map + strlen(map), sizeof(map) - strlen(map), ranks, b->scale);
	literal_change(m, root, strcat(map, "}}}"));
}

static unsigned writing; /* tensor-parallel rank that is being written */

static void edit(struct mkpt *m, struct value *root, enum mkckpt_file kind, unsigned rank, void *ctx)
{
	const struct bias *b = ctx;
	struct value *d, *states;

	(void)rank;
	if (kind == MKCKPT_MODEL) {
		set_rule(m, root, b);
		return;
	}
	d = value_find(root, "optimizer_state_dict");
	states = value_find_path(d, "base_optimizer_state", "state", NULL)->dict.v[0].val;
	value_find(d, "single_partition_of_fp32_groups")->seq.v[0] =
		mkpt_flat(m, b->dtype, NUMEL, NUMEL, true, b->slices[writing]);
	for (unsigned s = 1; s < MKCKPT_STATES; s++)
		mkpt_set(m, states, mkckpt_state_names[s], NULL);
	mkpt_set(m, states, "exp_avg",
		 mkpt_flat(m, b->dtype, NUMEL, NUMEL, false, b->slices[writing]));
	mkpt_set(m, states, b->second,
		 mkpt_flat(m, b->dtype, NUMEL, NUMEL, false, b->slices[writing]));
}

static char *write_bias(const struct bias *b)
{
	static const struct mkckpt_param param = { "bias", 1, { NUMEL }, 0 };
	struct mkckpt c = { .stage = 1,
			    .ranks = 1,
			    .params = &param,
			    .nparams = 1,
			    .ngroups = 1,
			    .tp = RANKS,
			    .pp = 1,
			    .edit = edit,
			    .ctx = (void *)b };
	char *dir = mkckpt_new_dir();

	for (writing = 0; writing < RANKS; writing++) {
		c.mp = writing;
		mkckpt_write(&c, dir);
	}
	return dir;
}

static struct view *open_view(const char *dir)
{
	static const struct view_options options = { .crc_zero = false };
	struct errmsg err = { "" };
	struct view *v;

	if (view_open(test_context(), dir, &options, &v, &err))
		fail_msg("%s", err.text);
	return v;
}

static void check_file(struct view *v, const char *name, enum dtype dtype, const void *want)
{
	const size_t len = NUMEL * dtype_size(dtype);
	const struct extent_map *map;
	struct errmsg err = { "" };
	uint8_t got[NUMEL * 8];
	struct vfile *f;
	uint64_t node;
	size_t i = 0;

	assert_int_equal(view_lookup(v, VIEW_ZERO, "bias", &node, &err), 0);
	assert_int_equal(view_lookup(v, node, name, &node, &err), 0);
	if (view_file_open(v, node, &f, &err))
		fail_msg("%s: %s", name, err.text);
	map = vfile_extents(f);
	while (map->v[i].kind == EXTENT_LITERAL)
		i++;
	assert_int_equal(map->v[i].kind, EXTENT_GATHER);
	assert_int_equal(map->v[i + 1].start - map->v[i].start, len);
	assert_int_equal(vfile_read(f, got, len, map->v[i].start, &err), len);
	if (memcmp(got, want, len) != 0)
		fail_msg("%s has other elements", name);
	vfile_free(f);
}

static void means_are_of_the_tensors_type(void **state)
{
	/* 1 + 1.0078125 is 2 in bfloat16; twice the largest number overflows. */
	static const uint16_t bf16[][NUMEL] = {
		{ 0x3f80, 0x8000, 0x7f7f, 0x0001 },
		{ 0x3f81, 0x8000, 0x7f7f, 0x0002 },
		{ 0x3f80, 0x0000, 0x7f80, 0x0002 },
	};
	static const uint16_t f16[][NUMEL] = {
		{ 0x3c00, 0x8000, 0x7bff, 0x0001 },
		{ 0x3c01, 0x8000, 0x7bff, 0x0002 },
		{ 0x3c00, 0x0000, 0x7c00, 0x0002 },
	};
	static const double f64[][NUMEL] = {
		{ 1, -0.0, 1e308, 0x1p-1074 },
		{ 0x1.0000000000001p0, -0.0, 1e308, 0x1p-1073 },
		{ 1, 0, 1.0 / 0.0, 0x1p-1073 },
	};
	const struct {
		enum dtype dtype;
		const void *slices[RANKS], *want;
	} cases[] = {
		{ DTYPE_BF16, { bf16[0], bf16[1] }, bf16[2] },
		{ DTYPE_F16, { f16[0], f16[1] }, f16[2] },
		{ DTYPE_F64, { f64[0], f64[1] }, f64[2] },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const struct bias b = { .dtype = cases[i].dtype,
					.slices = { cases[i].slices[0], cases[i].slices[1] },
					.second = "exp_avg_sq" };
		char *dir = write_bias(&b);
		struct view *v = open_view(dir);
		struct errmsg err = { "" };

		if (view_check(v, &err))
			fail_msg("%s", err.text);
		check_file(v, "fp32.pt", b.dtype, cases[i].want);
		check_file(v, "exp_avg.pt", b.dtype, cases[i].want);
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

static void scales_are_undone_by_state(void **state)
{
	/* A rank stores the whole times the scale, so its first moment is divided by the scale, its
	 * second by the square. */
	static const float held[] = { 1, -3, 0.1f, 1e-40f };
	static const double scales[] = { 0.5, 3, 0.1 };
	static const struct {
		const char *file;
		int power;
	} states[] = { { "fp32.pt", 1 }, { "exp_avg.pt", -1 }, { "exp_avg_sq.pt", -2 } };

	for (size_t i = 0; i < 3; i++) {
		const struct bias b = { .dtype = DTYPE_F32,
					.slices = { held, held },
					.scale = scales[i],
					.second = "exp_avg_sq" };
		char *dir = write_bias(&b);
		struct view *v = open_view(dir);
		struct errmsg err = { "" };

		if (view_check(v, &err))
			fail_msg("%s", err.text);
		for (size_t s = 0; s < 3; s++) {
			const double by = pow(scales[i], states[s].power);
			float want[NUMEL];

			for (size_t k = 0; k < NUMEL; k++)
				want[k] = held[k] / (float)by;
			check_file(v, states[s].file, DTYPE_F32, want);
		}
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

static void what_cannot_be_computed_is_refused(void **state)
{
	static const uint64_t elements[NUMEL];
	static const struct {
		enum dtype dtype;
		double scale;
		const char *second, *says;
		int rc;
	} cases[] = {
		{ DTYPE_I64, 0, "exp_avg_sq", "parameter bias: the mean of int64 tensors", -ENOTSUP },
		{ DTYPE_I64, 2, "exp_avg_sq", "scaled pieces of them", -ENOTSUP },
		{ DTYPE_F32, 2, "momentum",
		"parameter bias: its pieces are scaled, and how that scales momentum is not known",
		  -ENOTSUP },
		{ DTYPE_F32, 1e-30, "exp_avg_sq",
		  "parameter bias: its exp_avg_sq cannot be divided by 1e-30 to the power of -2",
		  -EBADMSG },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		const struct bias b = { .dtype = cases[i].dtype,
					.slices = { elements, elements },
					.scale = cases[i].scale,
					.second = cases[i].second };
		char *dir = write_bias(&b);
		struct view *v = open_view(dir);
		struct errmsg err = { "" };

		assert_int_equal(view_check(v, &err), cases[i].rc);
		if (!strstr(err.text, cases[i].says))
			fail_msg("case %zu: %s", i, err.text);
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

static void other_states_may_be_averaged(void **state)
{
	static const float elements[] = { 1, 2, 3, 4 };
	const struct bias b = { .dtype = DTYPE_F32,
				.slices = { elements, elements },
				.second = "momentum" };
	char *dir = write_bias(&b);
	struct view *v = open_view(dir);
	struct errmsg err = { "" };

	if (view_check(v, &err))
		fail_msg("%s", err.text);
	check_file(v, "momentum.pt", DTYPE_F32, elements);
	view_close(v);
	mkckpt_free_dir(dir);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(means_are_of_the_tensors_type),
		cmocka_unit_test(scales_are_undone_by_state),
		cmocka_unit_test(what_cannot_be_computed_is_refused),
		cmocka_unit_test(other_states_may_be_averaged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
