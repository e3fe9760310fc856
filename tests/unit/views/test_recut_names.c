/* SPDX-License-Identifier: Apache-2.0 */
/* Names in model states of which DeepSpeed lists only a part, after a change of stage.
 * tests/interop/make_names.py made most of the runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/recut.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

#define SHAPES "frozen_param_shapes"
#define PARTS "frozen_param_fragments"

/* A field is "None", or its entries and the elements of those that are tensors; a name in
 * parentheses is the tensor of an entry before it. */
static const struct {
	const char *tag;
	unsigned stage;
	const char *field, *text;
} rows[] = {
	/* Entries: embed 7 x 5, head 7 x 5 and 7, prompt 5, masks 3. */
	{ "z1_twice_dp2/global_step2", 3, PARTS, "embed.weight=18" },
	{ "z1_twice_dp2/global_step2", 3, SHAPES, "embed.weight" },
	{ "z1_twice_dp2/global_step2", 2, PARTS, "embed.weight=35" },
	{ "z1_twice_dp2/global_step2", 3, "module",
	  "prompt=0 prompt_too=0 embed.weight=0 head.weight=0 head.bias=0"
	  " head.mask=3 (head.mask_too)=3 again.weight=0 again.bias=0 (again.mask)=3"
	  " (again.mask_too)=3 embed_too.weight=0" },
	{ "z3_twice_dp2/global_step2", 1, "module",
	  "prompt=5 (prompt_too)=5 embed.weight=35 head.weight=35 head.bias=7"
	  " head.mask=3 (head.mask_too)=3 (again.weight)=35 (again.bias)=7 (again.mask)=3"
	  " (again.mask_too)=3 embed_too.weight=35" },
	{ "z3_twice_dp2/global_step2", 1, PARTS, "None" },
	{ "z3_twice_dp2/global_step2", 2, PARTS, "embed.weight=35" },
	/* Parameters frozen after the optimizer was made. */
	{ "z2_later_dp2/global_step2", 3, PARTS, "head.weight=18" },
	{ "z2_later_dp2/global_step2", 3, SHAPES, "head.weight" },
	{ "z2_later_dp2/global_step2", 1, PARTS, "None" },
	/* Excluded parameters lack even the further name that the module still has. */
	{ "z3_excluded_dp2/global_step2", 3, PARTS, "None" },
	{ "z3_excluded_dp2/global_step2", 2, PARTS, "None" },
	{ "z3_excluded_dp2/global_step2", 2, SHAPES, "None" },
	{ "z3_excluded_dp2/global_step2", 2, "module", "prompt=5 head.mask=3" },
	{ "lora_trainer_z2_dp2/checkpoint-4/global_step4", 3, PARTS, "None" },
	{ "lora_trainer_z2_dp2/checkpoint-4/global_step4", 3, SHAPES, "None" },
	/* Types without a storage class, and a transposed tensor. */
	{ "z2_odd_frozen_dp2/global_step2", 3, PARTS, "f8=8 turned=8 u16=8 wave=8" },
	{ "z2_odd_frozen_dp2/global_step2", 1, "module",
	  "f8=15 turned=15 u16=15 wave=15 embed.weight=35 head.weight=35 head.bias=7" },
	/* Stage 1 does not record exclusions. */
	{ "z1_fp32_dp4/global_step4", 3, PARTS, "None" },
	{ "z1_fp32_dp4/global_step4", 2, SHAPES, "None" },
};

static void describe(const struct value *v, char *text, size_t size)
{
	const struct value_dict *d = value_pairs(v);
	size_t at = 0;

	snprintf(text, size, "%s", v && v->kind == VALUE_NONE ? "None" : "");
	for (size_t i = 0; d && i < d->n && at < size; i++) {
		const char *name = d->v[i].key->str.p;
		bool again = false;
		struct tensor t, other;
		const bool is = !tensor_from_value(d->v[i].val, name, &t, NULL);

		for (size_t k = 0; is && t.numel && k < i; k++)
			again |= !tensor_from_value(d->v[k].val, name, &other, NULL) &&
				 strcmp(other.storage_key, t.storage_key) == 0 &&
				 other.storage_offset == t.storage_offset;
		at += (size_t)snprintf(text + at, size - at, again ? "%s(%s)" : "%s%s",
				       i ? " " : "", name);
		if (is && at < size)
			at += (size_t)snprintf(text + at, size - at, "=%llu",
					       (unsigned long long)t.numel);
	}
}

static void check_row(size_t i)
{
	const char *top = getenv("top_srcdir");
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	char text[1000], path[1000];
	struct view *v;
	struct ptfile pt;

	snprintf(path, sizeof(path), "%s/tests/good/%s", top ?: ".", rows[i].tag);
	if (recut_open(path, 2, rows[i].stage, &v, &err))
		fail_msg("%s", err.text);
	assert_int_equal(recut_write(v, dir, &err), 0);
	view_close(v);
	snprintf(path, sizeof(path), "%s/%smp_rank_00_model_states.pt", dir,
		 rows[i].stage == 3 ? "zero_pp_rank_0_" : "");
	if (io_open_pt(test_context(), path, NULL, &pt, &err))
		fail_msg("%s", err.text);
	describe(value_find(pt.root, rows[i].field), text, sizeof(text));
	if (strcmp(text, rows[i].text) != 0)
		fail_msg("%s, stage %u: %s: %s", rows[i].tag, rows[i].stage, rows[i].field, text);
	ptfile_close(&pt);
	mkckpt_free_dir(dir);
}

static void names_are_told_by_storage(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(rows); i++)
		check_row(i);
}

static uint8_t *read_weights(const char *path, uint64_t *len)
{
	const struct view_options options = { .type.kind = VIEW_FP32 };
	struct errmsg err = { "" };
	struct view *v;
	uint8_t *bytes = NULL;

	if (!view_open(test_context(), path, &options, &v, &err))
		bytes = walk_read(v, VIEW_ROOT, "pytorch_model.bin", len, &err);
	if (!bytes)
		fail_msg("%s", err.text);
	view_close(v);
	return bytes;
}

static void frozen_parameters_stay_what_they_are(void **state)
{
	const char *top = getenv("top_srcdir");
	char *dir = mkckpt_new_dir(), path[1000];
	uint8_t *old, *new;
	struct errmsg err = { "" };
	uint64_t len, n;
	struct view *v;

	(void)state;
	snprintf(path, sizeof(path), "%s/tests/good/z2_odd_frozen_dp2/global_step2", top ?: ".");
	if (recut_open(path, 3, 3, &v, &err))
		fail_msg("%s", err.text);
	assert_int_equal(recut_write(v, dir, &err), 0);
	view_close(v);
	old = read_weights(path, &len);
	new = read_weights(dir, &n);
	assert_int_equal(len, n);
	assert_memory_equal(old, new, len);
	free(old);
	free(new);
	mkckpt_free_dir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_told_by_storage),
		cmocka_unit_test(frozen_parameters_stay_what_they_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
