/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An index passes the same checks as a model-states file and a shard: a wrong one is
 * refused, and the tree is made without it.
 */
#include <string.h>

#include "tests/support/indexed.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

static struct slice *slice(struct zero_checkpoint *r, const char *name)
{
	return (struct slice *)rank_params_find(r->model.ranks, name);
}

static struct module_tensor *buffer(struct zero_checkpoint *r)
{
	return (struct module_tensor *)slice(r, "buffer")->module;
}

static void larger_parameter(struct zero_checkpoint *r)
{
	((uint64_t *)slice(r, "bias")->shape)[0] = 500;
}
static void endless_parameter(struct zero_checkpoint *r)
{
	((uint64_t *)slice(r, "emb.weight")->shape)[0] = UINT64_MAX / 2;
}
static void parameter_without_a_group(struct zero_checkpoint *r)
{
	slice(r, "bias")->group = 77;
}
static void two_parameters_at_one_place(struct zero_checkpoint *r)
{
	slice(r, "bias")->index = slice(r, "emb.weight")->index;
}
static void parameter_at_no_place(struct zero_checkpoint *r)
{
	slice(r, "bias")->index = 40000;
}
static void parameters_in_another_order(struct zero_checkpoint *r)
{
	struct slice *const a = slice(r, "bias");
	struct slice *const b = slice(r, "emb.weight");
	const uint32_t listed = a->param_shapes_index;

	a->param_shapes_index = b->param_shapes_index;
	b->param_shapes_index = listed;
}
static void name_with_a_slash(struct zero_checkpoint *r)
{
	slice(r, "bias")->name = "a/b";
}
static void name_twice(struct zero_checkpoint *r)
{
	slice(r, "bias")->name = "buffer";
}
static void name_empty(struct zero_checkpoint *r)
{
	slice(r, "bias")->name = "";
}
static void buffer_behind_the_file(struct zero_checkpoint *r)
{
	buffer(r)->storage = r->dir.model[0].file.size - 1;
}
static void buffer_behind_its_storage(struct zero_checkpoint *r)
{
	buffer(r)->storage_offset = 1;
}
static void buffer_of_no_file(struct zero_checkpoint *r)
{
	buffer(r)->file = 12345;
}
static void buffer_with_gaps(struct zero_checkpoint *r)
{
	((uint64_t *)buffer(r)->stride)[0] = 2;
	buffer(r)->storage_numel = 5;
}
static void buffer_complex(struct zero_checkpoint *r)
{
	buffer(r)->dtype = DTYPE_C64;
}
static void fewer_ranks_than_there_were(struct zero_checkpoint *r)
{
	r->model.ranks[0].dp_world_size = 9;
}
static void two_ranks_where_there_is_one(struct zero_checkpoint *r)
{
	r->model.ranks[0].mp_world_size = 2;
}
static void another_type_of_model(struct zero_checkpoint *r)
{
	r->model.ranks[0].module_dtype = (enum dtype)99;
}

static struct shard_group *group(struct zero_checkpoint *r, size_t g)
{
	return zckpt_shard(r, 0, 0)->groups + g;
}

static struct shard_state *optimizer_state(struct zero_checkpoint *r,
					   const char *name)
{
	struct shard_group *const g = group(r, 0);
	size_t i = 0;

	while (strcmp(g->states[i].name, name) != 0)
		i++;
	return &g->states[i];
}

static uint64_t shard_size(struct zero_checkpoint *r)
{
	return r->dir.optim[0].file.size;
}

static void larger_group(struct zero_checkpoint *r)
{
	group(r, 0)->fp32.numel += 1000;
}
static void smaller_group(struct zero_checkpoint *r)
{
	group(r, 0)->fp32.numel--;
}
static void group_behind_the_file(struct zero_checkpoint *r)
{
	group(r, 1)->fp32.offset = shard_size(r) - 1;
}
static void group_at_the_end_of_all(struct zero_checkpoint *r)
{
	group(r, 1)->fp32.offset = UINT64_MAX - 3;
}
static void group_in_no_file(struct zero_checkpoint *r)
{
	group(r, 0)->fp32.swapped = 1;
}
static void group_of_no_type(struct zero_checkpoint *r)
{
	group(r, 0)->fp32.dtype = (enum dtype)99;
}
static void endless_padding(struct zero_checkpoint *r)
{
	r->layouts[0].groups[0].used = UINT64_MAX;
}
static void padding_that_no_shard_has(struct zero_checkpoint *r)
{
	r->layouts[0].groups[0].used += 1000;
}
static void too_many_states(struct zero_checkpoint *r)
{
	static const char names[] =
		"a\0b\0c\0d\0e\0f\0g\0h\0i\0j\0k\0l\0m\0n\0o\0p";
	static struct shard_state states[SHARD_STATES_MAX + 1];

	for (size_t i = 0; i < COUNT(states); i++)
		states[i] = (struct shard_state){ .name = names + 2 * i,
						  .kind = STATE_INT };
	group(r, 0)->states = states;
	group(r, 0)->nstates = COUNT(states);
}
static void state_with_a_slash(struct zero_checkpoint *r)
{
	optimizer_state(r, "exp_avg")->name = "../x";
}
static void state_like_the_weights(struct zero_checkpoint *r)
{
	optimizer_state(r, "exp_avg")->name = "fp32";
}
static void state_twice(struct zero_checkpoint *r)
{
	optimizer_state(r, "exp_avg")->name = "exp_avg_sq";
}
static void state_of_no_kind(struct zero_checkpoint *r)
{
	optimizer_state(r, "step")->kind = (enum state_kind)9;
}
static void smaller_state(struct zero_checkpoint *r)
{
	optimizer_state(r, "exp_avg")->flat.numel--;
}
static void larger_state(struct zero_checkpoint *r)
{
	optimizer_state(r, "exp_avg")->flat.numel += 1000;
}
static void state_behind_the_file(struct zero_checkpoint *r)
{
	optimizer_state(r, "exp_avg")->flat.offset = shard_size(r);
}
static void step_behind_the_file(struct zero_checkpoint *r)
{
	optimizer_state(r, "step")->flat.offset = shard_size(r) - 1;
}
static void step_of_two(struct zero_checkpoint *r)
{
	optimizer_state(r, "step")->flat.numel = 2;
}

static void lies_are_noticed(void **state)
{
#define LIE(name)           \
	{                   \
#name, name \
	}
	static const struct {
		const char *what;
		void (*lie)(struct zero_checkpoint *r);
	} lies[] = {
		LIE(larger_parameter),
		LIE(endless_parameter),
		LIE(parameter_without_a_group),
		LIE(two_parameters_at_one_place),
		LIE(parameter_at_no_place),
		LIE(parameters_in_another_order),
		LIE(name_with_a_slash),
		LIE(name_twice),
		LIE(name_empty),
		LIE(buffer_behind_the_file),
		LIE(buffer_behind_its_storage),
		LIE(buffer_of_no_file),
		LIE(buffer_with_gaps),
		LIE(buffer_complex),
		LIE(fewer_ranks_than_there_were),
		LIE(two_ranks_where_there_is_one),
		LIE(another_type_of_model),
		LIE(larger_group),
		LIE(smaller_group),
		LIE(group_behind_the_file),
		LIE(group_at_the_end_of_all),
		LIE(group_in_no_file),
		LIE(group_of_no_type),
		LIE(endless_padding),
		LIE(padding_that_no_shard_has),
		LIE(too_many_states),
		LIE(state_with_a_slash),
		LIE(state_like_the_weights),
		LIE(state_twice),
		LIE(state_of_no_kind),
		LIE(smaller_state),
		LIE(larger_state),
		LIE(state_behind_the_file),
		LIE(step_behind_the_file),
		LIE(step_of_two),
	};
#undef LIE

	for (size_t i = 0; i < COUNT(lies); i++) {
		struct indexed x = indexed_make(2);
		struct errmsg refused;
		struct plan *p;

		indexed_write(&x, lies[i].lie);
		if (indexed_is_used(&x, &p, &refused))
			fail_msg("%s: not noticed", lies[i].what);
		indexed_check(&x, p);
		plan_close(p);
		indexed_done(&x);
	}
}

/* A truncated index is refused.  One with any byte changed is refused, too, or
 * gives a tree that is consistent, though not the right one. */
static void damage_breaks_nothing(void **state)
{
	for (int stage = 2; stage <= 3; stage++) {
		struct indexed x = indexed_make(stage);
		const size_t len = x.index.len;
		struct errmsg refused, err;
		struct plan *p;

		for (size_t i = 1; i < len; i++) {
			x.index.len = i;
			assert_false(indexed_is_used(&x, &p, &refused));
			plan_close(p);
		}
		x.index.len = len;
		for (size_t i = 0; i < len; i++) {
			x.index.data[i] ^= 0x81;
			indexed_is_used(&x, &p, &refused);
			if (walk_plan(p, &err) == WALK_BROKEN)
				fail_msg("byte %zu: %s", i, err.text);
			plan_close(p);
			x.index.data[i] ^= 0x81;
		}
		indexed_done(&x);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(lies_are_noticed),
		cmocka_unit_test(damage_breaks_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
