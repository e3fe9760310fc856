/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, and the CUDA calls of devcomm_nccl.c, for devices with the memory of apart.h. */
#include <assert.h>
#include <stdlib.h>

#include "ncclemu.h"
#include "tests/support/apart.h"

void *ncclemu_memory(const void *p)
{
	void *const m = apart_memory(p);

	assert(m);
	return m;
}

const struct nccl_api *nccl_api(const char **why)
{
	*why = NULL;
	return &ncclemu;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	(void)flags;
	*event = calloc(1, sizeof(bool));
	return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	free(event);
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	(void)stream;
	*(bool *)event = ncclemu_hangs;
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	return *(bool *)event ? cudaErrorNotReady : cudaSuccess;
}

void ncclemu_reduces(size_t bytes)
{
	(void)bytes;
}

void ncclemu_started(void)
{
}

bool ncclemu_is_recorded(cudaStream_t stream)
{
	(void)stream;
	return false;
}

void ncclemu_queue(cudaStream_t stream, void (*run)(void *arg), const void *arg, size_t bytes)
{
	(void)bytes;
	apart_finish(stream);
	run((void *)arg);
}
