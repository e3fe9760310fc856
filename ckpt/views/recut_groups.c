/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the new flat groups: the parameters of each, their order, and the partitions.  Sources:
 * DeepSpeed runtime/zero/stage_1_and_2.py (_round_robin_reorder, param_padding) and
 * runtime/zero/stage3.py (_create_fp16_sub_groups).
 */
#include <errno.h>
#include <string.h>

#include "ckpt/views/recut_impl.h"

/* parameter_alignment: each parameter starts on a multiple of this number of bytes. */
#define ALIGNMENT_BYTES 16

void *recut_alloc(const struct recutter *b, size_t n, size_t item)
{
	void *p = arena_alloc(&b->s->arena, n * item);

	if (!p)
		errmsg_nomem(b->err, b->file);
	return p;
}

static struct recut_group *add_group(struct recutter *b, uint32_t param_group)
{
	struct recut_mp *m = b->m;

	if (!arena_reserve(&b->s->arena, &m->groups, m->ngroups, &m->cap, m->ngroups + 1,
			   sizeof(*m->groups))) {
		errmsg_nomem(b->err, b->file);
		return NULL;
	}
	m->groups[m->ngroups] = (struct recut_group){ .param_group = param_group };
	return &m->groups[m->ngroups++];
}

/* Append the parameters of an old group in its order. */
static void add_old(const struct recutter *b, struct recut_group *to, uint32_t group)
{
	const struct slice_group *old = &b->t->groups[group];

	for (size_t i = 0; i < old->n; i++)
		to->params[to->n++] = (struct recut_param){ .slice = old->slices[i], .times = 1 };
}

static uint64_t numel_of(const struct recut_param *p)
{
	return p->slice->numel * p->times;
}

/* Return the place of each parameter once round_robin_gradients has dealt them to the ranks in
 * turn. */
static size_t *deal(const struct recutter *b, size_t n, unsigned ranks)
{
	size_t *places = recut_alloc(b, n, sizeof(*places));
	size_t k = 0;

	for (size_t r = 0; places && r < ranks && r < n; r++)
		for (size_t i = r; i < n; i += ranks)
			places[i] = k++;
	return places;
}

/* Move the parameters to these places, or back. */
static int reorder(const struct recutter *b, struct recut_group *g, const size_t *places, bool back)
{
	struct recut_param *to = places ? recut_alloc(b, g->n, sizeof(*to)) : NULL;

	if (!to)
		return -ENOMEM;
	for (size_t i = 0; i < g->n; i++)
		to[back ? i : places[i]] = g->params[back ? places[i] : i];
	g->params = to;
	return 0;
}

/* Join the old flat groups of one parameter group, in the model's order. */
static int join(const struct recutter *b, uint32_t param_group, struct recut_group *to)
{
	const bool dealt = b->s->c->facts.round_robin && !b->s->c->facts.zero3 && !b->bf16;
	bool first = true;
	size_t n = 0;

	for (uint32_t g = 0; g < b->t->ngroups; g++)
		if (b->param_group[g] == param_group)
			n += b->t->groups[g].n;
	to->params = recut_alloc(b, n, sizeof(*to->params));
	if (!to->params)
		return -ENOMEM;
	to->stripe = rank_stripe_of(b->s->ranks, 1, 1, false);
	for (uint32_t g = 0; g < b->t->ngroups; g++)
		if (b->param_group[g] == param_group) {
			const struct slice_group *old = &b->t->groups[g];

			add_old(b, to, g);
			to->stripe = rank_stripe_of(b->s->c->dp, old->degree, old->lanes,
						    old->data_first);
			to->like = first ? g : to->like;
			first = false;
		}
	return dealt ? reorder(b, to, deal(b, to->n, to->stripe.ranks), true) : 0;
}

static uint64_t old_padding(const struct recutter *b, const struct recut_param *p)
{
	const uint64_t *padding = b->t->groups[p->slice->group].padding;

	return padding ? padding[p->slice->index] : 0;
}

/* Did the run use parameter_alignment? */
static bool is_aligned(const struct recutter *b, const struct recut_group *g)
{
	bool any = false;

	for (size_t i = 0; !b->s->c->facts.zero3 && i < g->n; i++)
		any |= old_padding(b, &g->params[i]) != 0;
	return any;
}

/* Does the new group keep the order of the old one? */
static bool in_old_order(const struct recut_group *g)
{
	size_t i = 0;

	while (i < g->n && g->params[i].slice->index == i && g->params[i].times == 1)
		i++;
	return i == g->n;
}

/* Set the padding after each parameter.  In a new order another parameter is the last one, which
 * has no padding, so the whole padding is recomputed. */
static int set_padding(const struct recutter *b, struct recut_group *g)
{
	const uint64_t item = dtype_size(b->s->c->facts.module_dtype);
	const uint64_t unit = item < ALIGNMENT_BYTES ? ALIGNMENT_BYTES / item : 1;
	const bool keep = in_old_order(g);

	g->padding = recut_alloc(b, g->n, sizeof(*g->padding));
	if (!g->padding)
		return -ENOMEM;
	for (size_t i = 0; i < g->n; i++) {
		const uint64_t n = numel_of(&g->params[i]);

		if (keep)
			g->padding[i] = old_padding(b, &g->params[i]);
		else if (i + 1 < g->n)
			g->padding[i] = (unit - n % unit) % unit;
	}
	return 0;
}

static int cut(const struct recutter *b, const struct recut_group *g, struct partition *out)
{
	uint64_t *numel = recut_alloc(b, g->n, sizeof(*numel));
	int rc;

	if (!numel)
		return -ENOMEM;
	for (size_t i = 0; i < g->n; i++)
		numel[i] = numel_of(&g->params[i]);
	rc = partition_init(out, b->s->stage == 3, numel, g->padding, g->n, g->stripe.ranks);
	return rc ? ERRMSG_FILE(b, rc, "%s", strerror(-rc)) : 0;
}

/* Return the number of new ranks that a group is cut over. */
static unsigned new_ranks(const struct recutter *b, const struct rank_stripe *s)
{
	return b->s->ranks * s->lanes / s->degree;
}

int recut_build_flat_group(struct recutter *b, uint32_t param_group)
{
	struct recut_group *g = add_group(b, param_group);
	const bool deals = b->s->c->facts.round_robin && !b->m->bf16;
	int rc = g ? join(b, param_group, g) ?: recut_widen(b, g) : -ENOMEM;
	size_t *places;

	if (rc)
		return rc;
	g->stripe.ranks = new_ranks(b, &g->stripe);
	places = deals ? deal(b, g->n, g->stripe.ranks) : NULL;
	/* With parameter_alignment DeepSpeed records the places after dealing, otherwise those
	 * before. */
	if (places && !is_aligned(b, g)) {
		g->recorded_order = places;
		rc = cut(b, g, &g->recorded);
	}
	if (!rc && deals)
		rc = reorder(b, g, places, false);
	if (!rc && is_aligned(b, g))
		rc = set_padding(b, g);
	return rc ? rc : cut(b, g, &g->part);
}

/* Return the end of the sub-group that starts at parameter `first`: it is full
 * once a rank's part of it reaches sub_group_size. */
static size_t sub_group_end(const struct recutter *b, const struct recut_group *all, size_t first,
			    unsigned ranks)
{
	double sum = 0;
	size_t i = first;

	while (i < all->n && sum < b->sub_group_size)
		sum += (double)partition_slot(numel_of(&all->params[i++]), ranks);
	return i;
}

/* Do the old sub-groups follow from sub_group_size? */
static bool follows_rule(const struct recutter *b, const struct recut_group *all)
{
	size_t end;

	for (size_t i = 0; i < all->n; i = end) {
		const uint32_t g = all->params[i].slice->group;

		end = sub_group_end(b, all, i, all->stripe.ranks);
		if (all->params[end - 1].slice->group != g ||
		    (end < all->n && all->params[end].slice->group == g))
			return false;
	}
	return true;
}

static size_t old_end(const struct recut_group *all, size_t first)
{
	size_t i = first;

	while (i < all->n && all->params[i].slice->group == all->params[first].slice->group)
		i++;
	return i;
}

static int build_sub_group(struct recutter *b, const struct recut_group *all, size_t first,
			   size_t end)
{
	struct recut_group *g = add_group(b, all->param_group);

	if (!g)
		return -ENOMEM;
	g->stripe = all->stripe;
	g->stripe.ranks = new_ranks(b, &g->stripe);
	g->like = all->params[first].slice->group;
	g->params = all->params + first;
	g->n = end - first;
	return cut(b, g, &g->part);
}

int recut_build_sub_groups(struct recutter *b, uint32_t param_group)
{
	struct recut_group all = { .param_group = param_group };
	int rc = join(b, param_group, &all);
	const bool rule = !rc && (!b->s->c->facts.zero3 || follows_rule(b, &all));
	size_t end;

	if (!rule)
		b->s->warning = "its sub-groups do not follow from sub_group_size; they are kept";
	for (size_t i = 0; !rc && i < all.n; i = end) {
		end = rule ? sub_group_end(b, &all, i, new_ranks(b, &all.stripe)) : old_end(&all, i);
		rc = build_sub_group(b, &all, i, end);
	}
	return rc;
}
