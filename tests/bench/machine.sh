#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The machine's own limits, to which other figures are related.  A file of 26 MiB and one of 154
# MiB are read 1 MiB at a time by open, read, close from the disk's file system, in the page
# cache.
. "${BASH_SOURCE%/*}/lib.sh"
begin_work
compile readers
compile readfile
mkdir "$work/disk"
for size in 26 154; do
	head -c ${size}M /dev/urandom >"$work/disk/$size"
done
sync
drops=
(echo 1 >/proc/sys/vm/drop_caches) 2>/dev/null && drops=yes

rate() { "$work/readers" -t "$1" "$2" | cut -d' ' -f1; }
for ((i = 0; i < rounds; i++)); do
	add memcpy "$("$work/readfile" -m | cut -d' ' -f1)"
	for t in 1 2 4; do
		for size in 26 154; do
			rate 1 "$work/disk/$size" >/dev/null
			add "disk.$size.$t" "$(rate $t "$work/disk/$size")"
		done
	done
	if [ -n "$drops" ]; then
		echo 1 >/proc/sys/vm/drop_caches
		add cold "$(rate 1 "$work/disk/154")"
	fi
done

source=$work tag=disk
header machine
figure "memcpy, 1 MiB blocks" "$(median memcpy) GB/s"
[ -z "$drops" ] || figure "cold disk, 154 MiB" "$(median cold) GB/s"
for size in 26 154; do
	for t in 1 2 4; do
		figure "page cache, $size MiB, $t reader(s)" "$(median disk.$size.$t) GB/s"
	done
done
