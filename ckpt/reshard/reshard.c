/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whether a checkpoint can be re-cut, and into which flat groups:
 *
 *   stages 1, 2	one for each parameter group of the optimizer.  Its parameters
 *			have the model's order, or are dealt to the ranks in turn
 *			(round_robin_gradients)
 *   stage 3		sub-groups of each parameter group.  A new one starts when a
 *			rank's part of the current one reaches sub_group_size
 *
 * reshard_groups.c builds them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/dirs/tagdir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/reshard/reshard_impl.h"

/* DeepSpeed's default, zero/config.py. */
#define SUB_GROUP_SIZE 1000000000.0

static double read_sub_group_size(const struct value *root)
{
	const struct value *const v =
		value_find_path(root, KEY_DS_CONFIG, "zero_optimization",
				"sub_group_size", NULL);
	int64_t i;

	if (v && v->kind == VALUE_FLOAT && v->f >= 1)
		return v->f;
	return value_get_int(v, &i) && i >= 1 ? (double)i : SUB_GROUP_SIZE;
}

/* Read the parameter group of each sub-group: param_groups[k]["params"] lists
 * those of group k. */
static int read_sub_groups(struct resharder *b, const struct value *dict)
{
	const struct value_seq *const groups = value_items(value_find_path(
		dict, KEY_OPTIMIZER_STATE_DICT, KEY_PARAM_GROUPS, NULL));
	size_t found = 0;

	for (size_t k = 0; groups && k < groups->n; k++) {
		const struct value_seq *const ids =
			value_items(value_find(groups->v[k], "params"));

		for (size_t i = 0; ids && i < ids->n; i++) {
			int64_t g;

			/* In order, and each once. */
			if (!value_get_int(ids->v[i], &g) ||
			    g != (int64_t)found || found == b->c->ngroups)
				return ERRMSG_FILE(b, -EBADMSG,
						   "param_groups[%zu] does not"
						   " list sub-groups in order",
						   k);
			b->param_group[found++] = (uint32_t)k;
		}
	}
	b->nparam_groups = groups ? (uint32_t)groups->n : 0;
	if (found == b->c->ngroups)
		return 0;
	return ERRMSG_FILE(b, -EBADMSG,
			   "param_groups lists %zu of %zu sub-groups", found,
			   b->c->ngroups);
}

static int read_groups(struct resharder *b, const struct value *dict)
{
	const struct value *const base =
		value_find(dict, KEY_BASE_OPTIMIZER_STATE);

	b->param_group = reshard_alloc(b, b->c->ngroups, sizeof(*b->param_group));
	if (!b->param_group)
		return -ENOMEM;
	if (b->c->facts.zero3)
		return read_sub_groups(b, dict);
	b->m->elastic = value_items(base) != NULL;
	b->bf16 = !value_find(dict, KEY_ZERO_STAGE);
	b->m->bf16 = b->bf16 && b->s->stage == b->s->old_stage;
	b->nparam_groups = (uint32_t)b->c->ngroups;
	for (uint32_t g = 0; g < b->c->ngroups; g++)
		b->param_group[g] = g;
	return 0;
}

/* shard_load has checked the stage, but the file may have been written to in place since. */
static int read_stage(struct resharder *b, const struct value *dict)
{
	int64_t stage = 1; /* BF16_Optimizer writes none */

	value_get_int(value_find(dict, KEY_ZERO_STAGE), &stage);
	if (stage < 1 || stage > 3 || (stage == 3) != b->c->facts.zero3)
		return ERRMSG_FILE(b, -EIO, "has changed");
	b->s->old_stage = (unsigned)stage;
	if (!b->s->stage)
		b->s->stage = b->s->old_stage;
	return 0;
}

static int read_optimizer(struct resharder *b)
{
	const struct value *const dict =
		value_find(b->root, KEY_OPTIMIZER_STATE_DICT);

	b->sub_group_size = read_sub_group_size(b->root);
	return read_stage(b, dict) ?: read_groups(b, dict);
}

static int refuse(const struct resharder *b, const char *why)
{
	return errmsg_set(b->err, -ENOTSUP, "%s: %s", b->s->r->dir.path, why);
}

static int check_experts(const struct zero_checkpoint *r, unsigned mp,
			 unsigned ranks, struct errmsg *err)
{
	const struct rank_params *const c = &r->model.ranks[mp];

	for (size_t g = 0; g < c->ngroups; g++) {
		const unsigned degree = c->groups[g].degree;

		if (degree == 1)
			continue;
		if (c->facts.zero3)
			return errmsg_set(err, -ENOTSUP,
					  "%s: ZeRO-3 with experts: DeepSpeed"
					  " loads them only on the number of"
					  " ranks that saved them",
					  r->dir.path);
		if (ranks % degree)
			return errmsg_set(
				err, -ENOTSUP,
				"%s: the experts are spread over %u ranks:"
				" %u is no multiple of that",
				r->dir.path, degree, ranks);
	}
	return 0;
}

/* The stage changes only for plain data parallelism. */
static int check_parallelism(const struct zero_checkpoint *r, unsigned mp, struct errmsg *err)
{
	const struct rank_params *const c = &r->model.ranks[mp];

	if (r->dir.mp_degree > 1)
		return errmsg_set(err, -ENOTSUP, "%s: the ZeRO stage cannot change with"
						 " tensor or pipeline parallelism",
				  r->dir.path);
	for (size_t g = 0; g < c->ngroups; g++)
		if (c->groups[g].degree > 1)
			return errmsg_set(err, -ENOTSUP, "%s: the ZeRO stage cannot change"
							 " with experts", r->dir.path);
	return 0;
}

int reshard_check_cut(const struct zero_checkpoint *r, unsigned ranks, unsigned stage,
		      struct errmsg *err)
{
	const int64_t old = r->model.ranks[0].facts.stage;
	int rc = 0;

	for (unsigned mp = 0; !rc && mp < r->dir.mp_degree; mp++)
		rc = check_experts(r, mp, ranks, err);
	/* Without ZeRO the stage is 0, and views are of stage 1. */
	if (!rc && stage && old >= 0 && stage != (old ? old : 1))
		rc = check_parallelism(r, 0, err);
	return rc;
}

static int check_stage(const struct resharder *b)
{
	const struct shard *const profile = zckpt_shard(b->s->r, b->mp, 0);
	int rc;

	if (b->s->stage == b->s->old_stage)
		return 0;
	rc = check_parallelism(b->s->r, b->mp, b->err);
	if (rc)
		return rc;
	for (size_t g = 0; g < b->c->ngroups; g++)
		if (profile->groups[g].replicated && reshard_crosses(b->s))
			return refuse(b,
				      "the ZeRO stage cannot change with Muon:"
				      " only stages 1 and 2 keep its momentum"
				      " whole");
	if (b->m->elastic && reshard_crosses(b->s))
		return refuse(b, "the ZeRO stage cannot change:"
				 " elastic_checkpoint records no param_groups,"
				 " which stage 3 needs");
	return 0;
}

static void compare_groups(struct resharder *b)
{
	struct reshard_mp *const m = b->m;

	m->same_groups = m->same_order = m->ngroups == b->c->ngroups;
	for (size_t g = 0; g < m->ngroups; g++) {
		const struct reshard_group *const x = &m->groups[g];

		if (g >= b->c->ngroups ||
		    x->n != b->c->groups[g].n)
			m->same_groups = m->same_order = false;
		for (size_t i = 0; i < x->n; i++) {
			m->same_groups &= x->params[i].group == g;
			m->same_order &= x->params[i].group == g &&
					 x->params[i].listed == i;
		}
	}
}

/* All old groups that a new one joins must have the same states. */
static int check_joined(const struct resharder *b, const struct reshard_group *g)
{
	const struct shard *const p = zckpt_shard(b->s->r, b->mp, 0);
	const struct shard_group *const x = &p->groups[g->like];

	for (size_t i = 0; i < g->n; i++) {
		const struct shard_group *const y =
			&p->groups[g->params[i].group];
		bool same = x->states.n == y->states.n;

		for (size_t k = 0; same && k < x->states.n; k++)
			same = shard_state_equal(&x->states.v[k], &y->states.v[k]);
		if (!same)
			return ERRMSG_FILE(b, -ENOTSUP,
					   "sub-groups %u and %u"
					   " would be joined, but differ in"
					   " their states",
					   g->like, g->params[i].group);
	}
	return 0;
}

static int build_groups(struct resharder *b)
{
	int rc = read_optimizer(b);

	rc = rc ?: check_experts(b->s->r, b->mp, b->s->ranks, b->err) ?:
		   check_stage(b);
	for (uint32_t k = 0; !rc && k < b->nparam_groups; k++)
		rc = b->s->stage == 3 ? reshard_build_sub_groups(b, k)
				      : reshard_build_flat_group(b, k);
	if (rc)
		return rc;
	compare_groups(b);
	for (size_t g = 0; !rc && g < b->m->ngroups; g++)
		rc = check_joined(b, &b->m->groups[g]);
	return rc;
}

static int build_rank(struct resharder *b)
{
	struct ptfile pt;
	int rc = tagdir_open_file(
		&b->s->r->dir.optim[zckpt_shard_number(b->s->r, b->mp, 0)], &pt,
		b->err);

	if (rc)
		return rc;
	b->root = pt.root;
	b->file = pt.src.name;
	rc = build_groups(b);
	ptfile_close(&pt);
	return rc;
}

/* Up to 0.16 only the last rank recorded padding. */
static bool counts_last_only(const char *version)
{
	unsigned major, minor;

	return sscanf(version, "%u.%u", &major, &minor) == 2 && major == 0 &&
	       minor <= 16;
}

static int build_ranks(struct reshard *s, struct errmsg *err)
{
	const struct zero_checkpoint *const r = s->r;
	int rc = 0;

	for (unsigned mp = 0; !rc && mp < r->dir.mp_degree; mp++) {
		struct resharder b = {
			.s = s,
			.m = &s->mp[mp],
			.mp = mp,
			.c = &r->model.ranks[mp],
			.old = &r->layouts[mp],
			.err = err,
		};

		rc = build_rank(&b);
	}
	return rc;
}

int reshard_init(struct reshard *s, struct zero_checkpoint *r, unsigned ranks,
		 unsigned stage, struct errmsg *err)
{
	int rc;

	*s = (struct reshard){ .r = r, .ranks = ranks, .stage = stage };
	if (ranks < 1 || ranks > RESHARD_RANKS_MAX || stage > 3)
		return errmsg_set(err, -EINVAL,
				  "%s: cannot re-cut for %u ranks, stage %u",
				  r->dir.path, ranks, stage);
	rc = r->c.ops->check(&r->c, true, err);
	if (rc)
		return rc;
	s->last_padded = counts_last_only(zckpt_shard(r, 0, 0)->ds_version);
	s->mp = arena_alloc(&s->arena, r->dir.mp_degree * sizeof(*s->mp));
	return s->mp ? build_ranks(s, err) : errmsg_nomem(err, r->dir.path);
}

void reshard_done(struct reshard *s)
{
	for (unsigned mp = 0; s->mp && mp < s->r->dir.mp_degree; mp++)
		for (size_t g = 0; g < s->mp[mp].ngroups; g++) {
			partition_done(&s->mp[mp].groups[g].part);
			partition_done(&s->mp[mp].groups[g].recorded);
		}
	arena_done(&s->arena);
}
