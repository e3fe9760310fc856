/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer states are numbered through the parameter groups.  Hugging Face's models
 * have one, in the order of the module.  Megatron's have two, as its naming says, of
 * the units of a stage; the last of several stages begins with a copy of the
 * embedding.  A 16-bit model has its masters in fp32_groups, which are like the
 * groups; a model of float32 has them as weights, in the module or, of a pipeline
 * engine, in files of layers (DeepSpeed's runtime/fp16/unfused_optimizer.py and
 * runtime/pipe/module.py).
 */
#include "gpu/load/load_stage0_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/model/module_dict.h"
#include "ckpt/pickle/value.h"
#include "gpu/load/load_impl.h"
#include "gpu/model/gpt2.h"

/* Matrices, and biases and norms, of a unit. */
enum {
	EMBED_MATRICES = GPT2_EMBED_PARAMS,
	BLOCK_MATRICES = 4,
	BLOCK_VECTORS = GPT2_BLOCK_PARAMS - BLOCK_MATRICES,
	LAST_VECTORS = GPT2_LAST_PARAMS,
};

/* The weights of a layer: opened when they are first needed. */
struct stage0_layer {
	bool opened;
	struct ptfile pt;
};

void stage0_file_close(struct stage0_file *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->nlayers; i++)
		if (f->layers[i].opened)
			ptfile_close(&f->layers[i].pt);
	free(f->layers);
	free(f->params);
	if (f->opened)
		ptfile_close(&f->pt);
	arena_done(&f->arena);
	free(f);
}

/* Open a file, whose path remains as long as `f`. */
static int open_file(struct stage0_file *f, struct ptfile *pt, const char *path,
		     const char **kept, struct errmsg *err)
{
	*kept = arena_strdup(&f->arena, path);
	return *kept ? ptfile_open(f->u, pt, *kept, err)
		     : errmsg_nomem(err, NULL);
}

int stage0_file_open(struct uckpt *u, struct stage0_file **out, const char *dir,
		     unsigned number, struct errmsg *err)
{
	struct stage0_file *f = calloc(1, sizeof(*f));
	char path[PATH_MAX];
	int rc;

	if (!f)
		return errmsg_nomem(err, NULL);
	f->u = u;
	rc = load_path(path, dir, err, "mp_rank_%02u_model_states.pt", number);
	if (!rc)
		rc = open_file(f, &f->pt, path, &f->path, err);
	f->opened = !rc;
	f->optimizer = rc ? NULL : value_find(f->pt.root, "optimizer");
	if (!rc && !value_pairs(f->optimizer))
		rc = errmsg_set(err, -EBADMSG, "%s: no optimizer", f->path);
	if (rc)
		stage0_file_close(f);
	else
		*out = f;
	return rc;
}

/* The module's weights by name; NULL with 0 if it has none. */
static int read_module(struct stage0_file *f, const struct value_dict **module,
		       struct errmsg *err)
{
	int rc = module_dict(f->pt.root, f->path, &f->arena, module, err);

	for (size_t i = 0; !rc && *module && i < (*module)->n; i++)
		if (!value_is_cstr((*module)->v[i].key))
			rc = errmsg_set(err, -EBADMSG,
					"%s: module: a key is not a name",
					f->path);
	return rc;
}

static int alloc_params(struct stage0_file *f, size_t n, struct errmsg *err)
{
	f->params = calloc(n ? n : 1, sizeof(*f->params));
	return f->params ? 0 : errmsg_nomem(err, NULL);
}

int stage0_file_read_names(struct stage0_file *f, struct errmsg *err)
{
	const struct value_dict *module;
	int rc = read_module(f, &module, err);

	if (!rc && !module)
		rc = errmsg_set(err, -EBADMSG, "%s: no module", f->path);
	if (!rc)
		rc = alloc_params(f, module->n, err);
	for (size_t i = 0; !rc && i < module->n; i++)
		f->params[f->n++] = (struct stage0_param){
			.name = value_cstr(module->v[i].key),
			.weights = module->v[i].val,
			.in = &f->pt,
		};
	return rc;
}

/* torch's optimizer, which may be inside of DeepSpeed's. */
static const struct value *torch_optimizer(const struct stage0_file *f)
{
	const struct value *inner =
		value_find(f->optimizer, KEY_OPTIMIZER_STATE_DICT);

	return inner ? inner : f->optimizer;
}

static const struct value *find_index(const struct value *dict, size_t key)
{
	const struct value_dict *d = value_pairs(dict);

	for (size_t i = 0; d && i < d->n; i++)
		if (d->v[i].key->kind == VALUE_INT && d->v[i].key->i >= 0 &&
		    (uint64_t)d->v[i].key->i == key)
			return d->v[i].val;
	return NULL;
}

/* Item `i` of lists end to end. */
static const struct value *find_item(const struct value *lists, size_t i)
{
	const struct value_seq *all = value_items(lists);

	for (size_t k = 0; all && k < all->n; k++) {
		const struct value_seq *list = value_items(all->v[k]);

		if (!list)
			return NULL;
		if (i < list->n)
			return list->v[i];
		i -= list->n;
	}
	return NULL;
}

const struct value *stage0_file_find(const struct stage0_file *f,
				     const char *param, const char *state,
				     const struct ptfile **in)
{
	const struct value *masters = value_find(f->optimizer, "fp32_groups");
	size_t i = 0;

	while (i < f->n && strcmp(f->params[i].name, param) != 0)
		i++;
	if (i == f->n)
		return NULL;
	*in = &f->pt;
	if (state)
		return value_find(
			find_index(value_find(torch_optimizer(f), "state"), i),
			state);
	if (masters)
		return find_item(masters, i);
	*in = f->params[i].in;
	return f->params[i].weights;
}

int stage0_file_blocks(const struct stage0_file *f, bool first, bool last,
		       unsigned *blocks, struct errmsg *err)
{
	const struct value_seq *groups =
		value_find_items(torch_optimizer(f), KEY_PARAM_GROUPS);
	const size_t matrices = first || last ? EMBED_MATRICES : 0;
	const size_t vectors = last ? LAST_VECTORS : 0;
	size_t n[NAMING_GROUPS] = { 0 };

	for (size_t k = 0; groups && k < groups->n && k < NAMING_GROUPS; k++) {
		const struct value_seq *params =
			value_find_items(groups->v[k], "params");

		n[k] = params ? params->n : 0;
	}
	if (groups && groups->n == NAMING_GROUPS &&
	    n[NAMING_DECAYED] >= matrices) {
		*blocks = (unsigned)((n[NAMING_DECAYED] - matrices) /
				     BLOCK_MATRICES);
		if (n[NAMING_DECAYED] ==
			    matrices + (size_t)*blocks * BLOCK_MATRICES &&
		    n[NAMING_UNDECAYED] ==
			    vectors + (size_t)*blocks * BLOCK_VECTORS)
			return 0;
	}
	return errmsg_set(
		err, -EINVAL,
		"%s: checkpoint of another model: its optimizer has %zu groups, of %zu and %zu parameters",
		f->path, groups ? groups->n : 0, n[NAMING_DECAYED],
		n[NAMING_UNDECAYED]);
}

/* Is a parameter in the part? */
static bool has_param(const struct stage0_part *p, size_t i)
{
	const unsigned unit = p->model->params[i].unit;

	if (unit == GPT2_UNIT_EMBED)
		return p->first || p->last;
	if (unit == gpt2_unit_last(p->model))
		return p->last;
	return unit >= GPT2_UNIT_BLOCK(p->first_block) &&
	       unit < GPT2_UNIT_BLOCK(p->end_block);
}

/* Find the weights of a parameter in the file of its layer. */
static int find_in_layer(struct stage0_file *f, const struct stage0_part *p,
			 const struct naming_tensor *t, struct stage0_param *x,
			 struct errmsg *err)
{
	struct stage0_layer *const l = &f->layers[t->layer];
	char path[PATH_MAX];
	const char *kept;
	int rc = 0;

	if (!l->opened) {
		rc = load_path(path, p->dir, err,
			       "layer_%02u-model_%02u-model_states.pt",
			       t->layer, p->rank);
		if (!rc)
			rc = open_file(f, &l->pt, path, &kept, err);
		l->opened = !rc;
	}
	if (rc)
		return rc;
	x->in = &l->pt;
	x->weights = value_find(l->pt.root, t->last);
	return x->weights ? 0
			  : errmsg_set(err, -EBADMSG, "%s: has no %s",
				       l->pt.src.name, t->last);
}

/* Find the weights of float32.  Those of the embedding the first stage has. */
static int find_weights(struct stage0_file *f, const struct stage0_part *p,
			const struct value_dict *module, size_t i,
			struct stage0_param *x, struct errmsg *err)
{
	if (value_find(f->optimizer, "fp32_groups") ||
	    (p->model->params[i].unit == GPT2_UNIT_EMBED && !p->first))
		return 0;
	if (p->family == NAMING_MEGATRON)
		return find_in_layer(f, p, &p->tensors[i], x, err);
	for (size_t k = 0; module && k < module->n && !x->weights; k++)
		if (strcmp(value_cstr(module->v[k].key), x->name) == 0)
			x->weights = module->v[k].val;
	x->in = &f->pt;
	return 0;
}

/* Find all parameters of a group. */
static int number_group(struct stage0_file *f, const struct stage0_part *p,
			const struct value_dict *module, enum naming_group k,
			struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; i < p->model->nparams && !rc; i++) {
		struct stage0_param *const x = &f->params[f->n];

		if (p->tensors[i].group != k || !has_param(p, i))
			continue;
		x->name = p->tensors[i].name;
		rc = find_weights(f, p, module, i, x, err);
		f->n++;
	}
	return rc;
}

int stage0_file_number(struct stage0_file *f, const struct stage0_part *p,
		       struct errmsg *err)
{
	const struct value_dict *module;
	int rc = read_module(f, &module, err);

	if (!rc)
		rc = alloc_params(f, p->model->nparams, err);
	if (rc)
		return rc;
	/* They are numbered from 1. */
	f->nlayers = p->model->nunits + 1;
	f->layers = calloc(f->nlayers, sizeof(*f->layers));
	if (!f->layers)
		return errmsg_nomem(err, NULL);
	for (unsigned k = 0; k < NAMING_GROUPS && !rc; k++)
		rc = number_group(f, p, module, (enum naming_group)k, err);
	return rc;
}
