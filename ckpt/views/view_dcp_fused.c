/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/views/view_dcp_fused.h"

#include <errno.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/geometry.h"

/* The weights of a projection, by their first one or another. */
struct weights {
	const char *names[QKV_PARTS];
	const struct param *rows[QKV_PARTS]; /* NULL: there is none */
	size_t prefix;                       /* of the names */
	unsigned n;
};

/* Is a row one of the weights of such a projection?  A wq alone is of another kind of attention. */
static bool find_weights(struct checkpoint *c, struct arena *a, const char *name, struct weights *x)
{
	unsigned k = 0;

	*x = (struct weights){ .n = 0 };
	while (k < QKV_PARTS && !qkv_is(name, qkv_parts[k], &x->prefix))
		k++;
	if (k == QKV_PARTS)
		return false;
	for (k = 0; k < QKV_PARTS; k++) {
		x->names[k] = qkv_name(a, name, x->prefix, qkv_parts[k]);
		x->rows[k] = x->names[k] ? checkpoint_find(c, x->names[k]) : NULL;
		x->n += x->rows[k] != NULL;
	}
	return x->n > 1;
}

/* Do rows of two weights have the same form, and the states in types that can be joined? */
static bool fits(const struct param *x, const struct param *y)
{
	const struct param_states *s = x->states, *t = y->states;
	bool same = s->n == t->n && x->ndim == y->ndim &&
		    !shape_order(x->shape + 1, x->ndim - 1, y->shape + 1, y->ndim - 1);

	for (size_t k = 0; same && k < s->n; k++)
		same = param_state_equal(&s->v[k], &t->v[k]);
	return same;
}

static int check_weights(const struct weights *w, struct errmsg *err)
{
	for (unsigned k = 0; k < QKV_PARTS; k++) {
		const struct param *p = w->rows[k];

		if (!p || !p->states)
			return errmsg_set(err, -ENOTSUP,
				"%s: is not in the optimizer, but others of its projection are: they cannot be fused",
					  w->names[k]);
		if (!p->ndim || !fits(p, w->rows[0]))
			return errmsg_set(err, -ENOTSUP,
				"%s: its shape, or the type or step of its states, is not that of %s: they cannot be fused",
					  w->names[k], w->names[0]);
	}
	return 0;
}

static uint64_t find_head(struct checkpoint *c, struct arena *a, const struct weights *w)
{
	const char *name = qkv_norm_name(a, w->names[0], w->prefix);
	const struct param *norm = name ? checkpoint_find(c, name) : NULL;

	return qkv_head(c->u, norm ? norm->ndim : 0, norm ? norm->shape : NULL);
}

static int fuse(struct checkpoint *c, struct arena *a, const struct weights *w,
		const struct view_dcp_fused **out, struct errmsg *err)
{
	struct view_dcp_fused *x = arena_alloc(a, sizeof(*x));
	uint64_t rows[QKV_PARTS];
	int rc = check_weights(w, err);

	if (rc)
		return rc;
	if (!x || !(x->name = qkv_name(a, w->names[0], w->prefix, QKV_FUSED)))
		return errmsg_nomem(err, NULL);
	/* Even a frozen one: readers would take the states for its own. */
	if (checkpoint_find(c, x->name))
		return errmsg_set(err, -ENOTSUP,
			"%s: is a parameter, too: %s and the others of its projection cannot be fused",
				  x->name, w->names[0]);
	for (unsigned k = 0; k < QKV_PARTS; k++)
		rows[k] = w->rows[k]->shape[0];
	rc = qkv_init(&x->qkv, x->name, w->names, rows, find_head(c, a, w), err);
	if (rc)
		return rc;
	memcpy(x->parts, w->rows, sizeof(x->parts));
	memcpy(x->shape, w->rows[0]->shape, w->rows[0]->ndim * sizeof(*x->shape));
	x->shape[0] = x->qkv.heads * x->qkv.rows_of;
	for (unsigned k = 0; k < QKV_PARTS; k++)
		out[w->rows[k]->number] = x;
	return 0;
}

int view_dcp_fused_find(struct checkpoint *c, struct arena *a, const struct view_dcp_fused ***out,
		       struct errmsg *err)
{
	const struct view_dcp_fused **v = arena_alloc(a, (c->norder + 1) * sizeof(*v));
	int rc = v ? 0 : errmsg_nomem(err, NULL);
	struct weights w;

	for (size_t i = 0; !rc && i < c->norder; i++)
		if (c->order[i]->states && !v[i] && find_weights(c, a, c->order[i]->name, &w))
			rc = fuse(c, a, &w, v, err);
	*out = v;
	return rc;
}

int view_dcp_fused_extents(struct checkpoint *c, const struct view_dcp_fused *x,
			  const struct param_state *state, struct extent_map *out,
			  struct gathers *gathers, struct errmsg *err)
{
	const size_t k = (size_t)(state - x->parts[0]->states->v);
	const uint64_t row = x->parts[0]->numel / x->parts[0]->shape[0] * dtype_size(state->dtype);
	struct extent_map parts[QKV_PARTS] = { 0 };
	bool ok = true;
	int rc = 0;

	for (unsigned i = 0; !rc && i < QKV_PARTS; i++)
		rc = checkpoint_extents(c, x->parts[i], &x->parts[i]->states->v[k], &parts[i],
					gathers, err);
	for (uint64_t h = 0; !rc && h < x->qkv.heads; h++)
		for (unsigned i = 0; i < QKV_PARTS; i++)
			ok = ok && extent_add_range(out, &parts[i], h * x->qkv.rows[i] * row,
						    x->qkv.rows[i] * row, state->dtype, state->dtype);
	for (unsigned i = 0; i < QKV_PARTS; i++)
		extent_done(&parts[i]);
	return rc ?: ok ? 0 : errmsg_nomem(err, c->path);
}
