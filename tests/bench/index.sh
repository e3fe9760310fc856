#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What an index saves: checkpoints of many ranks and parameters, made by mkrun, are
# mounted with and without it, in turns; also from program start to the first stat.
#
# UCFS_BENCH_INDEX	sizes: PARAMETERS:DP:TP ... (20000:32:32 takes ten minutes to
# 			write)
. "${BASH_SOURCE%/*}/lib.sh"

sizes=${UCFS_BENCH_INDEX:-200:4:1 20000:1024:1}
mkrun=${top_builddir:-.}/tests/programs/mkrun

[ -w /dev/fuse ] || skip "/dev/fuse cannot be used"
[ -x "$mkrun" ] || skip "$mkrun is not built (make check builds it)"
trap cleanup EXIT
trap 'exit 1' INT TERM HUP
work=$(mktemp -d "${UCFS_BENCH_TMP:-${TMPDIR:-/tmp}}/ucfs-bench.XXXXXX")
mnt=$work/mnt
mkdir "$mnt"

# first_stat OPTION: from start to stat(2) of a parameter's file, by this shell's
# builtin: starting a program would take as long as a small mount.
first_stat() {
	ucfs "$source" "$mnt" -o "$1"
	[ -s "$mnt/global_step4_universal/zero/block.0000.weight/fp32.pt" ]
}

# The server writes the index after it was unmounted.
unmount_whole() {
	local -r pid=$(pgrep -n -f "ucfs $source ")

	unmount
	while kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
}

one_size() {
	local parameters dp tp index=$work/index

	IFS=: read -r parameters dp tp <<<"$1"
	source=$work/run
	tag=global_step4
	rm -rf "$source" "$index" "$work"/series.*
	mkdir "$source"
	"$mkrun" "$source" "$parameters" 64 "$dp" "$tp"
	warm
	timed make_index ucfs "$source" "$mnt" -o index="$index"
	# Compute all checksums, so that the index has them.
	find "$mnt/global_step4_universal/zero" -name fp32.pt -exec cat {} + >/dev/null
	unmount_whole
	for ((i = 0; i < rounds; i++)); do
		timed without ucfs "$source" "$mnt" -o index=none
		unmount_whole
		timed with ucfs "$source" "$mnt" -o index="$index"
		unmount_whole
		timed stat_without first_stat index=none
		unmount_whole
		timed stat_with first_stat index="$index"
		unmount_whole
	done
	header "index, $parameters parameters, $dp data-parallel times $tp tensor-parallel ranks"
	row_of "mount without index" without ms
	row_of "mount with index" with ms "$(stat -c %s "$index") bytes"
	row_of "to the first stat, without" stat_without ms
	row_of "to the first stat, with" stat_with ms
	bar "mount without index, $parameters x $dp x $tp (ms)" \
		"$(median without)" "<" 2000
	bar "mount with index, $parameters x $dp x $tp (ms)" \
		"$(median with)" "<" 100
	bar "to the first stat with index, $parameters x $dp x $tp (ms)" \
		"$(median stat_with)" "<" 20
}

for size in $sizes; do
	one_size "$size"
done
