/* SPDX-License-Identifier: Apache-2.0 */
/* Extents of a parameter's state, merged from the slices of all ranks. */
#include "ckpt/zero/param_extents.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/model/geometry.h"
#include "ckpt/tensor/cast.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/zero/checkpoint.h"

/* Append the extents of each slice: the sources of a gather. */
static int slice_maps(struct zero_checkpoint *r, const struct param *p,
		      const char *state, enum dtype dtype,
		      struct extent_map *maps, struct errmsg *err)
{
	int rc = 0;

	for (unsigned t = 0; !rc && t < p->nslices; t++)
		if (p->slices[t])
			rc = zckpt_slice(r, p->slices[t], state, dtype,
					 &maps[t], err);
	return rc;
}

/* The power of a piece's scale in a state: scaling a parameter by s scales its
 * gradient by 1/s, so Adam's first moment has power -1 and the second -2
 * (checkpoint/affine.py, SCALE_POWER_BY_STATE). */
static bool find_power(const char *state, int *power)
{
	*power = !state                             ? 1
		 : strcmp(state, "exp_avg") == 0    ? -1
		 : strcmp(state, "exp_avg_sq") == 0 ? -2
						    : 0;
	return *power != 0;
}

int param_extents_check(const struct param *p, const struct geometry *g,
			const char *state, enum dtype dtype, struct errmsg *err)
{
	int power;

	if (!g->mean && !g->nscales)
		return 0;
	if (!arith_knows(dtype))
		return errmsg_set(err, -ENOTSUP,
				  "parameter %s: the mean of %s tensors, or"
				  " scaled pieces of them, are not supported",
				  p->name, dtype_name(dtype));
	if (!g->nscales)
		return 0;
	if (!find_power(state, &power))
		return errmsg_set(err, -ENOTSUP,
				  "parameter %s: its pieces are scaled, and how"
				  " that scales %s is not known",
				  p->name, state);
	for (size_t i = 0; i < g->nscales; i++) {
		const float by = (float)pow(g->scales[i], power);

		if (!isfinite(by) || by == 0)
			return errmsg_set(err, -EBADMSG,
					  "parameter %s: its %s cannot be divided"
					  " by %g to the power of %d",
					  p->name, state ? state : "fp32",
					  g->scales[i], power);
	}
	return 0;
}

/* A single row that is not computed is a list of runs; everything else is a
 * gather. */
static int add_merged(struct geometry *g, enum dtype dtype, const char *state,
		      struct extent_map **maps, struct extent_map *to,
		      struct gathers *gathers)
{
	const uint64_t item = dtype_size(dtype);
	struct gather *x;
	bool ok = true;
	int power;

	if (g->rows == 1 && !g->mean && !g->nscales) {
		for (size_t i = 0; ok && i < g->nsegs; i++)
			ok = extent_add_range(to, &(*maps)[g->segs[i].source],
					      g->segs[i].from * item,
					      g->segs[i].len * item);
		return ok ? 0 : -ENOMEM;
	}
	if (!extent_add(to, EXTENT_GATHER, g->numel * item,
			(uint32_t)gathers->n, 0, dtype))
		return -ENOMEM;
	find_power(state, &power);
	x = gather_new(g, dtype, power, *maps);
	if (!x)
		return -ENOMEM;
	*maps = NULL;
	return gathers_add(gathers, x) ? 0 : -ENOMEM;
}

int param_extents_add(struct zero_checkpoint *r, const struct param *p,
		      const char *state, enum dtype dtype, struct extent_map *to,
		      struct gathers *gathers, struct errmsg *err)
{
	struct extent_map *maps = calloc(p->nslices, sizeof(*maps));
	struct geometry g;
	int rc;

	if (!maps)
		return errmsg_nomem(err, NULL);
	rc = model_geometry(p, &g, err);
	if (!rc) {
		rc = slice_maps(r, p, state, dtype, maps, err);
		if (!rc)
			rc = param_extents_check(p, &g, state, dtype, err);
		if (!rc &&
		    (rc = add_merged(&g, dtype, state, &maps, to, gathers)))
			errmsg_nomem(err, NULL);
		geometry_done(&g);
	}
	for (unsigned t = 0; maps && t < p->nslices; t++)
		extent_done(&maps[t]);
	free(maps);
	return rc;
}
