/* SPDX-License-Identifier: Apache-2.0 */
/* The states of torchtitan's fused projections (qkv.h) are divided like their weights. */
#include "ckpt/foreign/dcp_optimizer.h"

#include <errno.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_storage.h"
#include "ckpt/table/qkv.h"

/* How a parameter of the optimizer corresponds to weights of the model. */
struct fused {
	const struct dcp_entry *weights[QKV_PARTS];
	const char *names[QKV_PARTS];
	struct qkv qkv;
};

static uint64_t find_head(const struct dcp_reader *f, const char *param, size_t prefix)
{
	const char *name = qkv_norm_name(f->a, param, prefix);
	const struct dcp_entry *norm = name ? dcp_weight_find(f, name) : NULL;

	return qkv_head(f->b->u, norm ? norm->ndim : 0, norm ? norm->shape : NULL);
}

/* Is it a fused parameter that the model has only in parts?  1, 0, or an error. */
static int is_fused(const struct dcp_reader *f, const char *param, struct fused *x)
{
	uint64_t rows[QKV_PARTS];
	struct errmsg why;
	size_t prefix;
	int rc;

	if (!qkv_is(param, QKV_FUSED, &prefix) || dcp_weight_find(f, param))
		return 0;
	for (unsigned i = 0; i < QKV_PARTS; i++) {
		x->names[i] = qkv_name(f->a, param, prefix, qkv_parts[i]);
		x->weights[i] = x->names[i] ? dcp_weight_find(f, x->names[i]) : NULL;
		if (!x->weights[i] || !x->weights[i]->ndim || !x->weights[i]->numel)
			return 0;
		rows[i] = x->weights[i]->shape[0];
	}
	rc = qkv_init(&x->qkv, param, x->names, rows, find_head(f, param, prefix), &why);
	return rc ? ERRMSG_FILE(f, rc, "%s", why.text) : 1;
}

/* Does a state have that shape? */
static bool has_shape(const struct dcp_entry *t, const struct fused *x)
{
	const struct dcp_entry *w = x->weights[0];

	return t->is_tensor && t->ndim == w->ndim && t->shape[0] == x->qkv.heads * x->qkv.rows_of &&
	       memcmp(t->shape + 1, w->shape + 1, (w->ndim - 1) * sizeof(*w->shape)) == 0;
}

/* Add to `out` the part of a chunk in rows [from, from + n), moved to rows from `to` on. */
static bool add_rows(struct arena *a, const struct dcp_chunk *c, uint64_t from, uint64_t n,
		     uint64_t to, struct dcp_entry *out, size_t *cap)
{
	const uint64_t low = from > c->offset[0] ? from : c->offset[0];
	const uint64_t end = from + n < c->offset[0] + c->size[0] ? from + n
								   : c->offset[0] + c->size[0];
	struct dcp_chunk piece = *c;
	uint64_t *offset, *size;

	if (!c->numel || low >= end)
		return true;
	offset = arena_copy(a, c->offset, out->ndim * sizeof(*offset));
	size = arena_copy(a, c->size, out->ndim * sizeof(*size));
	if (!offset || !size || !arena_reserve(a, &out->chunks, out->nchunks, cap, out->nchunks + 1,
					       sizeof(*out->chunks)))
		return false;
	offset[0] = to + (low - from);
	size[0] = end - low;
	piece.offset = offset;
	piece.size = size;
	piece.numel = c->numel / c->size[0] * size[0];
	piece.skip = c->skip + c->numel / c->size[0] * (low - c->offset[0]);
	piece.of = c->of ?: c->numel;
	out->chunks[out->nchunks++] = piece;
	return true;
}

/* Make the part of a state that belongs to weight `k`. */
static int divide(const struct dcp_reader *f, const struct dcp_entry *t, const struct fused *x,
		  unsigned k, struct dcp_entry *out)
{
	size_t cap = 0;
	bool ok = true;

	*out = *t;
	out->shape = x->weights[k]->shape;
	out->numel = x->weights[k]->numel;
	out->chunks = NULL;
	out->nchunks = 0;
	for (size_t i = 0; i < t->nchunks; i++)
		for (uint64_t h = 0; ok && h < x->qkv.heads; h++)
			ok = add_rows(f->a, &t->chunks[i],
				      h * x->qkv.rows_of + x->qkv.before[k], x->qkv.rows[k],
				      h * x->qkv.rows[k], out, &cap);
	return ok ? dcp_chunks_check(out, f->file, f->err) : errmsg_nomem(f->err, f->file);
}

/* Give each weight its part of the states of a parameter. */
static int divide_states(struct dcp_reader *f, const char *param, const struct fused *x,
			 struct dcp_findings *to, size_t *cap)
{
	size_t n;
	const struct dcp_finding *e = dcp_findings_find(&f->states, param, &n);
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++)
		for (unsigned k = 0; !rc && k < QKV_PARTS; k++) {
			struct dcp_finding part = e[i];

			part.param = x->names[k];
			if (has_shape(e[i].entry, x)) {
				part.entry = arena_alloc(f->a, sizeof(*part.entry));
				rc = part.entry ? divide(f, e[i].entry, x, k, part.entry)
						: errmsg_nomem(f->err, f->file);
			}
			if (!rc && !arena_reserve(f->a, &to->v, to->n, cap, to->n + 1, sizeof(part)))
				rc = errmsg_nomem(f->err, f->file);
			if (!rc)
				to->v[to->n++] = part;
		}
	return rc;
}

/* Replace a fused parameter of a group by its weights. */
static int divide_group(struct dcp_reader *f, struct dcp_group *g, struct dcp_findings *to,
			size_t *cap, bool *any)
{
	struct dcp_param *v = arena_alloc(f->a, (QKV_PARTS * g->nparams + 1) * sizeof(*v));
	size_t n = 0;
	int rc = v ? 0 : errmsg_nomem(f->err, f->file);

	for (size_t i = 0; !rc && i < g->nparams; i++) {
		const char *param = g->params[i].name;
		struct fused x = { 0 };
		const int is = is_fused(f, param, &x);

		if (is < 0)
			return is;
		if (!is)
			v[n++] = g->params[i];
		for (unsigned k = 0; is && k < QKV_PARTS; k++)
			v[n++].name = x.names[k];
		if (is)
			rc = divide_states(f, param, &x, to, cap);
		*any |= is;
	}
	g->params = v;
	g->nparams = n;
	return rc;
}

int dcp_fused_divide(struct dcp_reader *f)
{
	struct dcp_findings all = { arena_copy(f->a, f->states.v, f->states.n * sizeof(*all.v)),
				    f->states.n };
	size_t cap = all.n;
	bool any = false;
	int rc = all.v ? 0 : errmsg_nomem(f->err, f->file);

	for (size_t g = 0; !rc && g < f->o->ngroups; g++)
		rc = divide_group(f, &f->o->groups[g], &all, &cap, &any);
	if (!rc && any) {
		dcp_findings_sort(&all);
		f->states = all;
	}
	return rc;
}
