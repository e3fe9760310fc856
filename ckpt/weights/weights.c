/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/weights/weights.h"

#include <assert.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/table/checkpoint.h"

void weights_done(struct weights *w)
{
	for (size_t i = 0; i < w->n; i++)
		extent_done(&w->v[i]->map);
	arena_done(&w->arena);
	*w = (struct weights){ 0 };
}

enum dtype weights_dtype(const struct weights *w, size_t i, enum dtype to)
{
	switch (w->v[i]->dtype) {
	case DTYPE_F64:
	case DTYPE_F32:
	case DTYPE_F16:
	case DTYPE_BF16:
	case DTYPE_F8_E4M3:
	case DTYPE_F8_E5M2:
	case DTYPE_F8_E4M3FNUZ:
	case DTYPE_F8_E5M2FNUZ:
	case DTYPE_F8_E8M0:
		return to;
	default:
		return w->v[i]->dtype;
	}
}

bool weights_place(struct weights *w, struct weight *x, const struct tensor *t,
		   uint32_t shard, uint64_t storage)
{
	const size_t item = dtype_size(t->dtype);
	uint64_t n = t->numel;
	struct tensor *view;

	if (!tensor_is_contiguous(t)) {
		x->view = view = arena_copy(&w->arena, t, sizeof(*t));
		if (!view)
			return false;
		view->storage_offset = 0;
		n = tensor_place(view, n - 1) + 1;
	}
	return extent_add(&x->map, EXTENT_SHARD, n * item, shard,
			  storage + t->storage_offset * item, t->dtype);
}

int weights_add(const struct weights *w, size_t i, struct checkpoint *c,
		enum dtype to, struct extent_map *out, struct gathers *gathers,
		struct errmsg *err)
{
	const struct weight *const x = w->v[w->v[i]->same];
	struct extent_map made = { 0 };
	int rc = 0;

	assert(i < w->n && x->same == w->v[i]->same);
	if (x->param)
		rc = c->ops->extents(c, x->param, x->master, &made, gathers, err);
	else if (x->view && !gathers_add_view(gathers, x->view, &x->map, &made))
		rc = errmsg_nomem(err, NULL);
	/* A parameter's rows of padding are at the end. */
	if (!rc && !extent_add_range(out, x->param || x->view ? &made : &x->map, 0,
				     x->numel * dtype_size(x->dtype), x->dtype,
				     to))
		rc = errmsg_nomem(err, NULL);
	extent_done(&made);
	return rc;
}
