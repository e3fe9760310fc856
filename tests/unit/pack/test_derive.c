/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pack leaves out weights that can be derived from the masters.  For each file of real
 * checkpoints, every reference leads to the weights' bytes.
 */
#include "tests/support/context.h"
#include "tests/support/realfiles.h"
#include "tests/support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/commands/pack_inputs.h"
#include "ckpt/format/cast.h"

static const struct {
	const char *tag, *file;
	uint64_t derived, stored; /* expected bytes of the file's floats */
} cases[] = {
	/* One file holds all weights, in the model's type. */
	{ "z1_fp32_dp2", "mp_rank_00_", 1944, 8 /* a buffer */ },
	{ "z1_bf16_dp2", "mp_rank_00_", 972, 4 },
	{ "z1_fp16_dp2", "mp_rank_00_", 972, 4 },
	{ "tp2_dp2_z1_bf16", "mp_rank_01_", 640, 0 },
	/* Frozen parameters have no masters. */
	{ "z1_bf16opt_tied_frozen_buffers_dp2", "mp_rank_00_", 696, 244 },
	/* Masters that are not float32, and a checkpoint without masters. */
	{ "z2_bf16_master_bf16_dp2", "mp_rank_00_", 0, 976 },
	{ "moe_ep2_dp2_z0", "layer_0_expert_3_", 0, 168 },
	/* Stage 3 has weights only in the masters. */
	{ "z3_bf16_dp2", "zero_pp_rank_1_", 0, 0 },
	/* Layers of a pipeline. */
	{ "pp2_dp2_z1_bf16", "layer_00-", 132, 0 },
	{ "pp2_dp2_z1_bf16", "layer_03-", 284, 0 },
	{ "pp2_tp2_dp2_z1_bf16", "layer_03-model_01-", 140, 0 },
	/* Experts, each in a file: on any rank, of several layers. */
	{ "moe_ep1_dp2_z2_bf16", "layer_0_expert_1_", 84, 0 },
	{ "moe_ep2_dp2_z1", "layer_0_expert_0_", 168, 0 },
	{ "moe_ep2_dp2_z1", "layer_0_expert_3_", 168, 0 },
	{ "moe_ep2_dp2_z1", "mp_rank_00_", 772, 0 },
	{ "moe_ep2_dp4_z2_bf16", "layer_0_expert_2_", 84, 0 },
	{ "moe_ep2_dp4_z2_data_first", "layer_0_expert_2_", 168, 0 },
	{ "moe2_ep2_dp4_z1_bf16", "layer_1_expert_3_", 84, 0 },
	/* AutoEP's experts, which are parts of one parameter. */
	{ "autoep2_dp2_z1", "layer_0_expert_0_", 360, 0 },
	{ "autoep2_dp2_z1", "layer_0_expert_3_", 360, 0 },
	{ "autoep2_dp4_z2_bf16", "layer_0_expert_1_", 180, 0 },
	{ "autoep2_dp4_z2_bf16", "mp_rank_00_", 410, 48 /* the router's bias */ },
	{ "autoep2_dp2_z3", "zero_pp_rank_0_", 0, 0 },
};

static uint8_t *bytes_of(const struct pack_input *in, uint64_t off, size_t len)
{
	struct errmsg err = { "" };
	uint8_t *const bytes = malloc(len);
	struct source src;

	assert_non_null(bytes);
	assert_int_equal(source_open_known(&src, in->path, &in->id, &err), 0);
	assert_int_equal(source_read(&src, bytes, len, off, &err), 0);
	source_close(&src);
	return bytes;
}

/* Return whether the source of a region leads to the region's bytes. */
static void follow(const struct pack_inputs *x, const struct pack_input *in,
		   const struct pack_region *r)
{
	const bool rounded = r->kind == PACK_ROUNDED;
	const size_t len = (size_t)r->len, from = rounded ? 2 * len : len;
	uint8_t *const weights = bytes_of(in, r->start, len);
	uint8_t *const masters = bytes_of(&x->v[r->source], r->from, from);
	uint8_t *const made = malloc(len);

	assert_non_null(made);
	if (rounded)
		cast(DTYPE_F32, masters,
		     r->type == BLOCK_F16 ? DTYPE_F16 : DTYPE_BF16, made,
		     len / 2);
	assert_memory_equal(rounded ? made : masters, weights, len);
	free(weights);
	free(masters);
	free(made);
}

static void check_file(const struct pack_inputs *x, const struct pack_input *in,
		       uint64_t derived, uint64_t stored)
{
	for (size_t i = 0; i < in->nregions; i++) {
		const struct pack_region *const r = &in->regions[i];

		if (r->kind != PACK_STORED) {
			follow(x, in, r);
			derived -= r->len;
		} else if (r->type != BLOCK_BYTES) {
			stored -= r->len;
		}
	}
	assert_int_equal(derived, 0);
	assert_int_equal(stored, 0);
}

/* Return the directory of a case's last tag. */
static char *tag_of(const char *name)
{
	glob_t found;
	char *dir;

	realfiles_glob(&found, "tests/good/%s/global_step*", name);
	dir = strdup(found.gl_pathv[found.gl_pathc - 1]);
	globfree(&found);
	return dir;
}

static void weights_follow_from_masters(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char *const dir = tag_of(cases[i].tag);
		struct errmsg err = { "" };
		struct pack_inputs x;
		unsigned files = 0;

		print_message("%s %s\n", cases[i].tag, cases[i].file);
		assert_int_equal(
			pack_inputs_list(test_context(), &x, dir, 1, &err), 0);
		assert_int_equal(pack_derive(&x, &err), 0);
		for (size_t k = 0; k < x.n; k++)
			if (strncmp(x.v[k].name, cases[i].file,
				    strlen(cases[i].file)) == 0 &&
			    strstr(x.v[k].name, "model_states")) {
				check_file(&x, &x.v[k], cases[i].derived,
					   cases[i].stored);
				files++;
			}
		assert_int_equal(files, 1);
		pack_inputs_done(&x);
		free(dir);
	}
}

static void nothing_refers(const char *dir, uint64_t least)
{
	struct errmsg err = { "" };
	struct pack_inputs x;

	assert_int_equal(pack_inputs_list(test_context(), &x, dir, least, &err),
			 0);
	assert_int_equal(pack_derive(&x, &err), 0);
	assert_true(x.n > 1);
	for (size_t i = 0; i < x.n; i++)
		for (size_t k = 0; k < x.v[i].nregions; k++)
			assert_int_equal(x.v[i].regions[k].kind, PACK_STORED);
	pack_inputs_done(&x);
}

/* Small tensors stay as they are, and so do directories that are no tags. */
static void others_are_left_alone(void **state)
{
	char *const tag = tag_of("moe_ep2_dp2_z1");
	char run[1024];

	(void)state;
	nothing_refers(tag, PACK_INPUTS_LEAST);
	*strrchr(tag, '/') = '\0';
	snprintf(run, sizeof(run), "%s/../hfdir_types", tag);
	nothing_refers(run, 1);
	free(tag);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(weights_follow_from_masters),
		cmocka_unit_test(others_are_left_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
