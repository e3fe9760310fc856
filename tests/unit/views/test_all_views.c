/* SPDX-License-Identifier: Apache-2.0 */
/* Each view has a name, and each name denotes at most one view. */
#include <string.h>

#include "ckpt/views/all_views.h"
#include "tests/support/unit.h"

static const struct {
	const char *name, *tag; /* tag NULL: not a view's name */
	struct view_type type;
} names[] = {
	{ "t_universal", "t", { .kind = VIEW_UNIVERSAL } },
	{ "t_hf", "t", { .kind = VIEW_HF } },
	{ "t_fp32", "t", { .kind = VIEW_FP32 } },
	{ "t_dcp", "t", { .kind = VIEW_DCP } },
	{ "t_dcp16", "t", { .kind = VIEW_DCP, .ranks = 16 } },
	{ "t_dcp_dcp2", "t_dcp", { .kind = VIEW_DCP, .ranks = 2 } },
	{ "t_dcp2_z1", NULL, { 0 } },
	{ "t_dcp0", NULL, { 0 } },
	{ "t_hf2", NULL, { 0 } },
	{ "t_dp1", "t", { .kind = VIEW_RECUT, .ranks = 1 } },
	{ "t_dp4096_z3", "t", { VIEW_RECUT, 4096, 3 } },
	{ "t_dp2_dp3", "t_dp2", { .kind = VIEW_RECUT, .ranks = 3 } },
	{ "t_dp2_universal", "t_dp2", { .kind = VIEW_UNIVERSAL } },
	{ "t_dp0", NULL, { 0 } },
	{ "t_dp4097", NULL, { 0 } },
	{ "t_dp99999", NULL, { 0 } },
	{ "t_dp4294967298", NULL, { 0 } },
	{ "t_dp02", NULL, { 0 } },
	{ "t_dp", NULL, { 0 } },
	{ "t_dp2_z0", NULL, { 0 } },
	{ "t_dp2_z4", NULL, { 0 } },
	{ "t_dp2_z1 ", NULL, { 0 } },
	{ "t_dp2_z", NULL, { 0 } },
	{ "t_dp2x", NULL, { 0 } },
	{ "_dp2", NULL, { 0 } },
	{ "_hf", NULL, { 0 } },
	{ "t", NULL, { 0 } },
	{ "", NULL, { 0 } },
};

static void names_are_taken_apart(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(names); i++) {
		struct view_type type;
		size_t n = 0;
		const bool is_view = view_type_parse(names[i].name, &n, &type);

		if (is_view != (names[i].tag != NULL))
			fail_msg("%s", names[i].name);
		if (!is_view)
			continue;
		assert_int_equal(n, strlen(names[i].tag));
		assert_memory_equal(names[i].name, names[i].tag, n);
		assert_true(view_type_equal(&type, &names[i].type));
	}
}

static void names_are_put_together_again(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(names); i++) {
		char suffix[VIEW_SUFFIX_MAX];

		if (!names[i].tag)
			continue;
		view_type_suffix(&names[i].type, suffix);
		assert_string_equal(suffix,
				    names[i].name + strlen(names[i].tag));
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_are_taken_apart),
		cmocka_unit_test(names_are_put_together_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
