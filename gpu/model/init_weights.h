/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_INIT_WEIGHTS_H
#define UCTRAIN_INIT_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

struct gpt2;

/*
 * Compute elements [first, first + n) of this rank's part of parameter i of a
 * new model, distributed as Hugging Face initialises GPT-2.  They depend only on
 * the seed, the parameter and the index in the whole parameter, so that any
 * number of ranks gets the same model.  Padding is zero.
 */
void init_weights(const struct gpt2 *m, size_t i, uint64_t seed, uint64_t first,
		  size_t n, float *out);

#endif
