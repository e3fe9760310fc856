/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes the object of a new file: reads the old file of the same kind, and replaces
 * what depends on the number of ranks.  Storages that are not replaced are read from
 * the old file.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_impl.h"

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

struct value *const reshard_left_out = &(struct value){ .kind = VALUE_NONE };

struct value *reshard_new_like(struct reshard_builder *b,
			       const struct value *from)
{
	struct value *out;

	if (!value_pairs(from))
		return RESHARD_FAIL(b, -EBADMSG, "found %s in place of a dict",
				    value_kind_name(from));
	if (from->kind == VALUE_DICT)
		return value_new(b->a, VALUE_DICT);
	out = value_new_reduce(b->a, from->obj->callable, from->obj->args);
	if (out)
		out->obj->state = from->obj->state;
	return out;
}

struct value *reshard_map(struct reshard_builder *b, struct value *out,
			  const struct value *from, reshard_make *make,
			  void *ctx)
{
	const struct value_dict *const d = value_pairs(from);

	for (size_t i = 0; d && i < d->n && !draft_failed(b->d); i++) {
		struct value *const v = make(b, ctx, &d->v[i]);

		if (v != reshard_left_out)
			value_put(b->a, out, d->v[i].key, v);
	}
	return out;
}

/* Fields and their number. */
struct edits {
	const struct reshard_field *v;
	size_t n;
};

static struct value *edit_pair(struct reshard_builder *b, void *ctx,
			       const struct value_pair *pair)
{
	const struct edits *const e = ctx;

	for (size_t i = 0; i < e->n; i++)
		if (value_is_str(pair->key, e->v[i].key))
			return e->v[i].make(b, pair->val);
	return pair->val;
}

struct value *reshard_edit(struct reshard_builder *b, struct value *from,
			   const struct reshard_field *fields, size_t n)
{
	struct edits edits = { fields, n };

	return reshard_map(b, reshard_new_like(b, from), from, edit_pair,
			   &edits);
}

struct value *reshard_set(struct reshard_builder *b, struct value *from,
			  const char *key, struct value *value)
{
	const struct value_dict *const d = value_pairs(from);
	struct value *const out = reshard_new_like(b, from);

	for (size_t i = 0; d && i < d->n; i++)
		value_put(b->a, out, d->v[i].key,
			  value_is_str(d->v[i].key, key) ? value : d->v[i].val);
	return out;
}

struct value *reshard_list_groups(struct reshard_builder *b,
				  reshard_make_group *make)
{
	struct value *const list = value_new(b->a, VALUE_LIST);

	for (size_t g = 0; g < b->m->ngroups && !draft_failed(b->d); g++)
		value_append(b->a, list, make(b, &b->m->groups[g]));
	return list;
}

struct value *reshard_config(struct reshard_builder *b, struct value *old)
{
	struct value *const zero = value_find(old, "zero_optimization");

	if (b->s->stage == b->s->old_stage || !value_find(zero, "stage"))
		return old;
	return reshard_set(b, old, "zero_optimization",
			   reshard_set(b, zero, "stage",
				       value_new_int(b->a, b->s->stage)));
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
	struct reshard_builder b = {
		.s = s,
		.m = &s->mp[number / files],
		.mp = (unsigned)(number / files),
		.rank = (unsigned)(number % files),
		.file = reshard_model_of(s, kind, number),
		.d = d,
		.a = &d->a,
	};
	const unsigned old = b.file->id.dp;
	struct value *root;

	/* This checks that the old file is a shard of this checkpoint. */
	if (optim && !draft_try(d, zckpt_load_shards(s->r, b.mp, old, old + 1, 1,
						     d->err)))
		return NULL;
	if (!draft_open(d, b.file, optim ? model : s->r->dir.noptim + model))
		return NULL;
	root = optim ? reshard_optim_root(&b) : reshard_model_root(&b);
	frozen_done(&b.frozen);
	return root;
}
