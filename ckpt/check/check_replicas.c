/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares parameters that several ranks hold whole: those that tensor
 * parallelism does not cut (layer norms), and those that two pipeline stages
 * share (tied embeddings).  A run whose replicas have drifted apart continues
 * without an error, and a loader reads the first rank's.  Bytes are compared,
 * so a NaN equals itself.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/check/check.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/zero/checkpoint.h"

/* Bytes of each side compared at a time. */
#define COMPARE_CHUNK (256u << 10)

/* --- which pairs -------------------------------------------------------------- */

static const struct shard_group *group_of(const struct zero_checkpoint *r,
					  const struct slice *s)
{
	return &zckpt_shard(r, s->mp, 0)->groups[s->group];
}

uint64_t check_element_bytes(const struct shard_group *g)
{
	uint64_t n = dtype_size(g->fp32.dtype);

	for (size_t i = 0; i < g->nstates; i++)
		if (g->states[i].kind == STATE_FLAT)
			n += dtype_size(g->states[i].flat.dtype);
	return n;
}

static uint64_t add_pair(struct check *c, const struct slice *a,
			 const struct slice *b, bool stages)
{
	if (!c->whole[a->mp] || !c->whole[b->mp])
		return 0;
	assert(a != b && a->mp != b->mp);
	c->pairs[c->npairs++] = (struct check_pair){ .a = a, .b = b,
						     .stages = stages };
	return 2 * a->numel *
	       check_element_bytes(group_of(plan_zckpt(c->plan), a));
}

/* Add the slices of other stages that replicate this one. */
static uint64_t add_stages(struct check *c, const struct model *m,
			   const struct slice *a)
{
	uint64_t bytes = 0;

	for (unsigned stage = a->mp / m->tp + 1; stage < m->pp; stage++) {
		const struct slice *const b = rank_params_find(
			&m->ranks[stage * m->tp + a->mp % m->tp], a->name);

		if (b && !b->module)
			bytes += add_pair(c, a, b, true);
	}
	return bytes;
}

static uint64_t check_replicas_add_param(struct check *c, const struct model *m,
					 const struct param *p)
{
	uint64_t bytes = 0;

	for (unsigned t = 0; t < p->nslices; t++) {
		const struct slice *const s = p->slices[t];

		if (!s)
			continue;
		if (s != p->first && p->merge.rule == MERGE_REPLICATED)
			bytes += add_pair(c, p->first, s, false);
		bytes += add_stages(c, m, s);
	}
	return bytes;
}

uint64_t check_list_pairs(struct check *c)
{
	const struct model *const m = &plan_zckpt(c->plan)->model;
	uint64_t bytes = 0;

	/* A slice is in at most one pair of each kind. */
	c->pairs = calloc(m->nparams * m->tp * m->pp + 1, sizeof(*c->pairs));
	if (!c->pairs) {
		findings_add(&c->problems, "out of memory");
		return 0;
	}
	for (size_t i = 0; i < m->nparams; i++)
		if (!m->params[i].module)
			bytes += check_replicas_add_param(c, m, &m->params[i]);
	return bytes;
}

/* --- comparing ------------------------------------------------------------------ */

struct side {
	const struct slice *slice;
	struct extent_map map; /* of the state that is being compared */
	uint8_t *buf;
};

struct comparison {
	struct check *c;
	struct check_pair *pair;
	struct side a, b;
};

/* Format a place: "zero_pp_rank_0_mp_rank_00_optim_states.pt at 1234". */
static const char *check_replicas_place(const struct comparison *x,
					const struct side *s, uint64_t off,
					char *buf, size_t len)
{
	const struct extent *const e = &s->map.v[extent_find(&s->map, off)];
	const char *const path =
		shardcache_path(plan_shards(x->c->plan), e->shard);
	const char *const slash = strrchr(path, '/');

	snprintf(buf, len, "%s at %" PRIu64, slash ? slash + 1 : path,
		 e->from + (off - e->start));
	return buf;
}

/* The stage or the tensor-parallel rank of a slice. */
static unsigned number(const struct comparison *x, const struct slice *s)
{
	const unsigned tp = plan_zckpt(x->c->plan)->model.tp;

	return x->pair->stages ? s->mp / tp : s->mp % tp;
}

static void report_replica_difference(const struct comparison *x, const char *what,
			    uint64_t off, size_t item)
{
	char a[128], b[128];

	off -= off % item;
	findings_add(
		&x->pair->differences,
		"%s: parameter %s: %s differs between %s %u and %u, from"
		" element %" PRIu64 " on (%s, %s)",
		x->c->dir, x->a.slice->name, what,
		x->pair->stages ? "pipeline stages" : "tensor-parallel ranks",
		number(x, x->a.slice), number(x, x->b.slice), off / item,
		check_replicas_place(x, &x->a, off, a, sizeof(a)),
		check_replicas_place(x, &x->b, off, b, sizeof(b)));
}

static size_t first_difference(const uint8_t *a, const uint8_t *b, size_t n)
{
	size_t i = 0;

	if (memcmp(a, b, n) == 0)
		return n;
	while (a[i] == b[i])
		i++;
	assert(i < n);
	return i;
}

static int compare_maps(struct comparison *x, const char *what, size_t item,
			struct errmsg *err)
{
	struct shardcache *const shards = plan_shards(x->c->plan);
	const uint64_t size = extent_size(&x->a.map);
	size_t n;

	assert(extent_size(&x->b.map) == size);
	for (uint64_t off = 0; off < size; off += n) {
		size_t same;
		int rc;

		n = size - off < COMPARE_CHUNK ? (size_t)(size - off) :
						 COMPARE_CHUNK;
		rc = shardcache_read_map(shards, &x->a.map, x->a.buf, n, off,
					 err);
		if (!rc)
			rc = shardcache_read_map(shards, &x->b.map, x->b.buf, n,
						 off, err);
		if (rc)
			return rc;
		progress_add(x->c->progress, 2 * n);
		same = first_difference(x->a.buf, x->b.buf, n);
		if (same < n) {
			report_replica_difference(x, what, off + same, item);
			return 0;
		}
	}
	return 0;
}

/* Compare one state, or the master weights if `state` is NULL. */
static void compare_state(struct comparison *x, const char *state,
			  enum dtype dtype)
{
	struct zero_checkpoint *const r = plan_zckpt(x->c->plan);
	struct errmsg err = { "" };
	int rc = zckpt_slice(r, x->a.slice, state, dtype, &x->a.map, &err);

	if (!rc)
		rc = zckpt_slice(r, x->b.slice, state, dtype, &x->b.map, &err);
	if (!rc)
		rc = compare_maps(x, state ? state : "fp32", dtype_size(dtype),
				  &err);
	if (rc)
		findings_add_new(&x->pair->problems, err.text);
	extent_done(&x->a.map);
	extent_done(&x->b.map);
	x->a.map = x->b.map = (struct extent_map){ 0 };
}

static void check_replicas_compare(struct comparison *x)
{
	const struct shard_group *const g =
		group_of(plan_zckpt(x->c->plan), x->a.slice);

	if (x->a.slice->numel != x->b.slice->numel) {
		findings_add(&x->pair->problems,
			     "%s: parameter %s: has %" PRIu64
			     " elements on %s %u, but %" PRIu64 " on %u",
			     x->c->dir, x->a.slice->name, x->a.slice->numel,
			     x->pair->stages ? "pipeline stage"
					     : "tensor-parallel rank",
			     number(x, x->a.slice), x->b.slice->numel,
			     number(x, x->b.slice));
		return;
	}
	compare_state(x, NULL, g->fp32.dtype);
	for (size_t i = 0; i < g->nstates; i++)
		if (g->states[i].kind == STATE_FLAT)
			compare_state(x, g->states[i].name,
				      g->states[i].flat.dtype);
}

static int check_pair(void *ctx, size_t i, struct errmsg *err)
{
	struct check *const c = ctx;
	struct check_pair *const p = &c->pairs[i];
	struct comparison x = {
		.c = c,
		.pair = p,
		.a = { .slice = p->a, .buf = malloc(COMPARE_CHUNK) },
		.b = { .slice = p->b, .buf = malloc(COMPARE_CHUNK) },
	};

	(void)err;
	if (x.a.buf && x.b.buf)
		check_replicas_compare(&x);
	else
		findings_add(&p->problems, "out of memory");
	free(x.a.buf);
	free(x.b.buf);
	return 0;
}

/* Does another parameter of the same tied module have equal copies in these stages? */
static bool has_equal_sibling(const struct check *c, const struct check_pair *p)
{
	const char *const name = p->a->name;
	const char *const key = strchr(name, '.'); /* tied_modules.KEY.weight */
	const char *const end = key ? strchr(key + 1, '.') : NULL;
	const size_t len = end ? (size_t)(end + 1 - name) : 0;

	for (size_t i = 0; len && i < c->npairs; i++) {
		const struct check_pair *const q = &c->pairs[i];

		if (q->stages && q->a->mp == p->a->mp && q->b->mp == p->b->mp &&
		    strncmp(q->a->name, name, len) == 0 &&
		    !q->differences.n && !q->problems.n)
			return true;
	}
	return false;
}

/*
 * Pipeline stages share one weight of a tied module, as word_embeddings of
 * Megatron-DeepSpeed's embedding.  Of the others each stage trains its own.  Files do
 * not name the shared weight: it is one whose copies are equal, or the vocabulary's.
 */
static bool is_own_copy(const struct check *c, const struct check_pair *p)
{
	const struct param *const param =
		model_find(&plan_zckpt(c->plan)->model, p->a->name);

	return p->stages && !(param && param->merge.vocab) &&
	       has_equal_sibling(c, p);
}

static void take_differences(struct check *c, struct check_pair *p)
{
	const unsigned tp = plan_zckpt(c->plan)->model.tp;
	struct errmsg note = { "" };

	if (!p->differences.n)
		return;
	if (!is_own_copy(c, p)) {
		findings_take(&c->problems, &p->differences);
		return;
	}
	errmsg_set(&note, 0,
		   "parameter %s: pipeline stage %u has a copy of its own; that"
		   " of stage %u is read",
		   p->a->name, p->b->mp / tp, p->a->mp / tp);
	findings_add_new(&c->notes, note.text);
}

void check_pairs(struct check *c)
{
	parallel_for(c->npairs, parallel_width(), check_pair, c, NULL);
	for (size_t i = 0; i < c->npairs; i++)
		take_differences(c, &c->pairs[i]);
	for (size_t i = 0; i < c->npairs; i++) {
		findings_take(&c->problems, &c->pairs[i].problems);
		findings_done(&c->pairs[i].differences);
	}
}
