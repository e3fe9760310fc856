/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the old file on which a new one is modelled, and has its object written. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/zero_object.h"

/* Does a kind have a file of every data-parallel rank? */
static bool is_per_rank(enum reshard_kind kind, bool zero3)
{
	return kind == RESHARD_OPTIM || zero3;
}

static unsigned files_per_mp(const struct reshard *s, enum reshard_kind kind)
{
	return is_per_rank(kind, s->stage == 3) ? s->ranks : 1;
}

size_t reshard_count(const struct reshard *s, enum reshard_kind kind)
{
	return (size_t)s->r->dir.mp_degree * files_per_mp(s, kind);
}

/* The number of the old file that a new one is modelled on. */
static size_t model_number(const struct reshard *s, enum reshard_kind kind,
			   size_t number)
{
	const struct tagdir *const d = &s->r->dir;
	const unsigned files = files_per_mp(s, kind);
	const unsigned old = is_per_rank(kind, d->zero3) ? d->dp_degree : 1;

	return number / files * old + number % files % old;
}

const struct tag_file *reshard_model_of(const struct reshard *s,
					enum reshard_kind kind, size_t number)
{
	const struct tagdir *const d = &s->r->dir;

	return &(kind == RESHARD_OPTIM
			 ? d->optim
			 : d->model)[model_number(s, kind, number)];
}

/* Replace the rank in the name of an old file. */
static void rename_rank(const char *old, unsigned rank, char name[NAME_MAX + 1])
{
	static const char before[] = "zero_pp_rank_";
	const char *const at = strstr(old, before) + sizeof(before) - 1;

	snprintf(name, NAME_MAX + 1, "%.*s%u%s", (int)(at - old), old, rank,
		 at + strspn(at, "0123456789"));
}

void reshard_name(const struct reshard *s, enum reshard_kind kind,
		  size_t number, char name[NAME_MAX + 1])
{
	const struct tag_file *const f = reshard_model_of(s, kind, number);
	const unsigned rank = (unsigned)(number % files_per_mp(s, kind));

	if (is_per_rank(kind, s->r->dir.zero3) &&
	    is_per_rank(kind, s->stage == 3))
		rename_rank(f->name, rank, name);
	else if (s->stage == 3)
		snprintf(name, NAME_MAX + 1,
			 "zero_pp_rank_%u_mp_rank_%02u_model_states.pt", rank,
			 f->id.mp);
	else
		snprintf(name, NAME_MAX + 1, "mp_rank_%02u_model_states.pt",
			 f->id.mp);
}

struct value *zero_object_map(struct zero_object *o, struct value *out,
			      const struct value *from, zero_object_make *make, void *ctx)
{
	const struct value_dict *const d = value_pairs(from);

	for (size_t i = 0; d && i < d->n && !draft_failed(o->d); i++) {
		struct value *const v = make(o, ctx, &d->v[i]);

		if (v)
			value_put(o->a, out, d->v[i].key, v);
	}
	return out;
}

struct value *zero_object_config(const struct zero_object *o)
{
	struct value *const old = value_find(o->d->old.root, KEY_DS_CONFIG);
	const struct value_field stage = { "stage", value_new_int(o->a, o->s->stage) };
	const struct value_field zero = {
		"zero_optimization",
		value_edit(o->a, value_find(old, "zero_optimization"), &stage, 1)
	};

	return o->s->stage == o->s->old_stage ? old : value_edit(o->a, old, &zero, 1);
}

void reshard_names_sort(struct reshard_names *s)
{
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), array_by_text);
}

void reshard_names_init(struct reshard_names *s, struct arena *a,
			const struct value *v, size_t more)
{
	const struct value_dict *const d = value_pairs(v);
	const struct value_seq *const list = d ? NULL : value_items(v);
	const size_t n = d ? d->n : list ? list->n : 0;

	*s = (struct reshard_names){ .v = arena_alloc(
					     a, (n + more + 1) * sizeof(*s->v)) };
	for (size_t i = 0; s->v && i < n; i++) {
		const struct value *const key = d ? d->v[i].key : list->v[i];

		if (value_is_cstr(key))
			s->v[s->n++] = (struct reshard_name){
				.name = key->str.p,
				.value = d ? d->v[i].val : NULL,
				.index = (uint32_t)i,
			};
	}
	reshard_names_sort(s);
}

const struct reshard_name *reshard_names_find(const struct reshard_names *s,
					      const char *name)
{
	return array_find(s->v, s->n, sizeof(*s->v), name);
}

struct value *reshard_draft(const struct reshard *s, enum reshard_kind kind,
			    size_t number, struct draft *d)
{
	const size_t model = model_number(s, kind, number);
	const unsigned files = files_per_mp(s, kind);
	const bool optim = kind == RESHARD_OPTIM;
	struct zero_object o = {
		.s = s,
		.m = &s->mp[number / files],
		.mp = (unsigned)(number / files),
		.rank = (unsigned)(number % files),
		.file = reshard_model_of(s, kind, number),
		.d = d,
		.a = &d->a,
	};
	const unsigned old = o.file->id.dp;

	/* This checks that the old file is a shard of this checkpoint. */
	if (optim && !draft_try(d, zckpt_load_shards(s->r, o.mp, old, old + 1, 1,
						     d->err)))
		return NULL;
	if (!draft_open(d, o.file, optim ? model : s->r->dir.noptim + model))
		return NULL;
	return optim ? zero_object_optim(&o) : zero_object_model(&o);
}
