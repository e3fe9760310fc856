#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# dcp.load by 1, 2, 4 and 8 ranks, in the page cache: TAG_dcp, which is cut for eight
# ranks, against a checkpoint that eight ranks saved with dcp.save, and TAG_dcpN against
# one that the same N ranks saved.  Then the bytes that a rank reads, .metadata included,
# relative to its share, by number of ranks and dcp_ranks; and the time to write a large
# .metadata.
. "${BASH_SOURCE%/*}/lib.sh"
needs_python torch
begin
room "$work" 4 || skip "no room for a saved checkpoint in $work"
load() { "$UCFS_DEEPSPEED_PYTHON" "${BASH_SOURCE%/*}/dcp_load.py" "$@" 2>/dev/null; }
metadata=${top_builddir:-.}/tests/bench/dcpmetadata

# save RANKS: save the checkpoint on RANKS ranks to $work/savedRANKS.
save() {
	mount_as crc=exact
	load save "$1" "$mnt/${tag}_dcp" "$work/saved$1" >/dev/null
	unmount
	sync
}

# share OPTION RANKS: print the bytes that the busiest rank reads, relative to its share.
time_view() {
	mount_as crc=exact
	add "$1" "$(load load "$2" "$mnt/$tag$3")"
	unmount
}

# compare RANKS: measure all sides in turns.
compare() {
	local -r ranks=$1
	local i

	[ -d "$work/saved$ranks" ] || save "$ranks"
	for ((i = 0; i < rounds; i++)); do
		cat "$source/$tag"/*.pt "$work/saved8"/* "$work/saved$ranks"/* >/dev/null
		add "eight$ranks" "$(load load "$ranks" "$work/saved8")"
		time_view "plain$ranks" "$ranks" _dcp
		add "same$ranks" "$(load load "$ranks" "$work/saved$ranks")"
		time_view "own$ranks" "$ranks" "_dcp$ranks"
	done
	[ "$ranks" = 8 ] || rm -r "$work/saved$ranks"
}

# against WHAT OURS THEIRS
against() {
	bar "$1" "$(ratio "$(median "$3")" "$(median "$2")")" ">=" 0.9 \
		"$(median "$2") ms" "$(median "$3") ms"
}

warm
header dcp
save 8
for n in 1 2 4 8; do
	compare "$n"
	row_of "dcp.load by $n ranks, saved by 8" "eight$n" ms
	row_of "TAG_dcp" "plain$n" ms
	row_of "dcp.load by $n ranks, saved by $n" "same$n" ms
	row_of "TAG_dcp$n" "own$n" ms
	against "dcp.load of TAG_dcp by $n ranks" "plain$n" "eight$n"
	against "dcp.load of TAG_dcp$n by $n ranks" "own$n" "same$n"
	figure "TAG_dcp by $n ranks, and what $n saved" "$(median "plain$n") ms" \
		"$(median "same$n") ms" "$(ratio "$(median "same$n")" "$(median "plain$n")")"
done
# share OPTION RANKS: print what the busiest rank reads.
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
