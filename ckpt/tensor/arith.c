/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/tensor/arith.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/tensor/cast.h"

/* Elements computed at a time. */
#define BATCH 256

bool arith_knows(enum dtype t)
{
	return t == DTYPE_F16 || t == DTYPE_BF16 || t == DTYPE_F32 ||
	       t == DTYPE_F64;
}

static double get_double(const uint8_t *p)
{
	const uint64_t bits = get_le64(p);
	double d;

	memcpy(&d, &bits, sizeof(d));
	return d;
}

static void put_double(uint8_t *p, double d)
{
	uint64_t bits;

	memcpy(&bits, &d, sizeof(bits));
	put_le64(p, bits);
}

void arith_add(enum dtype t, void *sum, const void *v, size_t n)
{
	const size_t item = dtype_size(t);
	const uint8_t *const from = v;
	uint8_t *const to = sum;
	float a[BATCH], b[BATCH];

	assert(arith_knows(t));
	for (size_t i = 0; t == DTYPE_F64 && i < n; i++)
		put_double(to + i * item, get_double(to + i * item) +
						  get_double(from + i * item));
	for (size_t at = 0; t != DTYPE_F64 && at < n; at += BATCH) {
		const size_t k = n - at < BATCH ? n - at : BATCH;

		cast_to_float(t, to + at * item, a, k);
		cast_to_float(t, from + at * item, b, k);
		for (size_t i = 0; i < k; i++)
			a[i] += b[i];
		cast_from_float(t, a, to + at * item, k);
	}
}

void arith_divide(enum dtype t, void *v, double by, size_t n)
{
	const size_t item = dtype_size(t);
	uint8_t *const to = v;
	float a[BATCH];

	assert(arith_knows(t));
	for (size_t i = 0; t == DTYPE_F64 && i < n; i++)
		put_double(to + i * item, get_double(to + i * item) / by);
	for (size_t at = 0; t != DTYPE_F64 && at < n; at += BATCH) {
		const size_t k = n - at < BATCH ? n - at : BATCH;

		cast_to_float(t, to + at * item, a, k);
		for (size_t i = 0; i < k; i++)
			a[i] /= (float)by;
		cast_from_float(t, a, to + at * item, k);
	}
}
