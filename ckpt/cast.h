/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CAST_H
#define UCKPT_CAST_H

#include <stddef.h>

#include "ckpt/tensor.h"

/* Elements that callers convert at once. */
#define CAST_BATCH 1024

/*
 * `n` elements of type `from`, little-endian at `in` (any alignment), to
 * float32 as torch's Tensor.float() does: exact where float32 can hold the
 * value, rounded to nearest even where not.  `from` must be a real type.
 */
void cast_to_float(enum dtype from, const void *in, float *out, size_t n);

/* And back, to float16, bfloat16 or float32: rounded to nearest even, too
 * large ones to infinity; of a NaN only its being one is kept. */
void cast_from_float(enum dtype to, const float *in, void *out, size_t n);

#endif
