/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_INITIAL_H
#define UCTRAIN_INITIAL_H

#include <stddef.h>
#include <stdint.h>

struct gpt2;

/*
 * Elements [first, first + n) of parameter i of a new model, distributed as
 * Hugging Face initialises GPT-2.  They depend on the seed, the parameter and
 * the element only, so that any number of ranks makes the same model.
 */
void initial_weights(const struct gpt2 *m, size_t i, uint64_t seed,
		     uint64_t first, size_t n, float *out);

#endif
