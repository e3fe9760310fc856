/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint without ZeRO as a source: everything is in the model states, of
 * which there is a file of each part of the model.  libuckpt, which reads shards, does
 * not know them; of parts there are none but those that this program saved, which it
 * cuts as it does its own.
 * Optimizer states are numbered by the parameter's position in the module; a
 * 16-bit model has its masters in fp32_groups.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/sys/parallel.h"
#include "gpu/load/load_impl.h"
#include "gpu/load/load_tensor.h"

/* The model states of one part of the model. */
struct stage0_file {
	char *path;
	struct ptfile pt;
	const struct value *optimizer;
	const struct value_dict *module;
};

struct stage0_source {
	struct load_source s;
	unsigned tensor, stages;    /* ranks that shared the model */
	struct stage0_file **files; /* [stage * tensor + rank] */
	/* The parameters as a tensor-parallel rank has them, of all stages. */
	struct gpt2 saved;
};

struct stage0_slice {
	const struct stage0_file *file;
	uint64_t at; /* of its first element in the file */
};

/* Of every `n` runs of `run` elements a slice has one, as in struct gpt2_param. */
struct stage0_tensor {
	struct load_tensor t;
	struct stage0_slice *slices;
	unsigned n;
	uint64_t run;
};

static struct stage0_source *load_stage0_of(struct load_source *s)
{
	return (struct stage0_source *)s;
}

static struct stage0_tensor *stage0_tensor_of(struct load_tensor *t)
{
	return (struct stage0_tensor *)t;
}

/* --- one part of the model --------------------------------------------------- */

/* The position of a parameter among the module's parameters. */
static int64_t number_of(const struct stage0_file *f, const char *param)
{
	for (size_t i = 0; i < f->module->n; i++)
		if (value_is_str(f->module->v[i].key, param))
			return (int64_t)i;
	return -1;
}

static const struct value *find_index(const struct value *dict, int64_t key)
{
	const struct value_dict *d = value_pairs(dict);

	for (size_t i = 0; d && i < d->n; i++)
		if (d->v[i].key->kind == VALUE_INT && d->v[i].key->i == key)
			return d->v[i].val;
	return NULL;
}

/* The i-th tensor of the first parameter group. */
static const struct value *find_master(const struct value *groups, int64_t i)
{
	const struct value_seq *of_groups = value_items(groups);
	const struct value_seq *group =
		of_groups && of_groups->n ? value_items(of_groups->v[0]) : NULL;

	return group && (uint64_t)i < group->n ? group->v[i] : NULL;
}

/* A parameter's masters (`state` is NULL) or the named state; NULL if the part has
 * none. */
static const struct value *find_stage0(const struct stage0_file *f,
				       const char *param, const char *state)
{
	const struct value *inner =
		value_find(f->optimizer, KEY_OPTIMIZER_STATE_DICT);
	const struct value *masters = value_find(f->optimizer, "fp32_groups");
	const int64_t i = number_of(f, param);

	if (i < 0)
		return NULL;
	if (!inner)
		inner = f->optimizer;
	if (state)
		return value_find(find_index(value_find(inner, "state"), i),
				  state);
	return masters ? find_master(masters, i) : f->module->v[i].val;
}

/* --- tensors ----------------------------------------------------------------- */

/* Find a tensor-parallel rank's slice in the stage that has it: in the first of
 * two. */
static int find_slice(const struct stage0_source *w, unsigned rank,
		      const char *param, const char *state,
		      struct stage0_slice *slice, struct tensor *t,
		      struct errmsg *err)
{
	for (unsigned stage = 0; stage < w->stages; stage++) {
		const struct stage0_file *f = w->files[stage * w->tensor + rank];
		const struct value *v = find_stage0(f, param, state);

		if (!v)
			continue;
		slice->file = f;
		return load_tensor_at(&f->pt, v, param, t, &slice->at, err);
	}
	return errmsg_set(err, -ENOENT, "%s: has no %s%s%s", w->s.path,
			  state ? state : "parameter", state ? " of " : " ",
			  param);
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
				x->slices[i].file->path, param);
	}
	return rc;
}

/* The whole tensor of slices that are like `slice`, cut as `p` is. */
static void join(struct stage0_tensor *x, const struct gpt2_param *p,
		 const struct tensor *slice)
{
	const uint64_t runs = p->numel / p->run;
	uint64_t shape[TENSOR_DIMS_MAX];

	memcpy(shape, slice->shape, sizeof(shape));
	shape[slice->ndim == 2 && runs > 1] *= x->n;
	tensor_init(&x->t.tensor, slice->dtype, shape, slice->ndim, false);
	x->run = slice->numel / runs;
}

static const struct gpt2_param *find_param(const struct gpt2 *m,
					   const char *name)
{
	for (size_t i = 0; i < m->nparams; i++)
		if (strcmp(m->params[i].name, name) == 0)
			return &m->params[i];
	return NULL;
}

static void load_stage0_end(struct load_tensor *t)
{
	free(stage0_tensor_of(t)->slices);
}

static int load_stage0_begin(struct load_tensor *t, const char *param,
			     const char *state, struct errmsg *err)
{
	const struct stage0_source *w = load_stage0_of(t->s);
	struct stage0_tensor *const x = stage0_tensor_of(t);
	const struct gpt2_param *p = find_param(&w->saved, param);
	struct tensor slice;
	int rc;

	if (!p)
		return errmsg_set(err, -ENOENT, "%s: has no parameter %s",
				  w->s.path, param);
	x->n = p->parts;
	x->slices = calloc(x->n, sizeof(*x->slices));
	if (!x->slices)
		return errmsg_nomem(err, NULL);
	rc = find_slices(w, x, param, state, &slice, err);
	if (rc)
		load_stage0_end(t);
	else
		join(x, p, &slice);
	return rc;
}

/* Append a run of a file, or make the last one longer. */
static int add_run(struct load_runs *runs, const struct load_run *run,
		   size_t size)
{
	struct load_run *last = runs->n ? &runs->v[runs->n - 1] : NULL;

	if (last && !last->zero && last->file.name == run->file.name &&
	    last->off + last->len == run->off &&
	    last->to + last->len / size == run->to) {
		last->len += run->len;
		return 0;
	}
	last = load_runs_add(runs);
	if (!last)
		return -ENOMEM;
	*last = *run;
	return 0;
}

static int load_stage0_find(struct load_tensor *t, uint64_t first, size_t n,
			    float *to, struct load_runs *runs,
			    struct errmsg *err)
{
	const struct stage0_tensor *const x = stage0_tensor_of(t);
	const size_t size = dtype_size(t->tensor.dtype);
	size_t some;

	assert(first + n <= t->tensor.numel);
	for (; n; n -= some, first += some, to += some) {
		const uint64_t number = first / x->run, within = first % x->run;
		const struct stage0_slice *slice = &x->slices[number % x->n];
		const uint64_t at = number / x->n * x->run + within;

		some = n < x->run - within ? n : (size_t)(x->run - within);
		if (add_run(runs,
			    &(struct load_run){
				    .file = slice->file->pt.src,
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
	int rc = 0;

	for (size_t i = 0; i < f->module->n && !rc; i++) {
		const char *name = f->module->v[i].key->str.p;

		if (find_stage0(f, name, "exp_avg"))
			rc = load_known(s, name, err);
	}
	return rc;
}

static int load_stage0_check(struct load_source *s, struct errmsg *err)
{
	const struct stage0_source *w = load_stage0_of(s);
	int rc = 0;

	for (unsigned i = 0; i < w->tensor * w->stages && !rc; i++)
		rc = check_names(s, w->files[i], err);
	return rc;
}

/* --- all parts ----------------------------------------------------------------- */

static void close_file(struct stage0_file *f)
{
	if (!f)
		return;
	ptfile_close(&f->pt);
	free(f->path);
	free(f);
}

static void load_stage0_close_source(struct load_source *s)
{
	struct stage0_source *w = load_stage0_of(s);

	for (unsigned i = 0; i < w->tensor * w->stages; i++)
		close_file(w->files[i]);
	free(w->files);
	gpt2_done(&w->saved);
}

static bool has_names(const struct value_dict *module)
{
	for (size_t i = 0; i < module->n; i++)
		if (!value_is_cstr(module->v[i].key))
			return false;
	return true;
}

/* Take the file's content apart. */
static int take_content(struct stage0_file *f, struct errmsg *err)
{
	f->optimizer = value_find(f->pt.root, "optimizer");
	f->module = value_pairs(value_find(f->pt.root, "module"));
	if (value_pairs(f->optimizer) && f->module && has_names(f->module))
		return 0;
	return errmsg_set(err, -EBADMSG, "%s: no optimizer or no module",
			  f->path);
}

static int open_file(const struct stage0_source *w, unsigned number,
		     struct stage0_file **out, struct errmsg *err)
{
	struct stage0_file *f = calloc(1, sizeof(*f));
	int rc;

	if (!f || asprintf(&f->path, "%s/mp_rank_%02u_model_states.pt",
			   w->s.path, number) < 0) {
		free(f);
		return errmsg_nomem(err, NULL);
	}
	rc = ptfile_open(&f->pt, f->path, err);
	if (rc) {
		free(f->path);
		free(f);
		return rc;
	}
	rc = take_content(f, err);
	if (rc)
		close_file(f);
	else
		*out = f;
	return rc;
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
	int rc = open_file(w, (unsigned)i + 1, &w->files[i + 1], err);

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

static int load_stage0_open_source(struct load_source *s, struct errmsg *err)
{
	struct stage0_source *w = load_stage0_of(s);
	struct stage0_file *first;
	int rc = open_file(w, 0, &first, err);

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
		close_file(first);
		return rc;
	}
	w->files[0] = first;
	rc = parallel_far((size_t)w->tensor * w->stages - 1, 1, open_other, w,
			  err);
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
