# SPDX-License-Identifier: Apache-2.0
# Shared by cases that run several ranks; needs lib.sh, or a directory $tmp.
#
#   on_ranks N COMMAND...  runs COMMAND on N ranks, for at most $TRAIN_SECONDS
#                          (120); a single rank runs without mpirun
#   ranks_later N WORD...  words for a program on N ranks, which wait, since ranks take
#                          longer to start than many runs last, for
#   ranks_start FUNCTION   FUNCTION N WORD... once for each N, with all that wait, and
#                          "--" in between
#   sampled                copies a plan, a run per line; under sanitizers the first line,
#                          every third after it, and the last

require_mpi() {
	command -v mpirun >/dev/null || skip "no mpirun"
}

# By default Open MPI refuses to run as root and to run more ranks than there are
# processors, and a container may forbid ranks to read each other's memory.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMP_NUM_THREADS=1

# All ranks are local: a search for networks and other machines would take longer
# than most of the runs.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_plm=isolated

# A waiting rank yields the processor by sched_yield, which naps.so turns into a sleep, because
# other tests run at the same time.  Without $top_builddir, as in the demonstration, the build is
# where the trainer is.
export OMPI_MCA_mpi_yield_when_idle=1
naps=${top_builddir:-$(dirname "$(command -v uctrain)")}/tests/programs/naps.so
if [ -r "$naps" ]; then
	export OMPI_MCA_mca_base_env_list="LD_PRELOAD=$naps"
	export ASAN_OPTIONS="verify_asan_link_order=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
fi

# A separate session directory: of two runs that share one, the first to end may remove it while the
# other starts.
export OMPI_MCA_orte_tmpdir_base=$tmp

# The ranks' shared memory goes with $tmp, also where mpirun is killed, which would
# have removed it from /dev/shm.
export OMPI_MCA_btl_vader_backing_directory=$tmp

# Open MPI holds memory until it exits, which is not our leak.  A single rank runs
# without Open MPI and without these suppressions.
lsan_options=${LSAN_OPTIONS-}
export LSAN_OPTIONS="suppressions=$top_srcdir/tests/mpi.supp:print_suppressions=0${LSAN_OPTIONS:+:$LSAN_OPTIONS}"

on_ranks() {
	local run=(timeout -k 10 "${TRAIN_SECONDS:-120}")

	if [ "$1" = 1 ]; then
		run+=(env LSAN_OPTIONS="$lsan_options")
	else
		# Suppressions work without symbols, and loading those of all
		# libraries takes longer than most of the runs; they need all
		# callers.  ASAN_OPTIONS=symbolize=1 turns symbols on.
		run+=(env ASAN_OPTIONS="symbolize=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}:malloc_context_size=30"
			mpirun -n "$1")
	fi
	"${run[@]}" "${@:2}" </dev/null
}

# All lines run the same code, most of which a few lines cover under sanitizers; the numbers of
# each line are checked without them.
sampled() {
	if [ "${sanitize:-no}" = no ]; then
		cat
	else
		sed -n '1~3 { p; d }; $p'
	fi
}

ranks_later() {
	printf '%s\n' ${ranks_wait[$1]+--} "${@:2}" >>"$tmp/waiting.$1"
	ranks_wait[$1]=yes
}
ranks_wait=()

# Many runs share one start.
ranks_start() {
	local n words
	for n in "${!ranks_wait[@]}"; do
		mapfile -t words <"$tmp/waiting.$n"
		rm "$tmp/waiting.$n"
		TRAIN_SECONDS=300 "$1" "$n" "${words[@]}"
	done
	ranks_wait=()
}
