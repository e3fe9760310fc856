/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ARITH_H
#define UCKPT_ARITH_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/tensor/tensor.h"

/*
 * Arithmetic with tensors as torch does it on a CPU: every operation yields
 * the tensor's type, rounded to nearest even; the 16-bit types are widened to
 * float32 for it.  Elements are little-endian, of any alignment.
 *
 * A NaN is a NaN: which bits its fraction has depends in torch on the
 * processor and on the element's place.
 */

/* Of which types: float16, bfloat16, float32, float64. */
bool arith_knows(enum dtype t);

/* sum[i] += v[i], for `n` elements. */
void arith_add(enum dtype t, void *sum, const void *v, size_t n);

/* v[i] /= by.  `by` is a Python number: it becomes float32 first, but for
 * float64. */
void arith_divide(enum dtype t, void *v, double by, size_t n);

#endif
