/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged or false metadata: if it contradicts itself, the files or the records, or is not a model
 * with its optimizer, it is refused with a message that names the file and the cause; thousands of
 * random changes give the right bytes or a refusal.  Nothing in a pickle is executed.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/format/names.h"
#include "tests/support/sampled.h"
#include "tests/unit/dcp/copy.h"
#include "tests/unit/dcp/mutate.h"

#define WEIGHT "model.transformer.wte.weight"
#define MUTANTS 4000u

/* Return the attributes of an entry, and of one of its chunks. */
static struct value *entry(const struct copy *c, const char *key)
{
	return value_find_path(c->metadata, "state_dict_metadata", key, NULL)->obj->state;
}

static struct value *chunk(const struct copy *c, size_t i)
{
	return value_find_items(entry(c, WEIGHT), "chunks")->v[i]->obj->state;
}

static struct value *info(const struct copy *c)
{
	return copy_info(c, WEIGHT);
}

static void set_int(struct value *of, const char *key, int64_t add)
{
	value_find(of, key)->i += add;
}

/* Replace a string that others may share without changing them. */
static void set_text(struct copy *c, struct value *of, const char *key, const char *text)
{
	value_put(&c->a, of, key, value_new_str(&c->a, text));
}

/* Return a call for a pickle to make when loaded. */
static struct value *call(struct copy *c, const char *module, const char *name)
{
	struct value *args = value_new(&c->a, VALUE_TUPLE);

	value_append(&c->a, args, value_new_str(&c->a, "touch executed"));
	return value_new_reduce(&c->a, value_new_global(&c->a, module, name), args);
}

static void lose_chunk(struct copy *c)
{
	value_find(entry(c, WEIGHT), "chunks")->seq.n--;
}

static void lose_data(struct copy *c)
{
	value_find(c->metadata, "storage_data")->dict.n = 5;
}

static void grow_chunk(struct copy *c)
{
	/* Chunks share their sizes, so make a new list. */
	struct value *sizes = value_new(&c->a, VALUE_TUPLE);

	value_append(&c->a, sizes, value_new_int(&c->a, 17));
	value_append(&c->a, sizes, value_items(value_find(chunk(c, 0), "sizes"))->v[1]);
	value_put(&c->a, chunk(c, 0), "sizes", sizes);
}

static void leave_tensor(struct copy *c)
{
	struct value *offsets = value_new(&c->a, VALUE_TUPLE);

	value_append(&c->a, offsets, value_new_int(&c->a, INT64_MAX));
	value_append(&c->a, offsets, value_new_int(&c->a, 0));
	for (size_t i = 0; i < 4; i++)
		value_put(&c->a, chunk(c, i), "offsets", offsets);
	value_put(&c->a, value_find_pairs(c->metadata, "storage_data")->v[0].key->obj->state,
		       "offset", offsets);
	set_text(c, value_find_pairs(c->metadata, "storage_data")->v[0].key->obj->state, "fqn",
		 WEIGHT);
}

static void lengthen_record(struct copy *c)
{
	set_int(info(c), "length", 1 << 20);
}

static void shift_record(struct copy *c)
{
	set_int(info(c), "offset", 64);
}

static void name_missing_file(struct copy *c)
{
	set_text(c, info(c), "relative_path", "__9_0.distcp");
}

static void leave_directory(struct copy *c)
{
	set_text(c, info(c), "relative_path", "../../etc/passwd");
}

static void name_root(struct copy *c)
{
	set_text(c, info(c), "relative_path", "/etc/passwd");
}

static void change_type(struct copy *c)
{
	value_find(entry(c, WEIGHT), "properties")->obj->state->seq.v[0] =
		value_new_global(&c->a, "torch", "float64");
}

static void transform(struct copy *c)
{
	struct value *list = value_new(&c->a, VALUE_LIST);

	value_append(&c->a, list, value_new_str(&c->a, "stream.zstd/1"));
	value_put(&c->a, info(c), "transform_descriptors", list);
}

static void use_safetensors(struct copy *c)
{
	set_text(c, info(c), "relative_path", "model-1.safetensors");
}

static void replace_entries(struct copy *c)
{
	value_put(&c->a, c->metadata, "state_dict_metadata", call(c, "mine", "Items"));
}

static void replace_root(struct copy *c)
{
	c->root = call(c, "mine", "Metadata");
}

static void replace_file(struct copy *c)
{
	value_put(&c->a, info(c), "relative_path", call(c, "mine", "Path"));
}

static void call_system(struct copy *c)
{
	value_put(&c->a, c->metadata, "storage_meta", call(c, "os", "system"));
}

/* Change an element of an entry's path. */
static void move(struct copy *c, const char *key, size_t element, const char *text)
{
	value_find_path(c->metadata, "planner_data", key, NULL)->seq.v[element] =
		value_new_str(&c->a, text);
}

static void add_optimizer(struct copy *c)
{
	move(c, "optim.param_groups.0.lr", 0, "other");
}

static void lose_params(struct copy *c)
{
	move(c, "optim.param_groups.0.params", 3, "other");
}

static void lose_model(struct copy *c)
{
	move(c, WEIGHT, 1, "other");
}

static void lose_state(struct copy *c)
{
	move(c, "optim.state.transformer.ln_f.bias.exp_avg", 3, "other");
}

static void lose_parameter(struct copy *c)
{
	move(c, "model.transformer.ln_f.bias", 1, "other");
}

static void double_parameter(struct copy *c)
{
	move(c, "model.transformer.ln_f.bias", 1, "transformer.ln_f.weight");
}

/* Turn a state into a dict, which is saved as several entries. */
static void nest_state(struct copy *c)
{
	value_append(&c->a,
		     value_find_path(c->metadata, "planner_data",
				     "optim.state.transformer.ln_f.bias.exp_avg", NULL),
		     value_new_str(&c->a, "inner"));
}

/* Remove a state of the group's first parameter that the others have. */
static void lose_first_state(struct copy *c)
{
	move(c, "optim.state.transformer.wte.weight.exp_avg", 3, "other");
}

/* Swap a state of two parameters with different shapes. */
static void swap_states(struct copy *c)
{
	move(c, "optim.state.transformer.ln_f.bias.exp_avg", 2, "transformer.wpe.weight");
	move(c, "optim.state.transformer.wpe.weight.exp_avg", 2, "transformer.ln_f.bias");
}

/* Give the steps another name and a type whose values are unknown. */
static void odd_scalars(struct copy *c)
{
	const struct value_dict *d = value_find_pairs(c->metadata, "planner_data");

	for (size_t i = 0; i < d->n; i++) {
		const char *key = value_cstr(d->v[i].key);
		const struct value_seq *path = value_items(d->v[i].val);

		if (!value_is_str(path->v[path->n - 1], "step"))
			continue;
		path->v[path->n - 1] = value_new_str(&c->a, "scale");
		value_find(entry(c, key), "properties")->obj->state->seq.v[0] =
			value_new_global(&c->a, "torch", "quint8");
	}
}

static void test_refused(void **state)
{
	static const struct {
		void (*change)(struct copy *);
		const char *words;
	} bad[] = {
		{ lose_chunk, WEIGHT ": the chunks have 864 of its 1098" },
		{ lose_data, "a chunk has no data" },
		{ grow_chunk, WEIGHT ": two chunks overlap" },
		{ leave_tensor, WEIGHT ": a chunk lies outside of the tensor" },
		{ lengthen_record, "_0.distcp: has " },
		{ shift_record, "_0.distcp: " },
		{ name_missing_file, "__9_0.distcp: is missing, and .metadata says" },
		{ leave_directory, "etc/passwd' is no file of the directory" },
		{ name_root, "'/etc/passwd' is no file of the directory" },
		{ change_type, "a chunk has another type or shape than .metadata" },
		{ transform, "was written with the transform stream.zstd/1" },
		{ use_safetensors, "lies in a file of safetensors" },
		{ replace_entries, "not the metadata of a PyTorch distributed" },
		{ replace_root, "not the metadata of a PyTorch distributed" },
		{ replace_file, "is no file of the directory" },
		{ call_system, "refusing global os.system: it runs code" },
		{ double_parameter, "ln_f.bias: another tensor has its name" },
	};
	struct copy *c = *state;
	struct bytebuf files[COPY_FILES] = { 0 };

	for (size_t i = 0; i < COUNT(bad); i++) {
		struct errmsg err = { "" };

		copy_reset(c);
		bad[i].change(c);
		copy_commit(c);
		if (!copy_read(c, files, &err))
			fail_msg("accepted: %s", bad[i].words);
		if (!strstr(err.text, bad[i].words) || !strstr(err.text, c->dir))
			fail_msg("'%s' instead of: %s", err.text, bad[i].words);
	}
	assert_int_equal(access("executed", F_OK), -1);
	for (int i = 0; i < COPY_FILES; i++)
		bytebuf_done(&files[i]);
}

/* Return whether the optimizer is not read, for a reason that contains these words. */
static bool is_without(const struct copy *c, const char *words)
{
	struct checkpoint *open;
	struct errmsg err;
	const char *why;
	bool found;

	assert_int_equal(copy_open(c, &open, &err), 0);
	why = open->ranks->refused;
	found = why && strstr(why, words) && strstr(why, c->dir);
	checkpoint_close(open);
	return found;
}

/* An optimizer that ZeRO cannot hold hides no weights. */
static void test_optimizer_refused(void **state)
{
	static const struct {
		void (*change)(struct copy *);
		const char *words;
	} odd[] = {
		{ add_optimizer, "several optimizers (other, optim) are in it" },
		{ lose_params, "group 0 of the optimizer has no params" },
		{ lose_model, "the optimizer has a parameter transformer.wte.weight, which" },
		{ lose_state, "ln_f.bias has 3 states, of which 2 are among the 3 of" },
		{ lose_first_state, "has 3 states, of which 2 are among the 3 of" },
		{ lose_parameter, "a parameter transformer.ln_f.bias, which the model has not" },
		{ odd_scalars, ".step: is of a type that is not read" },
		{ nest_state, "ln_f.bias.exp_avg: is a part of a state" },
		{ swap_states, "has another shape" },
	};
	struct copy *c = *state;
	struct bytebuf files[COPY_FILES] = { 0 };

	for (size_t i = 0; i < COUNT(odd); i++) {
		struct errmsg err = { "" };

		copy_reset(c);
		odd[i].change(c);
		copy_commit(c);
		if (copy_read(c, files, &err))
			fail_msg("%s", err.text);
		if (!is_without(c, odd[i].words))
			fail_msg("nothing says: %s", odd[i].words);
	}
	for (int i = 0; i < COPY_FILES; i++)
		bytebuf_done(&files[i]);
}

/* Unused entries may be anything. */
static void test_ignored(void **state)
{
	struct copy *c = *state;
	struct bytebuf files[COPY_FILES] = { 0 };
	struct errmsg err = { "" };

	copy_reset(c);
	value_put(&c->a, c->metadata, "storage_meta", call(c, "mine", "Meta"));
	value_put(&c->a, c->metadata, "all_local_views", call(c, "mine", "Plans"));
	copy_commit(c);
	if (copy_read(c, files, &err))
		fail_msg("%s", err.text);
	for (int i = 0; i < COPY_FILES; i++) {
		assert_int_equal(files[i].len, c->files[i].len);
		assert_memory_equal(files[i].data, c->files[i].data, files[i].len);
		bytebuf_done(&files[i]);
	}
	assert_int_equal(access("executed", F_OK), -1);
}

static void write_mutant(const struct copy *c, uint64_t seed)
{
	size_t n = c->bytes.len;
	uint8_t *b = mutate_bytes(c->bytes.p, &n, seed);

	copy_write(c, b, n);
	free(b);
}

/* Change a number about the place of data, but not to 0, where a similar record may begin. */
static void mutate_number(struct copy *c, uint64_t seed)
{
	static const int64_t others[] = { 1, -1, 7, 8, 16, INT32_MAX, INT64_MAX, INT64_MIN };
	static struct mutate_nodes ints = { .ints = true };
	struct value *v;

	copy_reset(c);
	ints.n = 0;
	mutate_collect(value_find(c->metadata,
				  mutate_draw(&seed, 2) ? "storage_data" : "state_dict_metadata"),
		       &ints);
	v = ints.v[mutate_draw(&seed, ints.n)];
	v->i = mutate_draw(&seed, 2) ? v->i + (int64_t)mutate_draw(&seed, 5) - 2
				     : others[mutate_draw(&seed, COUNT(others))];
	copy_commit(c);
}

static void test_mutants(void **state)
{
	struct copy *c = *state;
	struct bytebuf files[COPY_FILES] = { 0 };
	const unsigned mutants = MUTANTS / sampled_step(4);
	unsigned refused = 0;

	for (unsigned i = 0; i < mutants; i++) {
		const bool number = i % 4 == 0;
		struct errmsg err = { "" };
		int rc;

		if (number)
			mutate_number(c, i);
		else
			write_mutant(c, i);
		rc = copy_read(c, files, &err);
		refused += rc != 0;
		if (!rc && is_without(c, "")) {
			refused++;
			continue;
		}
		if (rc && !strstr(err.text, c->dir))
			fail_msg("mutant %u: %s", i, err.text);
		for (int k = 0; !rc && number && k < COPY_FILES; k++)
			if (files[k].len != c->files[k].len ||
			    memcmp(files[k].data, c->files[k].data, files[k].len))
				fail_msg("mutant %u: other bytes", i);
	}
	assert_true(refused >= mutants / 4 && refused <= mutants);
	for (int i = 0; i < COPY_FILES; i++)
		bytebuf_done(&files[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_optimizer_refused),
		cmocka_unit_test(test_ignored),
		cmocka_unit_test(test_mutants),
	};

	return cmocka_run_group_tests(tests, copy_setup, copy_teardown);
}
