/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_PTX_CUH
#define UCTRAIN_CUDA_PTX_CUH

/* Code that only nvcc can compile; tests without a GPU replace this header.  The PTX ISA defines
 * which lane holds which elements of a matrix. */
#include <cuda_runtime.h>
#include <stdint.h>

/* Declare shared memory of the block: of a fixed shape, CUDA_SHARED(float, name, [2][32]), or of
 * the size passed at launch. */
#define CUDA_SHARED(type, name, ...) __shared__ type name __VA_ARGS__
#define CUDA_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

/* Round to the nearest bfloat16 or float16; returns the bits. */
static __device__ __forceinline__ uint16_t ptx_to_bf16(float x)
{
	uint16_t y;

	asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
	return y;
}

static __device__ __forceinline__ uint16_t ptx_to_f16(float x)
{
	uint16_t y;

	asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
	return y;
}

static __device__ __forceinline__ float ptx_from_f16(uint16_t x)
{
	float y;

	asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
	return y;
}

/* Round two values; the first is in the lower half. */
static __device__ __forceinline__ uint32_t ptx_to_bf16x2(float lo, float hi)
{
	uint32_t y;

	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
	return y;
}

static __device__ __forceinline__ uint32_t ptx_to_f16x2(float lo, float hi)
{
	uint32_t y;

	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
	return y;
}

/* 2^x within 2 ulp. */
static __device__ __forceinline__ float ptx_exp2(float x)
{
	float y;

	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* d += a * b, where a is a row-major 16 x 16 and b a column-major 16 x 8 matrix. */
static __device__ __forceinline__ void ptx_mma_bf16(float d[4], const uint32_t a[4],
						    const uint32_t b[2])
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ void ptx_mma_f16(float d[4], const uint32_t a[4],
						   const uint32_t b[2])
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
	    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
	    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Load four 8 x 8 matrices of 16-bit elements from shared memory.  Lane 8 * i + j passes the
 * address of row j of matrix i, and gets two elements of each: columns lane % 4 * 2 and the next
 * of row lane / 4, or transposed. */
static __device__ __forceinline__ void ptx_load_matrices(uint32_t x[4], const void *row)
{
	const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);

	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
		     "{%0, %1, %2, %3}, [%4];"
		     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
		     : "r"(at)
		     : "memory");
}

static __device__ __forceinline__ void ptx_load_matrices_transposed(uint32_t x[4], const void *row)
{
	const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);

	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
		     "{%0, %1, %2, %3}, [%4];"
		     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
		     : "r"(at)
		     : "memory");
}

/* Start copying 16 bytes to shared memory, or zeros if not `there`. */
static __device__ __forceinline__ void ptx_copy_16(void *shared, const void *global, bool there)
{
	const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);

	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
		     :
		     : "r"(to), "l"(global), "r"(there ? 16 : 0)
		     : "memory");
}

/* End a group of copies: all that were started since the last call. */
static __device__ __forceinline__ void ptx_commit_copies()
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Wait for all of this thread's copies except those of the last `left` groups. */
template <int left> static __device__ __forceinline__ void ptx_wait_for_copies()
{
	asm volatile("cp.async.wait_group %0;" : : "n"(left) : "memory");
}

#endif
