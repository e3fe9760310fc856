/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_H
#define CUDAEMU_H

/*
 * Runs CUDA kernels on the host, to test their results without a GPU. The blocks of a grid run
 * one after the other; the threads of a block are coroutines that switch at __syncthreads and at
 * warp-wide operations.  Device memory comes from malloc, so that sanitizers see accesses beyond
 * it; with CUDAEMU_APART in the environment only operations reach it.
 *
 * This tests index arithmetic, bounds, alignment, reductions, barriers that not all threads
 * reach, and races that change the result when threads run in the opposite order.  It does not
 * test the hardware's arithmetic, other races, the memory model, or anything about time.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Set the order in which threads of a block run. */
void cudaemu_reverse(bool reverse);

/* Let cublasLt reject all epilogues from now on, as it does for some shapes and types. */
void cudaemu_refuse_epilogues(bool refuse);

/* Return the number of products that cublasLt computed with column sums. */
unsigned cudaemu_products_with_sums(void);

/* Let cublasLt offer `n` algorithms from now on (1 at first), of which `fastest`, counted from 0,
 * takes half the time of the others; the last one fails when used if `last_fails`. */
void cudaemu_offer(unsigned n, unsigned fastest, bool last_fails);

/* Return the number of products that cublasLt computed by an algorithm. */
unsigned cudaemu_products_by(unsigned algorithm);

/* Add to the time for which the device was busy, in milliseconds. */
void cudaemu_spend(double ms);

/* Set the devices' compute capability (8.x) from now on. */
void cudaemu_be(int capability);

/* Limit of a block's shared memory, in bytes: a launch with more ends the process. */
extern size_t cudaemu_shared_limit;

/* Let allocations beyond this total fail; SIZE_MAX: no limit. */
void cudaemu_limit_memory(size_t bytes);

/* Choose another order of operations on different streams; the initial seed is $CUDAEMU_SEED, or
 * 0. */
void cudaemu_seed(unsigned seed);

/* Run everything that is queued; does nothing when called by an operation. */
void cudaemu_finish(void);

/* Counters of operations since the process began.  The numbers are written, in this order, to
 * $CUDAEMU_TRAFFIC.RANK at exit, and to a line of $CUDAEMU_STEPS.RANK when the trainer begins a
 * step. */
extern struct cudaemu_traffic {
	/* Copies between host and device, and their bytes. */
	uint64_t to_device, bytes_to_device, to_host, bytes_to_host;
	uint64_t waits;    /* the host's waits for a stream or an event */
	uint64_t launches; /* launches of the backend's own kernels */
	uint64_t products; /* products by cuBLASLt */
	uint64_t zeroed, bytes_zeroed;
	uint64_t collectives;   /* calls of NCCL; a group counts as one */
	uint64_t bytes_reduced; /* bytes of this rank's operands of reductions */
	/* The host's calls for all of these; launching a graph is one. */
	uint64_t calls;
} cudaemu_traffic;

/* Open the file $VARIABLE.RANK for a report, like fopen; NULL if VARIABLE is not set. */
FILE *cudaemu_report(const char *variable, const char *mode);

struct cudaemu_dim {
	unsigned x, y, z;
};

/* Queue an operation, with a copy of its argument; keep it in the graph if the stream is
 * captured. */
struct cudaemu_stream;
void cudaemu_queue(struct cudaemu_stream *stream, void (*run)(void *arg), const void *arg,
		   size_t bytes);

bool cudaemu_is_recorded(const struct cudaemu_stream *stream);

bool cudaemu_is_on_device(const void *p);

/* Position of the running thread. */
extern struct cudaemu_dim cudaemu_thread, cudaemu_block;
extern struct cudaemu_dim cudaemu_block_dim, cudaemu_grid_dim;

/* Run `body` as each thread of each block of a kernel. */
void cudaemu_run(const void *kernel, struct cudaemu_dim grid, struct cudaemu_dim block,
		 size_t shared, void (*body)(void *arg), void *arg);

/* Return the dynamic shared memory for a kernel.  Without this request, a kernel with more than 48
 * KiB, static and dynamic, ends the process. */
void cudaemu_allow_shared(const void *kernel, size_t bytes);

/* Add to the running block's static shared memory. */
void cudaemu_has_shared(const void *p, size_t bytes);

void cudaemu_syncthreads(void);

/* Return the dynamic shared memory of the running block. */
void *cudaemu_shared(void);

#define CUDAEMU_WARP 32
#define CUDAEMU_EXCHANGE 64 /* largest number of bytes that a lane passes */

/* Exchange data within a warp: all lanes pass `size` bytes, in the same `operation`.  Lane i's
 * bytes are at i * CUDAEMU_EXCHANGE until the second next call. */
const char *cudaemu_exchange(const char *operation, const void *mine, size_t size);

unsigned cudaemu_lane(void);

/* Asynchronous 16-byte copies of a thread: start one, end a group, wait for all but the last `left`
 * groups.  Copies run as late as possible. */
void cudaemu_copy_later(void *shared, const void *global, bool there);
void cudaemu_end_group(void);
void cudaemu_wait_group(unsigned left);

/* 16-bit floats as bits. */
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
