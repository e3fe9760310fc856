#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A dead or stopped rank ends the run: the others report once in which step and collective they
# waited, and the run resumes from its newest whole checkpoint.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

# Each rank writes its process id.
cat >"$tmp/rank" <<'EOS'
#!/bin/sh
echo $$ >"$PIDS.$OMPI_COMM_WORLD_RANK"
exec "$@"
EOS
chmod +x "$tmp/rank"
flags=("${tiny[@]}" --train_batch_size 4 --train_micro_batch_size_per_gpu 1)
ranks=2
emulated=$top_builddir/tests/programs/uctrain_emulated

# begin NAME FLAG...: start an endless run on $ranks ranks, and wait for its fifth step.
begin() {
	local name=$1 program=("${rank[@]}")
	export PIDS=$tmp/$name.pid
	rank=("$tmp/rank" "${rank[@]}")
	try_train $ranks "$@" "${flags[@]}" --steps 100000 --checkpoint_dir "$tmp/$name" --checkpoint_interval 2 &
	job=$!
	rank=("${program[@]}")
	for _ in $(seq 600); do
		[ "$(losses "$name" 2>/dev/null | wc -l)" -lt 5 ] || return
		sleep 0.1
	done
	fail "$name: no five steps: $(tail -n 3 "$tmp/$name.log")"
}

# signal NAME RANK SIGNAL: send it to that rank.  Runs wait for their deadlines in parallel.
signal() {
	kill -s "$3" "$(cat "$tmp/$1.pid.$2")"
	jobs[$1]=$job
}
declare -A jobs

# The run must fail.
ended() {
	wait "${jobs[$1]}"
	status=$?
	check "$1: an error, and no timeout of the test's" test $status -ne 0 -a $status -ne 124
}

# told_once NAME RANK [SECONDS]: check for one line, from the lowest rank that is left.  When a
# graph is replayed, it names the computation.
told_once() {
	local name=$1 of=$2 seconds=${3-4}
	check "$name: one message" test "$(grep -c '(--comm_timeout)' "$tmp/$name.log")" = 1
	check "$name: the rank, the step and the collective" grep -q -E \
		"^uctrain: rank $of: step [0-9]+: (a|an|the computation on) [A-Za-z -]+ did not end within $seconds s \\(--comm_timeout\\)" \
		"$tmp/$name.log"
}

if [ -x "$emulated" ]; then
	export CUDAEMU_NCCL=1 CUDAEMU_DEVICES=own
	rank=("$emulated")
	begin cuda --comm_timeout 10 --device cuda --zero_stage 2
	signal cuda 1 STOP
	rank=(uctrain)
fi
begin stopped1 --comm_timeout 4
signal stopped1 1 STOP
begin stopped0 --comm_timeout 4 --zero_stage 3
signal stopped0 0 STOP
# Three ranks are left; the first report makes the launcher end the others.
ranks=4
begin many --comm_timeout 4
signal many 1 STOP
ranks=2
begin killed --comm_timeout 4
signal killed 1 KILL
ended stopped1
told_once stopped1 0
ended stopped0
told_once stopped0 1
ended many
told_once many 0
ended killed
if [ -x "$emulated" ]; then
	rank=("$emulated")
	# An error of NCCL ends a wait that has no deadline.
	NCCL_EMULATED_STUCK=1 NCCL_EMULATED_LOST=0 TRAIN_SECONDS=60 try_train 2 lost "${flags[@]}" \
		--steps 3 --comm_timeout 0 --device cuda --zero_stage 2
	status=$?
	check "lost: an error, and no timeout of the test's" test $status -ne 0 -a $status -ne 124
	check "lost: one message" test "$(grep -c '^uctrain: rank 0: .*a collective of NCCL: some error$' "$tmp/lost.log")" = 1
	rank=(uctrain)
	ended cuda
	told_once cuda 0 10
fi

# The remaining checkpoints are whole, and a run resumes from them normally.
for name in stopped1 killed; do
	latest=$(cat "$tmp/$name/latest")
	check "$name: $latest is whole" ucckpt check --data "$tmp/$name/$latest"
	steps=$((${latest#global_step} + 4))
	train 2 "$name" "${flags[@]}" --steps "$steps" --checkpoint_dir "$tmp/$name" --resume
	train 2 "all-$name" "${flags[@]}" --steps "$steps"
	check "$name: goes on" within 0 "$(apart "all-$name" "$name" 1)"
done

# A wait below the limit is not reported.
train 2 short "${flags[@]}" --steps 3 --comm_timeout 60
train 2 never "${flags[@]}" --steps 3 --comm_timeout 0
check "no deadline: the same" within 0 "$(apart short never 1)"

# With NCCL, emulated by MPI, rank 1 stops in its reduction.
if [ -x "$top_builddir/tests/programs/ranks_nccl" ]; then
	# The same if it is only queued, and the host waits for something else.
	pids=()
	for how in MEANWHILE LATER; do
		TRAIN_SECONDS=60 on_ranks 2 env NCCL_EMULATED_STUCK=1 "NCCL_EMULATED_$how=1" \
			"$top_builddir/tests/programs/ranks_nccl" own >"$tmp/nccl.$how" 2>&1 &
		pids+=($!)
	done
	for how in MEANWHILE LATER; do
		wait "${pids[0]}"
		check "NCCL, $how: an error" test $? -eq 1
		pids=("${pids[@]:1}")
		check "NCCL, $how: the collective" grep -q \
			"^uctrain: rank 0: before the first step: a reduce-scatter by NCCL did not end within 8 s" \
			"$tmp/nccl.$how"
	done
fi
finish
