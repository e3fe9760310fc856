/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_BACKEND_CUDA_H
#define UCTRAIN_BACKEND_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/backend/backend.h"

struct backend_cuda_options {
	unsigned local_rank; /* on this machine: ranks take its GPUs round robin */
	bool tf32;           /* float32 GEMMs may round factors to 11 bits */
	bool deterministic;  /* bit-identical results in every run */
};

/* Create a backend.  -ENOTSUP in builds without CUDA and for a GPU that is too old,
 * -ENODEV without a GPU. */
int backend_cuda_new(struct backend **out, enum dtype dtype, const struct backend_cuda_options *o,
		     struct errmsg *err);

#endif
