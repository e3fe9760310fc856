/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint without ZeRO as a source: everything is in the model states, of
 * which there is a file of each part of the model, and in files of layers.  libuckpt,
 * which reads shards, does not know them.  Parts in Hugging Face's names are those
 * that this program saved, which it cuts as it does its own; Megatron's are cut in the
 * same places, of which each slice has all rows or all columns.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/value.h"
#include "ckpt/sys/parallel.h"
#include "gpu/load/load_impl.h"
#include "gpu/load/load_stage0_file.h"

struct stage0_source {
	struct load_source s;
	unsigned tensor, stages;    /* ranks that shared the model */
	struct stage0_file **files; /* [stage * tensor + rank] */
	/* The parameters as a tensor-parallel rank has them, of all stages, and as
	 * files do. */
	struct gpt2 saved;
	struct naming_tensor *tensors;
	/* Of Megatron's: stage i has the blocks from begin[i] on, before begin[i + 1]. */
	unsigned *begin;
};

struct stage0_slice {
	const struct ptfile *in;
	uint64_t at; /* of its first element in the file */
};

/* Of every `n` runs of `run` elements a slice has one, as in struct gpt2_param. */
struct stage0_tensor {
	struct load_tensor t;
	struct stage0_slice *slices;
	unsigned n;
	uint64_t run;
};

/* Find a tensor-parallel rank's slice in the stage that has it: in the first of
 * two. */
static int find_slice(const struct stage0_source *w, unsigned rank,
		      const char *param, const char *state,
		      struct stage0_slice *slice, struct tensor *t,
		      struct errmsg *err)
{
	for (unsigned stage = 0; stage < w->stages; stage++) {
		const struct value *v =
			stage0_file_find(w->files[stage * w->tensor + rank],
					 param, state, &slice->in);

		if (v)
			return ptfile_run(slice->in, v, param, t, &slice->at,
					  err);
	}
	return state ? errmsg_set(err, -ENOENT, "%s: has no %s of %s",
				  w->s.path, state, param)
		     : load_lacks(&w->s, param, err);
}

static bool same_form(const struct tensor *a, const struct tensor *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim &&
	       memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) == 0;
}

/* Find all slices of a tensor, which are of the form of *first. */
static int find_slices(const struct stage0_source *w, struct stage0_tensor *x,
		       const char *param, const char *state,
		       struct tensor *first, struct errmsg *err)
{
	struct tensor other;
	int rc = find_slice(w, 0, param, state, &x->slices[0], first, err);

	for (unsigned i = 1; i < x->n && !rc; i++) {
		rc = find_slice(w, i, param, state, &x->slices[i], &other, err);
		if (!rc && !same_form(first, &other))
			rc = errmsg_set(
				err, -EBADMSG,
				"%s: %s has another shape or type than the other slices",
				x->slices[i].in->src.name, param);
	}
	return rc;
}

/*
 * The runs of a slice, each of which is followed by the same of the next slice.  Our
 * matrices are cut in rows, in columns, or in three ranges of columns.  Megatron's,
 * which are transposed, are cut in columns where ours are in rows; all else is slices
 * end to end.
 */
static uint64_t runs_of(const struct stage0_source *w,
			const struct gpt2_param *p, const struct tensor *slice)
{
	const struct naming_tensor *const t = &w->tensors[p - w->saved.params];
	const uint64_t runs = p->numel / p->run;

	if (w->s.naming.family == NAMING_HF)
		return runs;
	return t->transposed && runs == 1 && slice->ndim == 2 ? slice->shape[0]
							      : 1;
}

/* The whole tensor of slices that are like `slice`, cut as `p` is. */
static void join(const struct stage0_source *w, struct stage0_tensor *x,
		 const struct gpt2_param *p, const struct tensor *slice)
{
	const uint64_t runs = x->n > 1 ? runs_of(w, p, slice) : 1;
	uint64_t shape[TENSOR_DIMS_MAX];

	memcpy(shape, slice->shape, sizeof(shape));
	shape[slice->ndim == 2 && runs > 1] *= x->n;
	tensor_init(&x->t.tensor, slice->dtype, shape, slice->ndim, false);
	x->run = runs ? slice->numel / runs : 0;
}

static const struct gpt2_param *find_param(const struct stage0_source *w,
					   const char *name)
{
	for (size_t i = 0; i < w->saved.nparams; i++)
		if (strcmp(w->tensors[i].name, name) == 0)
			return &w->saved.params[i];
	return NULL;
}

static void load_stage0_end(struct load_tensor *t)
{
	free(((struct stage0_tensor *)t)->slices);
}

static int load_stage0_begin(struct load_tensor *t, const char *param,
			     const char *state, struct errmsg *err)
{
	const struct stage0_source *w = (struct stage0_source *)t->s;
	struct stage0_tensor *const x = (struct stage0_tensor *)t;
	const struct gpt2_param *p = find_param(w, param);
	struct tensor slice;
	int rc;

	if (!p)
		return load_lacks(&w->s, param, err);
	x->n = p->parts;
	x->slices = calloc(x->n, sizeof(*x->slices));
	if (!x->slices)
		return errmsg_nomem(err, NULL);
	rc = find_slices(w, x, param, state, &slice, err);
	if (rc)
		load_stage0_end(t);
	else
		join(w, x, p, &slice);
	return rc;
}

static int load_stage0_find(struct load_tensor *t, uint64_t first, size_t n,
			    float *to, struct load_runs *runs,
			    struct errmsg *err)
{
	const struct stage0_tensor *const x = (struct stage0_tensor *)t;
	const size_t size = dtype_size(t->tensor.dtype);
	size_t some;

	assert(first + n <= t->tensor.numel);
	for (; n; n -= some, first += some, to += some) {
		const uint64_t number = first / x->run, within = first % x->run;
		const struct stage0_slice *slice = &x->slices[number % x->n];
		const uint64_t at = number / x->n * x->run + within;

		some = n < x->run - within ? n : (size_t)(x->run - within);
		if (!load_runs_add(runs,
				   &(struct load_run){
					   .file = slice->in->src,
					   .off = slice->at + at * size,
					   .len = some * size,
					   .to = to,
				   },
				   size))
			return errmsg_nomem(err, NULL);
	}
	return 0;
}

/* Names that share another parameter's storage are skipped: the optimizer has
 * no state for them. */
static int check_names(struct load_source *s, const struct stage0_file *f,
		       struct errmsg *err)
{
	const struct ptfile *in;
	int rc = 0;

	for (size_t i = 0; i < f->n && !rc; i++)
		if (stage0_file_find(f, f->params[i].name, "exp_avg", &in))
			rc = load_known(s, f->params[i].name, err);
	return rc;
}

static int load_stage0_check(struct load_source *s, struct errmsg *err)
{
	const struct stage0_source *w = (struct stage0_source *)s;
	int rc = 0;

	for (unsigned i = 0; i < w->tensor * w->stages && !rc; i++)
		rc = check_names(s, w->files[i], err);
	return rc;
}

static void load_stage0_close_source(struct load_source *s)
{
	struct stage0_source *w = (struct stage0_source *)s;

	for (unsigned i = 0; i < w->tensor * w->stages; i++)
		stage0_file_close(w->files[i]);
	free(w->files);
	free(w->tensors);
	free(w->begin);
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
static int take_ranks(struct stage0_source *w, const struct stage0_file *first,
		      struct errmsg *err)
{
	const struct gpt2 *const m = w->s.whole;
	const struct stage0_ranks r = ranks_of(first);
	struct errmsg why = { 0 };
	int rc;

	if (r.tensor < 1 || r.tensor > m->config.n_head || r.stages < 1 ||
	    r.stages > m->config.n_layer || r.tensor * r.stages != r.all)
		return errmsg_set(
			err, -EINVAL,
			"%s: was saved by %lld ranks that shared the model, %lld of them tensor-parallel, in %lld stages: not by ranks of this model",
			first->path, (long long)r.all, (long long)r.tensor,
			(long long)r.stages);
	w->tensor = (unsigned)r.tensor;
	w->stages = (unsigned)r.stages;
	rc = gpt2_init_part(
		&w->saved, &m->config,
		&(struct gpt2_split){ .size = w->tensor, .stages = 1 }, &why);
	return rc ? errmsg_set(err, rc, "%s: was saved by other ranks: %s",
			       first->path, why.text)
		  : 0;
}

/* Open the files that follow the first. */
static int open_other(void *ctx, size_t i, struct errmsg *err)
{
	const struct stage0_source *const w = ctx;
	const struct stage0_ranks first = ranks_of(w->files[0]);
	struct stage0_ranks r;
	int rc = stage0_file_open(w->s.u, &w->files[i + 1], w->s.path,
				  (unsigned)i + 1, err);

	if (rc)
		return rc;
	r = ranks_of(w->files[i + 1]);
	if (memcmp(&r, &first, sizeof(r)) != 0)
		rc = errmsg_set(
			err, -EBADMSG,
			"%s: was saved at another step or by other ranks than %s",
			w->files[i + 1]->path, w->files[0]->path);
	return rc;
}

/* Name the parameters as the files do. */
static int name_tensors(struct stage0_source *w, struct errmsg *err)
{
	const struct gpt2 *const m = &w->saved;

	w->tensors = calloc(m->nparams, sizeof(*w->tensors));
	if (!w->tensors)
		return errmsg_nomem(err, NULL);
	for (size_t i = 0; i < m->nparams; i++)
		naming_tensor(&w->tensors[i], &w->s.naming, m, &m->params[i]);
	return 0;
}

static int find_blocks(struct stage0_source *w, struct errmsg *err)
{
	unsigned blocks;
	int rc = 0;

	w->begin = calloc(w->stages + 1, sizeof(*w->begin));
	if (!w->begin)
		return errmsg_nomem(err, NULL);
	for (unsigned i = 0; i < w->stages && !rc; i++) {
		rc = stage0_file_blocks(w->files[i * w->tensor], i == 0,
					i + 1 == w->stages, &blocks, err);
		w->begin[i + 1] = w->begin[i] + (rc ? 0 : blocks);
	}
	if (rc || w->begin[w->stages] == w->s.whole->config.n_layer)
		return rc;
	return errmsg_set(
		err, -EINVAL,
		"%s: checkpoint of another model: it has %u blocks, this model has %u",
		w->s.path, w->begin[w->stages], w->s.whole->config.n_layer);
}

static int name_file(void *ctx, size_t i, struct errmsg *err)
{
	const struct stage0_source *const w = ctx;
	const unsigned stage = (unsigned)i / w->tensor;

	if (!w->begin)
		return stage0_file_read_names(w->files[i], err);
	return stage0_file_number(w->files[i],
				  &(struct stage0_part){
					  .dir = w->s.path,
					  .family = w->s.naming.family,
					  .model = &w->saved,
					  .tensors = w->tensors,
					  .rank = (unsigned)i % w->tensor,
					  .first = stage == 0,
					  .last = stage + 1 == w->stages,
					  .first_block = w->begin[stage],
					  .end_block = w->begin[stage + 1],
				  },
				  err);
}

static int load_stage0_open_source(struct load_source *s, struct errmsg *err)
{
	struct stage0_source *w = (struct stage0_source *)s;
	struct stage0_file *first;
	int rc = stage0_file_open(s->u, &first, s->path, 0, err);

	if (rc)
		return rc;
	rc = take_ranks(w, first, err);
	if (!rc) {
		w->files = calloc((size_t)w->tensor * w->stages,
				  sizeof(struct stage0_file *));
		rc = w->files ? 0 : errmsg_nomem(err, NULL);
	}
	if (rc) {
		gpt2_done(&w->saved);
		stage0_file_close(first);
		return rc;
	}
	w->files[0] = first;
	rc = parallel_far((size_t)w->tensor * w->stages - 1, 1, open_other, w,
			  err);
	if (!rc)
		rc = name_tensors(w, err);
	if (!rc && s->naming.family != NAMING_HF)
		rc = find_blocks(w, err);
	if (!rc)
		rc = parallel_far((size_t)w->tensor * w->stages, 1, name_file,
				  w, err);
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
	.check = load_stage0_check,
	.close = load_stage0_close_source,
};
