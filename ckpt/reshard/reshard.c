/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How flat groups are cut on another number of ranks.  Sources: DeepSpeed
 * runtime/zero/stage_1_and_2.py (_round_robin_reorder, groups_padding),
 * runtime/zero/stage3.py (_create_fp16_sub_groups), runtime/bf16_optimizer.py.
 *
 *   stages 1, 2	a group for each group of the optimizer.  Its parameters are
 *			in the model's order, or dealt to the ranks in turn
 *			(round_robin_gradients)
 *   stage 3		sub-groups: the parameters of each group of the optimizer,
 *			a new one begun whenever a rank's part of them reaches
 *			sub_group_size
 */
#include "ckpt/reshard/reshard.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/reshard/reshard_ids.h"
#include "ckpt/zero/checkpoint.h"

/* DeepSpeed's default, zero/config.py. */
#define SUB_GROUP_SIZE 1000000000.0

/* parameter_alignment: the bytes that each parameter starts on a multiple of. */
#define ALIGNMENT_BYTES 16

/* One model-parallel rank, while its groups are worked out. */
struct resharder {
	struct reshard *s;
	struct reshard_mp *m;
	unsigned mp;
	const struct rank_params *c;
	const struct layout *old;
	double sub_group_size;
	uint32_t *param_group; /* of each old group */
	uint32_t nparam_groups;
	bool bf16; /* the old files are of BF16_Optimizer */
	const char *file;
	struct errmsg *err;
};

/* --- what the optimizer's file says ------------------------------------------- */

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

/* param_groups[k]["params"] lists the sub-groups of group k. */
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
				return errmsg_set(b->err, -EBADMSG,
						  "%s: param_groups[%zu] does not"
						  " list sub-groups in order",
						  b->file, k);
			b->param_group[found++] = (uint32_t)k;
		}
	}
	b->nparam_groups = groups ? (uint32_t)groups->n : 0;
	if (found == b->c->ngroups)
		return 0;
	return errmsg_set(b->err, -EBADMSG,
			  "%s: param_groups lists %zu of %zu sub-groups", b->file,
			  found, b->c->ngroups);
}

static int read_groups(struct resharder *b, const struct value *dict)
{
	const struct value *const base =
		value_find(dict, KEY_BASE_OPTIMIZER_STATE);

	b->param_group = calloc(b->c->ngroups + 1, sizeof(*b->param_group));
	if (!b->param_group)
		return errmsg_nomem(b->err, b->file);
	if (b->c->zero3)
		return read_sub_groups(b, dict);
	b->m->elastic = value_items(base) != NULL;
	b->bf16 = !value_find(dict, KEY_ZERO_STAGE);
	b->m->bf16 = b->bf16 && b->s->stage == b->s->old_stage;
	b->nparam_groups = (uint32_t)b->c->ngroups;
	for (uint32_t g = 0; g < b->c->ngroups; g++)
		b->param_group[g] = g;
	return 0;
}

static int read_stage(struct resharder *b, const struct value *dict)
{
	int64_t stage = 1; /* BF16_Optimizer writes none */

	value_get_int(value_find(dict, KEY_ZERO_STAGE), &stage);
	b->s->old_stage = (unsigned)stage; /* shard_load has checked it */
	if (!b->s->stage)
		b->s->stage = b->s->old_stage;
	return 0;
}

static int read_optimizer(struct resharder *b)
{
	const struct tag_file *const f =
		&b->s->r->dir.optim[zckpt_shard_number(b->s->r, b->mp, 0)];
	const struct value *dict;
	struct ptfile pt;
	int rc = tagdir_open_file(f, &pt, b->err);

	if (rc)
		return rc;
	dict = value_find(pt.root, KEY_OPTIMIZER_STATE_DICT);
	b->sub_group_size = read_sub_group_size(pt.root);
	rc = read_stage(b, dict);
	if (!rc)
		rc = read_groups(b, dict);
	ptfile_close(&pt);
	return rc;
}

/* --- what cannot be cut -------------------------------------------------------- */

static int refuse(const struct resharder *b, const char *why)
{
	return errmsg_set(b->err, -ENOTSUP, "%s: %s", b->s->r->dir.path, why);
}

static int check_experts(const struct resharder *b)
{
	for (size_t g = 0; g < b->c->ngroups; g++) {
		const unsigned degree = b->c->groups[g].degree;

		if (degree == 1)
			continue;
		if (b->c->zero3)
			return refuse(b, "experts of ZeRO-3: DeepSpeed loads these"
				      " only on the ranks that saved them");
		if (b->s->ranks % degree)
			return errmsg_set(b->err, -ENOTSUP,
					  "%s: its experts are spread over %u"
					  " ranks: %u is no multiple of that",
					  b->s->r->dir.path, degree,
					  b->s->ranks);
	}
	return 0;
}

/* Another stage has other files: known for data parallelism alone. */
static int check_stage(const struct resharder *b)
{
	const struct shard *const profile = zckpt_shard(b->s->r, b->mp, 0);

	if (b->s->stage == b->s->old_stage)
		return 0;
	if (b->s->r->dir.mp_degree > 1)
		return refuse(b, "another ZeRO stage is possible without tensor"
			      " and pipeline parallelism only");
	for (size_t g = 0; g < b->c->ngroups; g++) {
		if (b->c->groups[g].degree > 1)
			return refuse(b, "another ZeRO stage is not possible with"
				      " experts");
		if (profile->groups[g].replicated && reshard_crosses(b->s))
			return refuse(b, "Muon's momentum is kept whole in stages 1"
				      " and 2 only: the stage cannot change");
	}
	if (b->m->elastic && reshard_crosses(b->s))
		return refuse(b, "elastic_checkpoint records no param_groups, which"
			      " stage 3 needs");
	return 0;
}

/* --- groups ---------------------------------------------------------------------- */

static struct reshard_group *add_group(struct resharder *b, uint32_t param_group)
{
	struct reshard_mp *const m = b->m;
	struct reshard_group *const grown =
		realloc(m->groups, (m->ngroups + 1) * sizeof(*grown));

	if (!grown)
		return NULL;
	m->groups = grown;
	grown[m->ngroups] = (struct reshard_group){ .param_group = param_group };
	return &grown[m->ngroups++];
}

static int add_param(const struct resharder *b, struct reshard_group *g,
		     struct reshard_param p)
{
	if (g->n == g->cap) {
		const size_t cap = g->cap ? g->cap * 2 : 16;
		void *const grown = realloc(g->params, cap * sizeof(*g->params));

		if (!grown)
			return errmsg_nomem(b->err, b->file);
		g->params = grown;
		g->cap = cap;
	}
	g->params[g->n++] = p;
	return 0;
}

/* Append the parameters of an old group as they are. */
static int add_old(const struct resharder *b, struct reshard_group *to,
		   uint32_t group)
{
	const struct slice_group *const old = &b->c->groups[group];
	size_t next = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < old->param_shapes_count; i++) {
		const bool placed = next < old->n && old->slices[next]->param_shapes_index == i;

		rc = add_param(b, to, (struct reshard_param){
			group, (uint32_t)i,
			placed ? old->slices[next] : NULL });
		next += placed;
	}
	return rc;
}

static uint64_t numel_of(const struct reshard_param *p)
{
	return p->slice ? p->slice->numel : 0;
}

/* Deal `n` parameters to `ranks` ranks, one after the other, or take them back
 * into the order that they had before. */
static int deal(const struct resharder *b, struct reshard_group *g,
		unsigned ranks, bool back)
{
	struct reshard_param *const to = malloc((g->n + 1) * sizeof(*to));
	size_t k = 0;

	if (!to)
		return errmsg_nomem(b->err, b->file);
	for (size_t r = 0; r < ranks && r < g->n; r++)
		for (size_t i = r; i < g->n; i += ranks, k++) {
			if (back)
				to[i] = g->params[k];
			else
				to[k] = g->params[i];
		}
	free(g->params);
	g->params = to;
	g->cap = g->n + 1;
	return 0;
}

/* Old groups of one group of the optimizer, put together, in the model's
 * order. */
static int join(const struct resharder *b, uint32_t param_group,
		struct reshard_group *to)
{
	const bool dealt = b->c->round_robin && !b->c->zero3 && !b->bf16;
	bool first = true;
	int rc = 0;

	to->stripe = (struct rank_stripe){ .ranks = b->s->ranks, .degree = 1 };
	for (uint32_t g = 0; !rc && g < b->c->ngroups; g++)
		if (b->param_group[g] == param_group) {
			rc = add_old(b, to, g);
			to->stripe = b->old->stripe[g];
			to->like = first ? g : to->like;
			first = false;
		}
	return !rc && dealt ? deal(b, to, to->stripe.ranks, true) : rc;
}

/* --- stages 1 and 2 ---------------------------------------------------------------- */

static uint64_t old_padding(const struct resharder *b,
			    const struct reshard_param *p)
{
	const struct partition *const old = &b->old->groups[p->group];
	const size_t i = p->slice ? p->slice->index : 0;

	if (!p->slice)
		return 0;
	return (i + 1 < old->n ? old->start[i + 1] : old->used) -
	       (old->start[i] + old->numel[i]);
}

/* Did the run ask for padding after parameters? */
static bool is_aligned(const struct resharder *b, const struct reshard_group *g)
{
	bool any = false;

	for (size_t i = 0; !b->c->zero3 && i < g->n; i++)
		any |= old_padding(b, &g->params[i]) != 0;
	return any;
}

/* Are the parameters in the order in which the old group has them? */
static bool in_old_order(const struct reshard_group *g)
{
	size_t i = 0;

	while (i < g->n && g->params[i].listed == i)
		i++;
	return i == g->n;
}

/* The padding after each parameter.  In another order it is computed again: the
 * last one has none. */
static int set_padding(const struct resharder *b, struct reshard_group *g)
{
	const uint64_t item = dtype_size(b->c->module_dtype);
	const uint64_t unit = item < ALIGNMENT_BYTES ? ALIGNMENT_BYTES / item : 1;
	const bool keep = in_old_order(g);

	g->padding = calloc(g->n + 1, sizeof(*g->padding));
	if (!g->padding)
		return errmsg_nomem(b->err, b->file);
	for (size_t i = 0; i < g->n; i++) {
		const uint64_t n = numel_of(&g->params[i]);

		if (keep)
			g->padding[i] = old_padding(b, &g->params[i]);
		else if (i + 1 < g->n)
			g->padding[i] = (unit - n % unit) % unit;
	}
	return 0;
}

static int cut(const struct resharder *b, const struct reshard_group *g,
	       struct partition *out)
{
	uint64_t *const numel = malloc((g->n + 1) * sizeof(*numel));
	int rc;

	if (!numel)
		return errmsg_nomem(b->err, b->file);
	for (size_t i = 0; i < g->n; i++)
		numel[i] = numel_of(&g->params[i]);
	rc = reshard_zero3(b->s) ?
		     partition_init_zero3(out, numel, g->n, g->stripe.ranks) :
		     partition_init_zero12(out, numel, g->padding, g->n,
					   g->stripe.ranks);
	free(numel);
	return rc ? errmsg_set(b->err, rc, "%s: %s", b->file, strerror(-rc)) : 0;
}

/* What param_slice_mappings says of a group before it is dealt: the places of
 * its parameters in the model's order. */
static int record(const struct resharder *b, struct reshard_group *g)
{
	const unsigned ranks = g->stripe.ranks;
	size_t k = 0;
	int rc;

	g->recorded_order = malloc((g->n + 1) * sizeof(*g->recorded_order));
	if (!g->recorded_order)
		return errmsg_nomem(b->err, b->file);
	rc = cut(b, g, &g->recorded);
	for (size_t r = 0; !rc && r < ranks && r < g->n; r++)
		for (size_t i = r; i < g->n; i += ranks)
			g->recorded_order[i] = k++;
	return rc;
}

static int build_flat_group(struct resharder *b, uint32_t param_group)
{
	struct reshard_group *const g = add_group(b, param_group);
	const bool deals = b->c->round_robin && !b->m->bf16;
	int rc = g ? join(b, param_group, g) : errmsg_nomem(b->err, b->file);

	if (rc)
		return rc;
	g->stripe.ranks = b->s->ranks / g->stripe.degree;
	/* With alignment DeepSpeed records the true places. */
	if (deals && !is_aligned(b, g))
		rc = record(b, g);
	if (!rc && deals)
		rc = deal(b, g, g->stripe.ranks, false);
	if (!rc && is_aligned(b, g))
		rc = set_padding(b, g);
	return rc ? rc : cut(b, g, &g->part);
}

/* --- stage 3 ------------------------------------------------------------------------- */

/* Where the sub-group that begins with parameter `first` ends, on so many
 * ranks. */
static size_t sub_group_end(const struct resharder *b,
			    const struct reshard_group *all, size_t first,
			    unsigned ranks)
{
	double sum = 0;
	size_t i = first;

	while (i < all->n && sum < b->sub_group_size) {
		const uint64_t n = numel_of(&all->params[i++]);

		sum += (double)(n / ranks + (n % ranks != 0));
	}
	return i;
}

/* Did sub_group_size make the old sub-groups?  If not, they are kept. */
static bool follows_rule(const struct resharder *b,
			 const struct reshard_group *all)
{
	size_t end;

	for (size_t i = 0; i < all->n; i = end) {
		const uint32_t g = all->params[i].group;

		end = sub_group_end(b, all, i, b->old->ranks);
		if (all->params[end - 1].group != g ||
		    (end < all->n && all->params[end].group == g))
			return false;
	}
	return true;
}

static size_t old_end(const struct reshard_group *all, size_t first)
{
	size_t i = first;

	while (i < all->n && all->params[i].group == all->params[first].group)
		i++;
	return i;
}

static int build_sub_group(struct resharder *b, const struct reshard_group *all,
			   size_t first, size_t end)
{
	struct reshard_group *const g = add_group(b, all->param_group);
	int rc = g ? 0 : errmsg_nomem(b->err, b->file);

	if (rc)
		return rc;
	g->stripe = all->stripe;
	g->stripe.ranks = b->s->ranks;
	g->like = all->params[first].group;
	for (size_t i = first; !rc && i < end; i++)
		rc = add_param(b, g, all->params[i]);
	return rc ? rc : cut(b, g, &g->part);
}

static int build_sub_groups(struct resharder *b, uint32_t param_group)
{
	struct reshard_group all = { .param_group = param_group };
	int rc = join(b, param_group, &all);
	const bool rule = !rc && (!b->c->zero3 || follows_rule(b, &all));
	size_t end;

	if (!rule)
		b->s->warning = "its sub-groups are not those of sub_group_size:"
				" they are kept as they are";
	for (size_t i = 0; !rc && i < all.n; i = end) {
		end = rule ? sub_group_end(b, &all, i, b->s->ranks)
			   : old_end(&all, i);
		rc = build_sub_group(b, &all, i, end);
	}
	free(all.params);
	return rc;
}

/* --- one model-parallel rank ------------------------------------------------------------ */

static void compare_groups(struct resharder *b)
{
	struct reshard_mp *const m = b->m;

	m->same_groups = m->same_order = m->ngroups == b->c->ngroups;
	for (size_t g = 0; g < m->ngroups; g++) {
		const struct reshard_group *const x = &m->groups[g];

		if (g >= b->c->ngroups || x->n != b->c->groups[g].param_shapes_count)
			m->same_groups = m->same_order = false;
		for (size_t i = 0; i < x->n; i++) {
			m->same_groups &= x->params[i].group == g;
			m->same_order &= x->params[i].group == g &&
					 x->params[i].listed == i;
		}
	}
}

/* A new group's states are those of all its old groups, which must agree. */
static int check_joined(const struct resharder *b, const struct reshard_group *g)
{
	const struct shard *const p = zckpt_shard(b->s->r, b->mp, 0);
	const struct shard_group *const x = &p->groups[g->like];

	for (size_t i = 0; i < g->n; i++) {
		const struct shard_group *const y =
			&p->groups[g->params[i].group];
		bool same = x->nstates == y->nstates &&
			    x->fp32.dtype == y->fp32.dtype;

		for (size_t k = 0; same && k < x->nstates; k++)
			same = shard_state_equal(&x->states[k], &y->states[k]);
		if (!same)
			return errmsg_set(b->err, -ENOTSUP,
					  "%s: sub-groups %u and %u, which would"
					  " be one, differ in their states",
					  b->file, g->like, g->params[i].group);
	}
	return 0;
}

static int build_rank(struct resharder *b)
{
	int rc = read_optimizer(b);

	if (!rc)
		rc = check_experts(b);
	if (!rc)
		rc = check_stage(b);
	for (uint32_t k = 0; !rc && k < b->nparam_groups; k++)
		rc = reshard_zero3(b->s) ? build_sub_groups(b, k) :
					   build_flat_group(b, k);
	if (rc)
		return rc;
	compare_groups(b);
	for (size_t g = 0; !rc && g < b->m->ngroups; g++)
		rc = check_joined(b, &b->m->groups[g]);
	if (!rc && reshard_zero3(b->s) && !b->m->same_groups)
		rc = reshard_find_ids(b->s->r, b->mp, &b->m->ids,
				      &b->m->ids_start, b->err);
	return rc;
}

/* Until 0.16 a rank that is not the last one recorded no padding. */
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
			.file = r->dir.optim[zckpt_shard_number(r, mp, 0)].path,
			.err = err,
		};

		rc = build_rank(&b);
		free(b.param_group);
	}
	return rc;
}

int reshard_init(struct reshard *s, struct zero_checkpoint *r,
		 const struct reshard_options *options, struct errmsg *err)
{
	int rc;

	*s = (struct reshard){ .r = r,
			       .ranks = options->ranks,
			       .stage = options->stage };
	if (s->ranks < 1 || s->ranks > RESHARD_RANKS_MAX || s->stage > 3)
		return errmsg_set(err, -EINVAL,
				  "%s: cannot be re-cut for %u ranks, stage %u",
				  r->dir.path, s->ranks, s->stage);
	rc = zckpt_profiles(r, err);
	if (rc)
		return rc;
	s->last_padded = counts_last_only(zckpt_shard(r, 0, 0)->ds_version);
	s->mp = calloc(r->dir.mp_degree, sizeof(*s->mp));
	if (!s->mp)
		return errmsg_nomem(err, r->dir.path);
	rc = build_ranks(s, err);
	if (rc)
		reshard_done(s);
	return rc;
}

static void group_done(struct reshard_group *g)
{
	free(g->params);
	free(g->padding);
	free(g->recorded_order);
	partition_done(&g->part);
	partition_done(&g->recorded);
}

void reshard_done(struct reshard *s)
{
	for (unsigned mp = 0; s->mp && mp < s->r->dir.mp_degree; mp++) {
		for (size_t g = 0; g < s->mp[mp].ngroups; g++)
			group_done(&s->mp[mp].groups[g]);
		free(s->mp[mp].groups);
		free(s->mp[mp].ids);
		free(s->mp[mp].ids_start);
	}
	free(s->mp);
	s->mp = NULL;
}

uint64_t reshard_padding(const struct reshard_group *g, unsigned rank)
{
	unsigned which;

	return g->part.size -
	       partition_filled(&g->part, rank_stripe_part(&g->stripe, rank, &which));
}
