/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of optimizer shards that all stages share: the file, the flat tensors
 * and the optimizer's states. shard_zero12.c and shard_zero3.c have the rest.
 *
 * A shard's pickle is read, reduced to offsets and lengths, and dropped, so
 * that a checkpoint of many ranks takes a few dozen bytes per rank and group.
 */
#include "ckpt/zero/shard.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"

#define WHAT_MAX 160

int shard_build_layout(const struct shard_reader *r,
		       int (*build)(const struct shard_reader *r, size_t g,
				    const uint64_t *numel,
				    struct partition *out))
{
	struct layout *const l = r->layout;

	if (l->groups)
		return 0;
	l->groups = calloc(r->c->ngroups + 1, sizeof(*l->groups));
	l->stripe = calloc(r->c->ngroups + 1, sizeof(*l->stripe));
	if (!l->groups || !l->stripe)
		return errmsg_nomem(r->err, r->file);
	l->ngroups = r->c->ngroups;
	assert(l->ranks > 0);
	for (size_t g = 0; g < l->ngroups; g++) {
		const struct slice_group *const group = &r->c->groups[g];
		uint64_t *const numel = malloc((group->n + 1) * sizeof(*numel));
		int rc;

		if (!numel)
			return errmsg_nomem(r->err, r->file);
		for (size_t i = 0; i < group->n; i++)
			numel[i] = group->slices[i]->numel;
		/* The degree divides the ranks: rank_params has checked it. */
		l->stripe[g] = (struct rank_stripe){
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

	assert(g < r->layout->ngroups);
	return rank_stripe_part(&r->layout->stripe[g], r->s->rank, &which);
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
		return ERRMSG_FILE(r, -EBADMSG, "%s of group %zu is no flat"
				   " tensor: %u dimensions", what, g, t.ndim);
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
			    source_read(&r->pt->ends, st->bytes,
					dtype_size(t.dtype), st->flat.offset,
					r->err);
	}
	st->kind = STATE_FLAT;
	rc = shard_read_flat(r, v, st->name, g, &st->flat);
	if (!rc && !st->flat.numel && need && r->c->zero3)
		rc = shard_find_nvme(r, v, st->name, g, need, &st->flat);
	if (rc)
		return rc;
	if (st->flat.numel < need || st->flat.numel > most)
		return ERRMSG_FILE(r, -EBADMSG,
				   "%s of group %zu (%.100s, ...) has %" PRIu64
				   " elements, expected %" PRIu64, st->name, g,
				   shard_group_name(r, g), st->flat.numel, need);
	return 0;
}

/* Can a state have this name?  It becomes a file name beside fp32.pt. */
static bool is_state_name(const char *name)
{
	return *name && strlen(name) <= 64 && !strchr(name, '/') &&
	       *name != '.' && strcmp(name, "fp32") != 0;
}

/* Returns 1 if `p` is a state to serve, 0 if it has nothing to serve. */
static int read_state(const struct shard_reader *r, size_t g,
		      const struct value_pair *p, struct shard_state *st,
		      uint64_t need, uint64_t most)
{
	int rc;

	if (p->val->kind == VALUE_NONE)
		return 0; /* SGD's momentum_buffer when momentum is 0 */
	if (!value_is_cstr(p->key) || !is_state_name(p->key->str.p))
		return ERRMSG_FILE(r, -EBADMSG,
				   "a state of group %zu has no usable name",
				   g);
	for (size_t i = 0; i < r->s->groups[g].nstates; i++)
		if (value_is_str(p->key, r->s->groups[g].states[i].name))
			return ERRMSG_FILE(r, -EBADMSG,
					   "state %s of group %zu occurs twice",
					   r->s->groups[g].states[i].name, g);
	*st = (struct shard_state){
		.name = arena_strdup(&r->s->arena, p->key->str.p),
	};
	if (!st->name)
		return errmsg_nomem(r->err, r->file);
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
	return ERRMSG_FILE(r, -ENOTSUP, "state %s of group %zu is a %s: it"
			   " cannot be divided among parameters", st->name, g,
			   value_kind_name(p->val));
}

/* transformers' Adafactor keeps the RMS of the rank's own partition, which it
 * computes before each use.  It is no state of a parameter. */
static bool is_of_partition(const struct shard_state *st)
{
	return st->kind != STATE_FLAT && strcmp(st->name, "RMS") == 0;
}

int shard_read_states(const struct shard_reader *r, size_t g,
		      const struct value *states, uint64_t need,
		      uint64_t most)
{
	const struct value_dict *const d = value_pairs(states);
	struct shard_group *const group = &r->s->groups[g];

	if (!states || states->kind == VALUE_NONE)
		return 0; /* the optimizer has not stepped this group yet */
	if (!d)
		return ERRMSG_FILE(r, -EBADMSG, "the optimizer states of group"
				   " %zu are not a dict but a %s", g,
				   value_kind_name(states));
	if (d->n > SHARD_STATES_MAX)
		return ERRMSG_FILE(r, -E2BIG,
				   "group %zu has %zu optimizer states", g,
				   d->n);
	group->states = arena_alloc(&r->s->arena,
				    (d->n + 1) * sizeof(*group->states));
	if (!group->states)
		return errmsg_nomem(r->err, r->file);
	for (size_t i = 0; i < d->n; i++) {
		const int rc = read_state(r, g, &d->v[i],
					  &group->states[group->nstates], need,
					  most);

		if (rc < 0)
			return rc;
		group->nstates +=
			rc && !is_of_partition(&group->states[group->nstates]);
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
	return value_item(state, g);
}

int shard_check_state(const struct shard_reader *r, const struct value *state)
{
	const struct value_dict *const d = value_pairs(state);
	const struct value_seq *const list = value_items(state);

	if (!state || state->kind == VALUE_NONE)
		return 0; /* no group has states */
	if (!d && !list)
		return ERRMSG_FILE(r, -EBADMSG, "the optimizer's state is a %s,"
				   " expected a dict or a list",
				   value_kind_name(state));
	if (list && list->n > r->c->ngroups)
		return ERRMSG_FILE(r, -EBADMSG, "the optimizer has states of"
				   " %zu groups, but there are %zu", list->n,
				   r->c->ngroups);
	for (size_t i = 0; d && i < d->n; i++) {
		uint64_t g;

		if (!value_get_count(d->v[i].key, &g) || g >= r->c->ngroups)
			return ERRMSG_FILE(r, -EBADMSG, "entry %zu of the"
					   " optimizer's state belongs to none"
					   " of %zu groups", i, r->c->ngroups);
	}
	return 0;
}

static int check_stage(const struct shard_reader *r)
{
	const struct value *const v = value_find(r->dict, KEY_ZERO_STAGE);
	int64_t stage = 1; /* BF16_Optimizer, of stage 1, writes none */

	if (v && !value_get_int(v, &stage))
		return ERRMSG_FILE(r, -EBADMSG, "zero_stage is a %s",
				   value_kind_name(v));
	if (stage < 1 || stage > 3 || (stage == 3) != r->c->zero3)
		return ERRMSG_FILE(r, -EBADMSG,
				   "is of ZeRO stage %" PRId64 ", but the"
				   " model-states files are of %s", stage,
				   r->c->zero3 ? "stage 3" : "stage 1 or 2");
	return 0;
}

static int read_version(const struct shard_reader *r)
{
	const struct value *const v = value_find(r->pt->root, KEY_DS_VERSION);

	r->s->ds_version = arena_strdup(&r->s->arena,
					value_is_cstr(v) ? v->str.p : "");
	if (!r->s->ds_version)
		return errmsg_nomem(r->err, r->file);
	if (*r->s->ds_version && *r->c->ds_version &&
	    strcmp(r->s->ds_version, r->c->ds_version) != 0)
		return ERRMSG_FILE(r, -EBADMSG, "was written by DeepSpeed"
				   " %.20s, the model states by %.20s: not one"
				   " checkpoint", r->s->ds_version,
				   r->c->ds_version);
	return 0;
}

static int read_dict(struct shard_reader *r)
{
	int rc;

	r->dict = value_find(r->pt->root, KEY_OPTIMIZER_STATE_DICT);
	if (!value_pairs(r->dict))
		return ERRMSG_FILE(r, -EBADMSG, "has no optimizer_state_dict:"
				   " not an optimizer shard");
	rc = check_stage(r) ?: read_version(r);
	if (rc)
		return rc;
	r->s->ngroups = r->c->ngroups;
	r->s->groups = arena_alloc(&r->s->arena, (r->c->ngroups + 1) *
							 sizeof(*r->s->groups));
	if (!r->s->groups)
		return errmsg_nomem(r->err, r->file);
	return r->c->zero3 ? shard_read_zero3(r) : shard_read_zero12(r);
}

int shard_load(struct shard *s, const struct tagdir *dir, size_t number,
	       const struct rank_params *c, struct layout *layout,
	       struct errmsg *err)
{
	const struct tag_file *const file = &dir->optim[number];
	struct shard_reader r = { .s = s,
				  .dir = dir,
				  .c = c,
				  .layout = layout,
				  .file = file->path,
				  .err = err };
	struct ptfile pt;
	int rc;

	*s = (struct shard){ .rank = file->id.dp };
	rc = tagdir_open_file(file, &pt, err);
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

const struct flat *shard_find_flat(const struct shard_group *g,
				   const char *state)
{
	for (size_t i = 0; state && i < g->nstates; i++)
		if (strcmp(g->states[i].name, state) == 0)
			return g->states[i].kind == STATE_FLAT ?
				       &g->states[i].flat :
				       NULL;
	return state ? NULL : &g->fp32;
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

bool shard_state_agrees(const struct shard_state *a,
			const struct shard_state *b)
{
	return strcmp(a->name, b->name) == 0 && a->kind == b->kind &&
	       a->flat.dtype == b->flat.dtype &&
	       (strcmp(a->name, "step") != 0 || shard_state_equal(a, b));
}

int shard_check_equal(const struct shard *a, const char *a_name,
		      const struct shard *b, const char *b_name,
		      struct errmsg *err)
{
	for (size_t g = 0; g < a->ngroups; g++) {
		const struct shard_group *const x = &a->groups[g];
		const struct shard_group *const y = &b->groups[g];

		/* Muon keeps no state on a rank that holds only padding. */
		if (y->padding && y->nstates == 0)
			continue;
		if (x->nstates != y->nstates || x->replicated != y->replicated ||
		    x->fp32.dtype != y->fp32.dtype)
			return errmsg_set(err, -EBADMSG,
					  "%s and %s do not hold the same"
					  " optimizer states in group %zu",
					  a_name, b_name, g);
		for (size_t i = 0; i < x->nstates; i++)
			if (!shard_state_agrees(&x->states[i], &y->states[i]))
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
	free(l->stripe);
	l->groups = NULL;
	l->stripe = NULL;
	l->ngroups = 0;
}
