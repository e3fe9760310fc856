#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# dcp.load of TAG_dcp by 1, 2, 4 and 8 ranks, against dcp.load of a directory that dcp.save
# wrote with as many, both in the page cache.  Then the bytes that a rank reads, .metadata
# included, relative to its share, by number of ranks and dcp_ranks; and the time to write
# a large .metadata.
. "${BASH_SOURCE%/*}/lib.sh"
needs_python torch
begin
room "$work" 2 || skip "no room for a saved checkpoint in $work"
load() { "$UCFS_DEEPSPEED_PYTHON" "${BASH_SOURCE%/*}/dcp_load.py" "$@" 2>/dev/null; }
metadata=${top_builddir:-.}/tests/bench/dcpmetadata

# compare RANKS: both sides in turns.
compare() {
	local -r ranks=$1
	local i

	mount_as crc=exact
	load save "$ranks" "$mnt/${tag}_dcp" "$work/saved" >/dev/null
	unmount
	sync
	for ((i = 0; i < rounds; i++)); do
		cat "$source/$tag"/*.pt "$work/saved"/* >/dev/null
		add "saved$ranks" "$(load load "$ranks" "$work/saved")"
		mount_as crc=exact
		add "ours$ranks" "$(load load "$ranks" "$mnt/${tag}_dcp")"
		unmount
	done
	rm -r "$work/saved"
}

warm
header dcp
for n in 1 2 4 8; do
	compare "$n"
	row_of "dcp.load by $n ranks, saved by torch" "saved$n" ms
	row_of "TAG_dcp" "ours$n" ms
	bar "dcp.load of TAG_dcp by $n ranks" \
		"$(ratio "$(median "saved$n")" "$(median "ours$n")")" ">=" 0.9 \
		"$(median "ours$n") ms" "$(median "saved$n") ms"
done
# share OPTION RANKS: what the rank that reads most reads.
share() {
	mount_as "$1"
	load share "$2" "$mnt/${tag}_dcp"
	unmount
}
for n in 1 2 4 8; do
	bar "bytes read / share, $n ranks" "$(share crc=exact $n)" "<" 1.1
done
for n in 3 5 12 16 31 64; do
	bar "bytes read / share, $n ranks, TAG_dcp$n" "$(share dcp_ranks=$n $n)" "<" 1.1
done
[ ! -x "$metadata" ] || row ".metadata, 60000 tensors in 64 chunks" "$("$metadata")"
