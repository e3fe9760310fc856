/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces that an affine map places on several ranks must be equal on all of
 * them; a tree shows those of the first holder.  For each further holder the
 * parameter's files are laid out again and compared byte by byte.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/check/check.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/model/geometry.h"
#include "ckpt/plan/plan.h"
#include "ckpt/plan/uc_file.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/zero/checkpoint.h"

/* Bytes of each side compared at a time. */
#define COMPARE_CHUNK (256u << 10)

/* --- which copies --------------------------------------------------------------- */

static bool is_whole(const struct check *c, const struct param *p)
{
	for (unsigned t = 0; t < p->nslices; t++)
		if (p->slices[t] && !c->whole[p->slices[t]->mp])
			return false;
	return true;
}

static uint64_t add_copies(struct check *c, const struct param *p)
{
	struct zero_checkpoint *const r = plan_zckpt(c->plan);
	const struct shard_group *const g =
		&zckpt_shard(r, p->first->mp, 0)->groups[p->first->group];

	for (size_t holder = 1; holder < p->holders; holder++)
		c->copies[c->ncopies++] =
			(struct check_copy){ .param = p, .holder = holder };
	return 2 * (p->holders - 1) * p->numel * check_element_bytes(g);
}

uint64_t check_list_copies(struct check *c)
{
	const struct model *const m = &plan_zckpt(c->plan)->model;
	uint64_t bytes = 0;
	size_t n = 1;

	for (size_t i = 0; i < m->nparams; i++)
		n += m->params[i].module ? 0 : m->params[i].holders - 1;
	c->copies = calloc(n, sizeof(*c->copies));
	if (!c->copies) {
		findings_add(&c->problems, "out of memory");
		return 0;
	}
	for (size_t i = 0; i < m->nparams; i++)
		if (!m->params[i].module && is_whole(c, &m->params[i]))
			bytes += add_copies(c, &m->params[i]);
	return bytes;
}

/* --- comparing ------------------------------------------------------------------ */

struct comparison {
	struct check *c;
	struct check_copy *copy;
	struct param other; /* `copy->param` as a further holder has it */
	uint8_t *a, *b;
};

/* Return the tensor-parallel rank from which an element is read. */
static uint32_t find_rank(const struct param *p, uint64_t element)
{
	struct geometry g;
	uint32_t rank = 0;

	if (model_geometry(p, &g, NULL))
		return 0;
	for (size_t i = 0; i < g.nsegs && g.segs[i].at <= element % g.row_len;
	     i++)
		rank = g.segs[i].source;
	geometry_done(&g);
	return rank;
}

/* Report that the files differ at `off`. */
static void report_copy_difference(const struct comparison *x, const char *what,
			    const struct extent_map *map, size_t item,
			    uint64_t off)
{
	const struct param *const p = x->copy->param;
	uint64_t element;
	size_t i = 0;

	while (map->v[i].kind == EXTENT_LITERAL)
		i++;
	element = (off - map->v[i].start) / item;
	findings_add(&x->copy->problems,
		     "%s: parameter %s: %s differs between tensor-parallel"
		     " ranks %u and %u, from element %" PRIu64 " on",
		     x->c->dir, p->name, what, find_rank(p, element),
		     find_rank(&x->other, element), element);
}

static struct vfile *check_copies_open_file(struct comparison *x,
					    const struct param *p,
					    unsigned slot, struct errmsg *err)
{
	struct uc_file content;
	struct vfile *f;

	if (uc_file_of_param(plan_zckpt(x->c->plan), p, slot, true, &content,
			     err))
		return NULL;
	f = vfile_new_pt(plan_shards(x->c->plan), &content.w, content.storages,
			 &content.gathers, NULL, err);
	uc_file_done(&content);
	return f;
}

static void compare_files(struct comparison *x, const char *what, size_t item,
			  struct vfile *a, struct vfile *b, struct errmsg *err)
{
	const uint64_t size = vfile_size(a);

	assert(vfile_size(b) == size); /* of the same shape */
	for (uint64_t off = 0; off < size; off += COMPARE_CHUNK) {
		const int64_t n = vfile_read(a, x->a, COMPARE_CHUNK, off, err);
		size_t i = 0;

		if (n < 0 || vfile_read(b, x->b, COMPARE_CHUNK, off, err) != n)
			return;
		progress_add(x->c->progress, 2 * (uint64_t)n);
		if (memcmp(x->a, x->b, (size_t)n) == 0)
			continue;
		while (x->a[i] == x->b[i])
			i++;
		report_copy_difference(x, what, vfile_extents(a), item, off + i);
		return;
	}
}

static void compare_slot(struct comparison *x, unsigned slot, const char *what,
			 enum dtype dtype)
{
	struct errmsg err = { "" };
	struct vfile *const a =
		check_copies_open_file(x, x->copy->param, slot, &err);
	struct vfile *const b =
		a ? check_copies_open_file(x, &x->other, slot, &err) : NULL;

	if (b)
		compare_files(x, what, dtype_size(dtype), a, b, &err);
	if (err.text[0])
		findings_add_new(&x->copy->problems, err.text);
	vfile_free(a);
	vfile_free(b);
}

static void check_copies_compare(struct comparison *x)
{
	const struct slice *const first = x->copy->param->first;
	const struct shard_group *const g =
		&zckpt_shard(plan_zckpt(x->c->plan), first->mp, 0)
			 ->groups[first->group];

	compare_slot(x, 0, "fp32", g->fp32.dtype);
	for (size_t i = 0; i < g->nstates; i++)
		if (g->states[i].kind == STATE_FLAT)
			compare_slot(x, (unsigned)i + 1, g->states[i].name,
				     g->states[i].flat.dtype);
}

static int check_copy(void *ctx, size_t i, struct errmsg *err)
{
	struct check *const c = ctx;
	struct comparison x = {
		.c = c,
		.copy = &c->copies[i],
		.other = *c->copies[i].param,
		.a = malloc(COMPARE_CHUNK),
		.b = malloc(COMPARE_CHUNK),
	};

	(void)err;
	assert(x.copy->holder < x.other.holders);
	x.other.merge.holder = x.copy->holder;
	if (x.a && x.b)
		check_copies_compare(&x);
	else
		findings_add(&x.copy->problems, "out of memory");
	free(x.a);
	free(x.b);
	return 0;
}

void check_copies(struct check *c)
{
	parallel_for(c->ncopies, parallel_width(), check_copy, c, NULL);
	for (size_t i = 0; i < c->ncopies; i++)
		findings_take(&c->problems, &c->copies[i].problems);
}
