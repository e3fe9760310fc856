/* SPDX-License-Identifier: Apache-2.0 */
/* Unusual but valid distributed checkpoints are read, and reported. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/ptfile.h"
#include "ckpt/table/geometry.h"
#include "tests/make/mkpt.h"
#include "tests/unit/dcp/copy.h"

/* A file that was written to since the view was opened is not read. */
static void test_changed(void **state)
{
	struct copy *c = *state;
	FILE *f = copy_own_file(c, "__2_0.distcp");
	struct bytebuf files[COPY_FILES] = { 0 };
	struct errmsg err = { "" };
	struct extent_map map = { 0 };
	struct gathers gathers = { 0 };
	struct checkpoint *before;
	int rc = 0;

	copy_reset(c);
	copy_commit(c);
	assert_int_equal(copy_open(c, &before, &err), 0);
	fseek(f, 0, SEEK_END);
	fputc('x', f);
	fclose(f);
	for (size_t i = 0; !rc && i < before->norder; i++)
		rc = checkpoint_weights(before, before->order[i], DTYPE_F32, &map, &gathers, &err);
	assert_int_equal(rc, -EIO);
	assert_non_null(strstr(err.text, "__2_0.distcp: was written to"));
	extent_done(&map);
	gathers_done(&gathers);
	checkpoint_close(before);
	assert_int_equal(copy_read(c, files, &err), 0);
	for (int i = 0; i < COPY_FILES; i++) {
		assert_int_equal(files[i].len, c->files[i].len);
		assert_memory_equal(files[i].data, c->files[i].data, files[i].len);
		bytebuf_done(&files[i]);
	}
}

static void keep_text(void *arg, const char *text)
{
	strcat(arg, text);
}

/* Get the warnings about a checkpoint. */
static void read_warnings(const struct checkpoint *c, char out[4096])
{
	*out = '\0';
	c->ops->warn(c, &(struct errmsg_sink){ keep_text, out });
}

/* One parameter has made five steps, the others four. */
static void test_steps_differ(void **state)
{
	static const uint8_t four[4] = { 0, 0, 0x80, 0x40 };
	static const uint8_t five[4] = { 0, 0, 0xa0, 0x40 };
	struct copy *c = *state;
	FILE *f = copy_own_file(c, "__1_0.distcp");
	const struct value *at;
	uint8_t record[4096], *step;
	char warnings[4096];
	struct checkpoint *open;
	struct errmsg err;

	copy_reset(c);
	copy_commit(c);
	at = copy_info(c, "optim.state.transformer.ln_f.bias.step");
	fseek(f, value_find(at, "offset")->i, SEEK_SET);
	step = memmem(record, fread(record, 1, sizeof(record), f), four, sizeof(four));
	assert_non_null(step);
	fseek(f, value_find(at, "offset")->i + (step - record), SEEK_SET);
	fwrite(five, sizeof(five), 1, f);
	assert_int_equal(fclose(f), 0);

	assert_int_equal(copy_open(c, &open, &err), 0);
	assert_int_equal(open->facts.global_steps, 5);
	read_warnings(open, warnings);
	assert_non_null(strstr(warnings, "different numbers of steps"));
	checkpoint_close(open);
}

/* Return the row with this name in a state dict, or NULL. */
static const struct param *find_row(const struct checkpoint *c, const char *name)
{
	for (size_t i = 0; i < c->norder; i++)
		if (strcmp(c->order[i]->name, name) == 0)
			return c->order[i];
	return NULL;
}

/* Weights that were saved under two names are one tensor again. */
static void test_tied(void **state)
{
	struct checkpoint *c;
	struct errmsg err;

	assert_int_equal(copy_open(*state, &c, &err), 0);
	assert_ptr_equal(find_row(c, "lm_head.weight")->same,
			 find_row(c, "transformer.wte.weight"));
	checkpoint_close(c);
}

/* Add common.pt, which marks a Megatron-LM checkpoint, without keys of a known optimizer. */
static void add_common(const struct copy *c)
{
	char *path = copy_path(c->dir, "common.pt");
	struct mkpt m = { 0 };
	struct value *root = mkpt_dict(&m);
	struct bytebuf out = { 0 };

	mkpt_set(&m, root, "iteration", mkpt_int(&m, 3));
	mkpt_emit(&m, root, "archive", &out);
	mkpt_save(path, out.data, out.len);
	bytebuf_done(&out);
	mkpt_done(&m);
	free(path);
}

/* Rename an entry's key everywhere in the metadata. */
static void rename_key(const struct copy *c, const char *from, const char *to)
{
	static const char *const dicts[] = { "state_dict_metadata", "planner_data",
					     "storage_data" };

	for (size_t k = 0; k < COUNT(dicts); k++) {
		const struct value_dict *d = value_find_pairs(c->metadata, dicts[k]);

		for (size_t i = 0; i < d->n; i++) {
			struct value *key = d->v[i].key;
			struct value *name =
				key->kind == VALUE_STR ? key : value_find(key->obj->state, "fqn");

			if (value_is_str(name, from))
				name->str = (struct value_str){ to, strlen(to) };
		}
	}
}

/* Buckets of Megatron's optimizer are refused by name, and are not taken for weights. */
static void test_unknown_optimizer(void **state)
{
	static const char bucket[] = "optimizer.distributed.buckets.0";
	struct copy *c = *state;
	struct checkpoint *open;
	struct errmsg err;

	copy_reset(c);
	add_common(c);
	rename_key(c, "optim.state.transformer.ln_f.bias.exp_avg", bucket);
	copy_commit(c);
	assert_int_equal(copy_open(c, &open, &err), 0);
	assert_non_null(strstr(open->ranks->refused, bucket));
	assert_null(find_row(open, bucket));
	checkpoint_close(open);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tied),
		cmocka_unit_test(test_changed),
		cmocka_unit_test(test_steps_differ),
		cmocka_unit_test(test_unknown_optimizer),
	};

	return cmocka_run_group_tests(tests, copy_setup, copy_teardown);
}
