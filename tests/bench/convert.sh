#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writing a universal tree to a disk: DeepSpeed's converter, cp -r from a mount, and
# ucckpt convert.  UCFS_DEEPSPEED_PYTHON names a Python that has DeepSpeed.
. "${BASH_SOURCE%/*}/lib.sh"
needs_python deepspeed
begin
room "$dest" 3 || skip "no room for a conversion in $dest"
ucckpt=$(command -v ucckpt || true)
[ -z "$ucckpt" ] || "$ucckpt" convert --help >/dev/null 2>&1 || ucckpt=

by_deepspeed() {
	"$UCFS_DEEPSPEED_PYTHON" -m deepspeed.checkpoint.ds_to_universal \
		--input_folder "$source/$tag" --output_folder "$dest/ds" \
		--inject_missing_state >"$work/log" 2>&1 ||
		{ cat "$work/log"; exit 1; }
}
by_copy() {
	mount_as crc=exact
	cp -r "$view" "$dest/cp"
}
by_ucckpt() {
	local -a took

	read -r -a took < <("$work/usage" "$ucckpt" convert \
		--input_folder "$source/$tag" \
		--output_folder "$dest/uc" 2>"$work/log" ||
		{ cat "$work/log" >&2; exit 1; })
	add uc.rss "${took[2]}"
	add uc.read "${took[3]}"
	add uc.written "${took[4]}"
}
compile usage

# Each result is removed before the next is written, so that all have the same
# free memory.
finish() {
	add "$1.bytes" "$(du -sb "$dest/$1" | cut -f1)"
	chmod -R u+w "$dest"
	rm -rf "${dest:?}/$1"
}

warm
for ((i = 0; i < rounds; i++)); do
	timed ds by_deepspeed
	finish ds
	timed cp by_copy
	unmount
	finish cp
	if [ -n "$ucckpt" ]; then
		timed uc by_ucckpt
		finish uc
	fi
done

header convert
row destination "$(stat -f -c %T "$dest")"
row_of "ds_to_universal.py" ds ms "$(median ds.bytes) bytes"
row_of "mount, cp -r" cp ms "$(median cp.bytes) bytes"
row "  times as fast" "$(ratio "$(median ds)" "$(median cp)")"
if [ -n "$ucckpt" ]; then
	row_of "ucckpt convert" uc ms "$(median uc.bytes) bytes"
	bar "ucckpt convert, times as fast" "$(ratio "$(median ds)" "$(median uc)")" \
		">=" 10 "$(median uc) ms" "$(median ds) ms"
	row "  bytes read / bytes of the checkpoint" \
		"$(ratio "$(median uc.read)" "$(du -sb "$source/$tag" | cut -f1)")"
	bar "  bytes written / bytes of the tree" \
		"$(ratio "$(median uc.written)" "$(median uc.bytes)")" "<" 1.01 \
		"$(median uc.written)"
	bar "  resident memory (KiB)" "$(median uc.rss)" "<" 65536
fi
