/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors are partitioned as trainers do it, and written through mkckpt.c.
 * Elements are dealt out one by one, and the universal files that must result
 * are taken from the whole tensors, so that nothing is shared with the code
 * that locates the elements (geometry.c, partition.c).
 */
#include "tests/make/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const world_file_names[WORLD_FILES] = { "fp32", "exp_avg", "exp_avg_sq", "step" };
#define STEP_FILE MKCKPT_STATES

/* Data for the files of one model-parallel rank. */
struct rank {
	const struct world *w;
	unsigned tp, pp;
	struct mkckpt_param params[WORLD_TENSORS_MAX];
	const struct world_tensor *tensors[WORLD_TENSORS_MAX];
	size_t n;
	struct mkckpt_extra extras[WORLD_EXTRAS_MAX];
	size_t nextras;
};

static void *must(void *p)
{
	if (!p) {
		perror("out of memory");
		abort();
	}
	return p;
}

static uint64_t numel_of(const uint64_t *shape, unsigned ndim)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < ndim; i++)
		n *= shape[i];
	return n;
}

/* Small numbers, for which some means are exact and others are not. */
static float whole_element(const struct world *w, const struct world_tensor *t, unsigned state,
			   uint64_t i)
{
	uint64_t x = w->seed + (uint64_t)(t - w->v) * 1000003 + state;

	x = x * UINT64_C(0x9e3779b97f4a7c15) + i;
	x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
	return (float)(int64_t)(x >> 36) / 1024.0f - 7.3f;
}

/* Return element i of the slice of rank `tp` of the tensor's own stage. */
static float slice_element(const struct world *w, const struct world_tensor *t, unsigned tp,
			   unsigned state, uint64_t i)
{
	const float f = whole_element(w, t, state, t->place[tp][i]);

	return t->rule == MERGE_AVERAGE ? f * (1.0f + (float)tp / 3) : f;
}

static uint32_t bits_of(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

/* A later stage's copy is never read, so any value will do. */
static uint32_t rank_element(const struct mkckpt *c, size_t param, unsigned state, uint64_t i)
{
	const struct rank *r = c->ctx;
	const struct world_tensor *t = r->tensors[param];

	return bits_of(t->stage == r->pp ? slice_element(r->w, t, r->tp, state, i) : -1.0f);
}

/* Return the expected elements of a universal file. */
static uint32_t param_extents_element(const struct world *w, const struct world_tensor *t,
				      unsigned state, uint64_t i)
{
	volatile float sum = 0;

	if (t->rule != MERGE_AVERAGE)
		return bits_of(whole_element(w, t, state, i));
	for (unsigned k = 0; k < w->tp; k++)
		sum = sum + slice_element(w, t, k, state, i);
	return bits_of(w->tp == 1 ? sum : sum / (float)w->tp);
}

static bool is_cut(const struct world_tensor *t)
{
	return t->rule != MERGE_REPLICATED && t->rule != MERGE_AVERAGE;
}

/* Return whether rank `k` of `tp` holds position `y` of the partitioned dimension. */
static bool holds(const struct world_tensor *t, unsigned tp, unsigned k, uint64_t y)
{
	for (size_t j = 0; j < t->parts; j++) {
		uint64_t len = 0, at = 0;

		for (unsigned i = 0; i < tp; i++) {
			at += i < k ? t->widths[j][i] : 0;
			len += t->widths[j][i];
		}
		if (t->copied[j])
			len = t->widths[j][0];
		if (y < len)
			return t->copied[j] || (y >= at && y - at < t->widths[j][k]);
		y -= len;
	}
	abort(); /* y lies beyond the parts */
}

/* Each slice keeps the order of the whole tensor. */
static void deal(struct world_tensor *t, unsigned tp, unsigned k)
{
	const uint64_t inner = numel_of(t->shape + t->dim, t->ndim - t->dim);
	const uint64_t step = t->ndim ? numel_of(t->shape + t->dim + 1, t->ndim - t->dim - 1) : 1;
	uint64_t used = 0;

	t->place[k] = must(calloc(t->numel + 1, sizeof(uint64_t)));
	for (uint64_t i = 0; i < t->numel; i++)
		if (!is_cut(t) || holds(t, tp, k, i % inner / step))
			t->place[k][used++] = i;
}

void world_cut(struct world_tensor *t, unsigned tp)
{
	t->numel = numel_of(t->shape, t->ndim);
	for (unsigned k = 0; k < tp; k++) {
		deal(t, tp, k);
		memcpy(t->shapes[k], t->shape, sizeof(t->shape));
		if (!is_cut(t) || t->ndim == 0)
			continue;
		t->shapes[k][t->dim] = 0;
		for (size_t j = 0; j < t->parts; j++)
			t->shapes[k][t->dim] += t->widths[j][k];
	}
}

void world_done(struct world *w)
{
	for (size_t i = 0; i < w->n; i++)
		for (unsigned k = 0; k < w->tp; k++)
			free(w->v[i].place[k]);
}

static void set_info(struct mkpt *m, struct value *root, enum mkckpt_file kind, unsigned rank,
		     void *ctx)
{
	const struct rank *r = ctx;

	(void)rank;
	if (kind == MKCKPT_MODEL)
		mkpt_set(m, root, "universal_checkpoint_info", world_info(m, r->w));
}

static void take_tensors(struct rank *r)
{
	const struct world *w = r->w;

	for (size_t i = 0; i < w->n; i++) {
		const struct world_tensor *t = &w->v[i];
		struct mkckpt_param *p = &r->params[r->n];

		if (t->stage != r->pp && !(t->tied && r->pp == w->pp - 1))
			continue;
		*p = (struct mkckpt_param){ .name = t->name, .ndim = t->ndim, .group = t->group };
		memcpy(p->shape, t->shapes[r->tp], sizeof(p->shape));
		r->tensors[r->n++] = t;
	}
}

/* Copy the extras of this rank, whose elements differ from other ranks'. */
static void take_extras(struct rank *r)
{
	const struct world *w = r->w;

	for (size_t i = 0; i < w->nextras; i++) {
		const struct world_extra *e = &w->extras[i];

		if (r->pp < e->stage || r->pp > e->last)
			continue;
		r->extras[r->nextras] = e->as;
		r->extras[r->nextras].name = e->name;
		r->extras[r->nextras++].first += r->pp * w->tp + r->tp;
	}
}

static void write_rank(const struct world *w, unsigned tp, unsigned pp, const char *dir)
{
	struct rank r = { .w = w, .tp = tp, .pp = pp };
	struct mkckpt c = w->as;

	take_tensors(&r);
	take_extras(&r);
	c.mp = pp * w->tp + tp;
	c.params = r.params;
	c.nparams = r.n;
	c.extras = r.extras;
	c.nextras = r.nextras;
	c.element = rank_element;
	c.edit = set_info;
	c.ctx = &r;
	mkckpt_write(&c, dir);
}

void world_write(const struct world *w, const char *dir)
{
	for (unsigned pp = 0; pp < w->pp; pp++)
		for (unsigned tp = 0; tp < w->tp; tp++)
			write_rank(w, tp, pp, dir);
}

/* ZeRO-3 without tensor parallelism uses no rules. */
static bool is_flat(const struct world *w)
{
	return w->as.stage == 3 && w->tp == 1;
}

/* In stages 1 and 2, only the module has parameters without elements. */
static bool only_module_has(const struct world *w, const struct world_tensor *t)
{
	return w->as.stage < 3 && t->numel == 0;
}

size_t world_nfiles(const struct world *w, const struct world_tensor *t)
{
	if (only_module_has(w, t))
		return 1;
	/* The converter misses a listed parameter that only a later stage has. */
	if (t->listed && t->stage > 0)
		return 0;
	return w->as.stage < 3 || w->any_stage ? WORLD_FILES : MKCKPT_STATES;
}

/* Add the entries besides the tensor, as ds_to_universal.py merge_tp_slices does. */
static void add_rule(struct mkpt *m, struct value *dict, const struct world_tensor *t,
		     enum merge_rule rule)
{
	struct value *shape;

	switch (rule) {
	case MERGE_CAT:
		mkpt_set(m, dict, "cat_dim", mkpt_int(m, t->dim));
		break;
	case MERGE_TWO_SUB_PARAMS:
		mkpt_set(m, dict, "cat_dim", mkpt_int(m, 0));
		mkpt_set(m, dict, "param_n_sub_params", mkpt_int(m, 2));
		break;
	case MERGE_SUB_PARAMS:
		shape = world_sub_param_shape(m, t, true);
		mkpt_set(m, dict, "sub_param_shape",
			 mkpt_object(m, "deepspeed.checkpoint.universal_checkpoint",
				     "SubparamShape", shape));
		break;
	case MERGE_REPLICATED:
	case MERGE_AVERAGE:
	case MERGE_AFFINE:
	case MERGE_THREE_SUB_PARAMS:
	case MERGE_EXPERTS: /* neither rule occurs in these worlds */
		break;
	}
}

/* The converter strips a vocabulary's padding with a view: the storage still
 * has it. */
static struct value *whole_tensor(struct mkpt *m, const struct world *w,
				  const struct world_tensor *t, unsigned state, bool bare,
				  bool vocab)
{
	uint32_t *bits = must(calloc(t->numel + 1, sizeof(*bits)));
	struct tensor all;

	for (uint64_t i = 0; i < t->numel; i++)
		bits[i] = param_extents_element(w, t, state, i);
	/* The master weights require a gradient, their moments do not. */
	tensor_init(&all, DTYPE_F32, bare ? &t->numel : t->shape, bare ? 1 : t->ndim, state == 0);
	all.storage_key = mkpt_add_storage(m, bits, 4 * t->numel);
	if (vocab && all.shape[0] > WORLD_VOCAB_ROWS)
		all.shape[0] = WORLD_VOCAB_ROWS;
	free(bits);
	return must(tensor_to_value(&m->arena, &all));
}

static struct value *state_root(struct mkpt *m, const struct world *w, const struct world_tensor *t,
				unsigned state)
{
	const bool vocab = t->vocab && !is_flat(w) && !only_module_has(w, t);
	struct value *dict = mkpt_dict(m);

	if (is_flat(w) && !w->any_stage)
		return whole_tensor(m, w, t, state, true, false);
	if (is_flat(w))
		mkpt_set(m, dict, "cat_dim", mkpt_int(m, 0));
	else if (!only_module_has(w, t))
		add_rule(m, dict, t, t->rule);
	if (vocab)
		mkpt_set(m, dict, "vocab_tensor", mkpt_bool(m, true));
	mkpt_set(m, dict, "param",
		 only_module_has(w, t) ? mkpt_tensor(m, DTYPE_F32, t->shape, t->ndim, "")
				       : whole_tensor(m, w, t, state, false, vocab));
	return dict;
}

void world_file(const struct world *w, const struct world_tensor *t, size_t i, struct bytebuf *out)
{
	const float step = 4; /* mkckpt.h */
	struct mkpt m = { 0 };

	mkpt_emit(&m,
		  i == STEP_FILE ? mkpt_tensor(&m, DTYPE_F32, NULL, 0, &step)
				 : state_root(&m, w, t, (unsigned)i),
		  world_file_names[i], out);
	mkpt_done(&m);
}

/* It comes from tensor-parallel rank 0 of the first stage that has it. */
void world_extra_file(const struct world *w, const struct world_extra *e, struct bytebuf *out)
{
	const uint64_t n = numel_of(e->as.shape, e->as.ndim);
	/* A float32 tensor remains a view with its storage; others are cast. */
	const uint64_t spare = e->as.dtype == DTYPE_F32 ? e->as.spare : 0;
	const uint64_t first = e->as.first + (uint64_t)e->stage * w->tp + (e->as.spare - spare);
	float *v = must(calloc(n + 2 * spare + 1, sizeof(*v)));
	struct mkpt m = { 0 };
	struct value *dict = mkpt_dict(&m);
	struct tensor t;

	for (uint64_t k = 0; k < n + 2 * spare; k++)
		v[k] = (float)((first + k) % 100);
	tensor_init(&t, DTYPE_F32, e->as.shape, e->as.ndim, false);
	t.storage_key = mkpt_add_storage(&m, v, 4 * (n + 2 * spare));
	t.storage_offset = spare;
	t.storage_numel = n + 2 * spare;
	mkpt_set(&m, dict, "param", must(tensor_to_value(&m.arena, &t)));
	mkpt_emit(&m, dict, "fp32", out);
	mkpt_done(&m);
	free(v);
}
