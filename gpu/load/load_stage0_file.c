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
#include "gpu/load/load_stage0.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/model/module_dict.h"
#include "ckpt/pickle/value.h"
#include "gpu/model/gpt2.h"

/* Matrices, and biases and norms, of a unit. */
enum {
	EMBED_MATRICES = GPT2_EMBED_PARAMS,
	BLOCK_MATRICES = 4,
	BLOCK_VECTORS = GPT2_BLOCK_PARAMS - BLOCK_MATRICES,
	LAST_VECTORS = GPT2_LAST_PARAMS,
};

void stage0_file_close(struct stage0_file *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < f->nlayers; i++)
		if (f->layers[i].root)
			ptfile_close(&f->layers[i]);
	free(f->layers);
	free(f->params);
	if (f->pt.root)
		ptfile_close(&f->pt);
	arena_done(&f->arena);
	free(f);
}

/* Open a file of the checkpoint, whose path remains as long as `f`. */
static int open_file(const struct stage0_source *w, struct stage0_file *f,
		     struct ptfile *pt, const char *name, struct errmsg *err)
{
	char path[PATH_MAX];
	const char *kept;
	const int rc = load_path(path, w->s.path, err, "%s", name);

	if (rc)
		return rc;
	kept = arena_strdup(&f->arena, path);
	return kept ? ptfile_open(w->s.u, pt, kept, err)
		    : errmsg_nomem(err, NULL);
}

int stage0_file_open(struct stage0_source *w, size_t number, struct errmsg *err)
{
	struct stage0_file *const f = calloc(1, sizeof(*f));
	char name[64];
	int rc;

	if (!f)
		return errmsg_nomem(err, NULL);
	w->files[number] = f;
	f->rank = (unsigned)number % w->tensor;
	f->stage = (unsigned)number / w->tensor;
	snprintf(name, sizeof(name), "mp_rank_%02zu_model_states.pt", number);
	rc = open_file(w, f, &f->pt, name, err);
	if (rc)
		return rc;
	f->optimizer = value_find(f->pt.root, "optimizer");
	return value_pairs(f->optimizer)
		       ? 0
		       : errmsg_set(err, -EBADMSG, "%s: no optimizer",
				    f->pt.src.name);
}

/* The module's weights by name; NULL with 0 if it has none. */
static int read_module(struct stage0_file *f, const struct value_dict **module,
		       struct errmsg *err)
{
	int rc = module_dict(f->pt.root, f->pt.src.name, &f->arena, module, err);

	for (size_t i = 0; !rc && *module && i < (*module)->n; i++)
		if (!value_is_cstr((*module)->v[i].key))
			rc = errmsg_set(err, -EBADMSG,
					"%s: module: a key is not a name",
					f->pt.src.name);
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

static const struct value *find_state(const struct stage0_file *f, size_t index,
				      const char *state)
{
	return value_find(
		find_index(value_find(torch_optimizer(f), "state"), index),
		state);
}

const struct value *stage0_file_find(const struct stage0_file *f, size_t number,
				     const char *state, const struct ptfile **in)
{
	const struct value *masters = value_find(f->optimizer, "fp32_groups");
	const struct stage0_param *const p = &f->params[number];

	*in = state || masters ? &f->pt : p->in;
	if (!p->id)
		return NULL;
	if (state)
		return find_state(f, p->id - 1, state);
	return masters ? find_item(masters, p->id - 1) : p->weights;
}

/* Does the part have the embedding, for the tokens or for the head? */
static bool has_embedding(const struct stage0_source *w,
			  const struct stage0_file *f)
{
	return f->stage == 0 || f->stage + 1 == w->stages;
}

int stage0_file_blocks(const struct stage0_source *w,
		       const struct stage0_file *f, unsigned *blocks,
		       struct errmsg *err)
{
	const struct value_seq *groups =
		value_find_items(torch_optimizer(f), KEY_PARAM_GROUPS);
	const size_t matrices = has_embedding(w, f) ? EMBED_MATRICES : 0;
	const size_t vectors = f->stage + 1 == w->stages ? LAST_VECTORS : 0;
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
		f->pt.src.name, groups ? groups->n : 0, n[NAMING_DECAYED],
		n[NAMING_UNDECAYED]);
}

/* Is a parameter of the model in the part? */
static bool has_param(const struct stage0_source *w,
		      const struct stage0_file *f, size_t i)
{
	const unsigned unit = w->saved.params[i].unit;

	if (unit == GPT2_UNIT_EMBED)
		return has_embedding(w, f);
	if (unit == gpt2_unit_last(&w->saved))
		return f->stage + 1 == w->stages;
	return unit >= GPT2_UNIT_BLOCK(f->first_block) &&
	       unit < GPT2_UNIT_BLOCK(f->end_block);
}

/* Find the weights of a parameter in the file of its layer. */
static int find_in_layer(const struct stage0_source *w, struct stage0_file *f,
			 const struct naming_tensor *t, struct stage0_param *x,
			 struct errmsg *err)
{
	struct ptfile *const pt = &f->layers[t->layer];
	char name[64];
	int rc = 0;

	snprintf(name, sizeof(name), "layer_%02u-model_%02u-model_states.pt",
		 t->layer, f->rank);
	if (!pt->root)
		rc = open_file(w, f, pt, name, err);
	if (rc)
		return rc;
	x->in = pt;
	x->weights = value_find(pt->root, t->last);
	return x->weights ? 0
			  : errmsg_set(err, -EBADMSG, "%s: has no %s",
				       pt->src.name, t->last);
}

/* Find the weights of float32.  Those of the embedding the first stage has. */
static int find_weights(const struct stage0_source *w, struct stage0_file *f,
			const struct value_dict *module, size_t i,
			struct errmsg *err)
{
	const struct naming_tensor *const t = &w->s.tensors[i];
	struct stage0_param *const x = &f->params[i];

	if (value_find(f->optimizer, "fp32_groups") ||
	    (w->saved.params[i].unit == GPT2_UNIT_EMBED && f->stage))
		return 0;
	if (w->s.naming.family == NAMING_MEGATRON)
		return find_in_layer(w, f, t, x, err);
	for (size_t k = 0; module && k < module->n && !x->weights; k++)
		if (strcmp(value_cstr(module->v[k].key), t->name) == 0)
			x->weights = module->v[k].val;
	x->in = &f->pt;
	return 0;
}

/* Parameters have numbers, group by group. */
static int find_numbers(const struct stage0_source *w, struct stage0_file *f,
			const struct value_dict *module, struct errmsg *err)
{
	const size_t n = w->saved.nparams;
	size_t id = 0;
	int rc = 0;

	/* They are numbered from 1. */
	f->nlayers = w->saved.nunits + 1;
	f->layers = calloc(f->nlayers, sizeof(*f->layers));
	if (!f->layers)
		return errmsg_nomem(err, NULL);
	for (unsigned k = 0; k < NAMING_GROUPS; k++)
		for (size_t i = 0; i < n && !rc; i++) {
			if (w->s.tensors[i].group != k || !has_param(w, f, i))
				continue;
			f->params[i].id = ++id;
			rc = find_weights(w, f, module, i, err);
		}
	return rc;
}

/* Parameters have names.  Those that share another one's storage are not looked for: the
 * optimizer has no state for them. */
static int find_names(const struct stage0_source *w, struct stage0_file *f,
		      const struct value_dict *module, struct errmsg *err)
{
	int rc = module ? 0
			: errmsg_set(err, -EBADMSG, "%s: no module",
				     f->pt.src.name);

	for (size_t k = 0; !rc && k < module->n; k++) {
		const char *const name = value_cstr(module->v[k].key);

		for (size_t i = 0; i < w->saved.nparams; i++)
			if (strcmp(w->s.tensors[i].name, name) == 0)
				f->params[i] = (struct stage0_param){
					.id = k + 1,
					.weights = module->v[k].val,
					.in = &f->pt,
				};
		if (find_state(f, k, "exp_avg"))
			rc = load_known(&w->s, name, err);
	}
	return rc;
}

int stage0_file_params(const struct stage0_source *w, struct stage0_file *f,
		       struct errmsg *err)
{
	const struct value_dict *module;
	const int rc = read_module(f, &module, err);

	if (rc)
		return rc;
	f->params = calloc(w->saved.nparams, sizeof(*f->params));
	if (!f->params)
		return errmsg_nomem(err, NULL);
	return w->s.naming.family == NAMING_HF ? find_names(w, f, module, err)
					       : find_numbers(w, f, module, err);
}
