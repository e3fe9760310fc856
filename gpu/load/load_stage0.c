/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint without ZeRO as a source: everything is in the model states, of
 * which there is a file of each part of the model, and in files of layers.  libuckpt,
 * which reads shards, does not know them.  Parts in Hugging Face's names are those
 * that this program saved, which it cuts as it does its own; Megatron's are cut in the
 * same places, of which each slice has all rows or all columns.
 *
 * Optimizer states are numbered through the parameter groups.  Hugging Face's models
 * have one, in the order of the module.  Megatron's have two, as its naming says, of
 * the units of a stage; the last of several stages begins with a copy of the
 * embedding.  A 16-bit model has its masters in fp32_groups, which are like the
 * groups; a model of float32 has them as weights, in the module or, of a pipeline
 * engine, in files of layers (DeepSpeed's runtime/fp16/unfused_optimizer.py and
 * runtime/pipe/module.py).
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/files/files.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/module_dict.h"
#include "ckpt/pickle/value.h"
#include "ckpt/sys/parallel.h"
#include "gpu/load/load_impl.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/naming.h"

/* A parameter in the files of one part of a model. */
struct stage0_param {
	size_t id; /* in the optimizer, from 1; 0: the part does not have it */
	const struct value *weights; /* NULL: the optimizer has masters */
	const struct ptfile *in;     /* the file of the weights */
};

/*
 * One part of a model without ZeRO: its model states, in which the optimizer is, and,
 * of Megatron's pipeline, the weights of layers, a file each.
 */
struct stage0_file {
	unsigned rank, stage;            /* tensor-parallel, of a pipeline */
	unsigned first_block, end_block; /* of Megatron's part */
	struct ptfile pt;                /* has no root unless it is open */
	const struct value *optimizer;
	struct stage0_param *params; /* by their number in the model */
	struct ptfile *layers;       /* by number; open when first needed */
	size_t nlayers;
	struct arena arena; /* paths, and names of a nested module */
};

struct stage0_source {
	struct load_source s;
	unsigned tensor, stages;    /* ranks that shared the model */
	struct stage0_file **files; /* [stage * tensor + rank] */
	size_t nfiles;
	struct gpt2 saved; /* as a tensor-parallel rank has it, of all stages */
};

/* Matrices, and biases and norms, of a block. */
enum {
	BLOCK_MATRICES = 4,
	BLOCK_VECTORS = GPT2_BLOCK_PARAMS - BLOCK_MATRICES,
};

/* Open a file of the checkpoint, whose path remains as long as `f`. */
static int open_file(const struct stage0_source *w, struct stage0_file *f,
		     struct ptfile *pt, const char *name, struct errmsg *err)
{
	char path[PATH_MAX];
	const char *kept;
	const int rc = load_path(path, w->s.path, name, err);

	if (rc)
		return rc;
	kept = arena_strdup(&f->arena, path);
	return kept ? files_open_pt(w->s.u, pt, kept, err)
		    : errmsg_nomem(err, NULL);
}

/* Open the model states of part `number`. */
static int open_part(struct stage0_source *w, size_t number, struct errmsg *err)
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

/* torch's optimizer, which may be inside of DeepSpeed's. */
static const struct value *torch_optimizer(const struct stage0_file *f)
{
	return value_find(f->optimizer, KEY_OPTIMIZER_STATE_DICT)
		       ?: f->optimizer;
}

static const struct value *find_state(const struct stage0_file *f, size_t index,
				      const char *state)
{
	const struct value_dict *all =
		value_find_pairs(torch_optimizer(f), "state");
	int64_t key;

	for (size_t i = 0; all && i < all->n; i++)
		if (value_get_int(all->v[i].key, &key) && key == (int64_t)index)
			return value_find(all->v[i].val, state);
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

/* Does the part have the embedding, for the tokens or for the head? */
static bool has_embedding(const struct stage0_source *w,
			  const struct stage0_file *f)
{
	return f->stage == 0 || f->stage + 1 == w->stages;
}

/* How many blocks a stage of Megatron's has follows from the sizes of its parameter
 * groups. */
static int count_blocks(const struct stage0_source *w,
			const struct stage0_file *f, unsigned *blocks,
			struct errmsg *err)
{
	const struct value_seq *groups =
		value_find_items(torch_optimizer(f), KEY_PARAM_GROUPS);
	const size_t matrices = has_embedding(w, f) ? GPT2_EMBED_PARAMS : 0;
	const size_t vectors = f->stage + 1 == w->stages ? GPT2_LAST_PARAMS : 0;
	size_t n[NAMING_GROUPS] = { 0 }, all;

	for (size_t k = 0; groups && k < groups->n && k < NAMING_GROUPS; k++) {
		const struct value_seq *params =
			value_find_items(groups->v[k], "params");

		n[k] = params ? params->n : 0;
	}
	all = n[NAMING_UNDECAYED] / BLOCK_VECTORS;
	*blocks = (unsigned)all;
	if (groups && groups->n == NAMING_GROUPS &&
	    n[NAMING_DECAYED] == matrices + all * BLOCK_MATRICES &&
	    n[NAMING_UNDECAYED] == vectors + all * BLOCK_VECTORS)
		return 0;
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

/* The place of a name in a module, from 1; 0 if it is not there. */
static size_t find_key(const struct value_dict *module, const char *name)
{
	for (size_t i = 0; module && i < module->n; i++)
		if (value_is_str(module->v[i].key, name))
			return i + 1;
	return 0;
}

/* Find the weights of float32.  Those of the embedding the first stage has. */
static int find_weights(const struct stage0_source *w, struct stage0_file *f,
			const struct value_dict *module, size_t i,
			struct errmsg *err)
{
	const struct naming_tensor *const t = &w->s.tensors[i];
	struct stage0_param *const x = &f->params[i];
	const size_t key = find_key(module, t->name);

	if (value_find(f->optimizer, "fp32_groups") ||
	    (w->saved.params[i].unit == GPT2_UNIT_EMBED && f->stage))
		return 0;
	if (w->s.naming.family == NAMING_MEGATRON)
		return find_in_layer(w, f, t, x, err);
	x->weights = key ? module->v[key - 1].val : NULL;
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

	for (size_t i = 0; !rc && i < w->saved.nparams; i++) {
		const size_t id = find_key(module, w->s.tensors[i].name);

		if (id)
			f->params[i] = (struct stage0_param){
				.id = id,
				.weights = module->v[id - 1].val,
				.in = &f->pt,
			};
	}
	for (size_t i = 0; !rc && i < module->n; i++)
		if (find_state(f, i, "exp_avg"))
			rc = load_known(&w->s, value_cstr(module->v[i].key),
					err);
	return rc;
}

static int find_params(void *ctx, size_t i, struct errmsg *err)
{
	const struct stage0_source *const w = ctx;
	struct stage0_file *const f = w->files[i];
	const char *const path = f->pt.src.name;
	const struct value_dict *module; /* by name; NULL: there is none */
	int rc = module_dict(f->pt.root, path, &f->arena, &module, err);

	for (size_t k = 0; !rc && module && k < module->n; k++)
		if (!value_is_cstr(module->v[k].key))
			rc = errmsg_set(err, -EBADMSG,
					"%s: module: a key is not a name", path);
	if (rc)
		return rc;
	f->params = calloc(w->saved.nparams, sizeof(*f->params));
	if (!f->params)
		return errmsg_nomem(err, NULL);
	return w->s.naming.family == NAMING_HF ? find_names(w, f, module, err)
					       : find_numbers(w, f, module, err);
}

/* Of every `n` runs of `run` elements a slice has one, as in struct gpt2_param. */
struct stage0_tensor {
	struct load_tensor t;
	struct stage0_slice {
		const struct ptfile *in;
		uint64_t at; /* of its first element in the file */
	} * slices;
	unsigned n;
	uint64_t run;
};

/* Find a tensor-parallel rank's slice in the stage that has it: in the first of
 * two. */
static int find_slice(const struct stage0_tensor *x, unsigned rank,
		      const char *state, struct tensor *t, struct errmsg *err)
{
	const struct stage0_source *w = (struct stage0_source *)x->t.s;
	struct stage0_slice *const slice = &x->slices[rank];

	for (unsigned stage = 0; stage < w->stages; stage++) {
		const struct stage0_file *f = w->files[stage * w->tensor + rank];
		const struct stage0_param *p = &f->params[x->t.number];
		const struct value *masters =
			value_find(f->optimizer, "fp32_groups");
		const struct value *v =
			!p->id    ? NULL
			: state   ? find_state(f, p->id - 1, state)
			: masters ? find_item(masters, p->id - 1)
				  : p->weights;

		slice->in = state || masters ? &f->pt : p->in;
		if (v)
			return ptfile_run(slice->in, v, x->t.name, t,
					  &slice->at, err);
	}
	return load_lacks(&w->s, x->t.name, state, err);
}

/* Find all slices of a tensor, which are of the form of *first. */
static int find_slices(const struct stage0_tensor *x, const char *state,
		       struct tensor *first, struct errmsg *err)
{
	struct tensor other;
	int rc = find_slice(x, 0, state, first, err);

	for (unsigned i = 1; i < x->n && !rc; i++) {
		rc = find_slice(x, i, state, &other, err);
		if (!rc &&
		    (first->dtype != other.dtype || first->ndim != other.ndim ||
		     memcmp(first->shape, other.shape,
			    other.ndim * sizeof(*other.shape)) != 0))
			rc = errmsg_set(
				err, -EBADMSG,
				"%s: %s has another shape or type than the other slices",
				x->slices[i].in->src.name, x->t.name);
	}
	return rc;
}

/*
 * The runs of a slice, each of which is followed by the same of the next slice.  Our
 * matrices are cut in rows, in columns, or in three ranges of columns.  Megatron's,
 * which are transposed, are cut in columns where ours are in rows; all else is slices
 * end to end.
 */
static uint64_t runs_of(const struct stage0_source *w, size_t number,
			const struct tensor *slice)
{
	const struct gpt2_param *const p = &w->saved.params[number];
	const uint64_t runs = p->numel / p->run;

	if (w->s.naming.family == NAMING_HF)
		return runs;
	return w->s.tensors[number].transposed && runs == 1 && slice->ndim == 2
		       ? slice->shape[0]
		       : 1;
}

static void load_stage0_end(struct load_tensor *t)
{
	free(((struct stage0_tensor *)t)->slices);
}

/* The tensor is the whole one of slices that are like the first. */
static int load_stage0_begin(struct load_tensor *t, const char *state,
			     struct errmsg *err)
{
	const struct stage0_source *w = (struct stage0_source *)t->s;
	struct stage0_tensor *const x = (struct stage0_tensor *)t;
	struct tensor slice;
	uint64_t runs;
	int rc;

	x->n = w->saved.params[t->number].parts;
	x->slices = calloc(x->n, sizeof(*x->slices));
	if (!x->slices)
		return errmsg_nomem(err, NULL);
	rc = find_slices(x, state, &slice, err);
	if (rc) {
		load_stage0_end(t);
		return rc;
	}
	runs = x->n > 1 ? runs_of(w, t->number, &slice) : 1;
	x->run = runs ? slice.numel / runs : 0;
	slice.shape[slice.ndim == 2 && runs > 1] *= x->n;
	tensor_init(&t->tensor, slice.dtype, slice.shape, slice.ndim, false);
	return 0;
}

static int load_stage0_find(struct load_tensor *t, uint64_t first, size_t n,
			    float *to, struct errmsg *err)
{
	const struct stage0_tensor *const x = (struct stage0_tensor *)t;
	const size_t size = dtype_size(t->tensor.dtype);
	size_t some;
	int rc = 0;

	assert(first + n <= t->tensor.numel);
	for (; n && !rc; n -= some, first += some, to += some) {
		const uint64_t number = first / x->run, within = first % x->run;
		const struct stage0_slice *slice = &x->slices[number % x->n];
		const uint64_t at = number / x->n * x->run + within;
		struct load_run run = { .file = slice->in->src,
					.off = slice->at + at * size,
					.to = to };

		some = n < x->run - within ? n : (size_t)(x->run - within);
		run.len = some * size;
		rc = load_tensor_add(t, &run, err);
	}
	return rc;
}

static void close_file(struct stage0_file *f)
{
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

static void load_stage0_close_source(struct load_source *s)
{
	struct stage0_source *w = (struct stage0_source *)s;

	for (size_t i = 0; i < w->nfiles; i++)
		if (w->files[i])
			close_file(w->files[i]);
	free(w->files);
	gpt2_done(&w->saved);
}

/* What files of one checkpoint have in common. */
struct stage0_ranks {
	int64_t step, all, tensor, stages;
};

static struct stage0_ranks ranks_of(const struct stage0_file *f)
{
	const struct value *const degrees =
		value_find(f->pt.root, "checkpoint_parallel_dimensions");
	struct stage0_ranks r = { .all = 1, .stages = 1 };

	value_get_int(value_find(f->pt.root, "global_steps"), &r.step);
	value_get_int(value_find(f->pt.root, "mp_world_size"), &r.all);
	r.tensor = r.all;
	value_get_int(value_find(degrees, "tp_degree"), &r.tensor);
	value_get_int(value_find(degrees, "pp_degree"), &r.stages);
	return r;
}

/* Find out from the first file how many there are. */
static int take_ranks(struct stage0_source *w, struct errmsg *err)
{
	const struct gpt2 *const m = w->s.whole;
	const struct stage0_ranks r = ranks_of(w->files[0]);
	const char *const first = w->files[0]->pt.src.name;
	struct errmsg why = { 0 };
	int rc;

	if (r.tensor < 1 || r.tensor > m->config.n_head || r.stages < 1 ||
	    r.stages > m->config.n_layer || r.tensor * r.stages != r.all)
		return errmsg_set(
			err, -EINVAL,
			"%s: was saved by %lld ranks that shared the model, %lld of them tensor-parallel, in %lld stages: not by ranks of this model",
			first, (long long)r.all, (long long)r.tensor,
			(long long)r.stages);
	w->tensor = (unsigned)r.tensor;
	w->stages = (unsigned)r.stages;
	w->nfiles = (size_t)r.all;
	rc = gpt2_init_part(
		&w->saved, &m->config,
		&(struct gpt2_split){ .size = w->tensor, .stages = 1 }, &why);
	return rc ? errmsg_set(err, rc, "%s: was saved by other ranks: %s",
			       first, why.text)
		  : 0;
}

/* Open the files that follow the first. */
static int open_other(void *ctx, size_t i, struct errmsg *err)
{
	struct stage0_source *const w = ctx;
	const struct stage0_ranks first = ranks_of(w->files[0]);
	struct stage0_ranks r;
	int rc = open_part(w, i + 1, err);

	if (rc)
		return rc;
	r = ranks_of(w->files[i + 1]);
	if (memcmp(&r, &first, sizeof(r)) != 0)
		rc = errmsg_set(
			err, -EBADMSG,
			"%s: was saved at another step or by other ranks than %s",
			w->files[i + 1]->pt.src.name, w->files[0]->pt.src.name);
	return rc;
}

/* Find out which blocks Megatron's stages have. */
static int find_blocks(struct stage0_source *w, struct errmsg *err)
{
	const unsigned all = w->s.whole->config.n_layer;
	unsigned n = 0, end = 0;
	int rc = 0;

	for (size_t i = 0; i < w->nfiles && !rc; i++) {
		struct stage0_file *const f = w->files[i];

		if (f->rank == 0) {
			rc = count_blocks(w, f, &n, err);
			end += n;
		}
		f->first_block = end - n;
		f->end_block = end;
	}
	if (rc || end == all)
		return rc;
	return errmsg_set(
		err, -EINVAL,
		"%s: checkpoint of another model: it has %u blocks, this model has %u",
		w->s.path, end, all);
}

static int load_stage0_open_source(struct load_source *s, struct errmsg *err)
{
	struct stage0_source *w = (struct stage0_source *)s;
	const struct gpt2_config *const c = &s->whole->config;
	int rc;

	/* More ranks cannot have shared the model. */
	w->files = calloc((size_t)c->n_head * c->n_layer, sizeof(*w->files));
	if (!w->files)
		return errmsg_nomem(err, NULL);
	w->nfiles = w->tensor = w->stages = 1;
	rc = open_part(w, 0, err) ?:
	     take_ranks(w, err) ?:
	     parallel_far(w->nfiles - 1, 1, open_other, w, err);
	if (!rc && s->naming.family != NAMING_HF)
		rc = find_blocks(w, err);
	if (!rc)
		rc = parallel_far(w->nfiles, 1, find_params, w, err);
	if (rc)
		load_stage0_close_source(s);
	return rc;
}

const struct load_ops load_stage0_ops = {
	.size = sizeof(struct stage0_source),
	.tensor_size = sizeof(struct stage0_tensor),
	.open = load_stage0_open_source,
	.begin = load_stage0_begin,
	.find = load_stage0_find,
	.end = load_stage0_end,
	.close = load_stage0_close_source,
};
