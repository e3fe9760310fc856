/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CAST_H
#define UCKPT_CAST_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/format/tensor.h"

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

/* And back, to float16, bfloat16 or float32 (cast_makes; asserted): rounded to nearest
 * even, too large ones to infinity; a NaN becomes the bits that torch gives it on x86. */
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
 * A NaN is a NaN: the bits of its fraction depend, in torch, on the processor and on the element's
 * index.
 */

/* Is it float16, bfloat16, float32 or float64? */
bool arith_knows(enum dtype t);

/* sum[i] += v[i], for `n` elements. */
void arith_add(enum dtype t, void *sum, const void *v, size_t n);

/* v[i] /= by.  `by` is a Python number: it becomes float32 first, but for
 * float64. */
void arith_divide(enum dtype t, void *v, double by, size_t n);

#endif
