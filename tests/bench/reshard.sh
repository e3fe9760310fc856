#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A resume on another number of ranks from TAG_dpN: the bytes of optimizer shards
# that all ranks read together, against those of the checkpoint; and the time that
# DeepSpeed takes to load the view, against the universal view of the same mount, if
# UCFS_DEEPSPEED_PYTHON names a Python that has DeepSpeed and transformers.
#
# UCFS_BENCH_STAGE	ZeRO stage of the run (1)
# UCFS_BENCH_RANKS	numbers of ranks ("2 8")
. "${BASH_SOURCE%/*}/lib.sh"
begin

# Bytes of the optimizer shards in DIRECTORY.  A rank reads its own, whole.
shards() {
	find "$1" -name '*optim_states.pt' -printf '%s\n' |
		awk '{ sum += $1 } END { printf "%.0f", sum }'
}

can_load() {
	[ -n "${UCFS_DEEPSPEED_PYTHON:-}" ] &&
		"$UCFS_DEEPSPEED_PYTHON" -c 'import deepspeed, transformers' >/dev/null 2>&1
}

# load RANKS TAG: milliseconds.
load() {
	"$UCFS_DEEPSPEED_PYTHON" "${BASH_SOURCE%/*}/resume.py" \
		"${UCFS_BENCH_STAGE:-1}" "$1" "$mnt" "$2" 2>"$work/log" | tail -n 1
}

warm
saved=$(shards "$source/$tag")
header reshard
for n in ${UCFS_BENCH_RANKS:-2 8}; do
	mount_as crc=exact
	read=$(shards "$mnt/${tag}_dp$n")
	figure "$n ranks: bytes of shards read, saved" "$read" "$saved" "$(ratio "$read" "$saved")"
	unmount
	can_load || continue
	for ((i = 0; i < rounds; i++)); do
		mount_as crc=exact
		add "dp$n" "$(load "$n" "${tag}_dp$n")"
		add "universal$n" "$(load "$n" "${tag}_universal")"
		unmount
	done
	row_of "$n ranks: DeepSpeed loads ${tag}_dp$n" "dp$n" ms
	row_of "$n ranks: DeepSpeed loads ${tag}_universal" "universal$n" ms
	figure "$n ranks: TAG_dp$n, TAG_universal (ms)" "$(median "dp$n")" \
		"$(median "universal$n")" "$(ratio "$(median "dp$n")" "$(median "universal$n")")"
done
