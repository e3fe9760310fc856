/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer shards, what is common to all stages: the file, the flat tensors
 * and the optimizer's states.  What the stages do differently is in
 * shard_zero12.c and shard_zero3.c.
 *
 * A shard's pickle is read, reduced to offsets and lengths, and dropped, so
 * that a checkpoint of many ranks costs a few dozen bytes per rank and group.
 */
#include "ckpt/zero/shard.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/checked.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"

#define WHAT_MAX 160

static int fail_nomem(const struct shard_reader *r)
{
	return errmsg_set(r->err, -ENOMEM, "%s: out of memory", r->file);
}

int shard_build_layout(const struct shard_reader *r,
		       int (*build)(const struct shard_reader *r, size_t g,
				    const uint64_t *numel,
				    struct partition *out))
{
	struct layout *const l = r->layout;

	if (l->groups)
		return 0;
	l->groups = calloc(r->c->ngroups + 1, sizeof(*l->groups));
	l->spread = calloc(r->c->ngroups + 1, sizeof(*l->spread));
	if (!l->groups || !l->spread)
		return fail_nomem(r);
	l->ngroups = r->c->ngroups;
	for (size_t g = 0; g < l->ngroups; g++) {
		const struct slice_group *const group = &r->c->groups[g];
		uint64_t *const numel = malloc((group->n + 1) * sizeof(*numel));
		int rc;

		if (!numel)
			return fail_nomem(r);
		for (size_t i = 0; i < group->n; i++)
			numel[i] = group->slices[i]->numel;
		/* The catalogue has seen to it that this leaves no rest. */
		l->spread[g] = (struct spread){
			.ranks = l->ranks / group->degree,
			.degree = group->degree,
			.data_first = r->c->experts.data_first,
		};
		rc = build(r, g, numel, &l->groups[g]);
		free(numel);
		if (rc)
			return rc;
	}
	return 0;
}

const char *shard_group_name(const struct shard_reader *r, size_t g)
{
	const struct slice_group *const group = &r->c->groups[g];

	return group->n ? group->slices[0]->name : "no parameter";
}

unsigned shard_part(const struct shard_reader *r, size_t g)
{
	unsigned which;

	return spread_part(&r->layout->spread[g], r->s->rank, &which);
}

void shard_bound_states(const struct shard_reader *r, size_t g, uint64_t *need,
			uint64_t *most)
{
	const struct partition *const p = &r->layout->groups[g];
	const unsigned part = shard_part(r, g);

	if (r->s->groups[g].whole) {
		*need = *most = partition_whole_size(p, part);
		return;
	}
	*need = partition_filled(p, part);
	*most = p->size;
}

int shard_read_flat(const struct shard_reader *r, const struct value *v,
		    const char *what, size_t g, struct flat *out)
{
	struct tensor t;
	uint64_t storage, skip;
	int rc;

	rc = ptfile_tensor(r->pt, v, what, &t, &storage, r->err);
	if (rc)
		return rc;
	if (t.ndim > 1 || !tensor_is_contiguous(&t))
		return errmsg_set(r->err, -ENOTSUP,
				  "%s: %s of group %zu is no flat tensor:"
				  " %u dimensions", r->file, what, g, t.ndim);
	/* ptfile_tensor has checked that the view lies in the storage. */
	skip = t.storage_offset * dtype_size(t.dtype);
	*out = (struct flat){ .offset = storage + (t.numel ? skip : 0),
			      .numel = t.numel,
			      .dtype = t.dtype,
			      .requires_grad = t.requires_grad };
	return 0;
}

static int read_state_tensor(const struct shard_reader *r, size_t g,
			     const struct value *v, struct shard_state *st,
			     uint64_t need, uint64_t most)
{
	struct tensor t;
	uint64_t storage;
	int rc;

	rc = ptfile_tensor(r->pt, v, st->name, &t, &storage, r->err);
	if (rc)
		return rc;
	if (t.ndim == 0) {
		st->kind = STATE_TENSOR;
		rc = shard_read_flat(r, v, st->name, g, &st->flat);
		return rc ? rc :
			    source_read(&r->pt->src, st->bytes,
					dtype_size(t.dtype), st->flat.offset,
					r->err);
	}
	st->kind = STATE_FLAT;
	rc = shard_read_flat(r, v, st->name, g, &st->flat);
	if (!rc && !st->flat.numel && need && r->c->zero3)
		rc = shard_find_swapped(r, v, st->name, g, need, &st->flat);
	if (rc)
		return rc;
	if (st->flat.numel < need || st->flat.numel > most)
		return errmsg_set(r->err, -EBADMSG,
				  "%s: %s of group %zu (%.100s, ...) has %" PRIu64
				  " elements, expected %" PRIu64,
				  r->file, st->name, g, shard_group_name(r, g),
				  st->flat.numel, need);
	return 0;
}

bool shard_is_state_name(const struct value *v)
{
	return value_is_cstr(v) && v->str.len > 0 && v->str.len <= 64 &&
	       !strchr(v->str.p, '/') && *v->str.p != '.' &&
	       strcmp(v->str.p, "fp32") != 0;
}

/* 1: a state; 0: nothing to serve. */
static int read_state(const struct shard_reader *r, size_t g,
		      const struct value_pair *p, struct shard_state *st,
		      uint64_t need, uint64_t most)
{
	int rc;

	if (p->val->kind == VALUE_NONE)
		return 0; /* SGD's momentum_buffer when momentum is 0 */
	if (!shard_is_state_name(p->key))
		return errmsg_set(r->err, -EBADMSG,
				  "%s: a state of group %zu has no usable name",
				  r->file, g);
	for (size_t i = 0; i < r->s->groups[g].nstates; i++)
		if (value_is_str(p->key, r->s->groups[g].states[i].name))
			return errmsg_set(r->err, -EBADMSG,
					  "%s: state %s of group %zu is there"
					  " twice", r->file,
					  r->s->groups[g].states[i].name, g);
	*st = (struct shard_state){
		.name = arena_strndup(&r->s->arena, p->key->str.p,
				      p->key->str.len),
	};
	if (!st->name)
		return fail_nomem(r);
	if (tensor_is(p->val)) {
		rc = read_state_tensor(r, g, p->val, st, need, most);
		return rc ? rc : 1;
	}
	if (p->val->kind == VALUE_INT) {
		st->kind = STATE_INT;
		st->i = p->val->i;
		return 1;
	}
	if (p->val->kind == VALUE_FLOAT) {
		st->kind = STATE_FLOAT;
		st->f = p->val->f;
		return 1;
	}
	return errmsg_set(r->err, -ENOTSUP,
			  "%s: state %s of group %zu is a %s: it cannot be"
			  " divided among parameters", r->file, st->name, g,
			  value_kind_name(p->val));
}

int shard_read_states(const struct shard_reader *r, size_t g,
		      const struct value *states, uint64_t need,
		      uint64_t most)
{
	const struct value_dict *const d = value_pairs(states);
	struct shard_group *const group = &r->s->groups[g];

	if (!d)
		return 0; /* the optimizer has not stepped this group yet */
	if (d->n > SHARD_STATES_MAX)
		return errmsg_set(r->err, -E2BIG,
				  "%s: group %zu has %zu optimizer states",
				  r->file, g, d->n);
	group->states = arena_alloc(&r->s->arena,
				    (d->n + 1) * sizeof(*group->states));
	if (!group->states)
		return fail_nomem(r);
	for (size_t i = 0; i < d->n; i++) {
		const int rc = read_state(r, g, &d->v[i],
					  &group->states[group->nstates], need,
					  most);

		if (rc < 0)
			return rc;
		group->nstates += (size_t)rc;
	}
	return 0;
}

const struct value *shard_find_group_state(const struct value *state, size_t g)
{
	const struct value_dict *const d = value_pairs(state);

	for (size_t i = d ? d->n : 0; i > 0; i--)
		if (d->v[i - 1].key->kind == VALUE_INT &&
		    d->v[i - 1].key->i == (int64_t)g)
			return d->v[i - 1].val;
	return NULL;
}

static int read_stage(const struct shard_reader *r, int64_t *stage)
{
	const struct value *const v = value_find(r->dict, KEY_ZERO_STAGE);

	/* BF16_Optimizer writes none; it is a stage 1 optimizer. */
	*stage = 1;
	if (v && !value_get_int(v, stage))
		return errmsg_set(r->err, -EBADMSG, "%s: zero_stage is a %s",
				  r->file, value_kind_name(v));
	if (*stage < 1 || *stage > 3 || (*stage == 3) != r->c->zero3)
		return errmsg_set(r->err, -EBADMSG,
				  "%s: is of ZeRO stage %" PRId64 ", but the"
				  " model-states files are of %s", r->file,
				  *stage, r->c->zero3 ? "stage 3" :
							"stage 1 or 2");
	return 0;
}

static int read_version(const struct shard_reader *r)
{
	const struct value *const v =
		value_find(r->pt->root, KEY_DS_VERSION);

	r->s->ds_version =
		arena_strndup(&r->s->arena, value_is_cstr(v) ? v->str.p : "",
			      value_is_cstr(v) ? v->str.len : 0);
	if (!r->s->ds_version)
		return fail_nomem(r);
	if (*r->s->ds_version && *r->c->ds_version &&
	    strcmp(r->s->ds_version, r->c->ds_version) != 0)
		return errmsg_set(r->err, -EBADMSG,
				  "%s: was written by DeepSpeed %.20s, the model"
				  " states by %.20s: not one checkpoint",
				  r->file, r->s->ds_version, r->c->ds_version);
	return 0;
}

static int read_dict(struct shard_reader *r)
{
	int64_t stage;
	int rc;

	r->dict = value_find(r->pt->root, KEY_OPTIMIZER_STATE_DICT);
	if (!value_pairs(r->dict))
		return errmsg_set(r->err, -EBADMSG,
				  "%s: no optimizer_state_dict in it: not an"
				  " optimizer shard", r->file);
	rc = read_stage(r, &stage);
	if (!rc)
		rc = read_version(r);
	if (rc)
		return rc;
	r->s->ngroups = r->c->ngroups;
	r->s->groups = arena_alloc(&r->s->arena, (r->c->ngroups + 1) *
							 sizeof(*r->s->groups));
	if (!r->s->groups)
		return fail_nomem(r);
	return r->c->zero3 ? shard_read_zero3(r) : shard_read_zero12(r);
}

int shard_load(struct shard *s, const struct ckdir *dir, size_t number,
	       const struct catalogue *c, struct layout *layout,
	       struct errmsg *err)
{
	const struct ckfile *const file = &dir->optim[number];
	struct shard_reader r = { .s = s,
				  .dir = dir,
				  .c = c,
				  .layout = layout,
				  .file = file->path,
				  .err = err };
	struct ptfile pt;
	int rc;

	*s = (struct shard){ .rank = file->id.dp };
	rc = ckdir_open_file(file, &pt, err);
	if (rc)
		return rc;
	r.pt = &pt;
	rc = read_dict(&r);
	ptfile_close(&pt);
	if (rc)
		shard_done(s);
	return rc;
}

void shard_done(struct shard *s)
{
	arena_done(&s->arena);
	*s = (struct shard){ 0 };
}

bool shard_state_equal(const struct shard_state *a,
		       const struct shard_state *b)
{
	if (strcmp(a->name, b->name) != 0 || a->kind != b->kind)
		return false;
	switch (a->kind) {
	case STATE_FLAT: return a->flat.dtype == b->flat.dtype;
	case STATE_TENSOR:
		return a->flat.dtype == b->flat.dtype &&
		       memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
	case STATE_INT: return a->i == b->i;
	case STATE_FLOAT: return memcmp(&a->f, &b->f, sizeof(a->f)) == 0;
	}
	return false;
}

int shard_check_equal(const struct shard *a, const char *a_name,
		      const struct shard *b, const char *b_name,
		      struct errmsg *err)
{
	for (size_t g = 0; g < a->ngroups; g++) {
		const struct shard_group *const x = &a->groups[g];
		const struct shard_group *const y = &b->groups[g];

		/* Muon keeps nothing where there is nothing to step. */
		if (y->padding && y->nstates == 0)
			continue;
		if (x->nstates != y->nstates || x->whole != y->whole ||
		    x->fp32.dtype != y->fp32.dtype)
			return errmsg_set(err, -EBADMSG,
					  "%s and %s do not hold the same"
					  " optimizer states in group %zu",
					  a_name, b_name, g);
		for (size_t i = 0; i < x->nstates; i++)
			if (!shard_state_equal(&x->states[i], &y->states[i]))
				return errmsg_set(err, -EBADMSG,
						  "%s and %s differ in %s of"
						  " group %zu: not of one step?",
						  a_name, b_name,
						  x->states[i].name, g);
	}
	return 0;
}

void layout_done(struct layout *l)
{
	for (size_t g = 0; l->groups && g < l->ngroups; g++)
		partition_done(&l->groups[g]);
	free(l->groups);
	free(l->spread);
	l->groups = NULL;
	l->spread = NULL;
	l->ngroups = 0;
}
