/* SPDX-License-Identifier: Apache-2.0 */
/* What is unusual in a distributed checkpoint, but not wrong, is read and reported. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/format/keys.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/sys/parallel.h"
#include "tests/make/mkpt.h"
#include "tests/unit/dcp/copy.h"

/* A file that is written to is not read, and gives the checkpoint another identity. */
static void test_changed(void **state)
{
	struct copy *const c = *state;
	FILE *const f = copy_own_file(c, "__2_0.distcp");
	struct errmsg err = { "" };
	struct dcp *before, *after;
	uint8_t byte;

	copy_reset(c);
	copy_commit(c);
	assert_int_equal(dcp_open(test_context(), c->dir, &before, &err), 0);
	fseek(f, 0, SEEK_END);
	fputc('x', f);
	fclose(f);
	assert_int_equal(dcp_open(test_context(), c->dir, &after, &err), 0);
	assert_ptr_not_equal(before, after);
	for (int i = 0; i < DCP_ZEROFILE_KINDS; i++) {
		const enum dcp_zerofile_kind kind = (enum dcp_zerofile_kind)i;
		const size_t size = (size_t)dcp_attrs(after, kind).st.st_size;
		uint8_t *const all = malloc(size);

		assert_non_null(all);
		assert_true(dcp_attrs(before, kind).st.st_ino !=
			    dcp_attrs(after, kind).st.st_ino);
		assert_int_equal(dcp_read(before, kind, all, size, 0, &err), -EIO);
		assert_non_null(strstr(err.text, "__2_0.distcp: was written to"));
		assert_int_equal(dcp_read(after, kind, all, size, 0, &err), 0);
		assert_memory_equal(all, c->files[i].data, size);
		/* What lies in other files can still be read. */
		assert_int_equal(dcp_read(before, kind, &byte, 1, 0, &err), 0);
		free(all);
	}
	dcp_close(before);
	dcp_close(after);
}

struct opening {
	const char *dir;
	struct dcp *opened[16];
};

static int open_one(void *ctx, size_t i, struct errmsg *err)
{
	struct opening *const o = ctx;

	return dcp_open(test_context(), o->dir, &o->opened[i], err);
}

/* Threads that open a checkpoint at once wait for the one that reads it. */
static void test_opened_at_once(void **state)
{
	const struct copy *const c = *state;
	struct opening o = { .dir = c->dir };
	struct errmsg err;

	dcp_close_kept(test_context());
	assert_int_equal(parallel_for(COUNT(o.opened), COUNT(o.opened), open_one, &o,
				      &err),
			 0);
	for (size_t i = 0; i < COUNT(o.opened); i++)
		assert_ptr_equal(o.opened[i], o.opened[0]);
	for (size_t i = 0; i < COUNT(o.opened); i++)
		dcp_close(o.opened[i]);
}

/* One parameter has made five steps, the others four. */
static void test_steps_differ(void **state)
{
	static const uint8_t four[4] = { 0, 0, 0x80, 0x40 };
	static const uint8_t five[4] = { 0, 0, 0xa0, 0x40 };
	struct copy *const c = *state;
	FILE *const f = copy_own_file(c, "__1_0.distcp");
	const struct value_seq *warnings;
	const struct value *at;
	uint8_t blob[4096], *step;
	struct ptfile pt;
	int64_t n;

	copy_reset(c);
	copy_commit(c);
	at = copy_info(c, "optim.state.transformer.ln_f.bias.step");
	fseek(f, value_find(at, "offset")->i, SEEK_SET);
	step = memmem(blob, fread(blob, 1, sizeof(blob), f), four, sizeof(four));
	assert_non_null(step);
	fseek(f, value_find(at, "offset")->i + (step - blob), SEEK_SET);
	fwrite(five, sizeof(five), 1, f);
	assert_int_equal(fclose(f), 0);

	copy_open(c, DCP_ZEROFILE_MODEL, &pt);
	assert_true(value_get_int(value_find(pt.root, "global_steps"), &n));
	assert_int_equal(n, 5);
	warnings = value_find_items(pt.root, KEY_FOREIGN_WARNINGS);
	assert_int_equal(warnings->n, 1);
	assert_non_null(strstr(value_cstr(warnings->v[0]), "different numbers of steps"));
	ptfile_close(&pt);
}

/* Weights that were saved under two names are one tensor again. */
static void test_tied(void **state)
{
	const struct value *module;
	struct ptfile pt;

	copy_open(*state, DCP_ZEROFILE_MODEL, &pt);
	module = value_find(pt.root, "module");
	assert_non_null(value_find(module, "lm_head.weight"));
	assert_ptr_equal(value_find(module, "lm_head.weight"),
			 value_find(module, "transformer.wte.weight"));
	ptfile_close(&pt);
}

/* Add the file that makes it one of Megatron-LM's, with no key of a known optimizer. */
static void add_common(const struct copy *c)
{
	char *const path = copy_path(c->dir, "common.pt");
	struct mkpt m = { 0 };
	struct value *const root = mkpt_dict(&m);
	struct bytebuf out = { 0 };

	mkpt_set(&m, root, "iteration", mkpt_int(&m, 3));
	mkpt_emit(&m, root, "archive", &out);
	mkpt_save(path, out.data, out.len);
	bytebuf_done(&out);
	mkpt_done(&m);
	free(path);
}

/* Rename an item, wherever the metadata has its key. */
static void rename_key(const struct copy *c, const char *from, const char *to)
{
	static const char *const dicts[] = { "state_dict_metadata", "planner_data",
					     "storage_data" };

	for (size_t k = 0; k < COUNT(dicts); k++) {
		const struct value_dict *const d =
			value_find_pairs(c->metadata, dicts[k]);

		for (size_t i = 0; i < d->n; i++) {
			struct value *const key = d->v[i].key;
			struct value *const name =
				key->kind == VALUE_STR
					? key
					: value_find(key->obj->state, "fqn");

			if (value_is_str(name, from))
				name->str = (struct value_str){ to, strlen(to) };
		}
	}
}

/* A form of Megatron's optimizer that is not known is reported, and is no weight. */
static void test_unknown_optimizer(void **state)
{
	static const char bucket[] = "optimizer.distributed.buckets.0";
	struct copy *const c = *state;
	const struct value *states;
	struct ptfile pt;

	copy_reset(c);
	add_common(c);
	rename_key(c, "optim.state.transformer.ln_f.bias.exp_avg", bucket);
	copy_commit(c);
	copy_open(c, DCP_ZEROFILE_OPTIM, &pt);
	states = value_numbered(
		value_find_path(pt.root, KEY_OPTIMIZER_STATE_DICT,
				KEY_BASE_OPTIMIZER_STATE, "state", NULL), 0);
	assert_int_equal(value_pairs(states)->n, 3); /* step, exp_avg, exp_avg_sq */
	ptfile_close(&pt);
	copy_open(c, DCP_ZEROFILE_MODEL, &pt);
	states = value_find(pt.root, KEY_FOREIGN_WARNINGS);
	assert_non_null(strstr(value_cstr(value_item(states, 0)), bucket));
	assert_null(value_find(value_find(pt.root, "module"), bucket));
	ptfile_close(&pt);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tied),
		cmocka_unit_test(test_opened_at_once),
		cmocka_unit_test(test_changed),
		cmocka_unit_test(test_steps_differ),
		cmocka_unit_test(test_unknown_optimizer),
	};

	return cmocka_run_group_tests(tests, copy_setup, copy_teardown);
}
