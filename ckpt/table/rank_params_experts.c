/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts, whose weights are in files of their own.
 *
 * The model-states file is that of the first data-parallel rank, so param_shapes
 * lists the experts of one expert-parallel rank; the other ranks have as many, of
 * the same shapes and names. Expert files use the names of the whole model. One
 * file of each layer is enough to find the experts' prefix; the others are opened
 * only if an expert has tensors that the optimizer does not own.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/table/rank_params_build.h"

/* Is it the first tensor-parallel rank of its pipeline stage? */
static bool is_first(const struct rank_params_loader *l)
{
	return l->c->mp % l->tp == 0;
}

/* Return the next file of an expert of the pipeline stage, from `*at` on, or NULL. */
static const struct ckpt_file *next_file(const struct rank_params_loader *l, size_t *at)
{
	const struct zero_dir *d = l->dir;

	while (*at < d->nexpert && d->expert[*at].id.mp / l->tp != l->c->mp / l->tp)
		++*at;
	return *at < d->nexpert ? &d->expert[*at] : NULL;
}

/* Check that there are as many files as experts. */
static int check_files(const struct rank_params_loader *l)
{
	const struct experts *x = &l->c->experts;
	const bool zero3 = l->dir->zero3;
	const struct ckpt_file *f;
	size_t at = 0;

	f = next_file(l, &at);
	if (f && (!x->n || zero3))
		return ERRMSG_FILE(l, zero3 ? -ENOTSUP : -EBADMSG,
				   "there are files of experts (%s), but this is %s", f->name,
				   zero3 ? "ZeRO-3" : "of a model without any");
	for (size_t i = 0; i < x->n && !zero3; i++) {
		unsigned n = 0;

		/* There may be one file of an expert for each tensor-parallel rank. */
		for (; (f = next_file(l, &at)) && f->id.layer == i; at++)
			n += f->id.expert == n;
		if (n != x->layers[i].n)
			return ERRMSG_FILE(l, -EBADMSG,
		"MoE layer %zu has %u experts, but there are files (layer_%zu_expert_*) of %u",
					   i, x->layers[i].n, i, n);
	}
	return f ? ERRMSG_FILE(l, -EBADMSG, "the model has %zu MoE layers, but there is a file %s",
			       x->n, f->name)
		 : 0;
}

/* Return the file of an expert, saved by the rank itself or by another tensor-parallel rank. */
static const struct ckpt_file *find_file(const struct rank_params_loader *l, size_t layer,
					unsigned expert)
{
	const struct ckname id = { .kind = CKPT_FILE_EXPERT,
				   .mp = l->c->mp,
				   .layer = (unsigned)layer,
				   .expert = expert };

	return zero_dir_find_shared(l->dir, id, l->tp);
}

/*
 * Find the tensor-parallel ranks over which the experts of a layer are spread.  If each of them has
 * a file of the same expert (not AutoEP's), experts are cut (enable_expert_tensor_parallelism),
 * which is not recorded; whole experts have one file each.
 */
static int find_lanes(const struct rank_params_loader *l, size_t i)
{
	struct expert_layer *layer = &l->c->experts.layers[i];
	struct ckname id = { .kind = CKPT_FILE_EXPERT, .layer = (unsigned)i };
	const unsigned first = l->c->mp - l->c->mp % l->tp;
	unsigned most = 1;

	layer->lanes = l->tp;
	for (; !layer->fused && id.expert < layer->n; id.expert++) {
		unsigned n = 0;

		for (id.mp = first; id.mp < first + l->tp; id.mp++)
			n += zero_dir_find(l->dir, &id, NULL) != NULL;
		most = id.expert ? most : n;
		if (n != most || (n != 1 && n != l->tp))
			return ERRMSG_FILE(l, -EBADMSG,
				"layer_%zu_expert_%u_mp_rank_*: %u of %u tensor-parallel ranks have"
				" a file, and %u of expert 0: one or all must",
					   i, id.expert, n, l->tp, most);
	}
	if (most > 1)
		layer->lanes = 1;
	return 0;
}

static int open_expert(const struct ckpt_file *f, struct ptfile *pt, struct errmsg *err)
{
	const int rc = ckpt_file_open(f, pt, err);

	if (rc || value_pairs(pt->root))
		return rc;
	errmsg_set(err, -EBADMSG, "%s: expected a dict, found %s", f->path,
		   value_kind_name(pt->root));
	ptfile_close(pt);
	return -EBADMSG;
}

static int find_prefix(const struct rank_params_loader *l, struct expert_layer *layer,
		       const struct ckpt_file *f)
{
	const struct value_dict *keys;
	struct ptfile pt;
	size_t n = 0;
	int rc = open_expert(f, &pt, l->err);

	if (rc)
		return rc;
	keys = value_pairs(pt.root);
	for (size_t i = 0; !n && i < keys->n; i++) {
		const char *key = value_cstr(keys->v[i].key);

		n = experts_prefix_len(key, 0);
		if (n)
			layer->prefix = arena_strndup(&l->c->arena, key, n);
	}
	ptfile_close(&pt);
	if (!n)
		return errmsg_set(l->err, -EBADMSG, "%s: has no parameters of expert 0", f->path);
	return layer->prefix ? 0 : errmsg_nomem(l->err, l->file);
}

static int find_prefixes(const struct rank_params_loader *l)
{
	const struct experts *x = &l->c->experts;
	int rc = 0;

	for (size_t i = 0; !rc && i < x->n; i++) {
		if (x->layers[i].fused)
			continue;
		rc = l->dir->zero3 ? ERRMSG_FILE(l, -ENOTSUP,
					"MoE layer %zu is not of AutoEP: not supported in ZeRO-3",
						 i)
				   : find_prefix(l, &x->layers[i], find_file(l, i, 0));
		/* Two layers of one prefix would share their parameters. */
		for (size_t k = 0; !rc && k < i; k++)
			if (strcmp(x->layers[k].prefix, x->layers[i].prefix) == 0)
				rc = ERRMSG_FILE(l, -EBADMSG,
						 "MoE layers %zu and %zu are both called %s",
						 k, i, x->layers[i].prefix);
	}
	return rc;
}

static int claim(const struct rank_params_loader *l, struct slice *s)
{
	const struct experts *x = &l->c->experts;

	for (size_t i = 0; i < x->n && !s->layer; i++) {
		struct expert_layer *layer = &x->layers[i];
		unsigned expert;

		if (!experts_parse(layer, s->name, &expert, &s->rest))
			continue;
		s->layer = layer;
		s->expert = expert;
		if (!layer->fused && s->expert >= layer->local)
			layer->local = s->expert + 1;
		if (layer->fused && (!s->ndim || s->shape[0] != layer->local))
			return ERRMSG_FILE(l, -EBADMSG, "param_shapes: %s is not of %u experts",
					   s->name, layer->local);
	}
	/* The parameter has another name in the whole model, which is not recorded. */
	if (!s->layer && experts_is_native(s->name))
		return ERRMSG_FILE(l, -EBADMSG,
				   "param_shapes: %s is of an expert whose MoE layer has no files",
				   s->name);
	return 0;
}

static int check_degree(const struct rank_params_loader *l, size_t i)
{
	const struct expert_layer *layer = &l->c->experts.layers[i];
	const unsigned ranks = l->dir->dp_degree * layer->lanes;

	/* Without ZeRO the number of ranks is unknown. */
	if ((!layer->fused && layer->local && layer->n % layer->local) ||
	    (l->dir->noptim && ranks % experts_degree(layer)))
		return ERRMSG_FILE(l, -EBADMSG, "%u experts of MoE layer %zu (%s), %u on"
				   " this rank, cannot be divided among %u ranks",
				   layer->n, i, layer->prefix, layer->local, ranks);
	return 0;
}

/* A group is cut over one set of ranks, so its experts have one degree. */
static int set_group_degree(const struct rank_params_loader *l, const struct slice *s)
{
	struct slice_group *g = &l->c->groups[s->group];
	const unsigned degree = s->layer ? experts_degree(s->layer) : 1;
	const unsigned lanes = s->layer ? s->layer->lanes : 1;

	if (g->degree && (g->degree != degree || g->lanes != lanes))
		return ERRMSG_FILE(l, -ENOTSUP,
		"parameter %s: is shared by %u expert-parallel ranks, others in its group by %u",
				   s->name, degree, g->degree);
	g->degree = degree;
	g->lanes = lanes;
	return 0;
}

static int claim_slices(const struct rank_params_loader *l)
{
	struct rank_params *c = l->c;
	int rc = 0;

	for (size_t i = 0; !rc && i < c->nslices; i++)
		rc = claim(l, &c->slices[i]);
	for (size_t i = 0; !rc && i < c->experts.n; i++)
		rc = check_degree(l, i);
	for (size_t i = 0; !rc && i < c->nslices; i++)
		rc = set_group_degree(l, &c->slices[i]);
	for (size_t g = 0; g < c->ngroups; g++)
		if (!c->groups[g].degree) /* the group has no elements */
			c->groups[g].degree = c->groups[g].lanes = 1;
	return rc;
}

/* Check that an expert's file has the tensor of a slice. */
static int check_slice(const struct slice *s, const struct ckpt_file *f, const struct ptfile *pt,
		       struct errmsg *err)
{
	const unsigned skip = s->layer->fused; /* its first dimension is the
					        * expert */
	char key[EXPERT_NAME_MAX];
	const struct value *v;
	uint64_t storage;
	struct tensor t;
	int rc;

	experts_key(s->layer, f->id.expert, s->rest, key);
	v = value_find(pt->root, key);
	if (!v)
		return errmsg_set(err, -EBADMSG, "%s: has no %s, which the model states list",
				  f->path, key);
	rc = ptfile_tensor(pt, v, key, &t, &storage, err);
	if (rc)
		return rc;
	if (shape_order(t.shape, t.ndim, s->shape + skip, s->ndim - skip))
		return errmsg_set(err, -EBADMSG,
				  "%s: %s is of another shape than in the model states",
				  f->path, key);
	return 0;
}

/* Find the slice for a key of native expert file `f`, by the name that ranks use; NULL if there is
 * none.  Sets *own to whether the key belongs to that expert. */
static const struct slice *find_native(const struct rank_params *c, const struct expert_layer *layer,
				       const struct ckpt_file *f, const struct value *key, bool *own)
{
	char name[EXPERT_NAME_MAX];
	unsigned number;
	const char *rest;

	*own = value_is_cstr(key) && experts_parse(layer, key->str.p, &number, &rest) &&
	       number == f->id.expert;
	if (!*own || !layer->local)
		return NULL;
	experts_key(layer, experts_place(layer, number).index, rest, name);
	return slice_find(c->slices, c->nslices, name);
}

/* Add an expert's tensors that the optimizer does not own. */
static int add_rest(const struct rank_params_loader *l, const struct expert_layer *layer,
		    const struct ckpt_file *f)
{
	const struct value_dict *keys;
	struct rank_entry *e;
	struct tensor t;
	struct ptfile pt;
	bool own;
	int rc = open_expert(f, &pt, l->err);

	if (rc)
		return rc;
	keys = value_pairs(pt.root);
	for (size_t i = 0; !rc && i < keys->n; i++) {
		const struct value *key = keys->v[i].key;

		if (find_native(l->c, layer, f, key, &own))
			continue;
		rc = own ? rank_params_add_entry(l, &pt, f, key, keys->v[i].val, &e, &t)
			 : errmsg_set(l->err, -EBADMSG,
				      "%s: has a %.100s, which does not belong to expert %u",
				      f->path, value_cstr(key), f->id.expert);
		if (!rc && e->universal)
			e->kind = PARAM_FROZEN;
	}
	ptfile_close(&pt);
	return rc;
}

static int warn_frozen(const struct rank_params_loader *l, const struct expert_layer *layer)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < EXPERTS_FUSED; i++) {
		char name[EXPERT_NAME_MAX];

		snprintf(name, sizeof(name), "%s%s", layer->prefix, experts_fused[i]);
		if (!slice_find(l->c->slices, l->c->nslices, name))
			rc = RANK_PARAMS_WARN(l, "%s: left out: experts of AutoEP that are not trained",
					      name);
	}
	return rc;
}

static int check_layer(const struct rank_params_loader *l, size_t number)
{
	struct rank_params *c = l->c;
	const struct expert_layer *layer = &c->experts.layers[number];
	const struct ckpt_file *first = find_file(l, number, 0);
	size_t n = 0, keys;
	struct ptfile pt;
	int rc = open_expert(first, &pt, l->err);

	if (rc)
		return rc;
	keys = value_pairs(pt.root)->n;
	for (size_t i = 0; !rc && i < c->nslices; i++)
		if (c->slices[i].layer == layer) {
			rc = check_slice(&c->slices[i], first, &pt, l->err);
			n++;
		}
	ptfile_close(&pt);
	if (rc)
		return rc;
	/* Add entries that tensor-parallel ranks share only on the first one. */
	if (layer->lanes > 1 && !is_first(l))
		return 0;
	if (layer->fused)
		return warn_frozen(l, layer);
	if (n && n == keys * layer->local)
		return 0;
	for (unsigned e = 0; !rc && e < layer->n; e++)
		rc = add_rest(l, layer, find_file(l, number, e));
	return rc;
}

/* DeepSpeed's loader opens zero/<name> with the name that an expert has on its
 * rank (universal_checkpoint.py), so later ranks load the first rank's experts.
 * Reported once, since it applies to all layers. */
static int warn_loader(const struct rank_params_loader *l)
{
	const struct experts *x = &l->c->experts;

	for (size_t i = 0; i < x->n && !l->c->mp; i++)
		if (!x->layers[i].fused && experts_degree(&x->layers[i]) > 1)
			return RANK_PARAMS_WARN(
				l,
				"%s: native experts are right in the tree, but DeepSpeed loads them right only with ep_size 1",
				x->layers[i].prefix);
	return 0;
}

/* Find the layers' prefixes and assign slices to experts. */
static int place_experts(const struct rank_params_loader *l)
{
	int rc = check_files(l) ?: find_prefixes(l);

	for (size_t i = 0; !rc && i < l->c->experts.n; i++)
		rc = find_lanes(l, i);
	return rc ?: claim_slices(l);
}

static int entry_by_name(const void *a, const void *b)
{
	const struct rank_entry *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

int rank_params_find_experts(struct rank_params *c, const struct zero_dir *dir, unsigned tp,
			     struct errmsg *err)
{
	const struct rank_params_loader l = {
		.c = c,
		.file = dir->model[zero_dir_model_number(dir, c->mp)].path,
		.dir = dir,
		.tp = tp,
		.err = err,
	};
	const size_t n = c->rest.n;
	int rc = place_experts(&l);

	for (size_t i = 0; !rc && i < c->experts.n && !c->facts.zero3; i++)
		rc = check_layer(&l, i);
	if (c->rest.n > n)
		qsort(c->rest.v + n, c->rest.n - n, sizeof(*c->rest.v), entry_by_name);
	return rc ? rc : warn_loader(&l);
}

static bool has_entry(const struct rank_params *c, const char *name)
{
	for (size_t i = 0; i < c->rest.n; i++)
		if (strcmp(c->rest.v[i]->name, name) == 0)
			return true;
	return false;
}

/* Check that a native expert's file has no keys beyond its parameters and the
 * tensors in the table. */
static int check_keys(const struct rank_params *c, const struct ckpt_file *f,
		      const struct ptfile *pt, struct errmsg *err)
{
	const struct expert_layer *layer = &c->experts.layers[f->id.layer];
	const struct value_dict *keys = value_pairs(pt->root);

	for (size_t i = 0; i < keys->n; i++) {
		const struct value *key = keys->v[i].key;
		bool own;

		if (!find_native(c, layer, f, key, &own) && !has_entry(c, value_cstr(key)))
			return errmsg_set(err, -EBADMSG,
					  "%s: has a %.100s, which other experts lack",
					  f->path, value_cstr(key));
	}
	return 0;
}

int rank_params_check_expert(const struct rank_params *c, const struct ckpt_file *f,
			     struct errmsg *err)
{
	const struct expert_layer *layer = &c->experts.layers[f->id.layer];
	struct ptfile pt;
	int rc = open_expert(f, &pt, err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < c->nslices; i++) {
		const struct slice *s = &c->slices[i];

		if (s->layer == layer && (layer->fused || s->expert == f->id.expert % layer->local))
			rc = check_slice(s, f, &pt, err);
	}
	if (!rc && !layer->fused)
		rc = check_keys(c, f, &pt, err);
	ptfile_close(&pt);
	return rc;
}
