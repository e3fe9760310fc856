/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of a module's entries: the lists in model states and the places of tensors decide. */
#include "ckpt/table/module_entries.h"

#include "ckpt/base/array.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"
#include "tests/make/literal.h"
#include "tests/support/unit.h"

static const struct entry {
	const char *name, *storage;
	unsigned ndim;
	uint64_t shape[2], storage_numel;
	bool buffer;
	const char *same;
} entries[] = {
	{ "net.w", "0", 2, { 2, 3 }, 6, false, NULL },
	{ "again.w", "0", 2, { 2, 3 }, 6, false, "net.w" },
	{ "flat", "0", 1, { 6 }, 6, false, NULL },
	{ "net.mean", "1", 1, { 3 }, 3, true, NULL },
	{ "again.mean", "1", 1, { 3 }, 3, true, NULL },
	{ "net._extra_state", "2", 1, { 4 }, 4, true, NULL },
	{ "head", "3", 1, { 4 }, 4, false, "far" },
	{ "none", "4", 1, { 0 }, 0, false, NULL },
	{ "again.none", "4", 1, { 0 }, 0, false, "none" },
	{ "nothing", "0", 1, { 0 }, 6, false, NULL },
	{ "nothing.again", "0", 1, { 0 }, 6, false, NULL },
};

static struct value *make_root(struct mkpt *m, const char *buffers)
{
	struct value *root = literal_value(m, "{'module': {}, 'shared_params': {'head': 'far'}}");
	struct value *module = value_find(root, "module");

	for (size_t i = 0; i < COUNT(entries); i++) {
		struct tensor t;

		tensor_init(&t, DTYPE_F32, entries[i].shape, entries[i].ndim, false);
		t.storage_key = entries[i].storage;
		t.storage_numel = entries[i].storage_numel;
		mkpt_set(m, module, entries[i].name, tensor_to_value(&m->arena, &t));
	}
	mkpt_set(m, module, "other._extra_state", mkpt_str(m, "no tensor"));
	mkpt_set(m, root, "buffer_names", literal_value(m, buffers));
	return root;
}

static void entries_are_what_lists_and_places_say(void **state)
{
	static const char *const lists[] = {
		"['net.mean', 'gone']", "Call('builtins', 'set', ['net.mean', 'gone'])"
	};

	(void)state;
	for (size_t k = 0; k < COUNT(lists); k++) {
		struct mkpt m = { 0 };
		const struct value *root = make_root(&m, lists[k]);
		struct module_entries e;

		module_entries_init(&e, &m.arena, root, value_find_pairs(root, "module"));
		for (size_t i = 0; i < COUNT(entries); i++) {
			const struct module_entry *x = module_entries_find(&e, entries[i].name);

			if (!x || x->buffer != entries[i].buffer || !x->same != !entries[i].same ||
			    (x->same && strcmp(x->same, entries[i].same) != 0))
				fail_msg("%s: %s: buffer %d, same %s", lists[k], entries[i].name,
					 x && x->buffer, x && x->same ? x->same : "none");
		}
		assert_true(module_entries_find(&e, "gone")->buffer);
		assert_false(module_entries_find(&e, "other._extra_state")->buffer);
		assert_null(module_entries_find(&e, "far"));
		mkpt_done(&m);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_are_what_lists_and_places_say),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
