/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts without ZeRO (runtime/engine.py, _save_moe_checkpoint).  Model states have the dense
 * weights; experts' files have the others.  Each expert-parallel rank of the widest layer saves its
 * optimizer, expp_rank_P_mp_rank_M_optim_states.pt: the dense parameters' groups, then one or more
 * groups of each ep_size, with the rank's experts by layer and number (moe/utils.py).  A layer's
 * ep_size is recorded for AutoEP only.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/zero/stage0_build.h"

/* Limit of the tries to find a layer's ep_size by the shapes of its parameters. */
#define TRIES_MAX 100000u

/* The entries of the groups of one ep_size. */
struct size_class {
	unsigned degree;
	size_t at, end;
};

/* A layer: with AutoEP each parameter has all experts of a rank, else each expert has its own
 * parameters. */
struct moe_layer {
	struct expert_layer *x;
	size_t nkeys;
	const char **rests;          /* ends of the names, after the prefix or an expert's number */
	const struct stored **likes; /* the tensors of one expert */
	struct size_class *of;
};

struct finder {
	struct stage0_builder *b;
	struct size_class *classes;
	size_t nclasses;
	struct moe_layer *layers;
	size_t nlayers;
	unsigned tries, solutions;
	struct size_class **choice, **found; /* for each layer */
	size_t *at;                          /* for each class, during the search */
};

/* Compare the elements of two tensors of the model states. */
static int compare(const struct stage0_builder *b, const struct stored *x, const struct stored *y,
		   bool *same)
{
	const uint64_t bytes = x->numel * dtype_size(x->dtype);
	uint8_t v[2][4096];
	int rc = 0;

	*same = x->dtype == y->dtype && !SHAPE_ORDER(x, y);
	for (uint64_t at = 0, n; !rc && *same && at < bytes; at += n) {
		n = bytes - at < sizeof(v[0]) ? bytes - at : sizeof(v[0]);
		rc = source_read(&b->model->src, v[0], n, x->storage + at, b->err)
			     ?: source_read(&b->model->src, v[1], n, y->storage + at, b->err);
		*same = !rc && memcmp(v[0], v[1], n) == 0;
	}
	return rc;
}

/* AutoEP keeps the router of its layer also under the name that it had in the layer that it
 * replaced (module_inject/auto_ep_layer.py), and copies of its tensors are saved. */
int stage0_find_alias(struct stage0_builder *b, const char *name, const struct stored *t,
		      const struct stage0_param **of)
{
	char other[EXPERT_NAME_MAX];
	bool same;

	*of = NULL;
	for (size_t i = 0; i < b->experts.n; i++) {
		const struct expert_layer *l = &b->experts.layers[i];
		const char *end = l->fused ? strrchr(l->prefix, '.') : NULL;
		const size_t n = end ? (size_t)(end - l->prefix) + 1 : 0;
		const char *rest = strncmp(name, l->prefix ?: "", n) == 0 ? strchr(name + n, '.') : NULL;

		if (!n || !rest)
			continue;
		snprintf(other, sizeof(other), "%.*srouter%s", (int)n, name, rest);
		for (size_t k = 0; k < b->nparams; k++)
			if (strcmp(b->params[k]->name, other) == 0) {
				const int rc = compare(b, b->params[k]->weight, t, &same);

				*of = same ? b->params[k] : NULL;
				return rc;
			}
	}
	return 0;
}

/* Find the first entry of the optimizer's groups of experts, which come last. */
size_t stage0_count_dense(const struct stage0_builder *b)
{
	const struct value_seq *groups = stage0_groups(b->pt->root);
	size_t n = 0;

	while (n < b->nentries &&
	       !value_is_true(value_find(groups->v[b->entries[n].group], "moe")))
		n++;
	return n;
}

static struct size_class *find_class(struct finder *f, unsigned degree)
{
	for (size_t i = 0; i < f->nclasses; i++)
		if (f->classes[i].degree == degree)
			return &f->classes[i];
	return NULL;
}

static int list_classes(struct finder *f)
{
	struct stage0_builder *b = f->b;
	const struct value_seq *groups = stage0_groups(b->pt->root);

	f->classes = arena_alloc(&b->o->arena, (groups->n + 1) * sizeof(*f->classes));
	if (!f->classes)
		return errmsg_nomem(b->err, b->file);
	for (size_t i = b->ndense; i < b->nentries; i++) {
		const struct value *g = groups->v[b->entries[i].group];
		struct size_class *c;
		unsigned degree;

		if (!value_is_true(value_find(g, "moe")) ||
		    sscanf(value_cstr(value_find(g, "name")), "ep_size_%u", &degree) != 1 || !degree)
			return ERRMSG_FILE(b, -ENOTSUP,
				"optimizer: param_groups[%zu] is not of experts, or has not their name",
					   b->entries[i].group);
		c = find_class(f, degree);
		if (c && c->end != i)
			return ERRMSG_FILE(b, -ENOTSUP,
					   "optimizer: groups of ep_size_%u lie apart", degree);
		if (!c) {
			c = &f->classes[f->nclasses++];
			*c = (struct size_class){ degree, i, i };
		}
		c->end = i + 1;
	}
	return 0;
}

static int open_expert(const struct finder *f, size_t layer, unsigned expert, struct ptfile *pt,
		       uint32_t *number)
{
	const struct stage0_builder *b = f->b;
	const struct ckname id = { .kind = CKPT_FILE_EXPERT,
				   .mp = b->mp,
				   .layer = (unsigned)layer,
				   .expert = expert };
	const struct ckpt_file *file = zero_dir_find_shared(b->s->dir, id, b->s->tp);
	char name[NAME_MAX + 1];

	if (!file) {
		names_format(id, false, name);
		return errmsg_set(b->err, -EBADMSG, "%s/%s: missing", b->s->dir->path, name);
	}
	*number = (uint32_t)(file - b->s->dir->files);
	return ckpt_file_open(file, pt, b->err);
}

/* Add a parameter of a layer, unless it is a buffer; `name` is the one that a rank uses. */
static int add_key(struct finder *f, struct moe_layer *l, const struct ptfile *pt, uint32_t number,
		   const struct value *v, const char *name, const char *rest)
{
	struct stage0_builder *b = f->b;
	int rc;

	if (!tensor_is(v) || module_entries_is_buffer(&b->in_module, name))
		return 0;
	rc = stage0_tensor(b, pt, number, v, name, &l->likes[l->nkeys]);
	l->rests[l->nkeys++] = arena_strdup(&b->o->arena, rest);
	return rc ?: b->o->arena.failed ? errmsg_nomem(b->err, b->file) : 0;
}

/* Read the keys and tensors of a layer's first expert. */
static int read_layer(struct finder *f, size_t i)
{
	struct stage0_builder *b = f->b;
	struct arena *a = &b->o->arena;
	struct moe_layer *l = &f->layers[i];
	const struct value_dict *d;
	char name[EXPERT_NAME_MAX];
	struct ptfile pt;
	uint32_t number;
	size_t most, n;
	int rc = open_expert(f, i, 0, &pt, &number);

	if (rc)
		return rc;
	d = value_pairs(pt.root);
	most = l->x->fused ? EXPERTS_FUSED : d ? d->n : 0;
	l->rests = arena_alloc(a, (most + 1) * sizeof(*l->rests));
	l->likes = arena_alloc(a, (most + 1) * sizeof(*l->likes));
	if (!l->rests || !l->likes)
		rc = errmsg_nomem(b->err, b->file);
	for (size_t k = 0; !rc && k < most; k++) {
		const char *key = l->x->fused ? name : value_cstr(d->v[k].key);

		if (l->x->fused) {
			experts_key(l->x, 0, experts_fused[k], name);
			rc = add_key(f, l, &pt, number, value_find(pt.root, name), name,
				     experts_fused[k]);
		} else if ((n = experts_prefix_len(key, 0))) {
			l->x->prefix = l->x->prefix ?: arena_strndup(a, key, n);
			rc = add_key(f, l, &pt, number, d->v[k].val, key, key + n + 1);
		}
	}
	ptfile_close(&pt);
	return rc;
}

/* Can the entries of a class, from `at` on, belong to a layer?  Sets their number. */
static bool fits(const struct finder *f, const struct moe_layer *l, const struct size_class *c,
		 size_t at, size_t *n)
{
	const unsigned local = l->x->fused ? l->x->local : l->x->n / c->degree;
	const struct stage0_entry *e = f->b->entries;

	*n = l->nkeys * (l->x->fused ? 1 : local);
	if ((l->x->fused ? experts_degree(l->x) != c->degree : l->x->n % c->degree) ||
	    *n > c->end - at)
		return false;
	for (size_t i = 0; i < *n; i++) {
		const struct stored *like = l->likes[i % l->nkeys];
		const struct stored *own = e[at + i].like ? e[at + i].like->tensor : NULL;
		const unsigned skip = l->x->fused;

		if (!own)
			continue;
		if (own->ndim < skip || (skip && own->shape[0] != local) ||
		    shape_order(own->shape + skip, own->ndim - skip, like->shape, like->ndim))
			return false;
	}
	return true;
}

/* Try all classes for the layers from `i` on. */
static void try_layers(struct finder *f, size_t i)
{
	bool all = i == f->nlayers;

	for (size_t k = 0; all && k < f->nclasses; k++)
		all = f->at[k] == f->classes[k].end;
	if (all && !f->solutions++)
		memcpy(f->found, f->choice, f->nlayers * sizeof(*f->found));
	for (size_t k = 0; i < f->nlayers && f->solutions < 2 && k < f->nclasses; k++) {
		size_t n;

		if (f->tries++ > TRIES_MAX || !fits(f, &f->layers[i], &f->classes[k], f->at[k], &n))
			continue;
		f->choice[i] = &f->classes[k];
		f->at[k] += n;
		try_layers(f, i + 1);
		f->at[k] -= n;
	}
}

static int choose_classes(struct finder *f)
{
	struct stage0_builder *b = f->b;
	struct arena *a = &b->o->arena;
	unsigned widest = 0;

	f->choice = arena_alloc(a, (f->nlayers + 1) * sizeof(*f->choice));
	f->found = arena_alloc(a, (f->nlayers + 1) * sizeof(*f->found));
	f->at = arena_alloc(a, (f->nclasses + 1) * sizeof(*f->at));
	if (!f->choice || !f->found || !f->at)
		return errmsg_nomem(b->err, b->file);
	for (size_t k = 0; k < f->nclasses; k++)
		f->at[k] = f->classes[k].at;
	try_layers(f, 0);
	if (f->solutions != 1 || f->tries > TRIES_MAX)
		return ERRMSG_FILE(b, -ENOTSUP,
				   "optimizer: its groups of experts (ep_size_%u, ...) do not tell"
				   " which layers' experts they have",
				   f->nclasses ? f->classes->degree : 0);
	for (size_t i = 0; i < f->nlayers; i++) {
		const unsigned degree = f->found[i]->degree;

		f->layers[i].of = f->found[i];
		if (!f->layers[i].x->fused)
			f->layers[i].x->local = f->layers[i].x->n / degree;
		widest = degree > widest ? degree : widest;
	}
	if (widest == b->s->nep)
		return 0;
	return errmsg_set(b->err, -EBADMSG,
			  "%s: the optimizers of %u expert-parallel ranks (expp_rank_*) are there, and"
			  " there were %u",
			  b->s->dir->path, b->s->nep, widest);
}

/* Return the number of local expert `k` in the whole model. */
static unsigned expert_of(const struct stage0_builder *b, const struct expert_layer *l, unsigned k)
{
	const unsigned degree = experts_degree(l);
	const unsigned rank = b->experts.data_first ? b->ep * degree / b->s->nep : b->ep % degree;

	return experts_number(l, rank, k);
}

/* Read all tensors of an expert into every `step`-th of `v`. */
static int read_expert(const struct finder *f, size_t i, unsigned expert, const struct stored **v,
		       size_t step)
{
	const struct moe_layer *l = &f->layers[i];
	char name[EXPERT_NAME_MAX];
	struct ptfile pt;
	uint32_t number;
	int rc = open_expert(f, i, expert, &pt, &number);

	if (rc)
		return rc;
	for (size_t j = 0; !rc && j < l->nkeys; j++) {
		experts_key(l->x, expert, l->rests[j], name);
		rc = stage0_tensor(f->b, &pt, number, value_find(pt.root, name), name,
				   &v[j * step]);
	}
	ptfile_close(&pt);
	return rc;
}

/* Make the parameter of all experts of a rank, which are `n` tensors like the first one. */
static int join(struct stage0_builder *b, struct stage0_param *p, const struct stored *const *v,
		unsigned n)
{
	struct arena *a = &b->o->arena;
	struct stage0_place *pieces = arena_alloc(a, n * sizeof(*pieces));
	struct stored *s = arena_copy(a, v[0], sizeof(*s));
	uint64_t *shape = arena_alloc(a, (v[0]->ndim + 1u) * sizeof(*shape));

	if (!pieces || !s || !shape)
		return errmsg_nomem(b->err, b->file);
	if (v[0]->ndim == TENSOR_DIMS_MAX)
		return ERRMSG_FILE(b, -EBADMSG, "%s: an expert has %u dimensions, so all experts in one tensor would exceed the limit of torch",
				   p->name, TENSOR_DIMS_MAX);
	shape[0] = n;
	memcpy(shape + 1, v[0]->shape, v[0]->ndim * sizeof(*shape));
	s->ndim++;
	s->shape = shape;
	s->numel *= n;
	for (unsigned k = 0; k < n; k++) {
		if (v[k]->dtype != v[0]->dtype || SHAPE_ORDER(v[k], v[0]))
			return ERRMSG_FILE(b, -EBADMSG, "%s: experts differ in type or shape",
					   p->name);
		pieces[k] = stage0_place_of(v[k]);
	}
	p->weight = s;
	p->pieces = pieces;
	return 0;
}

/* Add a parameter, from one tensor or from the tensors of `n` experts. */
static int add_param(struct stage0_builder *b, const char *name, const struct stored *const *v,
		     unsigned n)
{
	struct stage0_param *p = stage0_new_param(b);

	if (!p || !(p->name = arena_strdup(&b->o->arena, name)))
		return errmsg_nomem(b->err, b->file);
	p->weight = *v;
	return n ? join(b, p, v, n) : 0;
}

/* Add the parameters of a layer: expert by expert, except for AutoEP's. */
static int add_layer(struct finder *f, size_t i)
{
	struct stage0_builder *b = f->b;
	const struct moe_layer *l = &f->layers[i];
	const bool fused = l->x->fused;
	const unsigned local = l->x->local;
	const struct stored **v = arena_alloc(&b->o->arena, local * l->nkeys * sizeof(*v));
	int rc = v ? 0 : errmsg_nomem(b->err, b->file);

	for (unsigned k = 0; !rc && k < local; k++)
		rc = read_expert(f, i, expert_of(b, l->x, k), v + k, local);
	for (unsigned k = 0; !rc && k < (fused ? 1 : local); k++)
		for (size_t j = 0; !rc && j < l->nkeys; j++) {
			char name[EXPERT_NAME_MAX];

			if (fused)
				snprintf(name, sizeof(name), "%s%s", l->x->prefix, l->rests[j]);
			else
				experts_key(l->x, k, l->rests[j], name);
			rc = add_param(b, name, v + j * local + k, fused ? local : 0);
		}
	return rc;
}

/* Add the experts in the order of their entries. */
static int add_experts(struct finder *f)
{
	int rc = 0;

	for (size_t k = 0; !rc && k < f->nclasses; k++)
		for (size_t i = 0; !rc && i < f->nlayers; i++)
			if (f->layers[i].of == &f->classes[k])
				rc = add_layer(f, i);
	return rc;
}

int stage0_find_experts(struct stage0_builder *b)
{
	struct arena *a = &b->o->arena;
	struct finder f = { .b = b, .nlayers = b->experts.n };
	int rc;

	if (!f.nlayers)
		return 0;
	f.layers = arena_alloc(a, f.nlayers * sizeof(*f.layers));
	if (!f.layers)
		return errmsg_nomem(b->err, b->file);
	rc = list_classes(&f);
	for (size_t i = 0; !rc && i < f.nlayers; i++) {
		f.layers[i].x = &b->experts.layers[i];
		/* Files of experts have whole ones. */
		rc = f.layers[i].x->maps && !f.layers[i].x->places
			     ? ERRMSG_FILE(b, -ENOTSUP,
				"affine_maps place parts of %s's experts, which is supported with ZeRO only",
					   f.layers[i].x->prefix)
			     : read_layer(&f, i);
	}
	return rc ?: choose_classes(&f) ?: add_experts(&f);
}

/* Do both ranks have the same groups of experts, apart from the experts' numbers? */
static bool are_alike(const struct stage0_rank *x, const struct stage0_rank *y)
{
	bool same = x->ngroups == y->ngroups;

	for (size_t g = 0; same && g < x->ngroups; g++) {
		if (!x->groups[g].experts && !y->groups[g].experts)
			continue;
		same = x->groups[g].nparams == y->groups[g].nparams &&
		       x->groups[g].nstates == y->groups[g].nstates;
		for (size_t i = 0; same && i < x->groups[g].nparams; i++)
			same = strcmp(x->groups[g].params[i].name, y->groups[g].params[i].name) == 0;
		for (size_t i = 0; same && i < x->groups[g].nstates; i++)
			same = param_state_equal(&x->groups[g].states[i], &y->groups[g].states[i]);
	}
	return same;
}

int stage0_find_peers(struct stage0_builder *b)
{
	struct stage0_rank *o = b->o;
	int rc = 0;

	if (!b->experts.n)
		return 0;
	o->peers = arena_alloc(&o->arena, b->s->nep * sizeof(*o->peers));
	if (!o->peers)
		return errmsg_nomem(b->err, b->file);
	o->npeers = b->s->nep;
	o->ep = b->ep;
	o->data_first = b->experts.data_first;
	for (unsigned ep = 0; !rc && ep < o->npeers; ep++) {
		const struct ckname id = { .kind = CKPT_FILE_EXPERT_OPTIM, .mp = b->mp, .dp = ep };
		const struct ckpt_file *f = zero_dir_find_shared(b->s->dir, id, b->s->tp);

		if (ep == o->ep)
			continue;
		rc = f ? stage0_find_peer(b, &o->peers[ep], f, ep)
		       : errmsg_set(b->err, -EBADMSG,
				    "%s/expp_rank_%u_mp_rank_%02u_optim_states.pt: missing",
				    b->s->dir->path, ep, b->mp);
		if (!rc && !are_alike(o, &o->peers[ep]))
			rc = errmsg_set(b->err, -EBADMSG,
					"%s: has other groups, parameters or steps than %s", f->path,
					b->file);
	}
	return rc;
}
