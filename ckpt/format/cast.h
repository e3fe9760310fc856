/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CAST_H
#define UCKPT_CAST_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/format/tensor.h"

/* Elements that callers convert at once. */
#define CAST_BATCH 1024

/* Is it a supported real type? */
bool cast_knows(enum dtype d);

/*
 * Convert `n` elements of type `from`, little-endian at `in` (any alignment), to float32 as torch's
 * Tensor.float() does: exact if float32 can hold the value, else rounded to nearest even.  Requires
 * cast_knows(from) (asserted).
 */
void cast_to_float(enum dtype from, const void *in, float *out, size_t n);

/* Convert to float64: exact except for 64-bit integers beyond 2^53. */
void cast_to_double(enum dtype from, const void *in, double *out, size_t n);

/* Convert back, to float16, bfloat16 or float32 (cast_makes; asserted): rounded to nearest even,
 * too large values to infinity; NaNs get the bits that torch gives them on x86. */
bool cast_makes(enum dtype d);
void cast_from_float(enum dtype to, const float *in, void *out, size_t n);

/* cast_to_float and back in one step, from any real type to one of these three, as torch's
 * Tensor.to().  Any alignment. */
void cast(enum dtype from, const void *in, enum dtype to, void *out, size_t n);

/*
 * Arithmetic with tensors as torch does it on a CPU: every operation yields the tensor's type,
 * rounded to nearest even; the 16-bit types are widened to float32 for it.  Elements are
 * little-endian, of any alignment.
 *
 * The bits of a NaN are unspecified: in torch they depend on the processor and the element's index.
 */

/* Is it float16, bfloat16, float32 or float64? */
bool arith_knows(enum dtype t);

/* sum[i] += v[i], for `n` elements. */
void arith_add(enum dtype t, void *sum, const void *v, size_t n);

/* v[i] /= by.  `by` is a Python number: it is first converted to float32, except for float64. */
void arith_divide(enum dtype t, void *v, double by, size_t n);

#endif
