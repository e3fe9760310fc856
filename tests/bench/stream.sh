#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Large files of the mount read front to back, 1 MiB at a time, by one and by two readers, against
# pread of the same bytes of the shards by as many readers; with checksums computed while reading
# (fresh mounts) and without; and the machine's limits.
. "${BASH_SOURCE%/*}/lib.sh"
begin

rate() { "$work/readfile" "$@" | cut -d' ' -f1; }
better() { printf '%s\n' "$@" | sort -g | tail -n 1; }

warm
for ((i = 0; i < rounds; i++)); do
	add memcpy "$(rate -m)"
	for crc in zero exact; do
		for t in 1 2; do
			mount_as "crc=$crc"
			mapfile -t files < <(find "$view/zero" -name '*.pt' \
				-size +1M -size -64M | sort)
			raw=$(rate -x -t $t "${files[@]}")
			got=$(rate -t $t "${files[@]}")
			# Other load slows one busy process more than two that take turns: use the
			# better of two.
			raw=$(better "$raw" "$(rate -x -t $t "${files[@]}")")
			add "raw$t" "$raw"
			add "$crc$t" "$got"
			add "$crc$t.ratio" "$(ratio "$got" "$raw")"
			unmount
		done
	done
done

header stream
row "files" "${#files[@]}" "" "of 1 to 64 MiB"
row_of "memcpy, 1 MiB blocks" memcpy GB/s
for t in 1 2; do
	row_of "pread of the shards, $t reader(s)" raw$t GB/s
	row_of "mount, crc=zero, $t reader(s)" zero$t GB/s
	row_of "  to pread of the same bytes" zero$t.ratio x
	row_of "mount, crc=exact, first read, $t reader(s)" exact$t GB/s
	row_of "  to pread of the same bytes" exact$t.ratio x
done
