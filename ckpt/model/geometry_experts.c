/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts of AutoEP: each expert-parallel rank has a tensor of its experts, end to
 * end; the whole has all experts by number
 * (checkpoint/autoep_affine.py).
 *
 *	placement {0: [2, 0], 1: [3, 1]}
 *	whole	| 0: index 1 | 1: index 1 | 0: index 0 | 1: index 0 |
 */
#include <stdint.h>
#include <string.h>

#include "ckpt/model/experts.h"
#include "ckpt/model/geometry_impl.h"
#include "ckpt/model/merge_rules.h"

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

int geometry_experts(const struct geometry_job *j)
{
	const struct expert_layer *const l = j->m->experts;
	const struct geometry_slice *const s = j->s;
	struct geometry *const g = j->g;
	uint64_t shape[TENSOR_DIMS_MAX], len;
	int rc;

	for (size_t i = 0; i < j->n; i++)
		if (j->n != experts_degree(l) || s[i].ndim == 0 ||
		    s[i].ndim != s[0].ndim || s[i].shape[0] != l->local ||
		    memcmp(s[i].shape, s[0].shape,
			   s[0].ndim * sizeof(*s[0].shape)) != 0)
			return GEOMETRY_BAD(j, "is not of %u experts on each of"
					       " %u ranks",
					    l->local, experts_degree(l));
	memcpy(shape, s->shape, s->ndim * sizeof(*shape));
	shape[0] = l->n;
	rc = geometry_set_shape(j, shape, s->ndim);
	if (rc)
		return rc;
	g->rows = 1;
	g->row_len = g->numel;
	len = g->numel / l->n;
	for (size_t i = 0; i < j->n; i++)
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
