/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_TENSOR_H
#define UCTRAIN_LOAD_TENSOR_H

#include <stdint.h>

struct errmsg;
struct ptfile;
struct tensor;
struct value;

/* Find a tensor in a file, which must be contiguous and of real numbers; *at
 * is the offset of its element 0 in the file. */
int load_tensor_at(const struct ptfile *pt, const struct value *v,
		   const char *name, struct tensor *t, uint64_t *at,
		   struct errmsg *err);

/* Is a tensor contiguous and of real numbers?  -ENOTSUP if not. */
int load_tensor_check(const struct tensor *t, const char *file,
		      const char *name, struct errmsg *err);

#endif
