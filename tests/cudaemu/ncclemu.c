/* SPDX-License-Identifier: Apache-2.0 */
#include "ncclemu.h"

#include <assert.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

#include "ckpt/format/cast.h"

/* The tag of the messages that create a communicator.  Operations use the communicator itself. */
#define TAG 42

struct ncclComm {
	MPI_Comm mpi;
	int rank, size;
};

static int world_rank(void)
{
	int r;

	MPI_Comm_rank(MPI_COMM_WORLD, &r);
	return r;
}

static MPI_Datatype type_of(ncclDataType_t t)
{
	assert(t == ncclFloat32 || t == ncclFloat64 || t == ncclUint8);
	return t == ncclFloat32 ? MPI_FLOAT : t == ncclFloat64 ? MPI_DOUBLE : MPI_BYTE;
}

/* Return NCCL_EMULATED_VERSION, or a version that supports graphs. */
static ncclResult_t get_version(int *version)
{
	const char *const given = getenv("NCCL_EMULATED_VERSION");

	*version = given ? atoi(given) : 22304;
	return ncclSuccess;
}

/* An id names the leading rank and how many communicators it has led. */
struct id {
	int leader, number;
};

static ncclResult_t get_unique_id(ncclUniqueId *id)
{
	static int made;
	const struct id mine = { world_rank(), ++made };

	memcpy(id->internal, &mine, sizeof(mine));
	return ncclSuccess;
}

/* Every member sends its number in the world to rank 0, which returns all of them. */
static void learn_members(const struct id *id, int n, int r, int *members)
{
	const int tag = TAG + id->number;
	int me[2] = { r, world_rank() }, one[2];

	if (r) {
		MPI_Send(me, 2, MPI_INT, id->leader, tag, MPI_COMM_WORLD);
		MPI_Recv(members, n, MPI_INT, id->leader, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		return;
	}
	members[0] = me[1];
	for (int i = 1; i < n; i++) {
		MPI_Recv(one, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		members[one[0]] = one[1];
	}
	for (int i = 1; i < n; i++)
		MPI_Send(members, n, MPI_INT, members[i], tag, MPI_COMM_WORLD);
}

/* NCCL_EMULATED_BROKEN is the number of a rank on which initialization fails, while the others
 * wait. */
static ncclResult_t init_rank(ncclComm_t *comm, int n, ncclUniqueId unique, int r)
{
	const char *const broken = getenv("NCCL_EMULATED_BROKEN");
	MPI_Group world, group;
	int *members;
	struct id id;

	if (broken && atoi(broken) == world_rank())
		return ncclUnhandledCudaError;
	memcpy(&id, unique.internal, sizeof(id));
	assert(id.number && (r == 0) == (id.leader == world_rank()));
	members = calloc((size_t)n, sizeof(*members));
	*comm = malloc(sizeof(**comm));
	(*comm)->rank = r;
	(*comm)->size = n;
	learn_members(&id, n, r, members);
	MPI_Comm_group(MPI_COMM_WORLD, &world);
	MPI_Group_incl(world, n, members, &group);
	MPI_Comm_create_group(MPI_COMM_WORLD, group, TAG, &(*comm)->mpi);
	MPI_Group_free(&group);
	MPI_Group_free(&world);
	free(members);
	return ncclSuccess;
}

static ncclResult_t destroy(ncclComm_t comm)
{
	MPI_Comm_free(&comm->mpi);
	free(comm);
	return ncclSuccess;
}

static ncclResult_t comm_abort(ncclComm_t comm)
{
	free(comm);
	return ncclSuccess;
}

/* NCCL_EMULATED_LOST is the number of a rank that loses a connection in its first
 * reduce-scatter. */
static bool is_lost;

static ncclResult_t async_error(ncclComm_t comm, ncclResult_t *e)
{
	(void)comm;
	*e = is_lost ? ncclSystemError : ncclSuccess;
	return ncclSuccess;
}

static const char *error_string(ncclResult_t r)
{
	return r == ncclSuccess ? "no error" : "some error";
}

/* Limit of pending sends and receives. */
#define PENDING_MAX 64
static MPI_Request pending[PENDING_MAX];
static int npending;

struct call {
	void (*now)(const struct call *c);
	const void *from;
	void *to;
	size_t n;
	ncclDataType_t t;
	int root; /* or peer */
	ncclComm_t comm;
};

/* The calls of a group, which form one operation of a stream, or a single call. */
struct unit {
	size_t n;
	struct call calls[];
};

static struct unit *group;
static cudaStream_t group_stream;
static unsigned depth;

static void run_unit(void *arg)
{
	const struct unit *const u = arg;

	for (size_t i = 0; i < u->n; i++)
		u->calls[i].now(&u->calls[i]);
	MPI_Waitall(npending, pending, MPI_STATUSES_IGNORE);
	npending = 0;
	ncclemu_started();
}

static ncclResult_t group_start(void)
{
	depth++;
	return ncclSuccess;
}

static ncclResult_t group_end(void)
{
	assert(depth);
	if (--depth || !group)
		return ncclSuccess;
	ncclemu_queue(group_stream, run_unit, group,
		      sizeof(*group) + group->n * sizeof(*group->calls));
	free(group);
	group = NULL;
	return ncclSuccess;
}

/* With NCCL_EMULATED_UNRECORDED rank 1 cannot record a collective. */
static bool cannot_record(cudaStream_t stream)
{
	return getenv("NCCL_EMULATED_UNRECORDED") && world_rank() == 1 &&
	       ncclemu_is_recorded(stream);
}

static ncclResult_t call(cudaStream_t stream, const struct call *c)
{
	const size_t n = group ? group->n : 0;

	if (cannot_record(stream))
		return ncclInvalidUsage;
	assert(c->root < c->comm->size);
	group_start();
	group = realloc(group, sizeof(*group) + (n + 1) * sizeof(*c));
	assert(group && (!n || group_stream == stream));
	group_stream = stream;
	group->calls[n] = *c;
	group->n = n + 1;
	return group_end();
}

static void send_now(const struct call *c)
{
	assert(npending < PENDING_MAX);
	MPI_Isend(ncclemu_memory(c->from), (int)c->n, type_of(c->t), c->root, 0, c->comm->mpi,
		  &pending[npending++]);
}

static ncclResult_t nccl_send(const void *from, size_t n, ncclDataType_t t, int peer,
			      ncclComm_t comm, cudaStream_t stream)
{
	const struct call c = { send_now, from, NULL, n, t, peer, comm };

	return call(stream, &c);
}

static void recv_now(const struct call *c)
{
	assert(npending < PENDING_MAX);
	MPI_Irecv(ncclemu_memory(c->to), (int)c->n, type_of(c->t), c->root, 0, c->comm->mpi,
		  &pending[npending++]);
}

static ncclResult_t nccl_recv(void *to, size_t n, ncclDataType_t t, int peer, ncclComm_t comm,
			      cudaStream_t stream)
{
	const struct call c = { recv_now, NULL, to, n, t, peer, comm };

	return call(stream, &c);
}

bool ncclemu_hangs;

/*
 * NCCL_EMULATED_STUCK is the number of a rank that stops in its first reduce-scatter.  Others
 * wait for it, or, with NCCL_EMULATED_LATER, only queue it as a GPU would: true.
 */
static bool is_stuck(void)
{
	const char *const stuck = getenv("NCCL_EMULATED_STUCK");
	const char *const lost = getenv("NCCL_EMULATED_LOST");

	is_lost = lost && atoi(lost) == world_rank();
	if (stuck && atoi(stuck) == world_rank())
		raise(SIGSTOP);
	ncclemu_hangs = stuck && getenv("NCCL_EMULATED_LATER");
	return ncclemu_hangs;
}

/* x[n] = the sum of all[size][n].  16-bit types are added as such: the sum of two ranks is
 * rounded once. */
static void add_halves(enum dtype dtype, const uint16_t *all, uint16_t *x, size_t n, int size)
{
	float *const sum = calloc(n, sizeof(*sum));
	float *const one = malloc(n * sizeof(*one));

	for (int r = 0; r < size; r++) {
		cast_to_float(dtype, all + (size_t)r * n, one, n);
		for (size_t i = 0; i < n; i++)
			sum[i] += one[i];
		cast_from_float(dtype, sum, x, n);
		cast_to_float(dtype, x, sum, n);
	}
	free(sum);
	free(one);
}

static bool is_half(ncclDataType_t t)
{
	return t == ncclBfloat16 || t == ncclFloat16;
}

static size_t size_of(ncclDataType_t t)
{
	return is_half(t) ? sizeof(uint16_t) : t == ncclFloat64 ? sizeof(double) : sizeof(float);
}

static enum dtype half_of(ncclDataType_t t)
{
	return t == ncclBfloat16 ? DTYPE_BF16 : DTYPE_F16;
}

static void reduce_halves(const void *from, void *to, size_t n, ncclDataType_t t, int root,
			  ncclComm_t comm)
{
	const size_t bytes = n * sizeof(uint16_t);
	uint16_t *const all = malloc(bytes * (size_t)comm->size);

	MPI_Gather(from, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, root, comm->mpi);
	if (root == comm->rank)
		add_halves(half_of(t), all, to, n, comm->size);
	free(all);
}

static void reduce_now(const struct call *c)
{
	const void *const send = ncclemu_memory(c->from);
	void *const recv = c->root == c->comm->rank ? ncclemu_memory(c->to) : NULL;

	ncclemu_reduces(c->n * size_of(c->t));
	if (is_stuck())
		return;
	if (is_half(c->t))
		reduce_halves(send, recv, c->n, c->t, c->root, c->comm);
	else
		MPI_Reduce(send == recv ? MPI_IN_PLACE : send, recv, (int)c->n, type_of(c->t),
			   MPI_SUM, c->root, c->comm->mpi);
}

static ncclResult_t reduce(const void *from, void *to, size_t n, ncclDataType_t t, ncclRedOp_t op,
			   int root, ncclComm_t comm, cudaStream_t stream)
{
	const struct call c = { reduce_now, from, to, n, t, root, comm };

	assert(op == ncclSum);
	return call(stream, &c);
}

static void broadcast_now(const struct call *c)
{
	if (c->root == c->comm->rank && c->from != c->to)
		memmove(ncclemu_memory(c->to), ncclemu_memory(c->from),
			c->n * (c->t == ncclFloat32 ? sizeof(float) : 1));
	MPI_Bcast(ncclemu_memory(c->to), (int)c->n, type_of(c->t), c->root, c->comm->mpi);
}

static ncclResult_t broadcast(const void *from, void *to, size_t n, ncclDataType_t t, int root,
			      ncclComm_t comm, cudaStream_t stream)
{
	const struct call c = { broadcast_now, from, to, n, t, root, comm };

	return call(stream, &c);
}

static void reduce_scatter_halves(const void *from, void *to, size_t n, ncclDataType_t t,
				  ncclComm_t comm)
{
	const size_t bytes = n * sizeof(uint16_t);
	uint16_t *const all = malloc(bytes * (size_t)comm->size);

	MPI_Alltoall(from, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, comm->mpi);
	add_halves(half_of(t), all, to, n, comm->size);
	free(all);
}

static void reduce_scatter_floats(const void *from, void *to, size_t n, ncclComm_t comm)
{
	float *const sum = malloc(n * sizeof(*sum) + 1);

	MPI_Reduce_scatter_block(from, sum, (int)n, MPI_FLOAT, MPI_SUM, comm->mpi);
	memcpy(to, sum, n * sizeof(*sum));
	free(sum);
}

static void reduce_scatter_now(const struct call *c)
{
	const void *const parts = ncclemu_memory(c->from);
	void *const mine = ncclemu_memory(c->to);

	ncclemu_reduces((size_t)c->comm->size * c->n * size_of(c->t));
	if (is_stuck())
		return;
	if (is_half(c->t))
		reduce_scatter_halves(parts, mine, c->n, c->t, c->comm);
	else
		reduce_scatter_floats(parts, mine, c->n, c->comm);
}

static ncclResult_t reduce_scatter(const void *from, void *to, size_t n, ncclDataType_t t,
				   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	const struct call c = { reduce_scatter_now, from, to, n, t, 0, comm };

	assert(op == ncclSum && (t == ncclFloat32 || is_half(t)));
	return call(stream, &c);
}

static void all_gather_now(const struct call *c)
{
	char *const all = ncclemu_memory(c->to);
	char *const own = all + (size_t)c->comm->rank * c->n;

	if (own != ncclemu_memory(c->from))
		memmove(own, ncclemu_memory(c->from), c->n);
	MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, all, (int)c->n, MPI_BYTE, c->comm->mpi);
}

static ncclResult_t all_gather(const void *from, void *to, size_t n, ncclDataType_t t,
			       ncclComm_t comm, cudaStream_t stream)
{
	const struct call c = { all_gather_now, from, to, n, t, 0, comm };

	assert(t == ncclUint8);
	return call(stream, &c);
}

static void all_reduce_halves(ncclDataType_t t, uint16_t *x, size_t n, ncclComm_t comm)
{
	const size_t bytes = n * sizeof(*x);
	uint16_t *const all = malloc(bytes * (size_t)comm->size);

	MPI_Allgather(x, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, comm->mpi);
	add_halves(half_of(t), all, x, n, comm->size);
	free(all);
}

static void all_reduce_now(const struct call *c)
{
	void *const x = ncclemu_memory(c->to);

	ncclemu_reduces(c->n * size_of(c->t));
	if (is_half(c->t))
		all_reduce_halves(c->t, x, c->n, c->comm);
	else
		MPI_Allreduce(MPI_IN_PLACE, x, (int)c->n, type_of(c->t), MPI_SUM, c->comm->mpi);
}

static ncclResult_t all_reduce(const void *from, void *to, size_t n, ncclDataType_t t,
			       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	const struct call c = { all_reduce_now, from, to, n, t, 0, comm };

	assert(op == ncclSum && from == to);
	return call(stream, &c);
}

const struct nccl_api ncclemu = {
	.ncclGetVersion = get_version,
	.ncclGetUniqueId = get_unique_id,
	.ncclCommInitRank = init_rank,
	.ncclCommDestroy = destroy,
	.ncclCommAbort = comm_abort,
	.ncclCommGetAsyncError = async_error,
	.ncclGetErrorString = error_string,
	.ncclGroupStart = group_start,
	.ncclGroupEnd = group_end,
	.ncclReduce = reduce,
	.ncclBroadcast = broadcast,
	.ncclReduceScatter = reduce_scatter,
	.ncclAllGather = all_gather,
	.ncclAllReduce = all_reduce,
	.ncclSend = nccl_send,
	.ncclRecv = nccl_recv,
};
