/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces nccl_api.c, since an installed NCCL would look for real GPUs; with CUDAEMU_NCCL there is
 * an emulated one. */
#include <stdlib.h>

#include <mpi.h>

#include "cudaemu.h"
#include "ncclemu.h"

/* Device addresses are host addresses. */
void *ncclemu_memory(const void *p)
{
	return (void *)p;
}

void ncclemu_reduces(size_t bytes)
{
	cudaemu_traffic.bytes_reduced += bytes;
}

void ncclemu_started(void)
{
	cudaemu_traffic.collectives++;
}

void ncclemu_queue(cudaStream_t stream, void (*run)(void *arg), const void *arg, size_t bytes)
{
	cudaemu_queue(stream, run, arg, bytes);
}

bool ncclemu_is_recorded(cudaStream_t stream)
{
	return cudaemu_is_recorded(stream);
}

/* In these MPI calls the host waits for other ranks, which may wait for this rank's devices. */
int MPI_Allreduce(const void *from, void *to, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
	cudaemu_finish();
	return PMPI_Allreduce(from, to, n, type, op, comm);
}

int MPI_Allgather(const void *from, int n, MPI_Datatype type, void *to, int m, MPI_Datatype to_type,
		  MPI_Comm comm)
{
	cudaemu_finish();
	return PMPI_Allgather(from, n, type, to, m, to_type, comm);
}

int MPI_Bcast(void *p, int n, MPI_Datatype type, int root, MPI_Comm comm)
{
	cudaemu_finish();
	return PMPI_Bcast(p, n, type, root, comm);
}

int MPI_Waitall(int n, MPI_Request *request, MPI_Status *status)
{
	cudaemu_finish();
	return PMPI_Waitall(n, request, status);
}

const struct nccl_api *nccl_api(const char **why)
{
	*why = "the GPUs are emulated";
	return getenv("CUDAEMU_NCCL") ? &ncclemu : NULL;
}
