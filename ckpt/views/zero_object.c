/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the old file that is the template of a new one, and makes the new object. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/views/zero_object.h"

/* Does every data-parallel rank save such an object? */
static unsigned count_ranks(enum checkpoint_object what, bool zero3, unsigned ranks)
{
	return what == OBJECT_OPTIMIZER || zero3 ? ranks : 1;
}

size_t recut_count(const struct recut *s, enum checkpoint_object what)
{
	return (size_t)(s->c->tp * s->c->pp) * count_ranks(what, s->stage == 3, s->ranks);
}

struct recut_file recut_file_of(const struct recut *s, enum checkpoint_object what, size_t number)
{
	const unsigned ranks = count_ranks(what, s->stage == 3, s->ranks);
	struct recut_file f = {
		.id = { .kind = what == OBJECT_OPTIMIZER ? CKPT_FILE_OPTIM
				: s->stage == 3          ? CKPT_FILE_MODEL3
							 : CKPT_FILE_MODEL,
			.dp = (unsigned)(number % ranks),
			.mp = (unsigned)(number / ranks) },
	};

	f.old_rank = f.id.dp % count_ranks(what, s->c->facts.zero3, s->c->dp);
	f.old = checkpoint_file(s->c, what, f.id.mp, f.old_rank);
	return f;
}

void recut_name(const struct recut *s, enum checkpoint_object what, size_t number,
		char name[NAME_MAX + 1])
{
	static const char per_rank[] = "zero_pp_rank_";
	const struct recut_file f = recut_file_of(s, what, number);
	const char *at = f.old ? strstr(f.old->name, per_rank) : NULL;
	const char *rest = at ? at + strlen(per_rank) : NULL;

	/* Names of old files may begin with a type, or lack a separator. */
	if (at && f.id.kind != CKPT_FILE_MODEL)
		snprintf(name, NAME_MAX + 1, "%.*s%u%s", (int)(rest - f.old->name), f.old->name,
			 f.id.dp, rest + strspn(rest, "0123456789"));
	else
		names_format(f.id, s->c->facts.bf16_names, name);
}

struct value *zero_object_map(struct zero_object *o, struct value *out, const struct value *from,
			      zero_object_make *make, void *ctx)
{
	const struct value_dict *d = value_pairs(from);

	for (size_t i = 0; d && i < d->n && !layout_failed(o->d); i++) {
		struct value *v = make(o, ctx, &d->v[i]);

		if (v)
			value_put(o->a, out, d->v[i].key, v);
	}
	return out;
}

struct value *zero_object_config(const struct zero_object *o)
{
	struct value *old = value_find(o->root, KEY_DS_CONFIG);
	const struct value_field stage = { "stage", value_new_int(o->a, o->s->stage) };
	const struct value_field zero = { "zero_optimization",
					  value_edit(o->a, value_find(old, "zero_optimization"),
						     &stage, 1) };

	return o->s->stage == o->s->old_stage ? old : value_edit(o->a, old, &zero, 1);
}

void recut_names_init(struct recut_names *s, struct arena *a, const struct value *v)
{
	const struct value_dict *d = value_pairs(v);
	const size_t n = d ? d->n : 0;

	*s = (struct recut_names){ .v = arena_alloc(a, (n + 1) * sizeof(*s->v)) };
	for (size_t i = 0; s->v && i < n; i++)
		if (value_is_cstr(d->v[i].key))
			s->v[s->n++] = (struct recut_name){ .name = d->v[i].key->str.p,
							    .value = d->v[i].val,
							    .index = (uint32_t)i };
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), array_by_text);
}

const struct recut_name *recut_names_find(const struct recut_names *s, const char *name)
{
	return array_find(s->v, s->n, sizeof(*s->v), name);
}

/* A row's tensor, in the module's type. */
static struct value *row_tensor(struct checkpoint *c, const struct param *p, struct file_layout *d)
{
	struct extent_map *map;
	struct tensor t;

	tensor_init(&t, param_module_dtype(p), p->shape, p->ndim, false);
	map = layout_add_storage(d, &t);
	if (d->extents)
		layout_note(d, checkpoint_module(c, p, t.dtype, map, &d->gathers, d->err));
	return tensor_to_value(&d->a, &t);
}

/* Add the optimizer's parameters to the module, and return their shapes by group. */
static struct value *add_trained(struct checkpoint *c, unsigned mp, struct value *module,
				 struct file_layout *d)
{
	struct value *list = value_new(&d->a, VALUE_LIST);

	for (size_t g = 0; g < c->ranks[mp].ngroups; g++) {
		const struct slice_group *group = &c->ranks[mp].groups[g];
		struct value *dict = value_new_ordered(&d->a);

		for (size_t i = 0; i < group->n && !layout_failed(d); i++) {
			const struct slice *s = group->slices[i];
			const struct param *p = checkpoint_find(c, s->name);

			if (p)
				value_put(&d->a, module, s->name, row_tensor(c, p, d));
			value_put(&d->a, dict, s->name,
				  tensor_size_to_value(&d->a, s->shape, s->ndim));
		}
		value_append(&d->a, list, dict);
	}
	return list;
}

struct value *zero_object_states(struct checkpoint *c, unsigned mp, unsigned rank,
				 struct file_layout *d)
{
	struct value *old = c->ops->object(c, OBJECT_MODEL, mp, rank, d);
	struct value *module = value_new_ordered(&d->a);
	struct value_field fields[] = { { "module", module },
					{ "buffer_names", value_new(&d->a, VALUE_LIST) },
					{ "param_shapes", NULL },
					{ KEY_SHARED_PARAMS, value_new(&d->a, VALUE_DICT) } };
	const struct value_dict *from = value_pairs(old);
	struct value *root;

	if (!c->ranks || checkpoint_file(c, OBJECT_MODEL, mp, rank) || c->facts.is_pipeline ||
	    value_find_pairs(old, "module"))
		return old;
	fields[2].val = add_trained(c, mp, module, d);
	for (size_t i = 0; i < c->norder && !layout_failed(d); i++) {
		const struct param *p = c->order[i];

		if (p->kind == PARAM_TRAINED)
			continue;
		value_put(&d->a, module, p->name,
			  p->same ? value_find(module, p->same->name) : row_tensor(c, p, d));
		if (p->kind == PARAM_BUFFER)
			value_append(&d->a, fields[1].val, p->name);
		if (p->same)
			value_put(&d->a, fields[3].val, p->name, p->same->name);
	}
	root = value_new_fields(&d->a, fields, COUNT(fields));
	for (size_t i = 0; from && i < from->n; i++)
		if (!value_find(root, value_cstr(from->v[i].key)))
			value_put(&d->a, root, from->v[i].key, from->v[i].val);
	return root;
}

struct value *recut_lay_out(const struct recut *s, enum checkpoint_object what, size_t number,
			  struct file_layout *d)
{
	struct checkpoint *c = s->c;
	const struct recut_file f = recut_file_of(s, what, number);
	const unsigned mp = f.id.mp;
	struct zero_object o = {
		.s = s,
		.m = &s->mp[mp],
		.mp = mp,
		.rank = f.id.dp,
		.old_rank = f.old_rank,
		.root = what == OBJECT_MODEL ? zero_object_states(c, mp, f.old_rank, d)
					     : c->ops->object(c, what, mp, f.old_rank, d),
		.file = f.old ? f.old->path : c->path,
		.d = d,
		.a = &d->a,
	};

	if (!o.root)
		return NULL;
	return what == OBJECT_OPTIMIZER ? zero_object_optim(&o) : zero_object_model(&o);
}
