#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A resume in DeepSpeed itself on another number of ranks: from a mount, including the
# time to mount, against ds_to_universal.py and the same resume from the converted
# directory.  UCFS_DEEPSPEED_PYTHON names a Python that has DeepSpeed and transformers.
#
# UCFS_BENCH_STAGE	ZeRO stage of the resumed run (1)
# UCFS_BENCH_RANKS	its number of ranks (2)
. "${BASH_SOURCE%/*}/lib.sh"
needs_python deepspeed transformers
begin
room "$work" 3 || skip "no room for a conversion in $work"

convert() {
	"$UCFS_DEEPSPEED_PYTHON" -m deepspeed.checkpoint.ds_to_universal \
		--input_folder "$source/$tag" \
		--output_folder "$work/run/${tag}_universal" \
		--inject_missing_state >"$work/log" 2>&1 ||
		{ cat "$work/log"; exit 1; }
}
# load RUN: print milliseconds.
load() {
	echo "load $1 ${tag}_universal" |
		"$UCFS_DEEPSPEED_PYTHON" "${BASH_SOURCE%/*}/resume.py" \
			"${UCFS_BENCH_STAGE:-1}" "${UCFS_BENCH_RANKS:-2}" \
			2>"$work/log" | cut -d' ' -f1
}

warm
mkdir "$work/run"
for ((i = 0; i < rounds; i++)); do
	rm -rf "$work/run/${tag}_universal"
	timed convert convert
	add directory "$(load "$work/run")"
	timed mounting mount_as crc=exact
	add mount "$(load "$mnt")"
	unmount
done

header resume
row_of "ds_to_universal.py" convert ms
row_of "DeepSpeed loads the directory" directory ms
row_of "mount" mounting ms
row_of "DeepSpeed loads from the mount" mount ms
sum() { awk -v a="$(median "$1")" -v b="$(median "$2")" 'BEGIN { print a + b }'; }
ours=$(sum mounting mount) theirs=$(sum convert directory)
figure "mount and resume, convert and resume (ms)" "$ours" "$theirs" \
	"$(ratio "$theirs" "$ours") times as fast"
figure "  of these the resume alone (ms)" "$(median mount)" \
	"$(median directory)" "$(ratio "$(median directory)" "$(median mount)")"
