/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend.  Only `sync`, and the copies that backend.h defines as synchronous, wait for
 * the GPU. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only headers: without a profiler the calls do nothing. */
#include <nvtx3/nvToolsExt.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "gpu/cuda/backend_cuda.h"
#include "gpu/cuda/cuda_attention.h"
#include "gpu/cuda/cuda_gemm.h"
#include "gpu/cuda/cuda_ops.h"
#include "gpu/watch/watch.h"

/* Enough rows per chunk for full GEMM speed.  The same on every machine, unless the caller sets
 * it. */
#define LOGITS_BYTES ((size_t)1 << 30)

void cuda_fail(struct cuda *c, int rc, const char *call, const char *reason)
{
	assert(rc < 0);
	if (c->failed)
		return;
	c->failed = rc;
	snprintf(c->failure, sizeof(c->failure), "%s: %s", call, reason);
}

bool cuda_ok(struct cuda *c, cudaError_t e, const char *call)
{
	if (e == cudaSuccess)
		return true;
	cudaGetLastError(); /* otherwise the next call returns it again */
	cuda_fail(c, e == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, call, cudaGetErrorString(e));
	return false;
}

/* Operations may be queued behind collectives. */
static void wait_for_stream(struct cuda *c)
{
	watch_begin("the computation on the GPU");
	CUDA_CALL(c, cudaStreamSynchronize, c->stream);
	watch_end();
}

int cuda_failure(struct cuda *c, struct errmsg *err)
{
	const int rc = c->failed;

	c->failed = 0;
	return rc ? errmsg_set(err, rc, "CUDA device %d: %s", c->device, c->failure) : 0;
}

static int cuda_sync(struct backend *b, struct errmsg *err)
{
	struct cuda *const c = cuda_of(b);

	wait_for_stream(c);
	return cuda_failure(c, err);
}

static void *cuda_alloc(struct backend *b, size_t bytes)
{
	struct cuda *const c = cuda_of(b);
	void *p = NULL;

	if (cudaMallocAsync(&p, bytes ? bytes : 1, c->stream) != cudaSuccess) {
		cudaGetLastError();
		return NULL; /* the caller reports it */
	}
	CUDA_CALL(c, cudaMemsetAsync, p, 0, bytes, c->stream);
	return p;
}

static void cuda_free(struct backend *b, void *p)
{
	struct cuda *const c = cuda_of(b);

	if (p)
		CUDA_CALL(c, cudaFreeAsync, p, c->stream);
}

void *cuda_scratch(struct cuda *c, size_t bytes)
{
	void *p = NULL;

	if (bytes <= c->scratch_len)
		return c->scratch;
	if (c->base.recording) {
		cuda_fail(c, -ENOMEM, "a graph", "an operation needs memory");
		return NULL;
	}
	if (c->scratch && c->scratch != c->recorded_scratch)
		CUDA_CALL(c, cudaFreeAsync, c->scratch, c->stream);
	c->scratch_len = 0;
	if (cuda_ok(c, cudaMallocAsync(&p, bytes, c->stream),
		    "memory that an operation needs: cudaMallocAsync"))
		c->scratch_len = bytes;
	c->scratch = p;
	return p;
}

/* Limits of attention: elements of a head, and elements copied at once. */
#define WIDTH_MAX 256
#define CHUNK_BYTES 16

struct cuda_heads cuda_heads_of(const void *qkv, size_t batch, size_t seq, size_t heads, size_t c,
				struct backend_dropout drop)
{
	assert(heads && c % heads == 0);
	assert(drop.p >= 0 && drop.p < 1);
	return (struct cuda_heads){
		.qkv = qkv,
		.batch = batch,
		.seq = seq,
		.heads = heads,
		.width = c / heads,
		.scale = 1.0f / sqrtf((float)(c / heads)),
		.drop = drop,
	};
}

static bool is_aligned(const void *p)
{
	return (uintptr_t)p % CHUNK_BYTES == 0;
}

bool cuda_heads_fit(struct cuda *c, struct cuda_heads *a)
{
	a->chunked = a->width * c->base.act_size % CHUNK_BYTES == 0 && is_aligned(a->qkv) &&
		     is_aligned(a->out) && is_aligned(a->dout) && is_aligned(a->dqkv);
	if (a->width > WIDTH_MAX)
		cuda_fail(c, -ENOTSUP, "attention", "heads of more than 256 elements");
	return a->width <= WIDTH_MAX;
}

/* Keep freed memory in the pool: returning it to the driver for every unit of every step would wait
 * for all queued operations. */
static void keep_memory(struct cuda *c)
{
	uint64_t all = UINT64_MAX;
	cudaMemPool_t pool;

	if (CUDA_CALL(c, cudaDeviceGetDefaultMemPool, &pool, c->device))
		CUDA_CALL(c, cudaMemPoolSetAttribute, pool, cudaMemPoolAttrReleaseThreshold, &all);
}

static void backend_cuda_copy(struct cuda *c, void *dst, const void *src, size_t bytes,
			      enum cudaMemcpyKind kind)
{
	/* A copy from memory that is not pinned waits for the stream. */
	watch_begin("the computation on the GPU");
	if (CUDA_CALL(c, cudaMemcpyAsync, dst, src, bytes, kind, c->stream))
		wait_for_stream(c);
	watch_end();
}

static void cuda_to_device(struct backend *b, void *dst, const void *src, size_t bytes)
{
	backend_cuda_copy(cuda_of(b), dst, src, bytes, cudaMemcpyHostToDevice);
}

static void cuda_to_host(struct backend *b, void *dst, const void *src, size_t bytes)
{
	backend_cuda_copy(cuda_of(b), dst, src, bytes, cudaMemcpyDeviceToHost);
}

static void cuda_zero(struct backend *b, void *p, size_t bytes)
{
	struct cuda *const c = cuda_of(b);

	CUDA_CALL(c, cudaMemsetAsync, p, 0, bytes, c->stream);
}

static uint64_t cuda_memory_peak(struct backend *b, bool restart)
{
	struct cuda *const c = cuda_of(b);
	uint64_t most = 0, none = 0;
	cudaMemPool_t pool;

	if (CUDA_CALL(c, cudaDeviceGetDefaultMemPool, &pool, c->device) &&
	    CUDA_CALL(c, cudaMemPoolGetAttribute, pool, cudaMemPoolAttrUsedMemHigh, &most) &&
	    restart)
		CUDA_CALL(c, cudaMemPoolSetAttribute, pool, cudaMemPoolAttrUsedMemHigh, &none);
	return most;
}

/* Free memory of the driver, plus unused memory in the pool. */
static uint64_t cuda_memory_left(struct backend *b)
{
	struct cuda *const c = cuda_of(b);
	uint64_t kept = 0, used = 0;
	size_t left = 0, all;
	cudaMemPool_t pool;

	if (!CUDA_CALL(c, cudaMemGetInfo, &left, &all) ||
	    !CUDA_CALL(c, cudaDeviceGetDefaultMemPool, &pool, c->device) ||
	    !CUDA_CALL(c, cudaMemPoolGetAttribute, pool, cudaMemPoolAttrReservedMemCurrent,
		       &kept) ||
	    !CUDA_CALL(c, cudaMemPoolGetAttribute, pool, cudaMemPoolAttrUsedMemCurrent, &used))
		return 0;
	return left + (kept > used ? kept - used : 0);
}

static void cuda_range_begin(struct backend *b, const char *name)
{
	(void)b;
	nvtxRangePushA(name);
}

static void cuda_range_end(struct backend *b)
{
	(void)b;
	nvtxRangePop();
}

/* TFLOP/s of dense 16-bit GEMMs, from NVIDIA's data sheets.  A device is looked up by the beginning
 * of its name; the first match counts. */
static const struct {
	const char *name;
	double tflops;
} peaks[] = {
	{ "NVIDIA A100", 312 },  { "NVIDIA H100 PCIe", 756 }, { "NVIDIA H100 NVL", 835 },
	{ "NVIDIA H100", 989 },  { "NVIDIA H200 NVL", 835 },  { "NVIDIA H200", 989 },
	{ "NVIDIA GH200", 989 },
};

/* Return the peak FLOP/s of GEMMs in the backend's type; 0 if the device is unknown. */
static double peak_of(struct cuda *c)
{
	struct cudaDeviceProp device;

	if ((c->base.dtype == DTYPE_F32 && !c->tf32) ||
	    !CUDA_CALL(c, cudaGetDeviceProperties, &device, c->device))
		return 0;
	for (size_t i = 0; i < COUNT(peaks); i++)
		if (strncmp(device.name, peaks[i].name, strlen(peaks[i].name)) == 0)
			return peaks[i].tflops * (c->tf32 ? 0.5e12 : 1e12);
	return 0;
}

static void cuda_destroy(struct backend *b)
{
	struct cuda *const c = cuda_of(b);

	cuda_gemm_done(c);
	cuda_queues_done(c);
	if (c->scratch)
		cudaFreeAsync(c->scratch, c->stream);
	if (c->stream) {
		cudaStreamSynchronize(c->stream);
		cudaStreamDestroy(c->stream);
	}
	free(c);
}

#define CUDA_OP_ENTRY(op) .op = cuda_##op,

static const struct backend_ops ops = { .destroy = cuda_destroy,
					.sync = cuda_sync,
					.alloc = cuda_alloc,
					.free = cuda_free,
					.to_device = cuda_to_device,
					.to_host = cuda_to_host,
					.zero = cuda_zero,
					.memory_peak = cuda_memory_peak,
					.memory_left = cuda_memory_left,
					.range_begin = cuda_range_begin,
					.range_end = cuda_range_end,
					CUDA_OPS(CUDA_OP_ENTRY) };

/* Kernels use instructions of sm_80: products of bfloat16, asynchronous copies. m4/ucfs_cuda.m4
 * refuses to compile for less. */
#define MAJOR_MIN 8

/* Ranks of a machine take its GPUs round robin. */
static int choose_device(struct cuda *c, unsigned local_rank, struct errmsg *err)
{
	int n = 0, shared = 0;
	const cudaError_t e = cudaGetDeviceCount(&n);

	if (e != cudaSuccess || n == 0)
		return errmsg_set(err, -ENODEV, "no CUDA device can be used: %s",
				  e == cudaSuccess ? "there is none" : cudaGetErrorString(e));
	c->device = (int)(local_rank % (unsigned)n);
	CUDA_CALL(c, cudaSetDevice, c->device);
	CUDA_CALL(c, cudaDeviceGetPCIBusId, c->base.device, BACKEND_DEVICE_LEN, c->device);
	CUDA_CALL(c, cudaDeviceGetAttribute, &c->major, cudaDevAttrComputeCapabilityMajor,
		  c->device);
	CUDA_CALL(c, cudaDeviceGetAttribute, &shared, cudaDevAttrMaxSharedMemoryPerBlockOptin,
		  c->device);
	c->shared_limit = (size_t)shared;
	if (!c->failed && c->major < MAJOR_MIN)
		return errmsg_set(err, -ENOTSUP,
			"CUDA device %d (%s) has compute capability %d.x; at least %d.0 is needed (Ampere, such as A100)",
			c->device, c->base.device, c->major, MAJOR_MIN);
	CUDA_CALL(c, cudaStreamCreateWithFlags, &c->stream, cudaStreamNonBlocking);
	cuda_queues_init(c);
	keep_memory(c);
	c->base.peak_flops = peak_of(c);
	if (cuda_gemm_init(c))
		return errmsg_nomem(err, NULL);
	return cuda_sync(&c->base, err);
}

int backend_cuda_new(struct backend **out, enum dtype dtype, const struct backend_cuda_options *o,
		     struct errmsg *err)
{
	struct cuda *c;
	int rc;

	assert(dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16);
	c = calloc(1, sizeof(*c));
	if (!c)
		return errmsg_nomem(err, NULL);
	c->base = (struct backend){
		.ops = &ops,
		.name = "cuda",
		.dtype = dtype,
		.act_size = dtype == DTYPE_F32 ? 4 : 2,
		.logits_bytes = LOGITS_BYTES,
	};
	c->deterministic = o->deterministic;
	c->tf32 = o->tf32 && dtype == DTYPE_F32;
	rc = choose_device(c, o->local_rank, err);
	if (rc) {
		cuda_destroy(&c->base);
		return rc;
	}
	*out = &c->base;
	return 0;
}
