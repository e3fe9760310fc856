#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Mounts of checkpoints of many ranks and parameters, made by mkrun: the time until the
# mount is ready, and from program start to the first stat.
#
# UCFS_BENCH_RANKS	sizes: PARAMETERS:DP:TP ... (20000:32:32 takes ten minutes to
# 			write)
. "${BASH_SOURCE%/*}/lib.sh"

sizes=${UCFS_BENCH_RANKS:-200:4:1 20000:1024:1}
begin_own

# stat(2) by this shell's builtin: starting a program would take as long as a small
# mount.
first_stat() {
	ucfs "$source" "$mnt"
	[ -s "$mnt/global_step4_universal/zero/block.0000.weight/fp32.pt" ]
}

one_size() {
	local parameters dp tp

	IFS=: read -r parameters dp tp <<<"$1"
	source=$work/run
	tag=global_step4
	rm -rf "$source" "$work"/series.*
	mkdir "$source"
	"$mkrun" "$source" "$parameters" 64 "$dp" "$tp"
	warm
	for ((i = 0; i < rounds; i++)); do
		timed mounting ucfs "$source" "$mnt"
		unmount
		timed to_stat first_stat
		unmount
	done
	header "ranks, $parameters parameters, $dp data-parallel times $tp tensor-parallel ranks"
	row_of "mount" mounting ms
	row_of "to the first stat" to_stat ms
	bar "to the first stat, $parameters x $dp x $tp (ms)" "$(median to_stat)" "<" 150
}

for size in $sizes; do
	one_size "$size"
done
