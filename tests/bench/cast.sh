#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Throughput of weight conversions (hf_dtype) against memcpy, by processor time.
. "${BASH_SOURCE%/*}/lib.sh"
program=${top_builddir:-.}/tests/bench/cast
[ -x "$program" ] || skip "no $program; make bench builds it"

printf 'cast: load average %s\n' "$(cut -d' ' -f1 /proc/loadavg)"
while read -r name rate ratio; do
	if [ "$name" = float32-float32 ]; then
		row memcpy "$rate" "GB/s"
	else
		bar "$name ($rate GB/s), to memcpy" "$ratio" ">=" 0.5
	fi
done < <("$program")
