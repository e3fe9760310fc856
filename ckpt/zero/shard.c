/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer shards.  Stages 1 and 2, and BF16_Optimizer, whose files are alike
 * (deepspeed/runtime/zero/stage_1_and_2.py state_dict):
 *
 *   base_optimizer_state: {state: {g: {step, exp_avg, ...}}, param_groups}
 *                         or, with elastic_checkpoint, a list of the {...}
 *   single_partition_of_fp32_groups[g]: the rank's partition, mostly without
 *                         the padding at the group's end
 *   param_alignment_paddings[g][i], param_slice_mappings[g][name]
 *
 * Stage 3 (runtime/zero/stage3.py):
 *
 *   optimizer_state_dict: {state: {sg: {step, exp_avg, ...}}, param_groups}
 *   fp32_flat_groups[sg]: the rank's slots of a sub-group's parameters.  Tensors
 *                         on NVMe have no elements here, see shard_nvme.c
 *
 * A shard's pickle is read, reduced to offsets and lengths, and dropped, so
 * that a checkpoint of many ranks takes a few dozen bytes per rank and group.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/zero/shard_impl.h"

const char *flat_group_name(const struct shard_reader *r, size_t g)
{
	const struct slice_group *group = &r->c->groups[g];

	return group->n ? group->slices[0]->name : "no parameter";
}

/* Does every optimizer keep one element of this state for each element of a parameter?  Other
 * states may have any number: 8-bit optimizers have one for each block. */
static bool is_of_adam(const char *state)
{
	return strcmp(state, "exp_avg") == 0 || strcmp(state, "exp_avg_sq") == 0;
}

/* Is a tensor without elements stored in a separate file? States of other optimizers may really be
 * empty. */
static bool is_offloaded(const struct shard_reader *r, const struct value *v, const char *what)
{
	return r->c->facts.zero3 && (is_of_adam(what) || tensor_attribute(v, "ds_id") ||
				     strcmp(what, KEY_FP32_FLAT_GROUPS) == 0);
}

/* Read a flat tensor, or one without dimensions, that should have `need` elements;
 * `what` and `g` are for messages. */
static int read_flat(const struct shard_reader *r, const struct value *v, const char *what,
		     size_t g, uint64_t need, struct param_state *st, unsigned *ndim)
{
	struct tensor t;
	uint64_t storage, skip;
	int rc;

	rc = ptfile_tensor(r->pt, v, what, &t, &storage, r->err);
	if (rc)
		return rc;
	if (t.ndim > 1 || !tensor_is_contiguous(&t))
		return ERRMSG_FILE(r, -ENOTSUP,
				   "%s of group %zu is no flat tensor: %u dimensions",
				   what, g, t.ndim);
	*ndim = t.ndim;
	/* ptfile_tensor has checked that the view lies in the storage. */
	skip = t.storage_offset * dtype_size(t.dtype);
	st->offset = storage + (t.numel ? skip : 0);
	st->numel = t.numel;
	st->dtype = t.dtype;
	st->requires_grad = t.requires_grad;
	return !t.numel && need && is_offloaded(r, v, what)
		       ? shard_find_nvme(r, v, what, g, need, st)
		       : 0;
}

static int read_state_tensor(const struct shard_reader *r, size_t g, const struct value *v,
			     struct param_state *st, uint64_t need, uint64_t most)
{
	unsigned ndim;
	const int rc = read_flat(r, v, st->name, g, need, st, &ndim);

	if (rc)
		return rc;
	st->kind = ndim ? STATE_FLAT : STATE_TENSOR;
	if (st->kind == STATE_TENSOR)
		return source_read(&r->pt->ends, st->bytes, dtype_size(st->dtype), st->offset,
				   r->err);
	if (st->numel < need || st->numel > most)
		return ERRMSG_FILE(r, is_of_adam(st->name) ? -EBADMSG : -ENOTSUP,
				   "%s of group %zu (%.100s, ...) has %" PRIu64
				   " elements, expected %" PRIu64,
				   st->name, g, flat_group_name(r, g), st->numel, need);
	return 0;
}

bool shard_is_state_name(const char *name)
{
	return *name && strlen(name) <= 64 && !strchr(name, '/') && *name != '.' &&
	       strcmp(name, "fp32") != 0;
}

/* Return 1 if `p` is a state to serve, 0 if it is empty. */
static int read_state(const struct shard_reader *r, size_t g, const struct value_pair *p,
		      struct param_state *st, uint64_t need, uint64_t most)
{
	int rc;

	if (p->val->kind == VALUE_NONE)
		return 0; /* SGD's momentum_buffer when momentum is 0 */
	if (!value_is_cstr(p->key) || !shard_is_state_name(p->key->str.p))
		return ERRMSG_FILE(r, -ENOTSUP, "a state of group %zu has no usable name", g);
	if (shard_find_state(&r->s->groups[g], p->key->str.p))
		return ERRMSG_FILE(r, -EBADMSG, "state %s of group %zu occurs twice", p->key->str.p,
				   g);
	*st = (struct param_state){
		.name = arena_strdup(&r->s->arena, p->key->str.p),
	};
	if (!st->name)
		return errmsg_nomem(r->err, r->file);
	if (tensor_is(p->val)) {
		rc = read_state_tensor(r, g, p->val, st, need, most);
		return rc ? rc : 1;
	}
	return param_state_set_number(st, p->val)
		       ? 1
		       : ERRMSG_FILE(
				 r, -ENOTSUP,
				 "state %s of group %zu is a %s: it cannot be divided among parameters",
				 st->name, g, value_kind_name(p->val));
}

bool shard_is_of_partition(const struct param_state *st)
{
	return st->kind != STATE_FLAT && strcmp(st->name, "RMS") == 0;
}

/* Can weights be served although this error prevents reading states? */
static bool is_refusal(int rc)
{
	return rc == -ENOTSUP || rc == -EBADMSG || rc == -E2BIG;
}

/* Refuse the states of a group.  -ENOMEM. */
static int refuse(const struct shard_reader *r, size_t g, int rc, const char *why)
{
	struct param_states *states = &r->s->groups[g].states;

	if (states->refused)
		return 0;
	states->n = 1;
	states->refused_rc = rc;
	states->refused = arena_strdup(&r->s->arena, why);
	return states->refused ? 0 : errmsg_nomem(r->err, r->file);
}

/*
 * Read the state dict of group g.  Tensors with elements must have at least `need`
 * and at most `most` of them.
 */
static int read_states(const struct shard_reader *r, size_t g, const struct value *states,
		       uint64_t need, uint64_t most)
{
	const struct value_dict *d = value_pairs(states);
	struct param_states *to = &r->s->groups[g].states;

	if (!states || states->kind == VALUE_NONE)
		return 0; /* the optimizer has not stepped this group yet */
	if (!d)
		return ERRMSG_FILE(r, -EBADMSG,
				   "the optimizer states of group %zu are not a dict but a %s",
				   g, value_kind_name(states));
	if (d->n > PARAM_STATES_MAX)
		return ERRMSG_FILE(r, -E2BIG, "group %zu has %zu optimizer states", g, d->n);
	for (size_t i = 0; i < d->n; i++) {
		const int rc = read_state(r, g, &d->v[i], &to->v[to->n], need, most);

		if (rc < 0)
			return rc;
		to->n += rc && !shard_is_of_partition(&to->v[to->n]);
	}
	return 0;
}

/* Read the states of a group, unless they are refused, or refuse them. */
static int read_or_refuse(const struct shard_reader *r, size_t g, const struct value *states,
			  uint64_t need, uint64_t most)
{
	struct shard_reader own = *r;
	struct errmsg why = { "" };
	int rc;

	if (r->s->groups[g].states.refused)
		return 0;
	own.err = &why;
	rc = read_states(&own, g, states, need, most);
	if (is_refusal(rc))
		return refuse(r, g, rc, why.text);
	return rc ? errmsg_set(r->err, rc, "%s", why.text) : 0;
}

/* Check that all entries of the optimizer's `state` belong to groups, so that none is lost. */
static int check_state(const struct shard_reader *r, const struct value *state)
{
	const struct value_dict *d = value_pairs(state);
	const struct value_seq *list = value_items(state);

	if (!state || state->kind == VALUE_NONE)
		return 0; /* no group has states */
	if (!d && !list)
		return ERRMSG_FILE(r, -ENOTSUP,
				   "the optimizer's state is a %s, expected a dict or a list",
				   value_kind_name(state));
	if (list && list->n > r->c->ngroups)
		return ERRMSG_FILE(r, -EBADMSG,
				   "the optimizer has states of %zu groups, but there are %zu",
				   list->n, r->c->ngroups);
	for (size_t i = 0; d && i < d->n; i++) {
		uint64_t g;

		if (!value_get_count(d->v[i].key, &g) || g >= r->c->ngroups)
			return ERRMSG_FILE(r, -ENOTSUP,
				"entry %zu of the optimizer's state belongs to none of %zu groups",
					   i, r->c->ngroups);
	}
	return 0;
}

static int check_partition_count(const struct shard_reader *r, size_t g)
{
	const struct value *v = value_find(r->dict, KEY_PARTITION_COUNT);
	const unsigned ranks = r->layout->stripe[g].ranks;
	int64_t count;

	/* Stage 3 records one number for all sub-groups. */
	if (r->c->facts.zero3) {
		if (!value_get_int(v, &count) || count == r->layout->ranks)
			return 0;
		return ERRMSG_FILE(r, -EBADMSG,
			"partitioned over %" PRId64 " ranks, but there are %u optimizer shards",
				   count, r->layout->ranks);
	}
	if (!value_get_int(value_item(v, g), &count) || count == ranks)
		return 0;
	return ERRMSG_FILE(r, -EBADMSG,
			   "group %zu is partitioned over %" PRId64 " ranks,"
			   " but there are %u optimizer shards of it",
			   g, count, ranks);
}

/*
 * Muon's update needs the momentum of whole matrices. Each rank keeps the whole
 * momentum of every parameter of its partition, end to end
 * (_muon_momentum_buffer). If the optimizer is offloaded, the momentum is cut like
 * other states (_apply_muon_updates_cpu_offload).
 */
static bool keeps_whole(const struct shard_reader *r, size_t g)
{
	const struct value *device = value_find_path(r->pt->root, KEY_DS_CONFIG, "zero_optimization",
						     "offload_optimizer", "device", NULL);

	return value_is_true(value_find(shard_param_group(r, g), "use_muon")) &&
	       (!device || value_is_str(device, "none"));
}

/* Check the number of elements in the rank's part of a group: `filled`, or `padded` with the
 * padding at the group's end. */
static int check_size(const struct shard_reader *r, size_t g, uint64_t filled, uint64_t padded)
{
	const uint64_t numel = r->s->groups[g].states.v[0].numel;

	if (numel == filled || numel == padded)
		return 0;
	if (r->c->facts.zero3)
		return ERRMSG_FILE(r, -EBADMSG,
				   "sub-group %zu (%.100s, ...) has %" PRIu64
				   " elements on this rank, its parameters need"
				   " %" PRIu64 ": was it partitioned over another"
				   " number of ranks (sequence parallel)?",
				   g, flat_group_name(r, g), numel, filled);
	return ERRMSG_FILE(r, -EBADMSG,
			   "group %zu (%.100s, ...): the fp32 partition has"
			   " %" PRIu64 " elements, expected %" PRIu64 " or, padded, %" PRIu64,
			   g, flat_group_name(r, g), numel, filled, padded);
}

static int read_group(const struct shard_reader *r, size_t g, const char *what,
		      const struct value *fp32, const struct value *state)
{
	const struct partition *p = &r->layout->groups[g];
	struct flat_group *group = &r->s->groups[g];
	unsigned ndim;
	const unsigned part = shard_place(r, g).part;
	const uint64_t filled = partition_filled(p, part);
	const struct value *own = value_numbered(state, g);
	const struct value_dict *d = value_pairs(own);
	uint64_t need = filled, most = p->size;
	int rc;

	group->states.v = arena_alloc(&r->s->arena, ((d ? d->n : 0) + 2) * sizeof(*group->states.v));
	if (!group->states.v)
		return errmsg_nomem(r->err, r->file);
	group->states.v[0] = (struct param_state){ .name = "fp32" };
	group->states.n = 1;
	rc = check_partition_count(r, g) ?:
	     shard_check_partition(r, g) ?:
	     read_flat(r, fp32, what, g, filled, &group->states.v[0], &ndim) ?:
	     check_size(r, g, filled, most);
	if (rc)
		return rc;
	group->padding = filled == 0;
	group->replicated = keeps_whole(r, g);
	if (group->replicated)
		need = most = partition_whole_size(p, part);
	return read_or_refuse(r, g, own, need, most) ?: shard_check_mapping(r, g);
}

static int read_groups(struct shard_reader *r)
{
	const bool zero3 = r->c->facts.zero3;
	const char *what = zero3 ? KEY_FP32_FLAT_GROUPS : KEY_FP32_GROUPS;
	const struct value_seq *fp32 = value_find_items(r->dict, what);
	const struct value *state;
	struct errmsg why = { "" };
	struct shard_reader own;
	int rc, refused;

	r->base = value_find(r->dict, zero3 ? KEY_OPTIMIZER_STATE_DICT : KEY_BASE_OPTIMIZER_STATE);
	state = value_items(r->base) ? r->base : value_find(r->base, "state");
	if (!fp32 || fp32->n != r->c->ngroups)
		return ERRMSG_FILE(r, -EBADMSG, "%s holds %zu %sgroups, param_shapes %zu", what,
				   fp32 ? fp32->n : 0, zero3 ? "sub-" : "", r->c->ngroups);
	own = *r;
	own.err = &why;
	refused = check_state(&own, state);
	rc = shard_build_layout(r);
	for (size_t g = 0; !rc && refused && g < r->c->ngroups; g++)
		rc = refuse(r, g, refused, why.text);
	for (size_t g = 0; !rc && g < r->c->ngroups; g++)
		rc = read_group(r, g, what, fp32->v[g], state);
	return rc;
}

static int check_stage(const struct shard_reader *r)
{
	const struct value *v = value_find(r->dict, KEY_ZERO_STAGE);
	int64_t stage = 1; /* BF16_Optimizer, of stage 1, does not record it */

	if (v && !value_get_int(v, &stage))
		return ERRMSG_FILE(r, -EBADMSG, "zero_stage is a %s", value_kind_name(v));
	if (stage < 1 || stage > 3 || (stage == 3) != r->c->facts.zero3)
		return ERRMSG_FILE(r, -EBADMSG,
			"is of ZeRO stage %" PRId64 ", but the model-states files are of %s",
				   stage, r->c->facts.zero3 ? "stage 3" : "stage 1 or 2");
	return 0;
}

static int read_version(const struct shard_reader *r)
{
	const struct value *v = value_find(r->pt->root, KEY_DS_VERSION);

	r->s->ds_version = arena_strdup(&r->s->arena, value_is_cstr(v) ? v->str.p : "");
	if (!r->s->ds_version)
		return errmsg_nomem(r->err, r->file);
	if (*r->s->ds_version && *r->c->facts.ds_version &&
	    strcmp(r->s->ds_version, r->c->facts.ds_version) != 0)
		return ERRMSG_FILE(r, -EBADMSG,
		"was written by DeepSpeed %.20s, the model states by %.20s: not one checkpoint",
				   r->s->ds_version, r->c->facts.ds_version);
	return 0;
}

static int read_dict(struct shard_reader *r)
{
	int rc;

	r->dict = value_find(r->pt->root, KEY_OPTIMIZER_STATE_DICT);
	if (!value_pairs(r->dict))
		return ERRMSG_FILE(r, -EBADMSG,
				   "has no optimizer_state_dict: not an optimizer shard");
	rc = check_stage(r) ?: read_version(r);
	if (rc)
		return rc;
	r->s->ngroups = r->c->ngroups;
	r->s->groups = arena_alloc(&r->s->arena, (r->c->ngroups + 1) * sizeof(*r->s->groups));
	if (!r->s->groups)
		return errmsg_nomem(r->err, r->file);
	return read_groups(r);
}

int shard_load(struct shard *s, const struct zero_dir *dir, size_t number,
	       const struct rank_params *c, struct partitioning *layout, struct errmsg *err)
{
	const struct ckpt_file *file = &dir->optim[number];
	struct shard_reader r = {
		.s = s, .dir = dir, .c = c, .layout = layout, .file = file->path, .err = err
	};
	struct ptfile pt;
	int rc;

	*s = (struct shard){ .rank = file->id.dp };
	rc = ckpt_file_open(file, &pt, err);
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

int shard_check_states(const struct shard *s, struct errmsg *err)
{
	for (size_t g = 0; g < s->ngroups; g++)
		if (s->groups[g].states.refused)
			return errmsg_set(err, s->groups[g].states.refused_rc, "%s",
					  s->groups[g].states.refused);
	return 0;
}

const struct param_state *shard_find_state(const struct flat_group *g, const char *name)
{
	for (size_t i = 0; i < g->states.n; i++)
		if (strcmp(g->states.v[i].name, name) == 0)
			return &g->states.v[i];
	return NULL;
}

/* Can both states be of one step? Only `step` must be equal on all ranks: other numbers may concern
 * a rank's own partition. */
static bool agree(const struct param_state *a, const struct param_state *b)
{
	return a->kind == b->kind && a->dtype == b->dtype &&
	       (strcmp(a->name, "step") != 0 || param_state_equal(a, b));
}

/* Return a state of group `a` that contradicts group `b`, or NULL. */
static const struct param_state *find_other(const struct flat_group *a,
					    const struct flat_group *b, bool alike)
{
	for (size_t i = 1; i < a->states.n; i++) {
		const struct param_state *x = &a->states.v[i];
		const struct param_state *y = shard_find_state(b, x->name);

		if (alike ? !y || !agree(x, y) : y && x->kind != STATE_FLAT && !agree(x, y))
			return x;
	}
	return NULL;
}

int shard_check_equal(const struct shard *a, const char *a_name, const struct shard *b,
		      const char *b_name, bool alike, struct errmsg *err)
{
	if (alike && a->ngroups != b->ngroups)
		return errmsg_set(err, -EBADMSG, "%s has %zu groups, but %s has %zu", a_name,
				  a->ngroups, b_name, b->ngroups);
	for (size_t g = 0; g < a->ngroups && g < b->ngroups; g++) {
		const struct flat_group *x = &a->groups[g];
		const struct flat_group *y = &b->groups[g];
		const struct param_state *other;

		/* Muon keeps no state on a rank that holds only padding. */
		if (y->padding && y->states.n == 1)
			continue;
		if (x->states.refused || y->states.refused)
			continue;
		if (alike && (x->states.n != y->states.n || x->replicated != y->replicated ||
			      x->states.v[0].dtype != y->states.v[0].dtype))
			return errmsg_set(err, -EBADMSG,
				"%s and %s do not hold the same optimizer states in group %zu",
					  a_name, b_name, g);
		other = find_other(x, y, alike);
		if (other)
			return errmsg_set(err, -EBADMSG,
					  "%s and %s differ in %s of group %zu: not of one step?",
					  a_name, b_name, other->name, g);
	}
	return 0;
}

void partitioning_done(struct partitioning *l)
{
	for (size_t g = 0; l->groups && g < l->ngroups; g++)
		partition_done(&l->groups[g]);
	free(l->groups);
	free(l->stripe);
	l->groups = NULL;
	l->stripe = NULL;
	l->ngroups = 0;
}
