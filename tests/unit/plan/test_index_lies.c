/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan takes from an index nothing that it would not take from a shard: what
 * is wrong in it is noticed, and the tree made without it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/indexed.h"
#include "tests/support/walk.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

static struct slice *slice(struct resolve *r, const char *name)
{
	return (struct slice *)catalogue_find(r->model.cats, name);
}

static struct module_tensor *buffer(struct resolve *r)
{
	return (struct module_tensor *)slice(r, "buffer")->module;
}

static struct shard_state *moment(struct resolve *r)
{
	return &r->shards[1].groups[0].states[1];
}

/* Lies about where things are and how large. */
static void offset_behind_the_file(struct resolve *r)
{
	r->shards[1].groups[0].fp32.offset = r->dir.optim[1].file.size - 3;
}
static void offset_that_wraps(struct resolve *r)
{
	r->shards[1].groups[0].fp32.offset = UINT64_MAX - 7;
}
static void moment_in_no_file(struct resolve *r)
{
	moment(r)->flat.swapped = 1;
}
static void moment_behind_the_file(struct resolve *r)
{
	moment(r)->flat.offset = r->dir.optim[1].file.size;
}
static void partition_too_short(struct resolve *r)
{
	r->shards[0].groups[0].fp32.numel--;
}
static void partition_too_long(struct resolve *r)
{
	r->shards[0].groups[0].fp32.numel += 1000;
}
static void moment_too_short(struct resolve *r)
{
	moment(r)->flat.numel = 1;
}
static void moment_of_unknown_type(struct resolve *r)
{
	moment(r)->flat.dtype = (enum dtype)200;
}
static void moment_of_another_type(struct resolve *r)
{
	moment(r)->flat.dtype = DTYPE_BF16;
}
static void moment_with_a_path(struct resolve *r)
{
	moment(r)->name = "../../etc";
}
static void moment_twice(struct resolve *r)
{
	moment(r)->name = r->shards[1].groups[0].states[0].name;
}
static void state_of_unknown_kind(struct resolve *r)
{
	moment(r)->kind = (enum state_kind)9;
}
static void shards_of_different_steps(struct resolve *r)
{
	r->shards[1].groups[0].states[0].bytes[0] ^= 1;
}
static void whole_moments(struct resolve *r)
{
	r->shards[0].groups[0].whole = true;
}
static void first_shard_missing(struct resolve *r)
{
	shard_done(&r->shards[0]);
	atomic_store(&r->loaded[0], false);
}
static void layout_missing(struct resolve *r)
{
	layout_done(&r->layouts[0]);
}
static void larger_parameter(struct resolve *r)
{
	((uint64_t *)slice(r, "bias")->shape)[0] = 500;
}
static void endless_parameter(struct resolve *r)
{
	((uint64_t *)slice(r, "emb.weight")->shape)[0] = UINT64_MAX / 2;
}
static void parameter_without_a_group(struct resolve *r)
{
	slice(r, "bias")->group = 77;
}
static void two_parameters_at_one_place(struct resolve *r)
{
	slice(r, "bias")->index = slice(r, "emb.weight")->index;
}
static void parameter_at_no_place(struct resolve *r)
{
	slice(r, "bias")->index = 40000;
}
static void parameters_in_another_order(struct resolve *r)
{
	struct slice *const a = slice(r, "bias");
	struct slice *const b = slice(r, "emb.weight");
	const uint32_t listed = a->listed;

	a->listed = b->listed;
	b->listed = listed;
}
static void name_with_a_slash(struct resolve *r)
{
	slice(r, "bias")->name = "a/b";
}
static void name_twice(struct resolve *r)
{
	slice(r, "bias")->name = "buffer";
}
static void name_empty(struct resolve *r)
{
	slice(r, "bias")->name = "";
}
static void buffer_behind_the_file(struct resolve *r)
{
	buffer(r)->storage = r->dir.model[0].file.size - 1;
}
static void buffer_behind_its_storage(struct resolve *r)
{
	buffer(r)->storage_offset = 1;
}
static void buffer_of_no_file(struct resolve *r)
{
	buffer(r)->file = 12345;
}
static void buffer_with_gaps(struct resolve *r)
{
	((uint64_t *)buffer(r)->stride)[0] = 2;
	buffer(r)->storage_numel = 5;
}
static void buffer_complex(struct resolve *r)
{
	buffer(r)->dtype = DTYPE_C64;
}
static void paddings_that_overflow(struct resolve *r)
{
	r->layouts[0].groups[0].used = UINT64_MAX;
}
static void paddings_that_move_parameters(struct resolve *r)
{
	r->layouts[0].groups[0].start[1] += 4000;
	r->layouts[0].groups[0].used += 4000;
}
static void fewer_ranks_than_there_were(struct resolve *r)
{
	r->model.cats[0].dp_world_size = 9;
}
static void two_ranks_where_there_is_one(struct resolve *r)
{
	r->model.cats[0].mp_world_size = 2;
}
static void another_type_of_model(struct resolve *r)
{
	r->model.cats[0].module_dtype = (enum dtype)99;
}

static void lies_are_noticed(void **state)
{
#define LIE(name)           \
	{                   \
#name, name \
	}
	static const struct {
		const char *what;
		void (*tell)(struct resolve *r);
	} lies[] = {
		LIE(offset_behind_the_file),
		LIE(offset_that_wraps),
		LIE(moment_in_no_file),
		LIE(moment_behind_the_file),
		LIE(partition_too_short),
		LIE(partition_too_long),
		LIE(moment_too_short),
		LIE(moment_of_unknown_type),
		LIE(moment_of_another_type),
		LIE(moment_with_a_path),
		LIE(moment_twice),
		LIE(state_of_unknown_kind),
		LIE(shards_of_different_steps),
		LIE(whole_moments),
		LIE(first_shard_missing),
		LIE(layout_missing),
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
		LIE(paddings_that_overflow),
		LIE(paddings_that_move_parameters),
		LIE(fewer_ranks_than_there_were),
		LIE(two_ranks_where_there_is_one),
		LIE(another_type_of_model),
	};
#undef LIE

	(void)state;
	for (size_t i = 0; i < COUNT(lies); i++) {
		struct indexed x = indexed_make(2);
		struct errmsg refused;
		struct plan *p;

		indexed_write(&x, lies[i].tell);
		if (indexed_is_used(&x, &p, &refused))
			fail_msg("%s: not noticed", lies[i].what);
		indexed_check(&x, p);
		plan_close(p);
		indexed_done(&x);
	}
}

/* An index that ends anywhere is refused; one with any byte changed is, or it
 * gives a tree that is sound, though not the right one. */
static void damage_breaks_nothing(void **state)
{
	(void)state;
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
