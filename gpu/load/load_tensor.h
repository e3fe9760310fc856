/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_TENSOR_H
#define UCTRAIN_LOAD_TENSOR_H

#include <stdint.h>

struct errmsg;
struct ptfile;
struct tensor;
struct value;

/* Locate a tensor in a file.  It must be contiguous and of a real type; *at is
 * the file offset of its first element. */
int load_tensor_at(const struct ptfile *pt, const struct value *v,
		   const char *name, struct tensor *t, uint64_t *at,
		   struct errmsg *err);

/* Check that a tensor is contiguous and of a real type; -ENOTSUP if not. */
int load_tensor_check(const struct tensor *t, const char *file,
		      const char *name, struct errmsg *err);

#endif
