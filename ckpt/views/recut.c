/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whether a checkpoint can be re-cut, and into which flat groups:
 *
 *   stages 1, 2	one for each parameter group of the optimizer.  Its parameters
 *			have the model's order, or are dealt to the ranks in turn
 *			(round_robin_gradients)
 *   stage 3		sub-groups of each parameter group.  A new sub-group starts when a
 *			rank's part of the current one reaches sub_group_size
 *
 * recut_groups.c builds them.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/names.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry.h"
#include "ckpt/vfile/file_layout.h"
#include "ckpt/views/recut_impl.h"

/* DeepSpeed's default, zero/config.py. */
#define SUB_GROUP_SIZE 1000000000.0

static double read_sub_group_size(const struct value *root)
{
	const struct value *v =
		value_find_path(root, KEY_DS_CONFIG, "zero_optimization", "sub_group_size", NULL);
	int64_t i;

	if (v && v->kind == VALUE_FLOAT && v->f >= 1)
		return v->f;
	return value_get_int(v, &i) && i >= 1 ? (double)i : SUB_GROUP_SIZE;
}

/* Read the parameter group of each sub-group: param_groups[k]["params"] lists
 * those of group k. */
static int read_sub_groups(struct recutter *b, const struct value *dict)
{
	const struct value_seq *groups =
		value_items(value_find_path(dict, KEY_OPTIMIZER_STATE_DICT, KEY_PARAM_GROUPS, NULL));
	size_t found = 0;

	for (size_t k = 0; groups && k < groups->n; k++) {
		const struct value_seq *ids = value_items(value_find(groups->v[k], "params"));

		for (size_t i = 0; ids && i < ids->n; i++) {
			int64_t g;

			/* Numbers must ascend without repetition. */
			if (!value_get_int(ids->v[i], &g) || g != (int64_t)found ||
			    found == b->t->ngroups)
				return ERRMSG_FILE(
					b, -EBADMSG,
					"param_groups[%zu] does not list sub-groups in order", k);
			b->param_group[found++] = (uint32_t)k;
		}
	}
	b->nparam_groups = groups ? (uint32_t)groups->n : 0;
	if (found == b->t->ngroups)
		return 0;
	return ERRMSG_FILE(b, -EBADMSG, "param_groups lists %zu of %zu sub-groups", found,
			   b->t->ngroups);
}

static int read_groups(struct recutter *b, const struct value *dict)
{
	const struct value *base = value_find(dict, KEY_BASE_OPTIMIZER_STATE);

	b->param_group = recut_alloc(b, b->t->ngroups, sizeof(*b->param_group));
	if (!b->param_group)
		return -ENOMEM;
	if (b->s->c->facts.zero3)
		return read_sub_groups(b, dict);
	b->m->elastic = value_items(base) != NULL;
	b->bf16 = !value_find(dict, KEY_ZERO_STAGE);
	b->m->bf16 = b->bf16 && b->s->stage == b->s->old_stage;
	b->nparam_groups = (uint32_t)b->t->ngroups;
	for (uint32_t g = 0; g < b->t->ngroups; g++)
		b->param_group[g] = g;
	return 0;
}

/* shard_load has checked the stage, but the file may have been written to in place since. */
static int read_stage(struct recutter *b, const struct value *dict)
{
	int64_t stage = 1; /* BF16_Optimizer does not record it */

	value_get_int(value_find(dict, KEY_ZERO_STAGE), &stage);
	if (stage < 1 || stage > 3 || (stage == 3) != b->s->c->facts.zero3)
		return ERRMSG_FILE(b, -EIO, "has changed");
	b->s->old_stage = (unsigned)stage;
	if (!b->s->stage)
		b->s->stage = b->s->old_stage;
	return 0;
}

static int read_optimizer(struct recutter *b)
{
	const struct value *dict = value_find(b->root, KEY_OPTIMIZER_STATE_DICT);

	b->sub_group_size = read_sub_group_size(b->root);
	return read_stage(b, dict) ?: read_groups(b, dict);
}

static int refuse(const struct recutter *b, const char *why)
{
	return errmsg_set(b->err, -ENOTSUP, "%s: %s", b->s->c->path, why);
}

/* Does the optimizer own all experts?  Only stages 2 and 3 list frozen ones. */
static bool trains_experts(const struct checkpoint *c)
{
	for (size_t i = 0; i < c->nparams; i++) {
		const struct param *p = &c->params[i];
		const struct ckpt_file *f =
			p->first || !p->module ? NULL : c->files + p->module->file;

		if (f && f >= c->experts && f < c->experts + c->nexperts)
			return false;
	}
	return true;
}

/* Stages 1 and 2 divide alike; changes to or from stage 3 need plain data parallelism. */
static int check_parallelism(const struct checkpoint *c, unsigned mp, unsigned stage,
			     struct errmsg *err)
{
	const struct rank_table *t = &c->ranks[mp];
	const bool crosses = (stage == 3) != c->facts.zero3;

	if (c->pp > 1 || (c->tp > 1 && crosses))
		return errmsg_set(
			err, -ENOTSUP,
			"%s: the ZeRO stage cannot change with tensor or pipeline parallelism%s",
			c->path, c->pp > 1 ? "" : ", but from 1 to 2 and back");
	for (size_t g = 0; crosses && g < t->ngroups; g++)
		if (t->groups[g].degree > 1 || t->groups[g].lanes > 1)
			return errmsg_set(err, -ENOTSUP,
					  "%s: the ZeRO stage cannot change with experts, but from 1 to 2"
					  " and back",
					  c->path);
	return trains_experts(c) ? 0
				 : errmsg_set(err, -ENOTSUP,
					      "%s: the ZeRO stage cannot change with frozen experts",
					      c->path);
}

int recut_check_cut(const struct checkpoint *c, unsigned stage, struct errmsg *err)
{
	const int64_t old = c->facts.stage;

	/* Without ZeRO the stage is 0, and views are of stage 1. */
	return stage && old >= 0 && stage != (old ? old : 1) ? check_parallelism(c, 0, stage, err)
							      : 0;
}

static int check_stage(const struct recutter *b)
{
	int rc;

	if (b->s->stage == b->s->old_stage)
		return 0;
	rc = check_parallelism(b->s->c, b->mp, b->s->stage, b->err);
	if (rc)
		return rc;
	for (size_t g = 0; g < b->t->ngroups; g++)
		if (b->t->groups[g].replicated && recut_crosses(b->s))
			return refuse(b, "the ZeRO stage cannot change with Muon:"
					 " only stages 1 and 2 keep its momentum whole");
	if (b->m->elastic && recut_crosses(b->s))
		return refuse(b, "the ZeRO stage cannot change:"
				 " elastic_checkpoint records no param_groups, which stage 3 needs");
	return 0;
}

static void compare_groups(struct recutter *b)
{
	struct recut_mp *m = b->m;

	m->same_groups = m->same_order = m->ngroups == b->t->ngroups;
	for (size_t g = 0; g < m->ngroups; g++) {
		const struct recut_group *x = &m->groups[g];

		if (g >= b->t->ngroups || x->n != b->t->groups[g].n)
			m->same_groups = m->same_order = false;
		for (size_t i = 0; i < x->n; i++) {
			const bool same = x->params[i].slice->group == g && x->params[i].times == 1;

			m->same_groups &= same;
			m->same_order &= same && x->params[i].slice->index == i;
		}
	}
}

/* All old groups that are joined in a new one must have the same states. */
static int check_joined(const struct recutter *b, const struct recut_group *g)
{
	const struct param_states *x = b->t->groups[g->like].states;

	for (size_t i = 0; i < g->n; i++) {
		const uint32_t old = g->params[i].slice->group;
		const struct param_states *y = b->t->groups[old].states;
		bool same = x->n == y->n;

		for (size_t k = 0; same && k < x->n; k++)
			same = param_state_equal(&x->v[k], &y->v[k]);
		if (!same)
			return ERRMSG_FILE(
				b, -ENOTSUP,
				"sub-groups %u and %u would be joined, but differ in their states",
				g->like, old);
	}
	return 0;
}

static int build_groups(struct recutter *b)
{
	int rc = read_optimizer(b);

	rc = rc ?: check_stage(b) ?: recut_check_experts(b);
	for (uint32_t k = 0; !rc && k < b->nparam_groups; k++)
		/* Groups of experts that are joined with others are not compared. */
		if (b->s->c->facts.zero3 || b->param_group[k] == k)
			rc = b->s->stage == 3 ? recut_build_sub_groups(b, k) : recut_build_flat_group(b, k);
	if (rc)
		return rc;
	compare_groups(b);
	for (size_t g = 0; !rc && g < b->m->ngroups; g++)
		rc = check_joined(b, &b->m->groups[g]);
	return rc;
}

/* Up to 0.16 only the last rank recorded padding. */
static bool counts_last_only(const struct value *root)
{
	const struct value *v = value_find(root, KEY_DS_VERSION);
	unsigned major, minor;

	return value_is_cstr(v) && sscanf(v->str.p, "%u.%u", &major, &minor) == 2 && major == 0 &&
	       minor <= 16;
}

static int build_rank(struct recut *s, unsigned mp, struct errmsg *err)
{
	struct file_layout d = { .err = err };
	struct recutter b = { .s = s,
			      .m = &s->mp[mp],
			      .mp = mp,
			      .t = &s->c->ranks[mp],
			      .root = s->c->ops->object(s->c, OBJECT_OPTIMIZER, mp, 0, &d),
			      .file = checkpoint_path(s->c, OBJECT_OPTIMIZER, mp, 0),
			      .err = err };
	int rc = d.rc ?: d.a.failed ? errmsg_nomem(err, b.file) : build_groups(&b);

	if (!rc && !mp)
		s->last_padded = counts_last_only(b.root);
	layout_done(&d);
	return rc;
}

int recut_init(struct recut *s, struct checkpoint *c, unsigned ranks, unsigned stage,
	       struct errmsg *err)
{
	int rc;

	*s = (struct recut){ .c = c, .ranks = ranks, .stage = stage };
	if (ranks < 1 || ranks > RECUT_RANKS_MAX || stage > 3)
		return errmsg_set(err, -EINVAL, "%s: cannot re-cut for %u ranks, stage %u", c->path,
				  ranks, stage);
	rc = c->ops->check(c, true, err);
	if (rc)
		return rc;
	s->mp = arena_alloc(&s->arena, c->tp * c->pp * sizeof(*s->mp));
	if (!s->mp)
		return errmsg_nomem(err, c->path);
	for (unsigned mp = 0; !rc && mp < c->tp * c->pp; mp++)
		rc = build_rank(s, mp, err);
	return rc;
}

void recut_done(struct recut *s)
{
	for (unsigned mp = 0; s->mp && mp < s->c->tp * s->c->pp; mp++)
		for (size_t g = 0; g < s->mp[mp].ngroups; g++) {
			partition_done(&s->mp[mp].groups[g].part);
			partition_done(&s->mp[mp].groups[g].recorded);
		}
	arena_done(&s->arena);
}
