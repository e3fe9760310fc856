/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_H
#define CUDAEMU_H

/*
 * Runs CUDA kernels on the host, so that what they compute can be tested where
 * there is no GPU.  The blocks of a grid run one after the other; the threads
 * of a block are coroutines, which take turns wherever they meet: at
 * __syncthreads, and in what the lanes of a warp do together.  Device memory is
 * malloc's, so that sanitizers see what is read and written beyond it.
 *
 * What this shows: index arithmetic, bounds, alignment, reductions, barriers
 * that not all threads reach, and such races as change the result when threads
 * run in the opposite order.  What it does not: the arithmetic of the
 * hardware, other races, the memory model, and anything about time.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Threads of a block run in this order from now on. */
void cudaemu_reverse(bool reverse);

/* cublasLt knows no epilogues from now on, as for shapes and types that it
 * really has none for. */
void cudaemu_refuse_epilogues(bool refuse);

/* How many products cublasLt has summed the columns of. */
unsigned cudaemu_products_with_sums(void);

/* Devices are of this compute capability from now on (8.x). */
void cudaemu_be(int capability);

/* Allocations fail when more than so many bytes would be taken; SIZE_MAX: they
 * never do. */
void cudaemu_limit_memory(size_t bytes);

/* Has the calling thread chosen a device? */
bool cudaemu_has_device(void);

/* Is that part of an allocation, and has somebody waited for what was queued
 * when that was made?  Else it may be written to later than by who knows of no
 * queue. */
bool cudaemu_is_settled(const void *p, size_t bytes);

/* --- for the headers beside this one --------------------------------------- */

struct cudaemu_dim {
	unsigned x, y, z;
};

/* Where the running thread is. */
extern struct cudaemu_dim cudaemu_thread, cudaemu_block;
extern struct cudaemu_dim cudaemu_block_dim, cudaemu_grid_dim;

/* What each thread of each block calls. */
void cudaemu_run(struct cudaemu_dim grid, struct cudaemu_dim block,
		 size_t shared, void (*body)(void *arg), void *arg);

void cudaemu_syncthreads(void);

/* Memory that a block has asked for when it was launched. */
void *cudaemu_shared(void);

#define CUDAEMU_WARP 32
#define CUDAEMU_EXCHANGE 64 /* the most bytes that a lane gives */

/* All lanes of a warp give `size` bytes, in the same `operation`.  What lane i
 * gave is at i * CUDAEMU_EXCHANGE until the lane calls this twice more. */
const char *cudaemu_exchange(const char *operation, const void *mine,
			     size_t size);

unsigned cudaemu_lane(void);

/* Copies of 16 bytes that a thread begins, puts into groups, and waits for, all
 * but the last `left` groups.  They happen as late as they may. */
void cudaemu_copy_later(void *shared, const void *global, bool there);
void cudaemu_end_group(void);
void cudaemu_wait_group(unsigned left);

/* Numbers of 16 bits, as they lie in memory. */
uint16_t cudaemu_to_f16(float x);
float cudaemu_from_f16(uint16_t x);

static inline uint16_t cudaemu_to_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof(u));
	return x != x ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float cudaemu_from_bf16(uint16_t x)
{
	const uint32_t u = (uint32_t)x << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

#ifdef __cplusplus
}
#endif

#endif
