/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces nccl_api.c, since an installed NCCL would look for real GPUs: with
 * CUDAEMU_NCCL there is an emulated one. */
#include <stdlib.h>

#include "cudaemu.h"
#include "ncclemu.h"

/* The device is the host. */
void *ncclemu_memory(const void *p)
{
	return (void *)p;
}

void ncclemu_after(cudaStream_t stream)
{
	(void)stream; /* that is done */
}

void ncclemu_reduces(size_t bytes)
{
	cudaemu_traffic.bytes_reduced += bytes;
}

void ncclemu_started(void)
{
	cudaemu_traffic.collectives++;
}

bool ncclemu_record(cudaStream_t stream, void (*run)(void *arg),
		    const void *arg, size_t bytes)
{
	return cudaemu_record(stream, run, arg, bytes);
}

bool ncclemu_is_recorded(cudaStream_t stream)
{
	return cudaemu_is_recorded(stream);
}

const struct nccl_api *nccl_api(const char **why)
{
	*why = "the GPUs are emulated";
	return getenv("CUDAEMU_NCCL") ? &ncclemu : NULL;
}
