/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the CUDA backend in builds without CUDA. */
#include <errno.h>

#include "ckpt/base/errmsg.h"
#include "gpu/cuda/backend_cuda.h"

int backend_cuda_new(struct backend **out, enum dtype dtype, const struct backend_cuda_options *o,
		     struct errmsg *err)
{
	(void)out;
	(void)dtype;
	(void)o;
	return errmsg_set(err, -ENOTSUP, "--device cuda: this uctrain was built without CUDA");
}
