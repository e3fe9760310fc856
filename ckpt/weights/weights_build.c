/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/weights/weights_build.h"

#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/zero/checkpoint.h"

/* Bytes of each of two ranks' tensors that are compared at a time. */
#define COMPARED_MAX (64u << 10)

struct weight *weights_find(const struct weights_loader *l, const char *name)
{
	void *const *const found = tfind(&name, &l->names, array_by_text);

	return found ? *found : NULL;
}

/* Append a weight without elements.  The caller has checked that the product of the
 * shape does not overflow.  NULL if memory is short. */
struct weight *weights_append(struct weights_loader *l, const char *name,
			      const uint64_t *shape, size_t ndim,
			      enum dtype dtype, bool requires_grad)
{
	struct weights *const w = l->w;
	struct weight *const x = arena_alloc(&w->arena, sizeof(*x));

	if (!x || !arena_reserve(&w->arena, &w->v, w->n, &w->cap, w->n + 1,
				 sizeof(*w->v)))
		return NULL;
	x->name = arena_strdup(&w->arena, name);
	x->same = w->n;
	x->dtype = dtype;
	x->requires_grad = requires_grad;
	x->shape = arena_copy(&w->arena, shape, ndim * sizeof(*shape));
	x->ndim = (unsigned)ndim;
	x->numel = 1;
	for (size_t i = 0; i < ndim; i++)
		x->numel *= shape[i];
	if (!x->name || !x->shape || !tsearch(x, &l->names, array_by_text))
		return NULL;
	w->v[w->n++] = x;
	return x;
}

int weights_nomem(const struct weights_loader *l)
{
	return errmsg_nomem(l->err, l->r->dir.path);
}

void weights_note(void *weights, const char *text)
{
	struct weights *const w = weights;
	const char *const copy = arena_strdup(&w->arena, text);

	if (copy && arena_reserve(&w->arena, &w->warnings, w->nwarnings,
				  &w->warnings_cap, w->nwarnings + 1,
				  sizeof(*w->warnings)))
		w->warnings[w->nwarnings++] = copy;
}

/* Add a warning: "NAME: WHAT". -ENOMEM. */
int weights_warn(struct weights_loader *l, const char *what, const char *name)
{
	struct weights *const w = l->w;
	char text[2 * ERRMSG_MAX];

	snprintf(text, sizeof(text), "%s: %s", name, what);
	weights_note(w, text);
	return w->arena.failed ? weights_nomem(l) : 0;
}

static int compare_bytes(const struct weights_loader *l, const struct weight *x,
			 uint64_t at, struct errmsg *err)
{
	const uint64_t len = extent_size(&x->map);
	uint8_t *const a = malloc(2 * COMPARED_MAX);
	int rc = a ? 0 : errmsg_nomem(err, NULL);

	for (uint64_t off = 0, n; !rc && off < len; off += n) {
		n = len - off < COMPARED_MAX ? len - off : COMPARED_MAX;
		rc = shardcache_read_map(l->r->c.shards, &x->map, a, (size_t)n, off,
					 err);
		if (!rc)
			rc = shardcache_read(l->r->c.shards, l->shard,
					     a + COMPARED_MAX, (size_t)n,
					     at + off, err);
		if (!rc && memcmp(a, a + COMPARED_MAX, (size_t)n) != 0)
			rc = -EBADMSG;
	}
	free(a);
	return rc;
}

static bool same_form(const struct weight *x, const struct tensor *t)
{
	const size_t bytes = t->ndim * sizeof(*t->shape);

	if (x->dtype != t->dtype || x->ndim != t->ndim ||
	    memcmp(x->shape, t->shape, bytes) != 0)
		return false;
	return x->view ? memcmp(x->view->stride, t->stride, bytes) == 0
		       : tensor_is_contiguous(t);
}

/*
 * Check that a tensor of `module` equals that of an earlier rank.  How a
 * parameter is cut follows from the optimizer's shards; for other tensors
 * nothing records a cut, so the ranks' copies must be equal.
 */
int weights_check_same(const struct weights_loader *l, const struct weight *x,
		       const struct tensor *t, uint64_t at)
{
	struct errmsg why = { "" };
	const int rc =
		same_form(x, t) ? compare_bytes(l, x, at, &why) : -EBADMSG;

	if (rc == -EBADMSG)
		return errmsg_set(l->err, -ENOTSUP,
				  "%s: %s: differs between ranks, and the"
				  " checkpoint does not record how to merge it",
				  l->file, x->name);
	return rc ? errmsg_set(l->err, rc, "%s", why.text) : 0;
}

/* Add a weight whose elements are tensor `t` of a file. */
int weights_new(struct weights_loader *l, const char *name,
		const struct tensor *t, uint32_t shard, uint64_t storage)
{
	struct weight *const x = weights_append(l, name, t->shape, t->ndim,
						t->dtype, t->requires_grad);

	return x && weights_place(l->w, x, t, shard, storage) ? 0
							      : weights_nomem(l);
}

/* Read where a tensor of the open file is.  Returns 1, with a warning, for one that has no
 * plain form, as a sparse or a quantized one, or an unknown type, and for what is none. */
int weights_read(struct weights_loader *l, const char *name,
		 const struct value *v, struct tensor *t, uint64_t *storage)
{
	struct errmsg why;
	const int rc = tensor_from_any(v, "left out", t, &why);

	if (!rc)
		return ptfile_tensor(l->pt, v, name, t, storage, l->err);
	if (rc < 0)
		return ERRMSG_FILE(l, rc, "%s: %s", name, why.text);
	return weights_warn(l, why.text, name) ?: 1;
}

int weights_take_rows(struct weights *w, const struct checkpoint *c, struct errmsg *err)
{
	const size_t n = c->nparams + c->nmore;
	struct weight *const v = arena_alloc(&w->arena, (n + 1) * sizeof(*v));
	struct tensor t;

	w->v = arena_alloc(&w->arena, (n + 1) * sizeof(*w->v));
	for (; v && w->v && w->n < n; w->n++) {
		const struct param *const p = &c->params[w->n];

		v[w->n] = (struct weight){ .name = p->name,
					   .dtype = p->module->dtype,
					   .ndim = p->ndim,
					   .shape = p->shape,
					   .numel = p->numel,
					   .same = w->n };
		w->v[w->n] = &v[w->n];
		stored_describe(p->module, &t);
		if (!weights_place(w, &v[w->n], &t, p->module->file, p->module->storage))
			break;
	}
	c->ops->warn(c, &(struct errmsg_sink){ weights_note, w });
	return w->n == n && !w->arena.failed ? 0 : errmsg_nomem(err, c->path);
}
