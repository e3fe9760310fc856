/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SAFETENSORS_WRITE_H
#define UCKPT_SAFETENSORS_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/tensor/tensor.h"

struct bytebuf;
struct errmsg;

struct safetensors_write_tensor {
	const char *name;
	enum dtype dtype;
	unsigned ndim;
	const uint64_t *shape;
	uint64_t numel;
};

/*
 * Write the header of a safetensors file with these tensors, as the library's
 * save_file(..., metadata={"format": "pt"}) writes it, the eight bytes of its
 * length included.  The tensors' bytes follow it, without gaps, in the order
 * `order`, which has room for `n` numbers.
 *
 * -ENOTSUP for names that are not UTF-8 and types that the format lacks,
 * -E2BIG, -ENOMEM.
 */
int safetensors_write_header(const struct safetensors_write_tensor *v, size_t n,
			     size_t *order, struct bytebuf *out,
			     struct errmsg *err);

#endif
