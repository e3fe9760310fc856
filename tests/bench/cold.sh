#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# From a cold disk: read the whole tree through a mount, file by file, against cat of its shards.
# Rates are per byte, since tree and shards differ in size.
. "${BASH_SOURCE%/*}/lib.sh"
begin
(echo 1 >/proc/sys/vm/drop_caches) 2>/dev/null ||
	skip "the page cache cannot be dropped (/proc/sys/vm/drop_caches)"

drop() { sync; echo 1 >/proc/sys/vm/drop_caches; }
shards() { cat "$source/$tag"/*.pt >/dev/null; }
tree() { find "$view" -type f -exec cat {} + >/dev/null; }

shards_bytes=$(cat "$source/$tag"/*.pt | wc -c)
for ((i = 0; i < rounds; i++)); do
	for crc in zero exact; do
		drop
		timed shards shards
		drop
		mount_as "crc=$crc"
		timed $crc tree
		tree_bytes=$(du -sb --apparent-size "$view" | cut -f1)
		unmount
	done
done

speed() { awk -v b="$1" -v ms="$2" 'BEGIN { printf "%.2f", b / ms / 1e6 }'; }
header cold
raw=$(speed "$shards_bytes" "$(median shards)")
row "bytes of the shards" "$shards_bytes"
row "bytes of the tree" "$tree_bytes"
row_of "cat of the shards" shards ms
for crc in zero exact; do
	row_of "cat of the tree, crc=$crc" $crc ms
	ours=$(speed "$tree_bytes" "$(median $crc)")
	bar "cold disk, whole tree / cat of the shards, crc=$crc" \
		"$(ratio "$ours" "$raw")" ">=" 0.9 "$ours GB/s" "$raw GB/s"
done
