/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the header of the same name, implementing the PTX ISA's definitions. */
#ifndef UCTRAIN_CUDA_PTX_CUH
#define UCTRAIN_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

/* Blocks run one after another, so static memory suffices. */
#define CUDA_SHARED(type, name, ...)  \
	static type name __VA_ARGS__; \
	cudaemu_has_shared(&name, sizeof(name))
#define CUDA_DYNAMIC_SHARED(name) unsigned char *const name = (unsigned char *)cudaemu_shared()

static inline uint16_t ptx_to_bf16(float x)
{
	return cudaemu_to_bf16(x);
}

static inline uint16_t ptx_to_f16(float x)
{
	return cudaemu_to_f16(x);
}

static inline float ptx_from_f16(uint16_t x)
{
	return cudaemu_from_f16(x);
}

static inline uint32_t ptx_to_bf16x2(float lo, float hi)
{
	return ptx_to_bf16(lo) | (uint32_t)ptx_to_bf16(hi) << 16;
}

static inline uint32_t ptx_to_f16x2(float lo, float hi)
{
	return ptx_to_f16(lo) | (uint32_t)ptx_to_f16(hi) << 16;
}

static inline float ptx_exp2(float x)
{
	return exp2f(x);
}

/* A lane's elements of both matrices, as numbers. */
struct cudaemu_operands {
	float a[8], b[4];
};

/* Split each register into two numbers. */
template <float (*from)(uint16_t)>
static inline void cudaemu_unpack(float *x, const uint32_t *registers, unsigned n)
{
	for (unsigned i = 0; i < 2 * n; i++)
		x[i] = from((uint16_t)(registers[i / 2] >> 16 * (i % 2)));
}

/* Return the operands of the lane with elements k % 8 of a row of a, or column of b. */
static inline const struct cudaemu_operands *cudaemu_of_group(const char *given, unsigned group,
							      unsigned k)
{
	return (const struct cudaemu_operands *)(given +
						 (group * 4 + k % 8 / 2) * CUDAEMU_EXCHANGE);
}

/* d += a * b.  Each lane computes its elements of d: rows lane / 4 and 8 below, columns lane % 4
 * * 2 and the next. */
template <float (*from)(uint16_t)>
static inline void cudaemu_mma(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	const unsigned row = cudaemu_lane() / 4 % 8;
	const unsigned column = cudaemu_lane() % 4 * 2;
	struct cudaemu_operands mine;
	const char *given;

	cudaemu_unpack<from>(mine.a, a, 4);
	cudaemu_unpack<from>(mine.b, b, 2);
	given = cudaemu_exchange("mma", &mine, sizeof(mine));
	/* Four lanes hold a row of a, and a column of b; each has two adjacent elements in each
	 * of its halves. */
	for (unsigned k = 0; k < 16; k++) {
		const unsigned in_a = k / 8 * 4 + k % 2, in_b = k / 8 * 2 + k % 2;
		const struct cudaemu_operands *const x = cudaemu_of_group(given, row, k);
		const float left = cudaemu_of_group(given, column, k)->b[in_b];
		const float right = cudaemu_of_group(given, column + 1, k)->b[in_b];

		d[0] += x->a[in_a] * left;
		d[1] += x->a[in_a] * right;
		d[2] += x->a[in_a + 2] * left;
		d[3] += x->a[in_a + 2] * right;
	}
}

static inline void ptx_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	cudaemu_mma<cudaemu_from_bf16>(d, a, b);
}

static inline void ptx_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
	cudaemu_mma<cudaemu_from_f16>(d, a, b);
}

/* Lane 8 * i + j passes the address of row j of matrix i. */
static inline const uint16_t *cudaemu_row(const char *given, unsigned matrix, unsigned row)
{
	const uint16_t *p;

	memcpy(&p, given + (matrix * 8 + row) * CUDAEMU_EXCHANGE, sizeof(p));
	return p;
}

static inline const char *cudaemu_rows(const void *row)
{
	if ((uintptr_t)row % 16)
		__builtin_trap(); /* misaligned row */
	return cudaemu_exchange("ldmatrix", &row, sizeof(row));
}

static inline void ptx_load_matrices(uint32_t x[4], const void *row)
{
	const unsigned lane = cudaemu_lane();
	const char *const given = cudaemu_rows(row);

	for (unsigned i = 0; i < 4; i++) {
		const uint16_t *const from = cudaemu_row(given, i, lane / 4) + lane % 4 * 2;

		x[i] = from[0] | (uint32_t)from[1] << 16;
	}
}

static inline void ptx_load_matrices_transposed(uint32_t x[4], const void *row)
{
	const unsigned lane = cudaemu_lane();
	const char *const given = cudaemu_rows(row);

	for (unsigned i = 0; i < 4; i++) {
		const unsigned k = lane % 4 * 2;

		x[i] = cudaemu_row(given, i, k)[lane / 4] |
		       (uint32_t)cudaemu_row(given, i, k + 1)[lane / 4] << 16;
	}
}

static inline void ptx_copy_16(void *shared, const void *global, bool there)
{
	cudaemu_copy_later(shared, global, there);
}

static inline void ptx_commit_copies()
{
	cudaemu_end_group();
}

template <int left> static inline void ptx_wait_for_copies()
{
	cudaemu_wait_group(left);
}

#endif
