#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two runs cannot save to the same checkpoint directory.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

dir=$tmp/run
flags=("${tiny[@]}" --train_batch_size 2)

# The lock file exists while a run is active; `long` runs until it is killed.
wait_for_lock() {
	for _ in $(seq 600); do
		[ -e "$dir/.uctrain.lock" ] && [ -s "$dir/.uctrain.lock" ] && return
		sleep 0.1
	done
	return 1
}

try_train 2 long "${flags[@]}" --steps 1000000000 --checkpoint_dir "$dir" --checkpoint_interval 3 &
check "a run locks the directory, which it makes" wait_for_lock

second() {
	! try_train "$1" second "${flags[@]}" --steps 1 --checkpoint_dir "$dir" "${@:2}"
}
message="^uctrain: (rank 0: )?$dir: another run saves checkpoints here \\(process [0-9]+ on .*\\); choose another --checkpoint_dir\$"
for ranks in 1 2; do
	check "a second run on $ranks ranks is refused" second "$ranks"
	check "with one message" grep -qE "$message" "$tmp/second.log"
done
check "one that saves nothing is not" try_train 1 reads "${flags[@]}" --steps 1
check "nor one that saves elsewhere" try_train 1 elsewhere "${flags[@]}" --steps 1 --checkpoint_dir "$tmp/elsewhere"
check "which leaves no lock" test ! -e "$tmp/elsewhere/.uctrain.lock"

# After a kill the file stays, but not the lock.
owner=$(sed 's/^process \([0-9]*\) .*/\1/' "$dir/.uctrain.lock")
kill -9 "$owner"
wait
check "the file of a killed run is left" test -e "$dir/.uctrain.lock"
check "the next one saves" try_train 1 next "${flags[@]}" --steps 1 --checkpoint_dir "$dir"
check "and is whole" ucckpt check "$dir/global_step1"
check "its file is gone" test ! -e "$dir/.uctrain.lock"

# If the directory is read-only on one rank the run ends: other ranks would wait for it when they
# save.  On the second rank the same path is a mount.
if [ -e /dev/fuse ] && command -v fusermount3 >/dev/null; then
	mkdir -p "$tmp/writable/run" "$tmp/mounted/run"
	ucfs "$dir" "$tmp/mounted/run" || fail "mount"
	in_directory() { echo "cd '$tmp/$1' && exec uctrain ${flags[*]} --steps 1 --run_name mixed --log_dir '$tmp/logs' --checkpoint_dir run"; }
	timeout -k 5 60 mpirun -n 1 sh -c "$(in_directory writable)" : -n 1 sh -c "$(in_directory mounted)" \
		>"$tmp/mixed.log" 2>&1 </dev/null
	check "a rank that cannot save ends the run" test $? -gt 0 -a $? -lt 124
	check "with its message" grep -q '^uctrain: rank 1: run: read-only, but not on all ranks$' "$tmp/mixed.log"
	fusermount3 -u "$tmp/mounted/run"
fi

# A failure before the first save leaves no directory.
check "a run that cannot resume" second 1 --resume="$tmp/nowhere" --checkpoint_dir "$tmp/unused"
check "leaves nothing" test ! -e "$tmp/unused"
check "nor does one that resumes from there" second 1 --resume --checkpoint_dir "$tmp/unused"
check "leave anything" test ! -e "$tmp/unused"
finish
