/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares replicas on several ranks: parameters that tensor parallelism does not cut (layer
 * norms), parameters that two pipeline stages share (tied embeddings), and pieces that an affine
 * map places on several ranks.  A run whose copies have drifted apart continues without an error,
 * and a tree shows the first rank's.  Bytes are compared, so a NaN equals itself.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/source.h"
#include "ckpt/commands/check.h"
#include "ckpt/io/shards.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"

static const struct param_states *states_of(const struct check *c, const struct slice *s)
{
	return c->report.c->ranks[s->mp].groups[s->group].states;
}

/* Bytes per element of the master weight and all states together. */
static uint64_t element_bytes(const struct param_states *states)
{
	uint64_t n = 0;

	for (size_t i = 0; i < states->n; i++)
		if (states->v[i].kind == STATE_FLAT)
			n += dtype_size(states->v[i].dtype);
	return n;
}

/* Add a pair; returns the bytes of one side. */
static uint64_t add_pair(struct check *c, const struct param *p, const struct slice *a,
			 const struct slice *b, size_t replica)
{
	const unsigned tp = c->report.c->tp;

	if (!array_reserve(&c->pairs, &c->pairs_cap, c->npairs + 1, sizeof(*c->pairs))) {
		c->report.problems.failed = true;
		return 0;
	}
	c->pairs[c->npairs++] = (struct check_pair){
		.param = p, .a = a, .b = b, .replica = replica, .stages = a->mp / tp != b->mp / tp
	};
	return (replica ? p->numel : a->numel) * element_bytes(states_of(c, a));
}

/* Add the slices of other stages that replicate this one. */
static uint64_t add_stages(struct check *c, const struct param *p, const struct slice *a)
{
	const struct checkpoint *m = c->report.c;
	uint64_t bytes = 0;

	for (unsigned stage = a->mp / m->tp + 1; stage < m->pp; stage++) {
		const struct rank_table *t = &m->ranks[stage * m->tp + a->mp % m->tp];
		const struct slice *b = slice_find(t->slices, t->nslices, a->name);

		if (b)
			bytes += add_pair(c, p, a, b, 0);
	}
	return bytes;
}

static uint64_t add_param(struct check *c, const struct param *p)
{
	const struct slice *first = p->first;
	uint64_t bytes = 0;

	for (unsigned t = 0; t < p->nslices; t++) {
		const struct slice *s = p->slices[t];

		if (!s)
			continue;
		if (s != first && p->merge.rule == MERGE_REPLICATED)
			bytes += add_pair(c, p, first, s, 0);
		bytes += add_stages(c, p, s);
	}
	for (size_t replica = 1; replica < p->replicas; replica++)
		bytes += add_pair(c, p, first, first, replica);
	return bytes;
}

int check_list_pairs(struct check *c, uint64_t *bytes, struct errmsg *err)
{
	const struct checkpoint *m = c->report.c;

	for (size_t i = 0; i < m->nparams; i++)
		if (m->params[i].first)
			*bytes += add_param(c, &m->params[i]);
	return c->report.problems.failed ? errmsg_nomem(err, c->report.dir) : 0;
}

struct comparison {
	struct check *c;
	struct check_pair *pair;
	struct param other; /* `pair->param` as pair->replica has it */
};

static const char *kind_text(const struct check_pair *p)
{
	return p->stages				 ? "pipeline stage"
	       : p->param->merge.rule == MERGE_EXPERTS ? "expert-parallel rank"
						       : "tensor-parallel rank";
}

/* Return the stage or the tensor-parallel rank of a slice. */
static unsigned number(const struct comparison *x, const struct slice *s)
{
	return x->pair->stages ? s->mp / x->c->report.c->tp : s->mp % x->c->report.c->tp;
}

/* Return the tensor-parallel rank from which an element is read. */
static uint32_t find_rank(const struct param *p, uint64_t element)
{
	struct geometry g;
	uint32_t rank = 0;

	if (geometry_init(&g, p, NULL))
		return 0;
	for (size_t i = 0; i < g.nsegs && g.segs[i].at <= element % g.row_len; i++)
		rank = g.segs[i].source;
	geometry_done(&g);
	return rank;
}

/* Format a place: "zero_pp_rank_0_mp_rank_00_optim_states.pt at 1234". */
static const char *place_text(const struct comparison *x, const struct vfile *f, uint64_t off,
			      char buf[128])
{
	const struct extent_map *m = vfile_extents(f);
	const struct extent *e = &m->v[extent_find(m, off)];
	const char *path = shards_path(x->c->report.c->shards, e->shard);
	const char *slash = strrchr(path, '/');

	snprintf(buf, 128, "%s at %" PRIu64, slash ? slash + 1 : path, e->from + (off - e->start));
	return buf;
}

static void report_difference(const struct comparison *x, const char *what, const struct vfile *a,
			      const struct vfile *b, uint64_t element, size_t item)
{
	const struct check_pair *p = x->pair;
	const uint64_t off = element * item;
	char places[2][128], where[300] = "";

	if (!p->replica)
		snprintf(where, sizeof(where), " (%s, %s)", place_text(x, a, off, places[0]),
			 place_text(x, b, off, places[1]));
	notes_add(&x->pair->differences,
		  "%s: parameter %s: %s differs between %ss %u and %u, from element %" PRIu64
		  " on%s",
		  x->c->report.dir, p->a->name, what, kind_text(p),
		  p->replica ? find_rank(p->param, element) : number(x, p->a),
		  p->replica ? find_rank(&x->other, element) : number(x, p->b), element, where);
}

/* Open the elements of one side as a file. */
static struct vfile *open_side(struct comparison *x, const struct param *p, const struct slice *s,
			       const struct param_state *state, struct errmsg *err)
{
	struct checkpoint *r = x->c->report.c;
	struct extent_map map = { 0 };
	struct gathers gathers = { 0 };
	struct bytebuf head = { 0 };
	struct vfile *f = NULL;

	if (!(x->pair->replica ? checkpoint_extents(r, p, state, &map, &gathers, err)
			      : checkpoint_slice(r, s, state, &map, NULL, err)))
		f = vfile_new_tensors(x->c->report.c->shards, &head, &map, &head.len, 1, &gathers,
				      err);
	extent_done(&map);
	gathers_done(&gathers);
	return f;
}

/* Compare one state.  -EINTR; other errors are problems. */
static int compare_state(struct comparison *x, const struct param_state *state)
{
	const struct check_pair *p = x->pair;
	const size_t item = dtype_size(state->dtype);
	struct errmsg err = { "" };
	struct vfile *a = open_side(x, p->param, p->a, state, &err);
	struct vfile *b = a ? open_side(x, &x->other, p->b, state, &err) : NULL;
	struct source with;
	uint64_t at;
	int rc = b ? vfile_source_open(&with, b, x->c->report.dir, &err) : -EIO;

	if (!rc) {
		rc = vfile_compare(a, &with, &x->c->progress, &at, &err);
		if (rc > 0)
			report_difference(x, state->name, a, b, at / item, item);
		source_close(&with);
	}
	vfile_free(a);
	if (rc < 0 && rc != -EINTR)
		notes_add_new(&x->pair->problems, err.text);
	return rc == -EINTR ? rc : 0;
}

static int compare_states(struct comparison *x)
{
	const struct check_pair *p = x->pair;
	const struct param_states *states = states_of(x->c, p->a);
	int rc = 0;

	if (p->a->numel != p->b->numel) {
		notes_add(&x->pair->problems,
			  "%s: parameter %s: has %" PRIu64 " elements on %s %u, but %" PRIu64
			  " on %u",
			  x->c->report.dir, p->a->name, p->a->numel, kind_text(p), number(x, p->a),
			  p->b->numel, number(x, p->b));
		return 0;
	}
	for (size_t i = 0; !rc && i < states->n; i++)
		if (states->v[i].kind == STATE_FLAT)
			rc = compare_state(x, &states->v[i]);
	return rc;
}

static int compare_pair(void *ctx, size_t i, struct errmsg *err)
{
	struct check *c = ctx;
	struct check_pair *p = &c->pairs[i];
	struct comparison x = { .c = c, .pair = p, .other = *p->param };

	(void)err;
	x.other.merge.replica = p->replica;
	return compare_states(&x);
}

/* Does another parameter of the same tied module have equal copies in these stages? */
static bool has_equal_sibling(const struct check *c, const struct check_pair *p)
{
	const char *name = p->a->name;
	const char *key = strchr(name, '.'); /* for tied_modules.KEY.weight */
	const char *end = key ? strchr(key + 1, '.') : NULL;
	const size_t len = end ? (size_t)(end + 1 - name) : 0;

	for (size_t i = 0; len && i < c->npairs; i++) {
		const struct check_pair *q = &c->pairs[i];

		if (q->stages && q->a->mp == p->a->mp && q->b->mp == p->b->mp &&
		    strncmp(q->a->name, name, len) == 0 && !q->differences.n && !q->problems.n)
			return true;
	}
	return false;
}

/*
 * Pipeline stages share one weight of a tied module, such as word_embeddings of
 * Megatron-DeepSpeed's embedding; each stage trains its own copy of the module's other weights.
 * Files do not name the shared weight: it is a weight whose copies are equal, or the vocabulary's.
 */
static bool is_own_copy(const struct check *c, const struct check_pair *p)
{
	return p->stages && !p->param->merge.vocab && has_equal_sibling(c, p);
}

static void take_differences(struct check *c, struct check_pair *p)
{
	const unsigned tp = c->report.c->tp;
	struct errmsg note = { "" };

	if (!p->differences.n || !is_own_copy(c, p)) {
		notes_take(&c->report.problems, &p->differences);
		return;
	}
	errmsg_set(&note, 0,
		   "parameter %s: pipeline stage %u has a copy of its own; that of stage %u is read",
		   p->a->name, p->b->mp / tp, p->a->mp / tp);
	notes_add_new(&c->report.notes, note.text);
}

int check_pairs(struct check *c, struct errmsg *err)
{
	const int rc = parallel_for(c->npairs, parallel_width(), compare_pair, c, err);

	for (size_t i = 0; i < c->npairs; i++)
		take_differences(c, &c->pairs[i]);
	for (size_t i = 0; i < c->npairs; i++) {
		notes_take(&c->report.problems, &c->pairs[i].problems);
		notes_done(&c->pairs[i].differences);
	}
	return rc;
}
