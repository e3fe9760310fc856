/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed lists buffers and tied parameters as it walks over each module's children (engine.py,
 * _get_buffer_names, _get_shared_params).  torch gives a child, parameter or buffer that a module
 * has under two names once, so that the second name is in no list.  The state dict has it, and both
 * tensors are in one storage.  A view of another shape is a separate parameter: DeepSpeed lists it
 * separately everywhere.
 */
#include "ckpt/table/module_entries.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/arena.h"
#include "ckpt/format/names.h"
#include "ckpt/format/tensor.h"
#include "ckpt/format/value.h"

/* The place of a tensor of the module, and its form. */
struct place {
	const char *name;
	size_t number; /* in the module */
	const char *key;
	uint64_t offset;
	enum dtype dtype;
	unsigned ndim;
	const uint64_t *dims; /* sizes, then strides */
};

static struct module_entry *find(const struct module_entries *e, const char *name)
{
	return array_find(e->v, e->n, sizeof(*e->v), name);
}

static const struct value_seq *buffer_names(const struct value *root)
{
	const struct value *v = value_find(root, "buffer_names");

	/* A list, or until 0.16 a set. */
	return value_items(v && v->kind == VALUE_REDUCE ? value_item(v->obj->args, 0) : v);
}

/* torch saves the result of a module's get_extra_state(), which is not a parameter. */
static bool is_extra_state(const struct value_pair *p)
{
	const char *dot = strrchr(p->key->str.p, '.');

	return strcmp(dot ? dot + 1 : p->key->str.p, "_extra_state") == 0 && tensor_is_any(p->val);
}

static void list_names(struct module_entries *e, const struct value_seq *buffers,
		       const struct value_dict *shared, const struct value_dict *module)
{
	for (size_t i = 0; buffers && i < buffers->n; i++)
		if (value_is_cstr(buffers->v[i]))
			e->v[e->n++] = (struct module_entry){ .name = buffers->v[i]->str.p,
							      .buffer = true };
	for (size_t i = 0; shared && i < shared->n; i++)
		if (value_is_cstr(shared->v[i].key) && value_is_cstr(shared->v[i].val))
			e->v[e->n++] = (struct module_entry){ .name = shared->v[i].key->str.p,
							      .same = shared->v[i].val->str.p };
	for (size_t i = 0; module && i < module->n; i++)
		if (value_is_cstr(module->v[i].key))
			e->v[e->n++] = (struct module_entry){ .name = module->v[i].key->str.p,
							      .buffer = is_extra_state(&module->v[i]) };
}

/* Join the entries of equal names. */
static void join_names(struct module_entries *e)
{
	size_t n = 0;

	if (e->n)
		qsort(e->v, e->n, sizeof(*e->v), array_by_text);
	for (size_t i = 0; i < e->n; i++) {
		const struct module_entry *x = &e->v[i];
		struct module_entry *last = n ? &e->v[n - 1] : NULL;

		if (!last || strcmp(last->name, x->name) != 0) {
			e->v[n++] = *x;
			continue;
		}
		last->buffer |= x->buffer;
		last->same = last->same ?: x->same;
	}
	e->n = n;
}

/* Set the place of an entry's tensor.  False if it has none, such as a view without elements of
 * a storage that has some; empty tensors of stage 3 have a storage each. */
static bool find_place(struct place *p, struct arena *a, const struct value *v)
{
	struct tensor t;
	uint64_t *dims;

	if (!tensor_is(v) || tensor_from_value(v, "module", &t, NULL) || (!t.numel && t.storage_numel))
		return false;
	dims = arena_alloc(a, 2 * t.ndim * sizeof(*dims) + 1);
	if (!dims)
		return false;
	memcpy(dims, t.shape, t.ndim * sizeof(*dims));
	memcpy(dims + t.ndim, t.stride, t.ndim * sizeof(*dims));
	*p = (struct place){ .key = t.storage_key,
			     .offset = t.storage_offset,
			     .dtype = t.dtype,
			     .ndim = t.ndim,
			     .dims = dims };
	return true;
}

static int compare_places(const struct place *x, const struct place *y)
{
	return ORDER(x->offset, y->offset) ?: ORDER(x->dtype, y->dtype) ?:
	       ORDER(x->ndim, y->ndim) ?: strcmp(x->key, y->key) ?:
	       memcmp(x->dims, y->dims, 2 * x->ndim * sizeof(*x->dims));
}

static int by_place(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return compare_places(x, y) ?: ORDER(x->number, y->number);
}

/* The entries of one place are one tensor, for which DeepSpeed uses the first name. */
static void tie(const struct module_entries *e, const struct place *p, size_t n)
{
	bool buffer = false;

	for (size_t i = 0; i < n; i++)
		buffer |= find(e, p[i].name)->buffer;
	for (size_t i = 0; i < n; i++) {
		struct module_entry *x = find(e, p[i].name);

		if (x->same)
			continue;
		x->buffer |= buffer;
		x->same = buffer || !i ? NULL : p->name;
	}
}

static void tie_places(const struct module_entries *e, struct arena *a,
		       const struct value_dict *module)
{
	struct place *v = arena_alloc(a, (module->n + 1) * sizeof(*v));
	size_t n = 0;

	for (size_t i = 0; v && i < module->n; i++) {
		if (!value_is_cstr(module->v[i].key) || !find_place(&v[n], a, module->v[i].val))
			continue;
		v[n].number = i;
		v[n++].name = module->v[i].key->str.p;
	}
	if (n)
		qsort(v, n, sizeof(*v), by_place);
	for (size_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && compare_places(&v[i], &v[end]) == 0; end++)
			;
		if (end - i > 1)
			tie(e, &v[i], end - i);
	}
}

void module_entries_init(struct module_entries *e, struct arena *a, const struct value *root,
			 const struct value_dict *module)
{
	const struct value_seq *buffers = buffer_names(root);
	const struct value_dict *shared = value_find_pairs(root, KEY_SHARED_PARAMS);
	const size_t n = (buffers ? buffers->n : 0) + (shared ? shared->n : 0) +
			 (module ? module->n : 0);

	*e = (struct module_entries){ .v = arena_alloc(a, (n + 1) * sizeof(*e->v)) };
	if (!e->v)
		return;
	list_names(e, buffers, shared, module);
	join_names(e);
	if (module)
		tie_places(e, a, module);
}

const struct module_entry *module_entries_find(const struct module_entries *e, const char *name)
{
	return find(e, name);
}

bool module_entries_is_buffer(const struct module_entries *e, const char *name)
{
	const struct module_entry *x = find(e, name);

	return x && x->buffer;
}
