/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state dict of zero_to_fp32.py (DeepSpeed 0.19.8, utils/zero_to_fp32.py): buffers,
 * frozen parameters, trainable ones in the order of param_shapes, other names of these.
 *
 * The script has two bugs that this code does not share.  Stage 1 does not list
 * frozen parameters; they are read from `module`. shared_params ties all
 * parameters without elements to each other, whatever their shapes, because
 * their address is 0.
 *
 * The script refuses several model-parallel ranks.  Here each rank adds the
 * rows that the ranks before it do not have.
 */
#include "ckpt/zero/rows.h"

#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/io/shards.h"
#include "ckpt/zero/checkpoint.h"

/* Bytes of each rank's tensor that are compared at a time. */
#define COMPARED_MAX (64u << 10)

/* For tdestroy: the nodes of the search tree have other owners. */
static void keep(void *node)
{
	(void)node;
}

int rows_nomem(const struct rows_finder *f)
{
	return errmsg_nomem(f->err, f->r->dir.path);
}

int rows_leave_out(struct rows_finder *f, const char *name, const char *why)
{
	return errmsg_list_add(&f->r->c.left_out, &f->rows->arena, "%s: %s", name, why)
		       ? 0
		       : rows_nomem(f);
}

struct param *rows_by_name(const struct rows_finder *f, const char *name)
{
	void *const *found = tfind(&name, &f->names, array_by_text);

	return found ? *found : NULL;
}

static struct param *find_param(const struct rows_finder *f, const char *name)
{
	return (struct param *)checkpoint_find(&f->r->c, name);
}

static int add_row(struct rows_finder *f, enum param_kind kind, struct param *p)
{
	struct rows *r = f->rows;

	if (!p || !arena_reserve(&r->arena, &r->v, r->n, &r->cap, r->n + 1, sizeof(*r->v)) ||
	    !tsearch(p, &f->names, array_by_text))
		return rows_nomem(f);
	p->kind = kind;
	p->number = r->n;
	if (kind != PARAM_TRAINED)
		p->refused = NULL;
	r->v[r->n++] = p;
	return 0;
}

/* Add a row that the universal tree lacks, or has in another form. */
static int add_new(struct rows_finder *f, enum param_kind kind, struct param p)
{
	return add_row(f, kind, arena_copy(&f->rows->arena, &p, sizeof(p)));
}

/* Return the number of bytes in the file from a tensor's first element to its last. */
static uint64_t span_of(const struct stored *s, uint64_t *at)
{
	const size_t item = dtype_size(s->dtype);
	struct tensor t;

	*at = s->storage + s->storage_offset * item;
	stored_describe(s, &t);
	t.storage_offset = 0;
	return t.numel ? (tensor_place(&t, t.numel - 1) + 1) * item : 0;
}

static bool same_form(const struct stored *x, const struct stored *y)
{
	struct tensor t, u;

	if (x->dtype != y->dtype || SHAPE_ORDER(x, y))
		return false;
	stored_describe(x, &t);
	stored_describe(y, &u);
	return memcmp(t.stride, u.stride, t.ndim * sizeof(*t.stride)) == 0 ||
	       (tensor_is_contiguous(&t) && tensor_is_contiguous(&u));
}

/* Compare the elements of two tensors of one form.  -EBADMSG if they differ. */
static int compare_bytes(const struct zero_checkpoint *r, const struct stored *x,
			 const struct stored *y, struct errmsg *err)
{
	uint64_t from, to;
	const uint64_t len = span_of(x, &from);
	uint8_t *a = malloc(2 * COMPARED_MAX);
	int rc = a ? 0 : errmsg_nomem(err, NULL);

	span_of(y, &to);
	for (uint64_t off = 0, n; !rc && off < len; off += n) {
		n = len - off < COMPARED_MAX ? len - off : COMPARED_MAX;
		rc = shards_read(r->c.shards, x->file, a, (size_t)n, from + off, err)
			     ?: shards_read(r->c.shards, y->file, a + COMPARED_MAX, (size_t)n,
					    to + off, err);
		if (!rc && memcmp(a, a + COMPARED_MAX, (size_t)n) != 0)
			rc = -EBADMSG;
	}
	free(a);
	return rc;
}

static int check_same(struct rows_finder *f, struct param *x, const struct stored *s)
{
	int rc;

	if (!x->module || x->module == s || !x->numel || x->refused)
		return 0;
	rc = same_form(x->module, s) ? compare_bytes(f->r, x->module, s, f->err) : -EBADMSG;
	if (rc != -EBADMSG)
		return rc;
	x->refused = arena_format(&f->rows->arena,
		"%s: %s: differs between ranks, and the checkpoint does not record how to merge it",
		f->r->c.files[s->file].path, x->name);
	return x->refused ? 0 : rows_nomem(f);
}

int rows_add_stored(struct rows_finder *f, const struct rank_entry *e)
{
	const struct stored *s = e->stored;
	struct param *x = rows_by_name(f, e->name);

	if (e->rc < 0)
		return errmsg_set(f->err, e->rc, "%s", e->why);
	if (e->rc)
		return rows_leave_out(f, e->name, e->why);
	if (x)
		return check_same(f, x, s);
	/* Usually the universal tree has it. */
	x = find_param(f, e->name);
	if (x && x->module == s) {
		x->dtype = s->dtype;
		x->requires_grad = s->requires_grad;
		return add_row(f, e->kind, x);
	}
	return add_new(f, e->kind,
		       (struct param){ .name = e->name,
				       .ndim = s->ndim,
				       .shape = s->shape,
				       .numel = s->numel,
				       .dtype = s->dtype,
				       .requires_grad = s->requires_grad,
				       .module = s });
}

/* Experts have separate files, and names that differ from rank to rank. */
static bool is_expert(const struct experts *x, const char *name)
{
	unsigned expert;
	const char *rest;

	for (size_t i = 0; i < x->n; i++)
		if (!x->layers[i].fused && x->layers[i].prefix &&
		    experts_parse(&x->layers[i], name, &expert, &rest))
			return true;
	return false;
}

/* Add a parameter of ZeRO-3, and find its slots in all ranks' files. */
static int add_slots(struct rows_finder *f, const struct frozen_param *p)
{
	struct extent_map map = { 0 };
	int rc;

	if (rows_by_name(f, p->name))
		return errmsg_set(f->err, -EBADMSG, "%s: %s is listed twice",
				  f->r->dir.model[0].path, p->name);
	if (p->odd)
		return rows_leave_out(f, p->name, p->odd);
	rc = frozen_add(&f->rows->frozen, p, 0, p->numel, &map, f->err);
	extent_done(&map);
	return rc
		       ?: add_new(f, PARAM_FROZEN,
				  (struct param){ .name = p->name,
						  .ndim = p->ndim,
						  .shape = p->shape,
						  .numel = p->numel,
						  .dtype = p->dtype,
						  .own = p });
}

/* Read a stage-3 rank's tensors besides the optimizer's parameters, and its frozen ones. */
static int read_rest3(struct rows_finder *f, struct rank_params *c)
{
	const struct zero_dir *d = &f->r->dir;
	struct frozen *frozen = &f->rows->frozen;
	struct ptfile pt;
	int rc = ckpt_file_open(&d->model[zero_dir_model_number(d, c->mp)], &pt, f->err);

	if (rc)
		return rc;
	rc = rank_params_read_rest(c, d, &pt, f->err)
		     ?: frozen_init(frozen, &f->r->c, c->mp, 0, &pt, f->err);
	if (!rc && frozen->n && f->r->model.tp > 1)
		rc = errmsg_set(f->err, -ENOTSUP,
				"%s: %s: is frozen, and the checkpoint does not"
				" record how tensor-parallel ranks cut it",
				pt.src.name, frozen->v->name);
	ptfile_close(&pt);
	return rc;
}

static int add_kind(struct rows_finder *f, const struct rank_rest *rest, enum param_kind kind)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < rest->n; i++)
		if (rest->v[i]->kind == kind)
			rc = rows_add_stored(f, rest->v[i]);
	return rc;
}

/* Add frozen parameters, first those that are listed. */
static int add_frozen(struct rows_finder *f, const struct rank_params *c)
{
	const struct rank_rest *rest = &c->rest;
	const struct frozen *frozen = &f->rows->frozen;
	int rc = 0;

	for (size_t i = 0; !rc && i < frozen->n; i++)
		rc = add_slots(f, frozen->listed[i]);
	for (size_t i = 0; !rc && i < rest->nfrozen; i++)
		if (!is_expert(&c->experts, rest->frozen[i]->name))
			rc = rows_add_stored(f, rest->frozen[i]);
	return rc ?: add_kind(f, rest, PARAM_FROZEN);
}

static int add_param(struct rows_finder *f, struct param *p)
{
	struct arena *a = &f->rows->arena;
	const struct param_states *states;
	uint64_t *shape;
	int rc;

	if (rows_by_name(f, p->name))
		return 0;
	rc = f->r->c.ops->states(&f->r->c, p, &states, f->err);
	if (rc)
		return rc;
	/* The number of padding rows depends on the number of ranks, so they
	 * are cut off.  A single rank keeps them, because the script does not
	 * know about padding. */
	if (p->merge.vocab && f->r->dir.mp_degree > 1 && p->shape[0] != p->merge.vocab_rows) {
		p = arena_copy(a, p, sizeof(*p));
		shape = p ? arena_copy(a, p->shape, p->ndim * sizeof(*shape)) : NULL;
		if (!shape)
			return rows_nomem(f);
		p->numel = p->numel / shape[0] * p->merge.vocab_rows;
		shape[0] = p->merge.vocab_rows;
		p->shape = shape;
	}
	p->states = states;
	p->dtype = states->v->dtype;
	p->requires_grad = states->v->requires_grad;
	return add_row(f, PARAM_TRAINED, p);
}

/* DeepSpeed's own experts are listed under rank-local names; the model knows
 * them by their global ones. */
static int add_experts(struct rows_finder *f, const struct slice *s)
{
	const struct expert_layer *layer = s->layer;
	int rc = 0;

	for (unsigned ep = 0; !rc && ep < experts_degree(layer); ep++) {
		char key[EXPERT_NAME_MAX];
		struct param *p;

		experts_key(layer, experts_number(layer, ep, s->expert), s->rest, key);
		p = find_param(f, key);
		rc = p && !p->module ? add_param(f, p) : 0;
	}
	return rc;
}

/* Add an entry of param_shapes. */
static int add_listed(struct rows_finder *f, const struct slice *s)
{
	struct param *p;

	if (s->layer && !s->layer->fused)
		return add_experts(f, s);
	p = find_param(f, s->name);
	if (p && !p->module)
		return add_param(f, p);
	/* The universal tree does not have it either. */
	if (s->numel)
		return rows_leave_out(f, s->name,
				      "left out: recorded as shared with the first"
				      " pipeline stage, which does not have it");
	return rows_by_name(f, s->name) ? 0
					: add_new(f, PARAM_TRAINED,
						  (struct param){ .name = s->name,
								  .ndim = s->ndim,
								  .shape = s->shape,
								  .dtype = DTYPE_F32 });
}

static int add_ties(struct rows_finder *f, const struct rank_rest *m)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < m->ties.n; i++) {
		const struct param *x = rows_by_name(f, m->ties.v[i].of);

		/* A name with a separate tensor is not really tied. */
		if (x && !rows_by_name(f, m->ties.v[i].name))
			rc = add_new(f, PARAM_ALIAS,
				     (struct param){ .name = m->ties.v[i].name,
						     .ndim = x->ndim,
						     .shape = x->shape,
						     .numel = x->numel,
						     .dtype = x->dtype,
						     .requires_grad = x->requires_grad,
						     .same = x->same ?: x });
	}
	return rc;
}

/* Add the rows of one model-parallel rank. */
static int add_rank(struct rows_finder *f, struct rank_params *c)
{
	int rc = (c->facts.zero3 ? read_rest3(f, c) : 0) ?: add_kind(f, &c->rest, PARAM_BUFFER)
						   ?: add_frozen(f, c);

	for (size_t g = 0; !rc && g < c->ngroups; g++)
		for (size_t i = 0; !rc && i < c->groups[g].n; i++)
			rc = add_listed(f, c->groups[g].slices[i]);
	return rc ?: add_ties(f, &c->rest);
}

int rows_find(struct checkpoint *c, struct errmsg *err)
{
	struct zero_checkpoint *r = zero_of(c);
	struct rows_finder f = { .r = r, .rows = &r->rows, .err = err };
	bool layers = false;
	int rc = 0;

	for (unsigned mp = 0; !rc && mp < r->dir.mp_degree; mp++) {
		rc = add_rank(&f, &r->model.ranks[mp]);
		layers |= r->model.ranks[mp].facts.is_pipeline;
	}
	/* Without a pipeline, files of layers belong to an earlier save. */
	if (!rc && layers)
		rc = rows_find_layers(&f);
	tdestroy(f.names, keep);
	if (rc)
		rows_done(r);
	c->order = (const struct param *const *)r->rows.v;
	c->norder = r->rows.n;
	return rc;
}

void rows_done(struct zero_checkpoint *r)
{
	frozen_done(&r->rows.frozen);
	arena_done(&r->rows.arena);
	r->rows = (struct rows){ 0 };
	r->c.left_out = (struct errmsg_list){ 0 };
}
