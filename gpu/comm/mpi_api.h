/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_MPI_API_H
#define UCTRAIN_MPI_API_H

#include <mpi.h>
#include <stdbool.h>

#include "ckpt/base/system.h"

/* What we use of Open MPI, which is loaded for ranks that a launcher started: one rank alone runs
 * where it is not installed. */
#define MPI_CALLS(X)           \
	X(MPI_Abort)           \
	X(MPI_Allgather)       \
	X(MPI_Allreduce)       \
	X(MPI_Bcast)           \
	X(MPI_Comm_free)       \
	X(MPI_Comm_rank)       \
	X(MPI_Comm_size)       \
	X(MPI_Comm_split)      \
	X(MPI_Comm_split_type) \
	X(MPI_Finalize)        \
	X(MPI_Init_thread)     \
	X(MPI_Irecv)           \
	X(MPI_Isend)           \
	X(MPI_Waitall)

/* Its objects: the member, its type, and the variable that MPI's own name stands for. */
#define MPI_OBJECTS(X)                                \
	X(world, MPI_Comm, ompi_mpi_comm_world)       \
	X(no_info, MPI_Info, ompi_mpi_info_null)      \
	X(bytes, MPI_Datatype, ompi_mpi_byte)         \
	X(ints, MPI_Datatype, ompi_mpi_int)           \
	X(unsigneds, MPI_Datatype, ompi_mpi_unsigned) \
	X(doubles, MPI_Datatype, ompi_mpi_double)     \
	X(sum, MPI_Op, ompi_mpi_op_sum)               \
	X(min, MPI_Op, ompi_mpi_op_min)

#define MPI_MEMBER(member, type, variable) type member;
struct mpi_api {
	MPI_CALLS(DYNLIB_MEMBER)
	MPI_OBJECTS(MPI_MEMBER)
};

/* Load it, once.  NULL, with the dynamic linker's reason in *why, if that fails. */
const struct mpi_api *mpi_api(const char **why);

#endif
