/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in files of torch.save. */
#include "gpu/load/load_tensor.h"

#include <errno.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/tensor/cast.h"

int load_tensor_check(const struct tensor *t, const char *file,
		      const char *name, struct errmsg *err)
{
	if (tensor_is_contiguous(t) && cast_knows(t->dtype))
		return 0;
	return errmsg_set(
		err, -ENOTSUP,
		"%s: %s is not contiguous, or no tensor of real numbers", file,
		name);
}

int load_tensor_at(const struct ptfile *pt, const struct value *v,
		   const char *name, struct tensor *t, uint64_t *at,
		   struct errmsg *err)
{
	int rc = ptfile_tensor(pt, v, name, t, at, err);

	if (rc)
		return rc;
	*at += t->storage_offset * dtype_size(t->dtype);
	return load_tensor_check(t, pt->src.name, name, err);
}
