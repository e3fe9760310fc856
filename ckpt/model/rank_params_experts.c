/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts, whose weights are in files of their own.
 *
 * The model-states file is that of the first data-parallel rank, so its
 * param_shapes have the experts of one expert-parallel rank; the others have
 * as many, of the same shapes, under the same names.  In the expert files
 * names are those of the whole model.  One file of each layer is enough to
 * find what its experts are called; the others are opened when an expert has
 * tensors that the optimizer does not own.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/model/rank_params_build.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"

static const char *const fused_names[] = { ".w1", ".w2", ".w3" };

#define NFUSED (sizeof(fused_names) / sizeof(*fused_names))

/* --- files ------------------------------------------------------------------- */

/* Are there as many files as experts?  ckdir has seen to it that none is
 * missing before another. */
static int check_files(const struct catalogue_loader *l)
{
	const struct experts *const x = &l->c->experts;
	const struct ckdir *const d = l->dir;
	size_t at = 0;

	if (d->nexpert && (!x->n || d->zero3))
		return errmsg_set(
			l->err, d->zero3 ? -ENOTSUP : -EBADMSG,
			"%s: there are files of experts (%s), but this"
			" is %s",
			l->file, d->expert[0].name,
			d->zero3 ? "ZeRO-3" : "of a model without any");
	for (size_t i = 0; i < x->n && !d->zero3; i++) {
		unsigned n = 0;

		for (; at < d->nexpert && d->expert[at].id.layer == i; at++)
			n++;
		if (n != x->layers[i].n)
			return errmsg_set(l->err, -EBADMSG,
					  "%s: MoE layer %zu has %u experts, but"
					  " there are files (layer_%zu_expert_*)"
					  " of %u",
					  l->file, i, x->layers[i].n, i, n);
	}
	if (at < d->nexpert && !d->zero3)
		return errmsg_set(l->err, -EBADMSG,
				  "%s: the model has %zu MoE layers, but there"
				  " is a file %s",
				  l->file, x->n, d->expert[at].name);
	return 0;
}

/* The number of the file of a layer's first expert, in ckdir.expert. */
static size_t first_file(const struct catalogue_loader *l, size_t layer)
{
	size_t at = 0;

	for (size_t i = 0; i < layer; i++)
		at += l->c->experts.layers[i].n;
	return at;
}

static int open_expert(const struct ckfile *f, struct ptfile *pt,
		       struct errmsg *err)
{
	const int rc = ckdir_open_file(f, pt, err);

	if (rc || value_pairs(pt->root))
		return rc;
	errmsg_set(err, -EBADMSG, "%s: expected a dict, found %s", f->path,
		   value_kind_name(pt->root));
	ptfile_close(pt);
	return -EBADMSG;
}

/* --- native layers ----------------------------------------------------------- */

static int find_prefix(const struct catalogue_loader *l,
		       struct expert_layer *layer, size_t file)
{
	const struct value_dict *keys;
	bool nomem = false;
	struct ptfile pt;
	int rc = open_expert(&l->dir->expert[file], &pt, l->err);

	if (rc)
		return rc;
	keys = value_pairs(pt.root);
	for (size_t i = 0; !layer->prefix && !nomem && i < keys->n; i++)
		if (value_is_cstr(keys->v[i].key))
			layer->prefix = experts_find_prefix(
				&l->c->arena, keys->v[i].key->str.p, 0, &nomem);
	ptfile_close(&pt);
	if (nomem)
		return catalogue_fail_nomem(l);
	return layer->prefix ? 0
			     : errmsg_set(l->err, -EBADMSG,
					  "%s: has no parameters of expert 0",
					  l->dir->expert[file].path);
}

/* The index tells it: then no file is opened. */
static int need_prefix(const struct catalogue_loader *l, size_t i)
{
	struct expert_layer *const layer = &l->c->experts.layers[i];

	if (layer->prefix)
		return 0;
	if (l->dir->zero3)
		return errmsg_set(l->err, -ENOTSUP,
				  "%s: MoE layer %zu is not of AutoEP: not"
				  " supported in ZeRO-3",
				  l->file, i);
	return find_prefix(l, layer, first_file(l, i));
}

static int find_prefixes(const struct catalogue_loader *l)
{
	const struct experts *const x = &l->c->experts;
	int rc = 0;

	for (size_t i = 0; !rc && i < x->n; i++) {
		if (x->layers[i].fused)
			continue;
		rc = need_prefix(l, i);
		/* Two layers of one name would share their parameters. */
		for (size_t k = 0; !rc && k < i; k++)
			if (strcmp(x->layers[k].prefix, x->layers[i].prefix) == 0)
				rc = errmsg_set(l->err, -EBADMSG,
						"%s: MoE layers %zu and %zu are"
						" both called %s",
						l->file, k, i,
						x->layers[i].prefix);
	}
	return rc;
}

/* --- slices ------------------------------------------------------------------ */

static int claim(const struct catalogue_loader *l, struct slice *s)
{
	const struct experts *const x = &l->c->experts;

	for (size_t i = 0; i < x->n && !s->layer; i++) {
		struct expert_layer *const layer = &x->layers[i];
		unsigned expert;

		if (!experts_parse(layer, s->name, &expert, &s->rest))
			continue;
		s->layer = layer;
		s->expert = expert;
		if (!layer->fused && s->expert >= layer->local)
			layer->local = s->expert + 1;
		if (layer->fused && (!s->ndim || s->shape[0] != layer->local))
			return errmsg_set(l->err, -EBADMSG,
					  "%s: param_shapes: %s is not of %u"
					  " experts",
					  l->file, s->name, layer->local);
	}
	/* Its name is not that in the whole model, and nothing tells which
	 * is. */
	if (!s->layer && experts_is_native(s->name))
		return errmsg_set(l->err, -EBADMSG,
				  "%s: param_shapes: %s is of an expert whose"
				  " MoE layer has no files",
				  l->file, s->name);
	return 0;
}

static int check_degree(const struct catalogue_loader *l, size_t i)
{
	const struct expert_layer *const layer = &l->c->experts.layers[i];
	const unsigned dp = l->dir->dp_degree;

	if ((layer->local && layer->n % layer->local) ||
	    dp % experts_degree(layer))
		return errmsg_set(l->err, -EBADMSG,
				  "%s: %u experts of MoE layer %zu (%s), %u on"
				  " this rank, cannot be divided among %u ranks",
				  l->file, layer->n, i, layer->prefix,
				  layer->local, dp);
	return 0;
}

/* ZeRO cuts a group for one set of ranks. */
static int set_group_degree(const struct catalogue_loader *l,
			    const struct slice *s)
{
	struct slice_group *const g = &l->c->groups[s->group];
	const unsigned degree = s->layer ? experts_degree(s->layer) : 1;

	if (g->degree && g->degree != degree)
		return errmsg_set(l->err, -ENOTSUP,
				  "%s: parameter %s: is shared by %u"
				  " expert-parallel ranks, others in its group by"
				  " %u",
				  l->file, s->name, degree, g->degree);
	g->degree = degree;
	return 0;
}

static int claim_slices(const struct catalogue_loader *l)
{
	struct catalogue *const c = l->c;
	int rc = 0;

	for (size_t i = 0; !rc && i < c->nslices; i++)
		if (!c->slices[i].module)
			rc = claim(l, &c->slices[i]);
	for (size_t i = 0; !rc && i < c->experts.n; i++)
		rc = check_degree(l, i);
	for (size_t i = 0; !rc && i < c->nslices; i++)
		if (!c->slices[i].module)
			rc = set_group_degree(l, &c->slices[i]);
	return rc;
}

/* --- against the files ------------------------------------------------------- */

/* Has the file of an expert the tensor that a slice calls for? */
static int check_slice(const struct slice *s, unsigned expert,
		       const struct ptfile *pt, const char *path,
		       struct errmsg *err)
{
	const unsigned skip = s->layer->fused; /* its first dimension */
	char key[EXPERT_NAME_MAX];
	const struct value *v;
	uint64_t storage;
	struct tensor t;
	int rc;

	experts_key(s->layer, expert, s->rest, key);
	v = value_find(pt->root, key);
	if (!v)
		return errmsg_set(err, -EBADMSG,
				  "%s: has no %s, which the model states speak"
				  " of",
				  path, key);
	rc = ptfile_tensor(pt, v, key, &t, &storage, err);
	if (rc)
		return rc;
	if (t.ndim + skip != s->ndim ||
	    memcmp(t.shape, s->shape + skip, t.ndim * sizeof(*t.shape)) != 0)
		return errmsg_set(err, -EBADMSG,
				  "%s: %s is of another shape than in the"
				  " model states",
				  path, key);
	return 0;
}

/* Add what the optimizer does not own of an expert. */
static int add_rest(const struct catalogue_loader *l,
		    const struct expert_layer *layer, unsigned expert,
		    size_t file, size_t owned)
{
	const struct value_dict *keys;
	struct ptfile pt;
	int rc = open_expert(&l->dir->expert[file], &pt, l->err);

	if (rc)
		return rc;
	keys = value_pairs(pt.root);
	for (size_t i = 0; !rc && i < keys->n; i++) {
		const struct value *const key = keys->v[i].key;
		char name[EXPERT_NAME_MAX];
		const char *rest;
		unsigned number;

		if (!value_is_cstr(key) ||
		    !experts_parse(layer, key->str.p, &number, &rest) ||
		    number != expert) {
			rc = errmsg_set(l->err, -EBADMSG,
					"%s: has a %.100s, which is none of"
					" expert %u",
					l->dir->expert[file].path,
					value_is_cstr(key) ? key->str.p : "?",
					expert);
			break;
		}
		if (layer->local) {
			experts_key(layer, expert % layer->local, rest, name);
			if (catalogue_find_among(l->c, owned, name))
				continue;
		}
		rc = catalogue_add_tensor(l, &pt,
					  (uint32_t)(l->dir->nmodel + file),
					  key, keys->v[i].val);
	}
	ptfile_close(&pt);
	return rc;
}

static int warn_frozen(const struct catalogue_loader *l,
		       const struct expert_layer *layer, size_t owned)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < NFUSED; i++) {
		char name[EXPERT_NAME_MAX];

		snprintf(name, sizeof(name), "%s%s", layer->prefix,
			 fused_names[i]);
		if (!catalogue_find_among(l->c, owned, name))
			rc = catalogue_warn(l, "%s: left out: %s", name,
					    "experts of AutoEP that are not"
					    " trained");
	}
	return rc;
}

static int check_layer(const struct catalogue_loader *l,
		       const struct expert_layer *layer, size_t first,
		       size_t owned)
{
	struct catalogue *const c = l->c;
	size_t n = 0, keys;
	struct ptfile pt;
	int rc = open_expert(&l->dir->expert[first], &pt, l->err);

	if (rc)
		return rc;
	keys = value_pairs(pt.root)->n;
	for (size_t i = 0; !rc && i < owned; i++)
		if (c->slices[i].layer == layer) {
			rc = check_slice(&c->slices[i], 0, &pt,
					 l->dir->expert[first].path, l->err);
			n++;
		}
	ptfile_close(&pt);
	if (rc)
		return rc;
	if (layer->fused)
		return warn_frozen(l, layer, owned);
	if (n && n == keys * layer->local)
		return 0;
	for (unsigned e = 0; !rc && e < layer->n; e++)
		rc = add_rest(l, layer, e, first + e, owned);
	return rc;
}

/* DeepSpeed's loader asks for zero/<name> by the names that experts have on a
 * rank (universal_checkpoint.py), so the ranks after the first get the first's.
 * Said once: the layers are alike in this. */
static int warn_loader(const struct catalogue_loader *l)
{
	const struct experts *const x = &l->c->experts;

	for (size_t i = 0; i < x->n; i++)
		if (!x->layers[i].fused && experts_degree(&x->layers[i]) > 1)
			return catalogue_warn(
				l, "%s: %s", x->layers[i].prefix,
				"native experts are right in the tree, but"
				" DeepSpeed loads them right only with ep_size"
				" 1");
	return 0;
}

int catalogue_place_experts(const struct catalogue_loader *l)
{
	int rc = check_files(l);

	if (!rc && l->c->experts.n && l->dir->mp_degree > 1)
		rc = errmsg_set(l->err, -ENOTSUP,
				"%s: experts are supported without tensor and"
				" pipeline parallelism only",
				l->file);
	if (!rc)
		rc = find_prefixes(l);
	return rc ? rc : claim_slices(l);
}

int catalogue_load_experts(const struct catalogue_loader *l)
{
	struct catalogue *const c = l->c;
	const size_t owned = c->nslices;
	int rc = experts_init(&c->experts, &c->arena, l->pt->root, c->zero3,
			      l->file, l->err);

	if (!rc)
		rc = catalogue_place_experts(l);
	for (size_t i = 0; !rc && i < c->experts.n && !c->zero3; i++)
		rc = check_layer(l, &c->experts.layers[i], first_file(l, i),
				 owned);
	return rc ? rc : warn_loader(l);
}

/* A native expert's file has no more than its parameters and what was found to
 * belong to it when the catalogue was made. */
static int check_keys(const struct catalogue *c, const struct ckfile *f,
		      const struct ptfile *pt, struct errmsg *err)
{
	const struct expert_layer *const layer =
		&c->experts.layers[f->id.layer];
	const struct value_dict *const keys = value_pairs(pt->root);

	for (size_t i = 0; i < keys->n; i++) {
		const struct value *const key = keys->v[i].key;
		char name[EXPERT_NAME_MAX] = "";
		unsigned expert;
		const char *rest;

		if (value_is_cstr(key) && layer->local &&
		    experts_parse(layer, key->str.p, &expert, &rest) &&
		    expert == f->id.expert)
			experts_key(layer, expert % layer->local, rest, name);
		if (catalogue_find(c, name) ||
		    (value_is_cstr(key) && catalogue_find(c, key->str.p)))
			continue;
		return errmsg_set(err, -EBADMSG,
				  "%s: has a %.100s, which other experts have"
				  " not", f->path,
				  value_is_cstr(key) ? key->str.p : "?");
	}
	return 0;
}

int catalogue_check_expert(const struct catalogue *c, const struct ckfile *f,
			   struct errmsg *err)
{
	const struct expert_layer *const layer = &c->experts.layers[f->id.layer];
	struct ptfile pt;
	int rc = open_expert(f, &pt, err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && i < c->nslices; i++) {
		const struct slice *const s = &c->slices[i];

		if (s->layer == layer &&
		    (layer->fused || s->expert == f->id.expert % layer->local))
			rc = check_slice(s, f->id.expert, &pt, f->path, err);
	}
	if (!rc && !layer->fused)
		rc = check_keys(c, f, &pt, err);
	ptfile_close(&pt);
	return rc;
}
