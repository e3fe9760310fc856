/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CAST_H
#define UCKPT_CAST_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/tensor/tensor.h"

/* Elements that callers convert at once. */
#define CAST_BATCH 1024

/* Is it a real type, whose values are known? */
bool cast_knows(enum dtype d);

/*
 * `n` elements of type `from`, little-endian at `in` (any alignment), to
 * float32 as torch's Tensor.float() does: exact where float32 can hold the
 * value, rounded to nearest even where not.  cast_knows(from), which is
 * asserted.
 */
void cast_to_float(enum dtype from, const void *in, float *out, size_t n);

/* The same to float64: exact but for 64-bit integers beyond 2^53. */
void cast_to_double(enum dtype from, const void *in, double *out, size_t n);

/* And back, to float16, bfloat16 or float32: rounded to nearest even, too
 * large ones to infinity; a NaN becomes the bits that torch gives it on x86. */
void cast_from_float(enum dtype to, const float *in, void *out, size_t n);

/* Both: from any real type to one of these three, by way of float32, as torch's
 * Tensor.to().  Any alignment. */
void cast(enum dtype from, const void *in, enum dtype to, void *out, size_t n);

#endif
