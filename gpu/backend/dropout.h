/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DROPOUT_H
#define UCTRAIN_DROPOUT_H

#include <stdint.h>

#include "gpu/backend/backend.h"
#include "gpu/backend/splitmix.h"

/* Return the seed that selects the elements.  Call it where the device's memory is accessible. */
SPLITMIX_FN uint64_t dropout_seed(const struct backend_dropout *d)
{
	return d->skip + (d->seed ? *d->seed : 0);
}

/* The random number of element i in the row with random number `row`, in 32-bit arithmetic, which
 * devices vectorise well.  Both halves of `row` enter separately: otherwise rows whose lower halves
 * are a few steps apart would have the same mask, shifted. */
SPLITMIX_FN uint32_t dropout_element(uint64_t row, uint32_t i)
{
	uint32_t x = (uint32_t)row + i * UINT32_C(0x9e3779b9);

	x = (x ^ x >> 16) * UINT32_C(0x21f0aaad);
	x = (x ^ x >> 15) + (uint32_t)(row >> 32);
	x *= UINT32_C(0xd35a2d97);
	return x ^ x >> 15;
}

/* Apply dropout to an element. */
SPLITMIX_FN float dropout_apply(float x, uint32_t random, float drop)
{
	return random < (uint32_t)(drop * 0x1p32f) ? 0 : x * (1.0f / (1.0f - drop));
}

#endif
