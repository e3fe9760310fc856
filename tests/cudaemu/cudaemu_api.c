/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of cuda_runtime_api.h. */
#include <inttypes.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_runtime_api.h"
#include "cudaemu.h"
#include "cudaemu_impl.h"
#include "nvtx3/nvToolsExt.h"

struct cudaemu_traffic cudaemu_traffic;

static cudaError_t last_error;
static size_t taken, most, limit = SIZE_MAX;

struct allocation {
	uint8_t *p;
	size_t bytes;
	struct allocation *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Memory that copies access directly: the device's, and the host's pinned memory. */
static struct allocation *allocations, *pinned;

cudaError_t cudaemu_result(cudaError_t e)
{
	if (e != cudaSuccess)
		last_error = e;
	return e;
}

static bool remember(struct allocation **all, void *p, size_t bytes)
{
	struct allocation *a = malloc(sizeof(*a));

	if (!a)
		return false;
	pthread_mutex_lock(&lock);
	*a = (struct allocation){ p, bytes, *all };
	*all = a;
	pthread_mutex_unlock(&lock);
	return true;
}

/* Remove the allocation from the list and return its size in bytes. */
static size_t forget(struct allocation **at, const void *p)
{
	struct allocation *a;
	size_t bytes;

	pthread_mutex_lock(&lock);
	while (*at && (*at)->p != p)
		at = &(*at)->next;
	if ((a = *at))
		*at = a->next;
	pthread_mutex_unlock(&lock);
	bytes = a ? a->bytes : 0;
	free(a);
	return bytes;
}

void cudaemu_limit_memory(size_t bytes)
{
	limit = bytes;
}

const char *cudaGetErrorName(cudaError_t e)
{
	switch (e) {
	case cudaSuccess:
		return "cudaSuccess";
	case cudaErrorInvalidValue:
		return "cudaErrorInvalidValue";
	case cudaErrorMemoryAllocation:
		return "cudaErrorMemoryAllocation";
	case cudaErrorNoDevice:
		return "cudaErrorNoDevice";
	case cudaErrorInvalidDevice:
		return "cudaErrorInvalidDevice";
	case cudaErrorNotReady:
		return "cudaErrorNotReady";
	case cudaErrorStreamCaptureUnsupported:
		return "cudaErrorStreamCaptureUnsupported";
	case cudaErrorStreamCaptureInvalidated:
		return "cudaErrorStreamCaptureInvalidated";
	case cudaErrorStreamCaptureUnmatched:
		return "cudaErrorStreamCaptureUnmatched";
	case cudaErrorStreamCaptureUnjoined:
		return "cudaErrorStreamCaptureUnjoined";
	case cudaErrorStreamCaptureIsolation:
		return "cudaErrorStreamCaptureIsolation";
	case cudaErrorCapturedEvent:
		return "cudaErrorCapturedEvent";
	}
	return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t e)
{
	return e == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(e);
}

cudaError_t cudaGetLastError(void)
{
	const cudaError_t e = last_error;

	last_error = cudaSuccess;
	return e;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	*count = 2;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
	return cudaemu_result(device == 0 || device == 1 ? cudaSuccess : cudaErrorInvalidDevice);
}

static int major = 8;

void cudaemu_be(int capability)
{
	major = capability;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
	*prop = (struct cudaDeviceProp){ .name = "emulated" };
	return cudaemu_result(device == 0 || device == 1 ? cudaSuccess : cudaErrorInvalidDevice);
}

/* With CUDAEMU_DEVICES=own each rank sees one device, its own, as number 0. */
cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int device)
{
	const char *const own = getenv("CUDAEMU_DEVICES");
	const char *const rank = getenv("OMPI_COMM_WORLD_LOCAL_RANK");

	if (own && strcmp(own, "own") == 0 && rank)
		device = 16 + atoi(rank);
	snprintf(id, (size_t)len, "0000:%02x:00.0", device);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
	(void)device;
	switch (attr) {
	case cudaDevAttrMultiProcessorCount:
		*value = 4;
		return cudaSuccess;
	case cudaDevAttrComputeCapabilityMajor:
		*value = major;
		return cudaSuccess;
	case cudaDevAttrMaxSharedMemoryPerBlockOptin:
		*value = (int)cudaemu_shared_limit;
		return cudaSuccess;
	}
	return cudaemu_result(cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
	if (cudaemu_forbids("cudaMallocHost"))
		return cudaErrorStreamCaptureUnsupported;
	if (posix_memalign(p, 4096, bytes))
		return cudaemu_result(cudaErrorMemoryAllocation);
	if (!remember(&pinned, *p, bytes)) {
		free(*p);
		return cudaemu_result(cudaErrorMemoryAllocation);
	}
	return cudaSuccess;
}

/* Queued operations must not use it any more. */
cudaError_t cudaFreeHost(void *p)
{
	if (cudaemu_forbids("cudaFreeHost"))
		return cudaErrorStreamCaptureUnsupported;
	memset(p, 0xff, forget(&pinned, p));
	free(p);
	return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
	(void)device;
	*pool = NULL;
	return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value)
{
	(void)pool;
	(void)value;
	if (attr == cudaMemPoolAttrUsedMemHigh)
		most = taken;
	return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value)
{
	/* Free the memory at once. */
	const uint64_t high = most, now_taken = taken;

	(void)pool;
	switch (attr) {
	case cudaMemPoolAttrUsedMemHigh:
		memcpy(value, &high, sizeof(high));
		return cudaSuccess;
	case cudaMemPoolAttrReservedMemCurrent:
	case cudaMemPoolAttrUsedMemCurrent:
		memcpy(value, &now_taken, sizeof(now_taken));
		return cudaSuccess;
	case cudaMemPoolAttrReleaseThreshold:
		break;
	}
	return cudaemu_result(cudaErrorInvalidValue);
}

/* The total is CUDAEMU_MEMORY bytes, or 4 GiB. */
cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
	const char *const given = getenv("CUDAEMU_MEMORY");

	*all = given ? strtoull(given, NULL, 10) : (size_t)4 << 30;
	*left = *all > taken ? *all - taken : 0;
	return cudaSuccess;
}

/*
 * With CUDAEMU_APART the host can access device memory only while operations run: it comes from one
 * range of addresses, each allocation from its own pages, which are reused only when no others are
 * left.  Otherwise it comes from malloc, for sanitizers.
 */
#define APART_BYTES ((size_t)64 << 30)
#define PAGE ((size_t)4096)
static uint8_t *apart;
static size_t apart_used;

static bool is_apart(void)
{
	static bool known;

	if (!known && getenv("CUDAEMU_APART")) {
		apart = mmap(NULL, APART_BYTES, PROT_NONE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (apart == MAP_FAILED)
			abort();
	}
	known = true;
	return apart;
}

void cudaemu_reach_memory(bool reach)
{
	static size_t reached;

	if (!is_apart() || reached == (reach ? apart_used : 0))
		return;
	if (mprotect(apart, reach ? apart_used : reached,
		     reach ? PROT_READ | PROT_WRITE : PROT_NONE))
		abort();
	reached = reach ? apart_used : 0;
}

/* Align exactly like cudaMalloc, so that code relying on more fails. */
static bool take(void **p, size_t bytes)
{
	const size_t room = (bytes + 2 * PAGE - 1) / PAGE * PAGE;

	if (!is_apart())
		return posix_memalign(p, 256, bytes) == 0;
	if (room > APART_BYTES - apart_used)
		return false;
	*p = apart + apart_used + 256;
	apart_used += room;
	return true;
}

static size_t size_of(void *p, size_t bytes)
{
	return is_apart() ? bytes : malloc_usable_size(p);
}

struct range {
	void *p;
	size_t bytes;
};

static void spoil_range(void *arg)
{
	const struct range *const r = arg;

	memset(r->p, 0xff, r->bytes);
}

static void free_range(void *arg)
{
	struct range *const r = arg;
	uint8_t *const page = (uint8_t *)r->p - 256;

	spoil_range(arg);
	if (!is_apart())
		free(r->p);
	else
		madvise(page, (r->bytes + 256 + PAGE - 1) / PAGE * PAGE, MADV_DONTNEED);
}

/* Writes of another stream before the stream's turn are lost. */
cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream)
{
	if (cudaemu_forbids("cudaMallocAsync"))
		return cudaErrorStreamCaptureUnsupported;
	if (limit < taken || bytes > limit - taken || !take(p, bytes))
		return cudaemu_result(cudaErrorMemoryAllocation);
	if (!remember(&allocations, *p, bytes))
		abort();
	cudaemu_queue_quietly(stream, spoil_range, &(struct range){ *p, bytes },
			      sizeof(struct range));
	taken += size_of(*p, bytes);
	if (taken > most)
		most = taken;
	return cudaSuccess;
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream)
{
	struct range r = { p, 0 };

	if (cudaemu_forbids("cudaFreeAsync"))
		return cudaErrorStreamCaptureUnsupported;
	r.bytes = forget(&allocations, p);
	cudaemu_queue_quietly(stream, free_range, &r, sizeof(r));
	taken -= size_of(p, r.bytes);
	return cudaSuccess;
}

static bool is_among(struct allocation *const *all, const void *p)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (const struct allocation *a = *all; a && !found; a = a->next)
		found = (const uint8_t *)p >= a->p && (const uint8_t *)p < a->p + a->bytes;
	pthread_mutex_unlock(&lock);
	return found;
}

bool cudaemu_is_on_device(const void *p)
{
	return is_among(&allocations, p);
}

static void count_copy(const void *dst, const void *src, size_t bytes)
{
	const bool into = cudaemu_is_on_device(dst), from = cudaemu_is_on_device(src);

	if (into && !from) {
		cudaemu_traffic.to_device++;
		cudaemu_traffic.bytes_to_device += bytes;
	}
	if (from && !into) {
		cudaemu_traffic.to_host++;
		cudaemu_traffic.bytes_to_host += bytes;
	}
}

FILE *cudaemu_report(const char *variable, const char *mode)
{
	const char *const prefix = getenv(variable);
	const char *const rank = getenv("OMPI_COMM_WORLD_RANK");
	char path[4096];

	if (!prefix)
		return NULL;
	snprintf(path, sizeof(path), "%s.%s", prefix, rank ? rank : "0");
	return fopen(path, mode);
}

static void report_traffic(FILE *f)
{
	if (!f)
		return;
	for (size_t i = 0; i < sizeof(cudaemu_traffic) / sizeof(uint64_t); i++)
		fprintf(f, "%s%" PRIu64, i ? " " : "", ((const uint64_t *)&cudaemu_traffic)[i]);
	fputc('\n', f);
	fclose(f);
}

static void __attribute__((destructor)) report_all_traffic(void)
{
	report_traffic(cudaemu_report("CUDAEMU_TRAFFIC", "w"));
}

struct move {
	void *dst;
	const void *src;
	int value;
	size_t bytes;
};

static void copy(void *arg)
{
	const struct move *const m = arg;

	if (m->bytes) {
		count_copy(m->dst, m->src, m->bytes);
		memcpy(m->dst, m->src, m->bytes);
	}
}

static void set(void *arg)
{
	const struct move *const m = arg;

	if (m->bytes) {
		cudaemu_traffic.zeroed++;
		cudaemu_traffic.bytes_zeroed += m->bytes;
		memset(m->dst, m->value, m->bytes);
	}
}

static bool is_reachable(const void *p)
{
	return cudaemu_is_on_device(p) || is_among(&pinned, p);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	const struct move m = { .dst = dst, .src = src, .bytes = bytes };
	const bool direct = is_reachable(dst) && is_reachable(src);

	(void)kind;
	if (!direct && cudaemu_forbids("cudaMemcpyAsync of memory that is not pinned"))
		return cudaErrorStreamCaptureUnsupported;
	cudaemu_queue(stream, copy, &m, sizeof(m));
	if (!direct)
		cudaemu_finish_stream(stream);
	return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
	const struct move m = { .dst = p, .value = value, .bytes = bytes };

	cudaemu_queue(stream, set, &m, sizeof(m));
	return cudaSuccess;
}

static int depth;

int nvtxRangePushA(const char *name)
{
	if (getenv("CUDAEMU_STEPS") && strcmp(name, "data") == 0) {
		cudaemu_finish(); /* finish the previous step */
		report_traffic(cudaemu_report("CUDAEMU_STEPS", "a"));
	}
	return depth++;
}

int nvtxRangePop(void)
{
	return --depth;
}

static void __attribute__((destructor)) check_ranges(void)
{
	if (depth) {
		fprintf(stderr, "cudaemu: %d ranges are not closed\n", depth);
		abort();
	}
}
