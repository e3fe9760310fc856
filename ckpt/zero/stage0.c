/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints that DeepSpeed saves without ZeRO (runtime/engine.py, _save_checkpoint): the model
 * states of each model-parallel rank also contain the rank's optimizer, or DeepSpeed's 16-bit
 * wrapper of it (runtime/fp16/unfused_optimizer.py, fused_optimizer.py).  A pipeline's weights are
 * in files of layers (runtime/pipe/module.py); the stage of a layer follows from the number of
 * parameters in each stage's optimizer.
 */
#include "ckpt/zero/stage0.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/module_dict.h"
#include "ckpt/format/names.h"
#include "ckpt/format/value.h"
#include "ckpt/zero/stage0_build.h"

int stage0_tensor(struct stage0_builder *b, const struct ptfile *pt, uint32_t file,
		  const struct value *v, const char *key, const struct stored **out)
{
	struct arena *a = &b->o->arena;
	struct stored *s = arena_alloc(a, sizeof(*s));
	struct tensor t;
	uint64_t at;
	int rc = s ? ptfile_run(pt, v, key, &t, &at, b->err) : errmsg_nomem(b->err, b->file);

	if (rc)
		return rc;
	t.storage_offset = 0;
	t.storage_numel = t.numel;
	if (!stored_init(s, a, &t, at))
		return errmsg_nomem(b->err, b->file);
	s->file = file;
	*out = s;
	return 0;
}

/* Return the parameter with the same elements as a tensor, or NULL. */
static const struct stage0_param *find_same(const struct stage0_builder *b, const struct stored *t)
{
	size_t pos = 0;
	uint32_t i;

	while (t->numel && hashtab_next(&b->places, hash_number(t->storage), &pos, &i)) {
		const struct stored *w = b->params[i]->weight;

		if (w->file == t->file && w->storage == t->storage && !SHAPE_ORDER(w, t))
			return b->params[i];
	}
	return NULL;
}

struct stage0_param *stage0_new_param(struct stage0_builder *b)
{
	struct stage0_param *p = arena_alloc(&b->o->arena, sizeof(*p));

	if (!p || !arena_reserve(&b->o->arena, &b->params, b->nparams, &b->params_cap,
				 b->nparams + 1, sizeof(struct stage0_param *)))
		return NULL;
	return b->params[b->nparams++] = p;
}

static int add_param(struct stage0_builder *b, const char *name, const struct stored *weight)
{
	const struct stage0_param *same = find_same(b, weight);
	const int rc = same ? 0 : stage0_find_alias(b, name, weight, &same);
	struct stage0_param *p;

	if (rc)
		return rc;
	if (same)
		return ties_add(&b->o->ties, &b->o->arena, name, same->name)
			       ? 0
			       : errmsg_nomem(b->err, b->file);
	if (!hashtab_add(&b->places, hash_number(weight->storage), (uint32_t)b->nparams) ||
	    !(p = stage0_new_param(b)))
		return errmsg_nomem(b->err, b->file);
	*p = (struct stage0_param){ name, weight, NULL };
	b->numel += weight->numel;
	return 0;
}

/* Return the name prefix of the tied module that this layer belongs to, according to the merge
 * rules, or NULL. */
static const char *find_tie(struct stage0_builder *b, const struct value *layer)
{
	for (size_t i = 0; i < b->nties; i++) {
		const char *in = names_in_tied(b->ties[i]);

		if (in && value_find(layer, in))
			return arena_strndup(&b->o->arena, b->ties[i], (size_t)(in - b->ties[i]));
	}
	return NULL;
}

static bool is_tied(const char *name)
{
	return strncmp(name, NAMES_TIED, strlen(NAMES_TIED)) == 0;
}

/* Collect the patterns that name parameters of tied modules, without their escapes. */
static int list_ties(struct stage0_builder *b)
{
	const struct value_dict *info = value_find_pairs(b->model->root, KEY_UC_INFO);
	struct arena *a = &b->o->arena;
	size_t cap = 0;

	for (size_t i = 0; info && i < info->n; i++) {
		const struct value_seq *list = value_items(info->v[i].val);

		for (size_t k = 0; list && k < list->n; k++) {
			const char *from = value_cstr(list->v[k]);
			char *text, *to;

			if (!is_tied(from))
				continue;
			text = to = arena_strdup(a, from);
			if (!text || !arena_reserve(a, &b->ties, b->nties, &cap, b->nties + 1,
						    sizeof(*b->ties)))
				return errmsg_nomem(b->err, b->file);
			for (; *from; from++)
				if (*from != '\\')
					*to++ = *from;
			*to = '\0';
			b->ties[b->nties++] = text;
		}
	}
	return 0;
}

/* Add a parameter of a tied module, unless the stage has it already. */
static int add_tied(struct stage0_builder *b, const char *name, const struct stored *weight)
{
	for (size_t i = 0; i < b->nparams; i++)
		if (strcmp(b->params[i]->name, name) == 0)
			return 0;
	return add_param(b, name, weight);
}

/* Add the parameters among the tensors of a dict in an open file, without buffers. */
static int add_tensors(struct stage0_builder *b, const struct ptfile *pt, uint32_t file,
		       const struct value_dict *d, const char *prefix)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < d->n; i++) {
		const struct value *key = d->v[i].key;
		const struct stored *t;
		char *name;

		if (!value_is_cstr(key) || !tensor_is(d->v[i].val))
			continue;
		name = arena_alloc(&b->o->arena, strlen(prefix) + key->str.len + 1);
		if (!name)
			return errmsg_nomem(b->err, b->file);
		sprintf(name, "%s%s", prefix, key->str.p);
		if (module_entries_is_buffer(&b->in_module, name))
			continue;
		rc = stage0_tensor(b, pt, file, d->v[i].val, name, &t);
		if (rc == -ENOTSUP)
			rc = 0; /* the optimizer has no such parameter: it is frozen */
		else if (!rc)
			rc = (is_tied(name) ? add_tied : add_param)(b, name, t);
	}
	return rc;
}

/* Add the parameters of a layer.  A pipeline may have thousands of layers, so the file is closed
 * again. */
static int add_layer(struct stage0_builder *b, const struct ckpt_file *f)
{
	const struct value_dict *d;
	char number[16];
	struct ptfile pt;
	int rc = ckpt_file_open(f, &pt, b->err);

	if (rc)
		return rc;
	b->o->arena.limit += pt.arena.used * STAGE0_MEMORY_PER_BYTE;
	d = value_pairs(pt.root);
	snprintf(number, sizeof(number), "%u.", f->id.layer);
	rc = d ? add_tensors(b, &pt, (uint32_t)(f - b->s->dir->files), d,
			     find_tie(b, pt.root) ?: number)
	       : errmsg_set(b->err, -EBADMSG, "%s: is no dict", f->path);
	ptfile_close(&pt);
	return rc;
}

static bool has_all(const struct stage0_builder *b)
{
	return b->flat ? b->numel >= b->flat : b->nparams >= b->nentries;
}

/* Add the next layers to a stage, until it has as many parameters as its optimizer.  The last
 * stage gets all that are left.  A tied layer may have a file only in an earlier stage. */
static int add_layers(struct stage0_builder *b)
{
	struct stage0 *s = b->s;
	const struct zero_dir *d = s->dir;
	const unsigned rank = b->mp % s->tensor;
	const bool last = b->mp + s->tensor >= d->nmodel;
	size_t *at = &s->next[rank];
	int rc = 0;

	for (; !rc && *at < d->nlayer && (last || !has_all(b)); ++*at)
		if (d->layer[*at].id.mp == rank)
			rc = add_layer(b, &d->layer[*at]);
	for (size_t i = 0; !rc && !has_all(b) && i < s->ntied; i++)
		if (s->tied[i].rank == rank)
			rc = add_tied(b, s->tied[i].param->name, s->tied[i].param->weight);
	return rc;
}

/* Tied modules come first in a stage (PipelineModule.__init__).  Note them for later
 * stages. */
static int sort_ties(struct stage0_builder *b)
{
	struct stage0 *s = b->s;
	struct stage0_param **v =
		arena_alloc(&b->o->arena, (b->nparams + 1) * sizeof(struct stage0_param *));
	size_t n = 0;

	if (!v || !arena_reserve(&s->arena, &s->tied, s->ntied, &s->tied_cap, s->ntied + b->nparams,
				 sizeof(*s->tied)))
		return errmsg_nomem(b->err, b->file);
	for (int tied = 1; tied >= 0; tied--)
		for (size_t i = 0; i < b->nparams; i++) {
			if (is_tied(b->params[i]->name) != tied)
				continue;
			v[n++] = b->params[i];
			if (tied)
				s->tied[s->ntied++] =
					(struct stage0_tied){ b->mp % s->tensor, b->params[i] };
		}
	b->params = v;
	b->params_cap = b->nparams + 1;
	return 0;
}

int stage0_find_params(struct stage0_builder *b)
{
	const struct value_dict *module;
	int rc = module_dict(b->model->root, b->file, &b->o->arena, &module, b->err);

	if (rc)
		return rc;
	module_entries_init(&b->in_module, &b->o->arena, b->model->root, module);
	if (b->o->arena.failed)
		return errmsg_nomem(b->err, b->file);
	/* The rank's own file has the dense parameters. */
	if (b->peer)
		return 0;
	if (module)
		return add_tensors(b, b->model, b->model_number, module, "");
	return list_ties(b) ?: add_layers(b) ?: sort_ties(b);
}

/* Add the layer of a parameter of a pipeline that is called <layer>.<name>, unless it was
 * added. */
static int add_layer_of(struct stage0_builder *b, const char *name, bool *added)
{
	const struct zero_dir *d = b->s->dir;
	struct ckname id = { .kind = CKPT_FILE_LAYER, .mp = b->mp % b->s->tensor };
	const struct ckpt_file *f;
	char *tail;

	id.layer = (unsigned)strtoul(name, &tail, 10);
	if (tail == name || *tail != '.')
		return ERRMSG_FILE(b, -ENOTSUP,
		"%s: which layer has a tied module is not recorded, and there is no optimizer",
				   name);
	f = zero_dir_find(d, &id, NULL);
	if (!f)
		return ERRMSG_FILE(b, -EBADMSG, "%s: the file of its layer is missing", name);
	if (added[f - d->layer])
		return 0;
	added[f - d->layer] = true;
	return add_layer(b, f);
}

int stage0_find_listed(struct stage0_builder *b, const struct value_seq *shapes)
{
	bool *added = arena_alloc(&b->o->arena, b->s->dir->nlayer + 1);
	int rc = added ? 0 : errmsg_nomem(b->err, b->file);

	for (size_t g = 0; !rc && g < shapes->n; g++) {
		const struct value_dict *d = value_pairs(shapes->v[g]);

		for (size_t i = 0; !rc && d && i < d->n; i++)
			rc = add_layer_of(b, value_cstr(d->v[i].key), added);
	}
	return rc;
}

/* Check that there are model states of all ranks, and of no others. */
static int check_ranks(const struct stage0_builder *b)
{
	const size_t n = b->s->dir->nmodel;
	int64_t ranks;

	if (!value_get_int(value_find(b->model->root, "mp_world_size"), &ranks) ||
	    ranks == (int64_t)n)
		return 0;
	return ERRMSG_FILE(b, -EBADMSG,
			   "is of %lld model-parallel ranks, and the model states of %zu are there",
			   (long long)ranks, n);
}

/* Check that all tensor-parallel ranks have the same layers. */
static int check_layers(const struct stage0 *s, struct errmsg *err)
{
	const struct zero_dir *d = s->dir;

	for (size_t i = 0; i < d->nlayer; i++)
		for (struct ckname id = { .kind = CKPT_FILE_LAYER, .layer = d->layer[i].id.layer };
		     id.mp < s->tensor; id.mp++)
			if (!zero_dir_find(d, &id, NULL))
				return errmsg_set(err, -EBADMSG,
						  "%s/layer_%02u-model_%02u-model_states.pt: missing",
						  d->path, id.layer, id.mp);
	return 0;
}

/* Find the groups of a rank whose model states are open, and whose optimizer is in the file
 * `optim`, unless that is NULL. */
static int find_groups(struct stage0_builder *b, const struct ckpt_file *optim)
{
	struct stage0_rank *o = b->o;
	struct ptfile pt;
	int rc = 0;

	b->pt = b->model;
	b->number = b->model_number;
	if (optim) {
		rc = ckpt_file_open(optim, &pt, b->err);
		if (rc)
			return rc;
		b->pt = &pt;
		b->number = (uint32_t)(optim - b->s->dir->files);
		b->file = optim->path;
	}
	o->file = b->number;
	o->arena.limit =
		(1u << 20) + (b->pt->arena.used + b->model->arena.used) * STAGE0_MEMORY_PER_BYTE;
	rc = stage0_find_groups(b);
	if (rc == -ENOMEM && o->arena.refused)
		rc = errmsg_set(b->err, -E2BIG, "%s: describes too much for its size", b->file);
	hashtab_done(&b->places);
	if (optim)
		ptfile_close(&pt);
	return rc;
}

int stage0_find_peer(const struct stage0_builder *b, struct stage0_rank *o,
		     const struct ckpt_file *optim, unsigned ep)
{
	struct stage0_builder peer = {
		.s = b->s,
		.o = o,
		.mp = b->mp,
		.model = b->model,
		.model_number = b->model_number,
		.file = b->file,
		.err = b->err,
		.ep = ep,
		.peer = true,
	};

	return find_groups(&peer, optim);
}

/* Return the first optimizer file that a rank saved; NULL: the optimizer is in the model states. */
static const struct ckpt_file *first_optim(const struct stage0_builder *b, unsigned *ep)
{
	const struct zero_dir *d = b->s->dir;
	size_t i = 0;

	while (i < d->nexpert_optim && d->expert_optim[i].id.mp != b->mp)
		i++;
	if (i == d->nexpert_optim)
		return NULL;
	*ep = d->expert_optim[i].id.dp;
	return &d->expert_optim[i];
}

static int find_rank(struct stage0 *s, struct stage0_rank *o, unsigned mp, struct errmsg *err)
{
	const struct ckpt_file *f = &s->dir->model[mp];
	struct ptfile pt;
	struct stage0_builder b = {
		.s = s,
		.o = o,
		.mp = mp,
		.model = &pt,
		.model_number = (uint32_t)(f - s->dir->files),
		.file = f->path,
		.err = err,
	};
	int64_t tp;
	int rc = ckpt_file_open(f, &pt, err);

	if (rc)
		return rc;
	if (!mp && value_get_int(value_find_path(pt.root, "checkpoint_parallel_dimensions",
						 "tp_degree", NULL),
				 &tp) &&
	    tp > 0 && tp <= (int64_t)s->dir->nmodel)
		s->tp = (unsigned)tp;
	rc = check_ranks(&b) ?: find_groups(&b, first_optim(&b, &b.ep));
	ptfile_close(&pt);
	return rc;
}

int stage0_find(struct stage0_rank **out, size_t *n, const struct zero_dir *d, struct errmsg *err)
{
	struct stage0 s = { .dir = d, .tensor = 1, .tp = (unsigned)d->nmodel };
	int rc;

	for (size_t i = 0; i < d->nlayer; i++)
		if (d->layer[i].id.mp >= s.tensor)
			s.tensor = d->layer[i].id.mp + 1;
	for (size_t i = 0; i < d->nexpert_optim; i++)
		if (d->expert_optim[i].id.dp >= s.nep)
			s.nep = d->expert_optim[i].id.dp + 1;
	rc = check_layers(&s, err);
	s.next = arena_alloc(&s.arena, s.tensor * sizeof(*s.next));
	*n = d->nmodel;
	*out = calloc(*n, sizeof(**out));
	if (!rc && (!s.next || !*out))
		rc = errmsg_nomem(err, d->path);
	for (unsigned mp = 0; !rc && mp < *n; mp++)
		rc = find_rank(&s, &(*out)[mp], mp, err);
	arena_done(&s.arena);
	return rc;
}

void stage0_free(struct stage0_rank *v, size_t n)
{
	for (size_t i = 0; v && i < n; i++) {
		for (unsigned ep = 0; v[i].peers && ep < v[i].npeers; ep++)
			arena_done(&v[i].peers[ep].arena);
		arena_done(&v[i].arena);
	}
	free(v);
}
