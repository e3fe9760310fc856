/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums that do not depend on the order of summation.  A double has 29 more binary digits than the
 * floats added to it: as long as the gradients of an element differ by no more than that in
 * magnitude, their sum is exact in any order, and is rounded once.  Every rank keeps the sums of
 * all elements, on the host, in the model's order.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/comm/pieces.h"
#include "gpu/zero/zero_impl.h"

int zero_sum_exactly(struct zero *z, struct errmsg *err)
{
	struct unit_buffers *const units = &z->impl->unit_gradients;
	double *sums = calloc(z->model->numel, sizeof(*sums));
	int rc = sums ? 0 : errmsg_set(err, -ENOMEM, "out of memory for sums");

	if (!units->n)
		unit_buffers_init(z, units, sizeof(*z->impl->gradient));
	if (!rc)
		rc = zero_check_memory(z, err);
	rc = comm_agree(z->world, rc, err);
	if (rc)
		free(sums);
	else
		z->impl->exact = sums;
	return rc;
}

void zero_exact_add(struct zero *z, unsigned unit, const float *gradient)
{
	struct zero_impl *m = z->impl;
	const uint64_t numel = z->model->units[unit].numel;
	double *to = m->exact;

	assert(m->exact && unit < z->model->nunits);
	for (unsigned u = 0; u < unit; u++)
		to += z->model->units[u].numel;
	for (uint64_t at = 0; at < numel; at += m->window) {
		const size_t n = pieces_within(numel, at, m->window);

		z->backend->ops->to_host(z->backend, m->host, gradient + at, n * sizeof(*m->host));
		for (size_t i = 0; i < n; i++)
			to[at + i] += (double)m->host[i];
	}
}

/* Round the sums of one parameter and copy them to the device. */
static void round_sums(struct zero *z, const double *sums, uint64_t numel, float *dst)
{
	struct zero_impl *m = z->impl;

	for (uint64_t at = 0; at < numel; at += m->window) {
		const size_t n = pieces_within(numel, at, m->window);

		for (size_t i = 0; i < n; i++)
			m->host[i] = (float)sums[at + i];
		z->backend->ops->to_device(z->backend, dst + at, m->host, n * sizeof(*m->host));
	}
}

void zero_exact_sum(struct zero *z, float *own)
{
	double *const sums = z->impl->exact;
	const double *param = sums;

	comm_sum_double(z->comm, sums, z->model->numel);
	for (size_t i = 0; i < z->model->nparams; i++) {
		const struct fragment f = zero_fragment(z, i);

		assert(f.start + f.numel <= z->local);
		round_sums(z, param + f.first, f.numel, own + f.start);
		param += z->model->params[i].numel;
	}
	memset(sums, 0, z->model->numel * sizeof(*sums));
}
