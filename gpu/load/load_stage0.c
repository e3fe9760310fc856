/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint without ZeRO as a source: everything is in the model states, of
 * which there is a file of each part of the model, and in files of layers.  libuckpt,
 * which reads shards, does not know them.  Parts in Hugging Face's names are those
 * that this program saved, which it cuts as it does its own; Megatron's are cut in the
 * same places, of which each slice has all rows or all columns.
 */
#include "gpu/load/load_stage0.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/value.h"
#include "ckpt/sys/parallel.h"

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
static int find_slice(const struct stage0_tensor *x, unsigned rank,
		      const char *state, struct tensor *t, struct errmsg *err)
{
	const struct stage0_source *w = (struct stage0_source *)x->t.s;
	struct stage0_slice *const slice = &x->slices[rank];
	const char *const name = x->t.name;

	for (unsigned stage = 0; stage < w->stages; stage++) {
		const struct value *v =
			stage0_file_find(w->files[stage * w->tensor + rank],
					 x->t.number, state, &slice->in);

		if (v)
			return ptfile_run(slice->in, v, name, t, &slice->at,
					  err);
	}
	return load_lacks(&w->s, name, state, err);
}

static bool same_form(const struct tensor *a, const struct tensor *b)
{
	return a->dtype == b->dtype && a->ndim == b->ndim &&
	       memcmp(a->shape, b->shape, a->ndim * sizeof(*a->shape)) == 0;
}

/* Find all slices of a tensor, which are of the form of *first. */
static int find_slices(const struct stage0_tensor *x, const char *state,
		       struct tensor *first, struct errmsg *err)
{
	struct tensor other;
	int rc = find_slice(x, 0, state, first, err);

	for (unsigned i = 1; i < x->n && !rc; i++) {
		rc = find_slice(x, i, state, &other, err);
		if (!rc && !same_form(first, &other))
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
static uint64_t runs_of(const struct stage0_source *w,
			const struct gpt2_param *p, const struct tensor *slice)
{
	const struct naming_tensor *const t = &w->s.tensors[p - w->saved.params];
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

static void load_stage0_end(struct load_tensor *t)
{
	free(((struct stage0_tensor *)t)->slices);
}

static int load_stage0_begin(struct load_tensor *t, const char *state,
			     struct errmsg *err)
{
	const struct stage0_source *w = (struct stage0_source *)t->s;
	const struct gpt2_param *p = &w->saved.params[t->number];
	struct stage0_tensor *const x = (struct stage0_tensor *)t;
	struct tensor slice;
	int rc;

	x->n = p->parts;
	x->slices = calloc(x->n, sizeof(*x->slices));
	if (!x->slices)
		return errmsg_nomem(err, NULL);
	rc = find_slices(x, state, &slice, err);
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

static void load_stage0_close_source(struct load_source *s)
{
	struct stage0_source *w = (struct stage0_source *)s;

	for (size_t i = 0; i < w->nfiles; i++)
		stage0_file_close(w->files[i]);
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
	int rc = stage0_file_open(w, i + 1, err);

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
			rc = stage0_file_blocks(w, f, &n, err);
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

static int find_params(void *ctx, size_t i, struct errmsg *err)
{
	const struct stage0_source *const w = ctx;

	return stage0_file_params(w, w->files[i], err);
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
	rc = stage0_file_open(w, 0, err) ?:
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
