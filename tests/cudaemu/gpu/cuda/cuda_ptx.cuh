/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the header of the same name, implementing the PTX ISA's
 * definitions. */
#ifndef UCTRAIN_CUDA_PTX_CUH
#define UCTRAIN_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

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

/* --- matrices of a warp ----------------------------------------------------- */

struct cudaemu_operands {
	uint32_t a[4], b[2];
};

/* One half of a lane's register as a number. */
template <float (*from)(uint16_t)>
static inline float cudaemu_half(uint32_t x, int half)
{
	return from((uint16_t)(x >> 16 * half));
}

/* d += a * b.  Each lane computes its elements of d: rows lane / 4 and 8 below,
 * columns lane % 4 * 2 and the next. */
template <float (*from)(uint16_t)>
static inline void cudaemu_mma(float d[4], const uint32_t a[4],
			       const uint32_t b[2])
{
	const unsigned lane = cudaemu_lane();
	struct cudaemu_operands mine;
	const char *given;

	memcpy(mine.a, a, sizeof(mine.a));
	memcpy(mine.b, b, sizeof(mine.b));
	given = cudaemu_exchange("mma", &mine, sizeof(mine));
	for (unsigned i = 0; i < 4; i++) {
		const unsigned row = lane / 4 % 8 + i / 2 * 8;
		const unsigned column = lane % 4 * 2 + i % 2;

		for (unsigned k = 0; k < 16; k++) {
			/* The lanes that hold a[row][k] and b[k][column]. */
			const unsigned pair = k % 8 / 2;
			const struct cudaemu_operands *const of_a =
				(const struct cudaemu_operands
					 *)(given + (row % 8 * 4 + pair) *
							    CUDAEMU_EXCHANGE);
			const struct cudaemu_operands *const of_b =
				(const struct cudaemu_operands
					 *)(given + (column * 4 + pair) *
							    CUDAEMU_EXCHANGE);

			d[i] += cudaemu_half<from>(of_a->a[row / 8 + k / 8 * 2],
						   k % 2) *
				cudaemu_half<from>(of_b->b[k / 8], k % 2);
		}
	}
}

static inline void ptx_mma_bf16(float d[4], const uint32_t a[4],
				const uint32_t b[2])
{
	cudaemu_mma<cudaemu_from_bf16>(d, a, b);
}

static inline void ptx_mma_f16(float d[4], const uint32_t a[4],
			       const uint32_t b[2])
{
	cudaemu_mma<cudaemu_from_f16>(d, a, b);
}

/* Lane 8 * i + j passes the address of row j of matrix i. */
static inline const uint16_t *cudaemu_row(const char *given, unsigned matrix,
					  unsigned row)
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
		const uint16_t *const from =
			cudaemu_row(given, i, lane / 4) + lane % 4 * 2;

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

/* --- copies ----------------------------------------------------------------- */

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
