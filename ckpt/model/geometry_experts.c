/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts of AutoEP: each expert-parallel rank has a tensor of its experts, end to
 * end; the whole has all experts by number
 * (checkpoint/autoep_affine.py).
 *
 *	placement {0: [2, 0], 1: [3, 1]}
 *	whole	| 0: index 1 | 1: index 1 | 0: index 0 | 1: index 0 |
 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/model/experts.h"
#include "ckpt/model/geometry_impl.h"

/* The number of experts from `e` on that are adjacent on one rank as well. */
static unsigned run_length(const struct expert_layer *l, unsigned e)
{
	const struct expert_place *const first = &l->places[e];
	unsigned n = 1;

	while (e + n < l->n && first[n].rank == first->rank &&
	       first[n].index == first->index + n)
		n++;
	return n;
}

static int geometry_experts_set_shape(struct geometry *g,
				      const struct expert_layer *l,
				      const char *name,
				      const struct geometry_slice *s,
				      struct errmsg *err)
{
	uint64_t shape[TENSOR_DIMS_MAX];

	memcpy(shape, s->shape, s->ndim * sizeof(*shape));
	shape[0] = l->n;
	return geometry_set_shape(g, name, shape, s->ndim, err);
}

int geometry_experts(struct geometry *g, const struct expert_layer *l,
		     const char *name, const struct geometry_slice *s, size_t n,
		     struct errmsg *err)
{
	uint64_t len;
	int rc;

	for (size_t i = 0; i < n; i++)
		if (n != experts_degree(l) || s[i].ndim == 0 ||
		    s[i].ndim != s[0].ndim || s[i].shape[0] != l->local ||
		    memcmp(s[i].shape, s[0].shape,
			   s[0].ndim * sizeof(*s[0].shape)) != 0)
			return errmsg_set(err, -EBADMSG,
					  "parameter %s: is not of %u experts on"
					  " each of %u ranks",
					  name, l->local, experts_degree(l));
	rc = geometry_experts_set_shape(g, l, name, s, err);
	if (rc)
		return rc;
	g->rows = 1;
	g->row_len = g->numel;
	len = g->numel / l->n;
	for (size_t i = 0; i < n; i++)
		g->stride[i] = s[i].numel;
	for (unsigned e = 0, run; !rc && e < l->n; e += run) {
		run = run_length(l, e);
		rc = geometry_add(g, (struct geometry_segment){
					     .at = e * len,
					     .len = run * len,
					     .from = l->places[e].index * len,
					     .source = l->places[e].rank });
	}
	return rc;
}
