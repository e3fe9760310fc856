/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/weights/weights.h"

#include <assert.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/zero/checkpoint.h"

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
		return to;
	default:
		return w->v[i]->dtype;
	}
}

int weights_add(const struct weights *w, size_t i, struct zero_checkpoint *r,
		enum dtype to, struct extent_map *out, struct gathers *gathers,
		struct errmsg *err)
{
	const struct weight *const x = w->v[w->v[i]->same];
	struct extent_map padded = { 0 };
	int rc = 0;

	assert(i < w->n && x->same == w->v[i]->same);
	if (x->param)
		rc = zckpt_add_param(r, x->param, NULL, x->dtype, &padded,
				     gathers, err);
	/* Rows of padding are at the end. */
	if (!rc && !extent_add_range(out, x->param ? &padded : &x->map, 0,
				     x->numel * dtype_size(x->dtype), x->dtype,
				     to))
		rc = errmsg_nomem(err, NULL);
	extent_done(&padded);
	return rc;
}
