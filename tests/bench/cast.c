/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Throughput of conversions against memcpy: bytes read and written per second of
 * processor time, the best of several alternating rounds.  Arrays are larger than
 * any cache.  Prints a line for each: name, GB/s, ratio to memcpy.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/base/array.h"
#include "ckpt/format/cast.h"

#define ELEMENTS ((size_t)16 << 20)
#define ROUNDS 9

static const enum dtype pairs[][2] = {
	{ DTYPE_F32, DTYPE_F32 }, /* memcpy */
	{ DTYPE_F32, DTYPE_BF16 }, { DTYPE_F32, DTYPE_F16 },
	{ DTYPE_BF16, DTYPE_F32 }, { DTYPE_F16, DTYPE_F32 },
	{ DTYPE_BF16, DTYPE_F16 },
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double measure(size_t i, const void *in, void *out)
{
	const double begin = now();

	if (i == 0)
		memcpy(out, in, ELEMENTS * sizeof(float));
	else
		cast(pairs[i][0], in, pairs[i][1], out, ELEMENTS);
	return now() - begin;
}

int main(void)
{
	double best[COUNT(pairs)], rate[COUNT(pairs)];
	float *const in = malloc(ELEMENTS * sizeof(*in));
	float *const out = malloc(ELEMENTS * sizeof(*out));

	if (!in || !out)
		return 1;
	/* Use numbers of every magnitude that are also finite in 16 bits. */
	for (size_t i = 0; i < ELEMENTS; i++)
		in[i] = (float)(i % 65521) * 1e-3f - 30;
	memset(out, 1, ELEMENTS * sizeof(*out));
	for (unsigned round = 0; round < ROUNDS; round++)
		for (size_t i = 0; i < COUNT(pairs); i++) {
			const double t = measure(i, in, out);

			if (!round || t < best[i])
				best[i] = t;
		}
	for (size_t i = 0; i < COUNT(pairs); i++) {
		const size_t bytes =
			dtype_size(pairs[i][0]) + dtype_size(pairs[i][1]);

		rate[i] = (double)(ELEMENTS * bytes) / best[i] * 1e-9;
		printf("%s-%s %.2f %.2f\n", dtype_name(pairs[i][0]),
		       dtype_name(pairs[i][1]), rate[i], rate[i] / rate[0]);
	}
	free(in);
	free(out);
	return 0;
}
