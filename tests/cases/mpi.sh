# SPDX-License-Identifier: Apache-2.0
# What cases that run several ranks share, on top of lib.sh.

require_mpi() {
	command -v mpirun >/dev/null || skip "no mpirun"
}

# Open MPI refuses root, and more ranks than processors, unless it is told;
# and a container may forbid ranks to read each other's memory.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# It keeps memory until it exits, which is no leak of ours.
export LSAN_OPTIONS="suppressions=$top_srcdir/tests/mpi.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}"
# Some of it through frames that only the slow unwinder sees through.
export ASAN_OPTIONS="fast_unwind_on_malloc=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
