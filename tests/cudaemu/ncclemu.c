/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of NCCL that we use, by MPI, on the memory of apart.h.  Operations
 * are complete when they return; the calls of a group are executed in their
 * order, which is the same on all ranks.
 */
#include <assert.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#include <mpi.h>

#include "gpu/nvidia/nccl_api.h"
#include "tests/support/apart.h"

static void *of(const void *p)
{
	void *m = apart_memory(p);

	assert(m);
	return m;
}

static MPI_Datatype type_of(ncclDataType_t t)
{
	assert(t == ncclFloat32 || t == ncclUint8);
	return t == ncclFloat32 ? MPI_FLOAT : MPI_BYTE;
}

static int rank(void)
{
	int r;

	MPI_Comm_rank(MPI_COMM_WORLD, &r);
	return r;
}

static ncclResult_t get_unique_id(ncclUniqueId *id)
{
	*id = (ncclUniqueId){ { 42 } };
	return ncclSuccess;
}

/* NCCL_EMULATED_BROKEN is the number of a rank on which initialization fails,
 * while the others wait. */
static ncclResult_t init_rank(ncclComm_t *comm, int n, ncclUniqueId id, int r)
{
	const char *const broken = getenv("NCCL_EMULATED_BROKEN");
	int size;

	MPI_Comm_size(MPI_COMM_WORLD, &size);
	assert(n == size && r == rank() && id.internal[0] == 42);
	if (broken && atoi(broken) == r)
		return ncclUnhandledCudaError;
	MPI_Sendrecv(NULL, 0, MPI_BYTE, (r + 1) % n, 42, NULL, 0, MPI_BYTE,
		     (r + n - 1) % n, 42, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	*comm = malloc(1);
	return ncclSuccess;
}

/* A collective was queued that will never end. */
static bool hangs;

/*
 * NCCL_EMULATED_STUCK is the number of a rank that stops in its first
 * reduce-scatter.  Others wait for it, or, with NCCL_EMULATED_LATER, only queue it as
 * a GPU would: true.
 */
static bool is_stuck(void)
{
	const char *const stuck = getenv("NCCL_EMULATED_STUCK");

	if (stuck && atoi(stuck) == rank())
		raise(SIGSTOP);
	hangs = stuck && getenv("NCCL_EMULATED_LATER");
	return hangs;
}

static ncclResult_t destroy(ncclComm_t comm)
{
	free(comm);
	return ncclSuccess;
}

static ncclResult_t async_error(ncclComm_t comm, ncclResult_t *e)
{
	(void)comm;
	*e = ncclSuccess;
	return ncclSuccess;
}

static const char *error_string(ncclResult_t r)
{
	return r == ncclSuccess ? "no error" : "some error";
}

static ncclResult_t group(void)
{
	return ncclSuccess;
}

static ncclResult_t reduce(const void *from, void *to, size_t n,
			   ncclDataType_t t, ncclRedOp_t op, int root,
			   ncclComm_t comm, cudaStream_t stream)
{
	const void *send = of(from);
	void *recv = root == rank() ? of(to) : NULL;

	(void)comm;
	(void)stream;
	assert(op == ncclSum);
	if (is_stuck())
		return ncclSuccess;
	MPI_Reduce(send == recv ? MPI_IN_PLACE : send, recv, (int)n, type_of(t),
		   MPI_SUM, root, MPI_COMM_WORLD);
	return ncclSuccess;
}

static ncclResult_t broadcast(const void *from, void *to, size_t n,
			      ncclDataType_t t, int root, ncclComm_t comm,
			      cudaStream_t stream)
{
	(void)comm;
	(void)stream;
	if (root == rank() && from != to)
		__builtin_memmove(of(to), of(from),
				  n * (t == ncclFloat32 ? sizeof(float) : 1));
	MPI_Bcast(of(to), (int)n, type_of(t), root, MPI_COMM_WORLD);
	return ncclSuccess;
}

static ncclResult_t reduce_scatter(const void *from, void *to, size_t n,
				   ncclDataType_t t, ncclRedOp_t op,
				   ncclComm_t comm, cudaStream_t stream)
{
	float *sum;

	(void)comm;
	(void)stream;
	assert(op == ncclSum && t == ncclFloat32);
	if (is_stuck())
		return ncclSuccess;
	sum = malloc(n * sizeof(*sum) + 1);
	MPI_Reduce_scatter_block(of(from), sum, (int)n, MPI_FLOAT, MPI_SUM,
				 MPI_COMM_WORLD);
	__builtin_memcpy(of(to), sum, n * sizeof(*sum));
	free(sum);
	return ncclSuccess;
}

static ncclResult_t all_gather(const void *from, void *to, size_t n,
			       ncclDataType_t t, ncclComm_t comm,
			       cudaStream_t stream)
{
	char *own = (char *)of(to) + (size_t)rank() * n;

	(void)comm;
	(void)stream;
	assert(t == ncclUint8);
	if (own != of(from))
		__builtin_memmove(own, of(from), n);
	MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, of(to), (int)n, MPI_BYTE,
		      MPI_COMM_WORLD);
	return ncclSuccess;
}

static ncclResult_t all_reduce(const void *from, void *to, size_t n,
			       ncclDataType_t t, ncclRedOp_t op,
			       ncclComm_t comm, cudaStream_t stream)
{
	(void)comm;
	(void)stream;
	assert(op == ncclSum && from == to);
	MPI_Allreduce(MPI_IN_PLACE, of(to), (int)n, type_of(t), MPI_SUM,
		      MPI_COMM_WORLD);
	return ncclSuccess;
}

/* --- what devcomm_nccl.c calls of CUDA ---------------------------------------- */

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
	*(bool *)event = hangs;
	return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	return *(bool *)event ? cudaErrorNotReady : cudaSuccess;
}

const struct nccl_api *nccl_api(const char **why)
{
	static const struct nccl_api api = {
		.ncclGetUniqueId = get_unique_id,
		.ncclCommInitRank = init_rank,
		.ncclCommDestroy = destroy,
		.ncclCommGetAsyncError = async_error,
		.ncclGetErrorString = error_string,
		.ncclGroupStart = group,
		.ncclGroupEnd = group,
		.ncclReduce = reduce,
		.ncclBroadcast = broadcast,
		.ncclReduceScatter = reduce_scatter,
		.ncclAllGather = all_gather,
		.ncclAllReduce = all_reduce,
	};

	*why = NULL;
	return &api;
}
