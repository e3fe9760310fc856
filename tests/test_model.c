/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of several model-parallel ranks: tensors are cut up as trainers
 * do, element by element, and must come back whole from the planned tree,
 * wherever reads begin and end.
 */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/bytes.h"
#include "ckpt/ckdir.h"
#include "ckpt/errmsg.h"
#include "ckpt/merge.h"
#include "ckpt/model.h"
#include "ckpt/plan.h"
#include "ckpt/ptfile.h"
#include "ckpt/vfile.h"
#include "tests/mkckpt.h"
#include "tests/walk.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))
#define TP_MAX 4
#define PP_MAX 3
#define PARAMS_MAX 14
#define PARTS_MAX 3
#define DIMS_MAX 3

static uint64_t seed;

/* splitmix64; a number below `n`. */
static uint64_t below(uint64_t n)
{
	uint64_t x = seed += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (x ^ x >> 31) % n;
}

/* --- a model and how it is cut ---------------------------------------------- */

/*
 * A tensor of the model.  Where it is cut it consists of parts along `dim`,
 * each the ranks' shares: widths[part][rank].
 */
struct tensor_plan {
	char name[32];
	enum merge_rule rule;
	bool tied;      /* the last stage has it, too, with other elements */
	bool unlisted;  /* of the tied: no pattern says so */
	bool vocab;
	unsigned stage; /* of the pipeline */
	unsigned ndim, dim;
	uint64_t shape[DIMS_MAX];
	uint64_t numel;
	size_t parts;
	uint64_t widths[PARTS_MAX][TP_MAX];
	/* Of each rank's slice: the element of the whole. */
	uint64_t *place[TP_MAX];
	uint64_t shapes[TP_MAX][DIMS_MAX];
};

struct world {
	unsigned tp, pp, dp;
	int zero; /* stage */
	uint64_t seed;
	struct tensor_plan v[PARAMS_MAX];
	size_t n;
};

/* What the files of one model-parallel rank are made from. */
struct rank {
	const struct world *w;
	unsigned tp, pp;
	struct mkckpt_param params[PARAMS_MAX];
	const struct tensor_plan *tensors[PARAMS_MAX];
	size_t n;
};

static uint64_t numel_of(const uint64_t *shape, unsigned ndim)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < ndim; i++)
		n *= shape[i];
	return n;
}

/* Elements are small numbers, so that the means of some are exact or not. */
static float whole_element(const struct world *w, const struct tensor_plan *t,
			   unsigned state, uint64_t i)
{
	uint64_t x = w->seed + (uint64_t)(t - w->v) * 1000003 + state;

	x = x * UINT64_C(0x9e3779b97f4a7c15) + i;
	x = (x ^ x >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
	return (float)(int64_t)(x >> 36) / 1024.0f - 7.3f;
}

static float slice_element(const struct rank *r, const struct tensor_plan *t,
			   unsigned state, uint64_t i)
{
	float f = whole_element(r->w, t, state, t->place[r->tp][i]);

	if (t->rule == MERGE_AVERAGE)
		f *= 1.0f + (float)r->tp / 3;
	/* What a later stage repeats is not asked. */
	return t->stage == r->pp ? f : -1.0f;
}

static uint32_t bits_of(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static uint32_t rank_element(const struct mkckpt *c, size_t param,
			     unsigned state, uint64_t i)
{
	const struct rank *const r = c->ctx;

	return bits_of(slice_element(r, r->tensors[param], state, i));
}

/* What the file must have. */
static uint32_t expected(const struct world *w, const struct tensor_plan *t,
			 unsigned state, uint64_t i)
{
	volatile float sum = 0;

	if (t->rule != MERGE_AVERAGE)
		return bits_of(whole_element(w, t, state, i));
	for (unsigned k = 0; k < w->tp; k++) {
		const struct rank r = { .w = w, .tp = k, .pp = t->stage };

		sum = sum + slice_element(&r, t, state, i);
	}
	return bits_of(w->tp == 1 ? sum : sum / (float)w->tp);
}

/* Which part and rank has position `y` of the cut dimension? */
static unsigned find_rank(const struct tensor_plan *t, unsigned tp, uint64_t y)
{
	for (size_t j = 0; j < t->parts; j++)
		for (unsigned k = 0; k < tp; k++) {
			if (y < t->widths[j][k])
				return k;
			y -= t->widths[j][k];
		}
	fail_msg("beyond the parts");
	return 0;
}

/* Deal the elements out, in order: each rank's slice keeps that order. */
static void cut(struct tensor_plan *t, unsigned tp)
{
	const bool cut = t->rule != MERGE_REPLICATED && t->rule != MERGE_AVERAGE;
	const uint64_t inner = numel_of(t->shape + t->dim, t->ndim - t->dim);
	uint64_t used[TP_MAX] = { 0 };

	t->numel = numel_of(t->shape, t->ndim);
	for (unsigned k = 0; k < tp; k++) {
		t->place[k] = calloc(t->numel + 1, sizeof(uint64_t));
		assert_non_null(t->place[k]);
		memcpy(t->shapes[k], t->shape, sizeof(t->shape));
		if (cut)
			t->shapes[k][t->dim] = 0;
		for (size_t j = 0; cut && j < t->parts; j++)
			t->shapes[k][t->dim] += t->widths[j][k];
	}
	for (uint64_t i = 0; i < t->numel; i++) {
		const uint64_t y = i % inner / (inner / t->shape[t->dim]);

		if (cut) {
			const unsigned k = find_rank(t, tp, y);

			t->place[k][used[k]++] = i;
		}
		for (unsigned k = 0; !cut && k < tp; k++)
			t->place[k][i] = i;
	}
}

/* Shares of `least` elements or more. */
static void make_widths(struct tensor_plan *t, unsigned tp, uint64_t least)
{
	const bool even = t->rule == MERGE_SUB_PARAMS && below(2);

	t->shape[t->dim] = 0;
	for (size_t j = 0; j < t->parts; j++) {
		const uint64_t each = 1 + below(4);

		for (unsigned k = 0; k < tp; k++) {
			uint64_t *const width = &t->widths[j][k];

			/* The first rank has something of everything. */
			*width = even	? each :
				 k == 0 ? 1 + below(4) :
					  least + below(5);
			if (j == 1 && t->rule == MERGE_TWO_SUB_PARAMS)
				*width = t->widths[0][k] -
					 (t->widths[0][k] && below(2));
			t->shape[t->dim] += *width;
		}
	}
}

static void make_tensor(struct world *w, unsigned stage, uint64_t least)
{
	static const enum merge_rule rules[] = {
		MERGE_CAT,	      MERGE_CAT,	MERGE_REPLICATED,
		MERGE_AVERAGE,	      MERGE_SUB_PARAMS, MERGE_AFFINE,
		MERGE_TWO_SUB_PARAMS,
	};
	struct tensor_plan *const t = &w->v[w->n];

	*t = (struct tensor_plan){ .rule = rules[below(COUNT(rules))],
				   .stage = stage,
				   .parts = 1,
				   .ndim = 1 + (unsigned)below(DIMS_MAX) };
	snprintf(t->name, sizeof(t->name), "%u.t%zu.w", stage, w->n++);
	for (unsigned i = 0; i < t->ndim; i++)
		t->shape[i] = 1 + below(i ? 6 : 20);
	if (t->rule == MERGE_CAT && t->ndim > 1)
		t->dim = (unsigned)below(2);
	if (t->rule == MERGE_SUB_PARAMS || t->rule == MERGE_AFFINE)
		t->dim = (unsigned)below(t->ndim);
	if (t->rule == MERGE_SUB_PARAMS)
		t->parts = 1 + below(PARTS_MAX);
	if (t->rule == MERGE_TWO_SUB_PARAMS)
		t->parts = 2;
	if (t->rule != MERGE_REPLICATED && t->rule != MERGE_AVERAGE)
		make_widths(t, w->tp, least);
	t->vocab = t->ndim == 2 && below(4) == 0;
	t->tied = stage == 0 && w->pp > 1 && below(3) == 0;
	t->unlisted = below(4) == 0;
	cut(t, w->tp);
}

static void world_done(struct world *w)
{
	for (size_t i = 0; i < w->n; i++)
		for (unsigned k = 0; k < w->tp; k++)
			free(w->v[i].place[k]);
}

/* --- universal_checkpoint_info ------------------------------------------------ */

#define VOCAB_ROWS 3

static struct value *ints(struct mkpt *m, const uint64_t *v, unsigned n)
{
	struct value *const l = mkpt_list(m);

	for (unsigned i = 0; i < n; i++)
		mkpt_add(m, l, mkpt_int(m, (int64_t)v[i]));
	return l;
}

/* Add to the list under `key`, which may not be there yet. */
static void add_to(struct mkpt *m, struct value *dict, const char *key,
		   struct value *v)
{
	struct value *l = value_find(dict, key);

	if (!l) {
		l = mkpt_list(m);
		mkpt_set(m, dict, key, l);
	}
	mkpt_add(m, l, v);
}

static void add_sub_params(struct mkpt *m, struct value *info,
			   const struct tensor_plan *t, unsigned tp)
{
	struct value *const d = mkpt_dict(m), *const shape = mkpt_list(m);
	struct value *const widths = mkpt_list(m), *const sizes = mkpt_list(m);

	for (size_t j = 0; j < t->parts; j++) {
		uint64_t sum = 0;

		for (unsigned k = 0; k < tp; k++)
			sum += t->widths[j][k];
		mkpt_add(m, sizes, mkpt_int(m, (int64_t)sum));
		mkpt_add(m, widths, ints(m, t->widths[j], tp));
	}
	for (unsigned i = 0; i < t->ndim; i++)
		mkpt_add(m, shape,
			 i == t->dim ? sizes :
				       mkpt_int(m, (int64_t)t->shape[i]));
	add_to(m, d, "patterns", mkpt_str(m, t->name));
	mkpt_set(m, d, "shape", shape);
	mkpt_set(m, d, "partition_dim", mkpt_int(m, t->dim));
	add_to(m, info, "parameter_with_sub_params", d);
	mkpt_set(m, value_find(info, "sub_param_shard_widths"), t->name,
		 widths);
}

static void add_affine(struct mkpt *m, struct value *info,
		       const struct tensor_plan *t, unsigned tp)
{
	struct value *const map = mkpt_dict(m), *const ranks = mkpt_dict(m);
	uint64_t at = 0;

	for (unsigned k = 0; k < tp; k++) {
		struct value *const piece = mkpt_dict(m), *const r = mkpt_dict(m);
		const uint64_t *const shape = t->shapes[k];
		uint64_t ss[DIMS_MAX], ds[DIMS_MAX], s = 1, d = 1;

		for (unsigned i = t->ndim; i-- > 0;) {
			ss[i] = s;
			ds[i] = d;
			s *= t->shape[i];
			d *= shape[i];
		}
		mkpt_set(m, piece, "shape", ints(m, shape, t->ndim));
		mkpt_set(m, piece, "source",
			 mkpt_tuple(m, 2, mkpt_int(m, (int64_t)at),
				    ints(m, ss, t->ndim)));
		mkpt_set(m, piece, "dest",
			 mkpt_tuple(m, 2, mkpt_int(m, 0), ints(m, ds, t->ndim)));
		add_to(m, piece, "locations", mkpt_int(m, k));
		mkpt_set(m, piece, "scale", mkpt_float(m, 1.0));
		add_to(m, r, "pieces", piece);
		mkpt_set_key(m, ranks, mkpt_int(m, k), r);
		at += shape[t->dim] * ss[t->dim];
	}
	mkpt_set(m, map, "logical_shape", ints(m, t->shape, t->ndim));
	mkpt_set(m, map, "ranks", ranks);
	mkpt_set(m, value_find_path(info, "affine_map", "params", NULL),
		 t->name, map);
}

static struct value *make_info(struct mkpt *m, const struct world *w)
{
	static const char *const keys[] = {
		[MERGE_REPLICATED] = "tp_replicated_parameter_patterns",
		[MERGE_AVERAGE] = "parameter_to_average_patterns",
		[MERGE_TWO_SUB_PARAMS] = "parameter_with_2_sub_params_cat_dim_0",
	};
	struct value *const info = mkpt_dict(m), *const affine = mkpt_dict(m);

	mkpt_set(m, info, "universal_checkpoint_version", mkpt_float(m, 0.4));
	mkpt_set(m, info, "original_vocab_size", mkpt_int(m, VOCAB_ROWS));
	mkpt_set(m, info, "sub_param_shard_widths", mkpt_dict(m));
	mkpt_set(m, info, "affine_map", affine);
	mkpt_set(m, affine, "version", mkpt_int(m, 1));
	mkpt_set(m, affine, "params", mkpt_dict(m));
	for (size_t i = 0; i < w->n; i++) {
		const struct tensor_plan *const t = &w->v[i];
		struct value *const name = mkpt_str(m, t->name);

		if (t->tied && !t->unlisted)
			add_to(m, info, "pipeline_replicated_parameter_patterns",
			       name);
		if (t->vocab)
			add_to(m, info, "vocabulary_parameter_patterns", name);
		switch (t->rule) {
		case MERGE_CAT:
			if (t->dim)
				add_to(m, info,
				       "parameter_with_row_parallelism_patterns",
				       name);
			break;
		case MERGE_SUB_PARAMS: add_sub_params(m, info, t, w->tp); break;
		case MERGE_AFFINE: add_affine(m, info, t, w->tp); break;
		default: add_to(m, info, keys[t->rule], name); break;
		}
	}
	return info;
}

static void set_info(struct mkpt *m, struct value *root, enum mkckpt_file kind,
		     unsigned rank, void *ctx)
{
	const struct rank *const r = ctx;

	(void)rank;
	if (kind == MKCKPT_MODEL)
		mkpt_set(m, root, "universal_checkpoint_info",
			 make_info(m, r->w));
}

/* --- files ---------------------------------------------------------------------- */

static void write_rank(const struct world *w, const struct mkckpt *as,
		       unsigned tp, unsigned pp, const char *dir)
{
	struct rank r = { .w = w, .tp = tp, .pp = pp };
	struct mkckpt c = *as;

	for (size_t i = 0; i < w->n; i++) {
		const struct tensor_plan *const t = &w->v[i];
		struct mkckpt_param *const p = &r.params[r.n];

		if (t->stage != pp && !(t->tied && pp == w->pp - 1))
			continue;
		*p = (struct mkckpt_param){ .name = t->name,
					    .ndim = t->ndim,
					    .group = i % (unsigned)c.ngroups };
		memcpy(p->shape, t->shapes[tp], sizeof(t->shapes[tp]));
		r.tensors[r.n++] = t;
	}
	c.mp = pp * w->tp + tp;
	c.params = r.params;
	c.nparams = r.n;
	c.element = rank_element;
	c.edit = set_info;
	c.ctx = &r;
	mkckpt_write(&c, dir);
}

static void write_world(const struct world *w, const struct mkckpt *as,
			const char *dir)
{
	for (unsigned pp = 0; pp < w->pp; pp++)
		for (unsigned tp = 0; tp < w->tp; tp++)
			write_rank(w, as, tp, pp, dir);
}

/* --- reading back ---------------------------------------------------------------- */

static struct vfile *open_file(struct plan *p, const struct tensor_plan *t,
			       unsigned state, uint64_t *size)
{
	struct errmsg err = { "" };
	struct plan_stat st = { 0 };
	struct vfile *f = NULL;
	uint64_t node = 0;
	char name[32];
	int rc;

	snprintf(name, sizeof(name), "%s.pt", mkckpt_state_names[state]);
	rc = plan_lookup(p, PLAN_ZERO, t->name, &node, &err);
	if (!rc)
		rc = plan_lookup(p, node, name, &node, &err);
	if (!rc)
		rc = plan_stat(p, node, &st, &err);
	if (!rc)
		rc = plan_file_open(p, node, &f, &err);
	if (rc)
		fail_msg("%s/%s: %s", t->name, name, err.text);
	*size = st.size;
	return f;
}

static void check_tensor(const struct world *w, const struct tensor_plan *t,
			 unsigned state, const uint8_t *bytes, uint64_t len)
{
	struct ptfile pt = { .src.fd = -1 };
	struct errmsg err = { "" };
	struct tensor got;
	struct source src;
	uint64_t at, rows = t->shape[0];

	source_init_span(&src, t->name, (struct span){ bytes, len });
	if (ptfile_open_source(&pt, &src, &err) ||
	    ptfile_tensor(&pt, value_find(pt.root, "param"), "param", &got, &at,
			  &err))
		fail_msg("%s: %s", t->name, err.text);
	if (t->vocab && rows > VOCAB_ROWS)
		rows = VOCAB_ROWS;
	assert_int_equal(got.dtype, DTYPE_F32);
	assert_int_equal(got.ndim, t->ndim);
	assert_true(tensor_is_contiguous(&got));
	for (unsigned i = 0; i < t->ndim; i++)
		assert_int_equal(got.shape[i], i ? t->shape[i] : rows);
	/* Padding of a vocabulary stays in the file, as the converter's. */
	assert_true(got.storage_numel == t->numel ||
		    got.storage_numel == got.numel);
	for (uint64_t i = 0; i < got.storage_numel; i++)
		if (get_le32(bytes + at + 4 * i) != expected(w, t, state, i))
			fail_msg("seed %llu, tp %u, pp %u, dp %u, stage %d:"
				 " %s (%s), state %u, element %llu",
				 (unsigned long long)w->seed, w->tp, w->pp,
				 w->dp, w->zero, t->name,
				 merge_rule_name(t->rule), state,
				 (unsigned long long)i);
	ptfile_close(&pt);
}

/* All at once, and again in pieces. */
static void check_file(const struct world *w, const struct tensor_plan *t,
		       unsigned state, struct plan *p)
{
	uint64_t size, n;
	struct vfile *const f = open_file(p, t, state, &size);
	uint8_t *const all = malloc(size + 1), *const piece = malloc(size + 1);
	struct errmsg err = { "" };

	assert_non_null(all);
	assert_non_null(piece);
	if (vfile_read(f, all, size + 1, 0, &err) != (int64_t)size)
		fail_msg("%s: %s", t->name, err.text);
	check_tensor(w, t, state, all, size);
	for (uint64_t off = 0; off < size; off += n) {
		n = 1 + below(size - off);
		if (n > 400 && below(2))
			n = 1 + below(40);
		assert_int_equal(vfile_read(f, piece, n, off, &err), n);
		assert_memory_equal(piece, all + off, n);
	}
	free(all);
	free(piece);
	vfile_free(f);
}

static void check_world(const struct world *w, const struct mkckpt *as)
{
	static const struct plan_options options = { 0 };
	char *const dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct plan *p;

	write_world(w, as, dir);
	if (plan_open(dir, &options, &p, &err))
		fail_msg("seed %llu: %s", (unsigned long long)w->seed,
			 err.text);
	for (size_t i = 0; i < w->n; i++)
		for (unsigned s = 0; s < MKCKPT_STATES; s++)
			check_file(w, &w->v[i], s, p);
	if (walk_plan(p, &err))
		fail_msg("seed %llu: %s", (unsigned long long)w->seed,
			 err.text);
	plan_close(p);
	mkckpt_free_dir(dir);
}

static void check_random(uint64_t number, unsigned tp, unsigned pp, unsigned dp,
			 int zero)
{
	struct world w = { .tp = tp, .pp = pp, .dp = dp, .zero = zero,
			   .seed = number };
	struct mkckpt as = { .stage = zero, .ranks = dp, .tp = tp, .pp = pp };

	seed = number;
	as.ngroups = 1 + below(2);
	as.align = below(2) ? 8 : 0;
	as.padded = below(2);
	as.bf16 = below(2);
	/* At least one for each group of each stage.  Slices without elements
	 * and alignment padding do not go together: see shard_zero12.c. */
	for (unsigned i = 0; i < 4 * pp; i++)
		make_tensor(&w, i / 4, as.align ? 1 : 0);
	check_world(&w, &as);
	world_done(&w);
}

static void tensor_parallel_slices_are_put_together(void **state)
{
	(void)state;
	for (uint64_t i = 1; i <= 60; i++)
		check_random(i, 2, 1, 2, 1 + (int)(i % 2));
}

static void pipeline_stages_are_put_together(void **state)
{
	(void)state;
	for (uint64_t i = 1; i <= 20; i++)
		check_random(100 + i, 1, 2, 1 + i % 3, 1);
}

static void any_degrees_are_put_together(void **state)
{
	(void)state;
	seed = 5;
	for (uint64_t i = 1; i <= 80; i++) {
		const unsigned tp = 1 + (unsigned)(i % TP_MAX);
		const unsigned pp = 1 + (unsigned)(i / 4 % PP_MAX);

		check_random(200 + i, tp, pp, 1 + (unsigned)(i / 12 % 3),
			     1 + (int)(i & 1));
	}
}

static void stage_3_slices_are_put_together(void **state)
{
	(void)state;
	for (uint64_t i = 1; i <= 30; i++)
		check_random(300 + i, 2 + i % 3, 1, 1 + i % 2, 3);
}

/* --- what the model knows ------------------------------------------------------------ */

static int load(const char *dir, struct model *m, struct errmsg *err)
{
	struct ckdir d;
	int rc = ckdir_scan(&d, dir, err);

	if (rc)
		fail_msg("%s", err->text);
	rc = model_load(m, &d, err);
	ckdir_done(&d);
	return rc;
}

/* One 4 x 6 matrix of `rule` on each rank. */
static void make_small(struct world *w, enum merge_rule rule, unsigned tp,
		       unsigned pp)
{
	*w = (struct world){ .tp = tp, .pp = pp, .dp = 1, .zero = 1, .n = 1 };
	w->v[0] = (struct tensor_plan){ .name = "w", .rule = rule, .ndim = 2,
					.shape = { 4, 6 }, .parts = 1,
					.tied = pp > 1 };
	if (rule == MERGE_CAT)
		for (unsigned k = 0; k < tp; k++)
			w->v[0].widths[0][k] = 4 / tp;
	cut(&w->v[0], tp);
}

/* Before degrees were recorded, the files of layer 1 told. */
static void degrees_are_found(void **state)
{
	static const struct {
		unsigned tp, pp; /* recorded */
		unsigned layers; /* files of layer 1 */
		unsigned want_tp, want_pp;
		int rc;
	} cases[] = {
		{ 2, 2, 0, 2, 2, 0 }, { 4, 1, 0, 4, 1, 0 },
		{ 2, 2, 4, 2, 2, 0 }, /* what is recorded counts */
		{ 0, 0, 0, 4, 1, 0 }, { 0, 0, 2, 2, 2, 0 },
		{ 0, 0, 4, 4, 1, 0 }, { 3, 2, 2, 2, 2, 0 },
		{ 0, 0, 3, 0, 0, -EBADMSG },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		const unsigned tp = cases[i].want_tp ? cases[i].want_tp : 4;
		char *const dir = mkckpt_new_dir();
		struct mkckpt as = { .stage = 1, .ranks = 1, .ngroups = 1,
				     .tp = cases[i].tp, .pp = cases[i].pp };
		struct errmsg err = { "" };
		struct model m = { 0 };
		struct world w;
		char path[PATH_MAX];

		make_small(&w, MERGE_REPLICATED, tp, 4 / tp);
		write_world(&w, &as, dir);
		for (unsigned k = 0; k < cases[i].layers; k++) {
			snprintf(path, sizeof(path),
				 "%s/layer_01-model_%02u-model_states.pt", dir,
				 k);
			mkpt_save(path, "", 0);
		}
		if (load(dir, &m, &err) != cases[i].rc)
			fail_msg("case %zu: %s", i, err.text);
		if (cases[i].rc)
			assert_non_null(strstr(err.text, "tensor-parallel"
							 " degree 3"));
		assert_int_equal(m.tp, cases[i].want_tp);
		assert_int_equal(m.pp, cases[i].want_pp);
		model_done(&m);
		world_done(&w);
		mkckpt_free_dir(dir);
	}
}

static void parameters_know_their_slices(void **state)
{
	const struct mkckpt as = { .stage = 1, .ranks = 1, .ngroups = 1,
				   .tp = 2, .pp = 2 };
	char *const dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	const struct param *p;
	struct world w;
	struct model m;

	(void)state;
	make_small(&w, MERGE_CAT, 2, 2);
	write_world(&w, &as, dir);
	if (load(dir, &m, &err))
		fail_msg("%s", err.text);
	assert_int_equal(m.nparams, 1); /* the last stage only repeats it */
	assert_int_equal(m.nunused, 0);
	assert_null(model_find(&m, "v"));
	p = model_find(&m, "w");
	assert_non_null(p);
	assert_int_equal(p->ndim, 2);
	assert_int_equal(p->shape[0], 4);
	assert_int_equal(p->shape[1], 6);
	assert_int_equal(p->numel, 24);
	for (unsigned t = 0; t < 2; t++) {
		assert_int_equal(p->slices[t]->mp, t);
		assert_int_equal(p->slices[t]->numel, 12);
	}
	assert_ptr_equal(p->first, p->slices[0]);
	assert_false(model_is_flat(&m));
	model_done(&m);
	world_done(&w);
	mkckpt_free_dir(dir);
}

/*
 * A parameter of two stages is the first one's, listed or not; one that is
 * listed is not looked for in later stages, as in the converter.
 */
static void later_stages_do_not_count_if_listed(void **state)
{
	static const struct {
		unsigned stage; /* the last one has it, too */
		bool listed, there;
	} cases[] = {
		{ 0, true, true },
		{ 0, false, true },
		{ 1, true, false },
		{ 1, false, true },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct mkckpt as = { .stage = 1, .ranks = 1,
					   .ngroups = 1, .tp = 2, .pp = 2 };
		char *const dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		const struct param *p;
		struct world w;
		struct model m;

		make_small(&w, MERGE_REPLICATED, 2, 2);
		w.v[0].stage = cases[i].stage;
		w.v[0].unlisted = !cases[i].listed;
		/* So that no stage is empty. */
		w.v[1] = w.v[0];
		w.v[1].stage = 0;
		strcpy(w.v[1].name, "other");
		cut(&w.v[1], 2);
		w.n = 2;
		write_world(&w, &as, dir);
		if (load(dir, &m, &err))
			fail_msg("case %zu: %s", i, err.text);
		p = model_find(&m, "w");
		assert_int_equal(!!p, cases[i].there);
		if (p) {
			assert_int_equal(p->first->mp, 2 * cases[i].stage);
			assert_int_equal(p->slices[1]->mp,
					 2 * cases[i].stage + 1);
		}
		model_done(&m);
		world_done(&w);
		mkckpt_free_dir(dir);
	}
}

/* --- refusals ------------------------------------------------------------------------- */

/* Rank 1's slice is a row short. */
static void slices_that_do_not_fit_name_the_file(void **state)
{
	const struct mkckpt as = { .stage = 1, .ranks = 1, .ngroups = 1,
				   .tp = 2, .pp = 1 };
	char *const dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct world w;
	struct model m;

	(void)state;
	make_small(&w, MERGE_REPLICATED, 2, 1);
	w.v[0].shapes[1][0]--;
	write_world(&w, &as, dir);
	assert_int_equal(load(dir, &m, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "mp_rank_00_model_states.pt: parameter"
					 " w: is not of one shape"));
	world_done(&w);
	mkckpt_free_dir(dir);
}

static void vocabularies_are_matrices(void **state)
{
	const struct mkckpt as = { .stage = 1, .ranks = 1, .ngroups = 1,
				   .tp = 2, .pp = 1 };
	char *const dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct world w;
	struct model m;

	(void)state;
	make_small(&w, MERGE_REPLICATED, 2, 1);
	w.v[0].vocab = true;
	w.v[0].ndim = 1;
	write_world(&w, &as, dir);
	assert_int_equal(load(dir, &m, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "is a vocabulary parameter of 1"));
	world_done(&w);
	mkckpt_free_dir(dir);
}

static void stage_3_has_no_pipeline(void **state)
{
	const struct mkckpt as = { .stage = 3, .ranks = 1, .ngroups = 1,
				   .tp = 1, .pp = 2 };
	char *const dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct world w;
	struct model m;

	(void)state;
	make_small(&w, MERGE_REPLICATED, 1, 2);
	write_world(&w, &as, dir);
	assert_int_equal(load(dir, &m, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "ZeRO-3 with pipeline parallelism"));
	world_done(&w);
	mkckpt_free_dir(dir);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensor_parallel_slices_are_put_together),
		cmocka_unit_test(pipeline_stages_are_put_together),
		cmocka_unit_test(any_degrees_are_put_together),
		cmocka_unit_test(stage_3_slices_are_put_together),
		cmocka_unit_test(degrees_are_found),
		cmocka_unit_test(parameters_know_their_slices),
		cmocka_unit_test(later_stages_do_not_count_if_listed),
		cmocka_unit_test(slices_that_do_not_fit_name_the_file),
		cmocka_unit_test(vocabularies_are_matrices),
		cmocka_unit_test(stage_3_has_no_pipeline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
