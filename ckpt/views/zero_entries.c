/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the entries of a module are: parameters, buffers, or further names of these.
 *
 * DeepSpeed lists buffers and tied parameters as it walks over each module's children
 * (engine.py, _get_buffer_names, _get_shared_params).  torch gives a child, parameter or
 * buffer that a module has under two names once, so that the second name is in no list.
 * The state dict has it, and both tensors are in one storage.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/views/zero_object.h"

static const struct value *buffer_names(const struct value *root)
{
	const struct value *v = value_find(root, "buffer_names");

	/* A list, or until 0.16 a set. */
	return v && v->kind == VALUE_REDUCE ? value_item(v->obj->args, 0) : v;
}

/* What torch saves of a module's get_extra_state() is not a parameter. */
static bool is_extra_state(const char *name)
{
	const char *dot = strrchr(name, '.');

	return strcmp(dot ? dot + 1 : name, "_extra_state") == 0;
}

/* Where a tensor lies, or NULL.  Views of a flat group have its storage in common.  Empty
 * tensors of stage 3 have a storage each. */
static const char *place_of(struct arena *a, const struct value *v)
{
	struct tensor t;
	char text[128];

	if (!tensor_is(v) || tensor_from_value(v, "module", &t, NULL) ||
	    (!t.numel && t.storage_numel))
		return NULL;
	snprintf(text, sizeof(text), "%.60s %llu %llu", t.storage_key,
		 (unsigned long long)t.storage_offset, (unsigned long long)t.numel);
	return arena_strdup(a, text);
}

static int by_place(const void *a, const void *b)
{
	const struct recut_name *x = a, *y = b;

	return strcmp(x->name, y->name) ?: (x->index > y->index) - (x->index < y->index);
}

/* List the module's entries by place, those of one place in the module's order; `value` is
 * the entry's name. */
static void list_places(struct recut_names *s, struct arena *a, const struct value_dict *module)
{
	*s = (struct recut_names){ .v = arena_alloc(a, (module->n + 1) * sizeof(*s->v)) };
	for (size_t i = 0; s->v && i < module->n; i++) {
		const char *place =
			value_is_cstr(module->v[i].key) ? place_of(a, module->v[i].val) : NULL;

		if (place)
			s->v[s->n++] = (struct recut_name){ .name = place,
							    .value = module->v[i].key,
							    .index = (uint32_t)i };
	}
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), by_place);
}

static bool is_listed(const struct recut_names *listed, const struct recut_name *p)
{
	return recut_names_find(listed, p->value->str.p);
}

/* Add the entries p[0..n) of one place: the first is what DeepSpeed calls the tensor. */
static void add_place(struct zero_entries *out, const struct zero_entries *listed,
		      const struct recut_name *p, size_t n)
{
	bool buffer = is_extra_state(p->value->str.p);

	for (size_t i = 0; i < n; i++)
		buffer |= is_listed(&listed->buffers, &p[i]);
	for (size_t i = 0; i < n; i++) {
		const struct recut_name name = { .name = p[i].value->str.p, .value = p[0].value };

		if (is_listed(&listed->buffers, &p[i]) || is_listed(&listed->shared, &p[i]))
			continue;
		if (buffer)
			out->buffers.v[out->buffers.n++] = name;
		else if (i)
			out->shared.v[out->shared.n++] = name;
	}
}

void zero_entries_init(struct zero_entries *e, struct arena *a, const struct value *root)
{
	const struct value_dict *module = value_find_pairs(root, "module");
	const size_t more = module ? module->n : 0;
	struct zero_entries listed;
	struct recut_names places;

	recut_names_init(&e->buffers, a, buffer_names(root), more);
	recut_names_init(&e->shared, a, value_find(root, KEY_SHARED_PARAMS), more);
	if (!module || !e->buffers.v || !e->shared.v)
		return;
	listed = *e;
	list_places(&places, a, module);
	for (size_t i = 0, n; i < places.n; i += n) {
		for (n = 1; i + n < places.n && strcmp(places.v[i].name, places.v[i + n].name) == 0;
		     n++)
			;
		add_place(e, &listed, &places.v[i], n);
	}
	recut_names_sort(&e->buffers);
	recut_names_sort(&e->shared);
}
