#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Throughput of a weight that tensor-parallel ranks cut along its columns, which is
# interleaved row by row when it is read, against one whose slices are concatenated.
# Read front to back in blocks of 1 MiB, with the checkpoint in memory.
#
# UCFS_BENCH_ROWS	a checkpoint made by tests/interop/make_rows.py
. "${BASH_SOURCE%/*}/lib.sh"
[ -n "${UCFS_BENCH_ROWS:-}" ] || skip "UCFS_BENCH_ROWS is not set; for a" \
	"checkpoint: python3 tests/interop/make_rows.py DIR (takes PyTorch)"
UCFS_BENCH_DIR=$UCFS_BENCH_ROWS
begin

warm
for ((i = 0; i < rounds; i++)); do
	for crc in zero exact; do
		mount_as "crc=$crc"
		for p in column row; do
			add "$crc.$p" "$("$work/readfile" "$view/zero/$p.weight/fp32.pt" | cut -d' ' -f1)"
		done
		unmount
	done
done

header gather
for crc in zero exact; do
	row_of "slices follow each other, crc=$crc" $crc.column GB/s
	row_of "cut along columns, crc=$crc" $crc.row GB/s
	bar "  to slices that follow each other" \
		"$(ratio "$(median $crc.row)" "$(median $crc.column)")" ">=" 0.75
done
