/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts of the checkpoints that tests make.  The experts of each rank are found by trying all
 * ranks and experts, without code of ckpt/table/partition.c and ckpt/table/experts.c.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/make/mkckpt_impl.h"

const struct mkckpt_layer *mkckpt_layer_of(const struct mkckpt *c, const char *name)
{
	for (size_t i = 0; i < c->nlayers; i++)
		if (strncmp(name, c->layers[i].prefix, strlen(c->layers[i].prefix)) == 0)
			return &c->layers[i];
	return NULL;
}

/* Return the layer that has all parameters of a group, or NULL. */
static const struct mkckpt_layer *group_layer(const struct mkckpt *c, size_t g)
{
	for (size_t i = 0; i < c->nparams; i++)
		if (c->params[i].group == g)
			return mkckpt_layer_of(c, c->params[i].name);
	return NULL;
}

/* Return a native expert's number from a name, and the rest of the name. */
static unsigned number_in(const struct mkckpt_layer *l, const char *name, const char **rest)
{
	char *end;
	const unsigned long n = strtoul(name + strlen(l->prefix), &end, 10);

	*rest = end;
	return (unsigned)n;
}

static unsigned expert_at(const struct mkckpt_layer *l, unsigned ep, unsigned i)
{
	const unsigned at = ep * (l->n / l->ep) + i;

	return l->order ? l->order[at] : at;
}

/* Find the expert-parallel rank of a data-parallel rank, and its number among the ranks with the
 * same experts, by counting. */
static unsigned find_ep(const struct mkckpt *c, unsigned degree, unsigned rank, unsigned *part)
{
	const unsigned each = c->ranks / degree;
	unsigned ep = 0, at = 0;

	for (unsigned r = 0; r < rank; r++) {
		if (c->data_first ? ++at == each : ++ep == degree) {
			ep = c->data_first ? ep + 1 : 0;
			at = c->data_first ? 0 : at + 1;
		}
	}
	*part = at;
	return ep;
}

/* Get the parameter as the rank has it; return false if the rank lacks it. */
static bool localize(struct mkpt *m, const struct mkckpt_layer *l, unsigned ep,
		     struct mkckpt_param *p)
{
	const unsigned local = l->n / l->ep;
	const char *rest;
	char name[NAME_MAX + 16];
	unsigned expert;

	if (l->fused) {
		p->shape[0] = local;
		return true;
	}
	expert = number_in(l, p->name, &rest);
	if (expert / local != ep)
		return false;
	snprintf(name, sizeof(name), "%s%u%s", l->prefix, expert % local, rest);
	p->name = mkckpt_must(arena_strndup(&m->arena, name, strlen(name)));
	return true;
}

const struct mkckpt *mkckpt_view(struct mkckpt_view *v, struct mkpt *m, const struct mkckpt *c,
				 size_t group, unsigned rank)
{
	const struct mkckpt_layer *l = group_layer(c, group);
	struct mkckpt_param *params;

	*v = (struct mkckpt_view){ .part = rank, .whole = c };
	if (!l)
		return c;
	v->ep = find_ep(c, l->ep, rank, &v->part);
	params = mkckpt_must(arena_alloc(&m->arena, c->nparams * sizeof(*params)));
	v->params = mkckpt_must(arena_alloc(&m->arena, c->nparams * sizeof(*v->params)));
	v->c = *c;
	v->c.params = params;
	v->c.nparams = 0;
	v->c.ranks = c->ranks / l->ep;
	v->c.view = v;
	for (size_t i = 0; i < c->nparams; i++) {
		struct mkckpt_param p = c->params[i];

		if (p.group != group || !localize(m, mkckpt_layer_of(c, p.name), v->ep, &p))
			continue;
		v->params[v->c.nparams] = i;
		params[v->c.nparams++] = p;
	}
	return &v->c;
}

uint32_t mkckpt_view_element(const struct mkckpt_view *v, size_t param, unsigned state, uint64_t i)
{
	const size_t whole = v->params[param];
	const struct mkckpt_param *p = &v->whole->params[whole];
	const struct mkckpt_layer *l = mkckpt_layer_of(v->whole, p->name);

	if (l->fused) {
		const uint64_t len = mkckpt_numel(p->shape + 1, p->ndim - 1);
		const unsigned expert = expert_at(l, v->ep, (unsigned)(i / len));

		i = expert * len + i % len;
	}
	return mkckpt_element(v->whole, whole, state, i);
}

static struct value *placement(struct mkpt *m, const struct mkckpt_layer *l)
{
	struct value *d = mkpt_dict(m), *ranks = mkpt_list(m);

	for (unsigned ep = 0; ep < l->ep; ep++) {
		struct value *r = mkpt_dict(m), *own = mkpt_list(m);

		for (unsigned i = 0; i < l->n / l->ep; i++)
			mkpt_add(m, own, mkpt_int(m, expert_at(l, ep, i)));
		mkpt_set(m, r, "rank", mkpt_int(m, ep));
		mkpt_set(m, r, "experts", own);
		mkpt_add(m, ranks, r);
	}
	mkpt_set(m, d, "version", mkpt_int(m, 1));
	mkpt_set(m, d, "num_experts", mkpt_int(m, l->n));
	mkpt_set(m, d, "ep_size", mkpt_int(m, l->ep));
	mkpt_set(m, d, "ranks", ranks);
	return d;
}

static struct value *autoep_layer(struct mkpt *m, const struct mkckpt *c, size_t number)
{
	const struct mkckpt_layer *l = &c->layers[number];
	struct value *d = mkpt_dict(m);

	mkpt_set(m, d, "moe_layer_id", mkpt_int(m, (int64_t)number));
	mkpt_set(m, d, "num_experts", mkpt_int(m, l->n));
	mkpt_set(m, d, "num_local_experts", mkpt_int(m, l->n / l->ep));
	mkpt_set(m, d, "ep_size", mkpt_int(m, l->ep));
	mkpt_set(m, d, "expert_placement", placement(m, l));
	mkpt_set(m, d, "expert_key_prefix", mkpt_str(m, l->prefix));
	mkpt_set(m, d, "checkpoint_format",
		 mkpt_str(m, c->stage == 3 ? "zero3_partitioned" : "per_expert_files"));
	mkpt_set(m, d, "checkpoint_format_version", c->stage == 3 ? mkpt_int(m, 1) : mkpt_none(m));
	return d;
}

void mkckpt_set_experts(struct mkpt *m, const struct mkckpt *c, struct value *root)
{
	struct value *counts = mkpt_list(m), *autoep = mkpt_list(m);
	bool any = false;

	for (size_t i = 0; i < c->nlayers; i++) {
		mkpt_add(m, counts, mkpt_int(m, c->layers[i].n));
		if (c->layers[i].fused)
			mkpt_add(m, autoep, autoep_layer(m, c, i));
		any |= c->layers[i].fused;
	}
	if (!c->nlayers)
		return;
	mkpt_set(m, root, "num_experts", counts);
	mkpt_set(m, root, "ds_autoep_layers", any ? autoep : mkpt_none(m));
}

void mkckpt_mark_group(struct mkpt *m, const struct mkckpt *c, size_t g, struct value *group)
{
	const struct mkckpt_layer *l = group_layer(c, g);
	char name[32];

	if (!l)
		return;
	snprintf(name, sizeof(name), "ep_size_%u", l->ep);
	mkpt_set(m, group, "name",
		 mkpt_str(m, mkckpt_must(arena_strndup(&m->arena, name, strlen(name)))));
	mkpt_set(m, group, "moe", mkpt_bool(m, true));
}

struct value *mkckpt_partition_groups(struct mkpt *m, const struct mkckpt *c, unsigned rank)
{
	struct value *list = mkpt_list(m);

	for (size_t g = 0; g < c->ngroups; g++) {
		const struct mkckpt_layer *l = group_layer(c, g);
		const unsigned degree = l ? l->ep : 1;
		struct value *d = mkpt_dict(m), *v = mkpt_list(m);
		unsigned part, other;
		const unsigned ep = find_ep(c, degree, rank, &part);

		for (unsigned r = 0; r < c->ranks; r++)
			if (find_ep(c, degree, r, &other) == ep)
				mkpt_add(m, v, mkpt_int(m, r));
		mkpt_set(m, d, "sub_group", mkpt_int(m, (int64_t)g));
		mkpt_set(m, d, "partition_count", mkpt_int(m, c->ranks / degree));
		mkpt_set(m, d, "partition_rank", mkpt_int(m, part));
		mkpt_set(m, d, "partition_ranks", v);
		mkpt_add(m, list, d);
	}
	return list;
}

unsigned mkckpt_nexperts(const struct mkckpt *c)
{
	unsigned n = 0;

	for (size_t i = 0; i < c->nlayers; i++)
		n += c->layers[i].n;
	return n;
}

static const struct mkckpt_layer *find_layer(const struct mkckpt *c, unsigned *number)
{
	const struct mkckpt_layer *l = c->layers;

	for (; *number >= l->n; l++)
		*number -= l->n;
	return l;
}

static struct value *weights(struct mkpt *m, const uint64_t *shape, unsigned ndim)
{
	void *zeros = mkckpt_must(calloc(mkckpt_numel(shape, ndim) + 1, 2));
	struct value *v = mkpt_tensor(m, DTYPE_BF16, shape, ndim, zeros);

	free(zeros);
	return v;
}

static void add_fused(struct mkpt *m, const struct mkckpt *c, const struct mkckpt_layer *l,
		      unsigned expert, struct value *root)
{
	for (size_t i = 0; i < c->nparams; i++) {
		const struct mkckpt_param *p = &c->params[i];
		char key[NAME_MAX + 16];

		if (mkckpt_layer_of(c, p->name) != l)
			continue;
		snprintf(key, sizeof(key), "%s.%u", p->name, expert);
		mkpt_set(m, root, mkckpt_must(arena_strndup(&m->arena, key, strlen(key))),
			 weights(m, p->shape + 1, p->ndim - 1));
	}
}

struct value *mkckpt_expert(struct mkpt *m, const struct mkckpt *c, unsigned number)
{
	const struct mkckpt_layer *l = find_layer(c, &number);
	struct value *root = mkpt_dict(m);
	const char *rest;

	if (l->fused)
		add_fused(m, c, l, number, root);
	for (size_t i = 0; !l->fused && i < c->nparams; i++) {
		const struct mkckpt_param *p = &c->params[i];

		if (mkckpt_layer_of(c, p->name) == l && number_in(l, p->name, &rest) == number)
			mkpt_set(m, root, p->name, weights(m, p->shape, p->ndim));
	}
	for (size_t i = 0; i < c->nextras; i++)
		if (mkckpt_layer_of(c, c->extras[i].name) == l &&
		    number_in(l, c->extras[i].name, &rest) == number)
			mkpt_set(m, root, c->extras[i].name, mkckpt_extra_tensor(m, &c->extras[i]));
	return root;
}

void mkckpt_expert_path(const struct mkckpt *c, const char *dir, unsigned number, char *out)
{
	const struct mkckpt_layer *l = find_layer(c, &number);

	snprintf(out, PATH_MAX, "%s/layer_%u_expert_%u_mp_rank_00_model_states.pt", dir,
		 (unsigned)(l - c->layers), number);
}
