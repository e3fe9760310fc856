# SPDX-License-Identifier: Apache-2.0
# What cases that run several ranks share, on top of lib.sh, or of a directory
# $tmp of the caller's own.
#
#   on_ranks N COMMAND...  runs it on N ranks, for $TRAIN_SECONDS (120) at most;
#                          one rank needs no mpirun

require_mpi() {
	command -v mpirun >/dev/null || skip "no mpirun"
}

# Open MPI refuses root, and more ranks than processors, unless it is told;
# and a container may forbid ranks to read each other's memory.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMP_NUM_THREADS=1

# All ranks are here: looking for networks and other machines takes longer than
# most of the runs.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_plm=isolated

# Where it keeps what it has open: of two that share a directory, one may remove
# it while the other begins.
export OMPI_MCA_orte_tmpdir_base=$tmp

# It keeps memory until it exits, which is no leak of ours.  A rank that is
# alone does without it, and has no excuse.
lsan_options=${LSAN_OPTIONS-}
export LSAN_OPTIONS="suppressions=$top_srcdir/tests/mpi.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}"

on_ranks() {
	local run=(timeout -k 10 "${TRAIN_SECONDS:-120}")

	if [ "$1" = 1 ]; then
		run+=(env LSAN_OPTIONS="$lsan_options")
	else
		# Symbols are not needed to know what is Open MPI's, and reading
		# those of all libraries takes longer than most of the runs.
		# ASAN_OPTIONS=symbolize=1 has them in reports.
		run+=(env ASAN_OPTIONS="symbolize=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}" mpirun -n "$1")
	fi
	"${run[@]}" "${@:2}" </dev/null
}
