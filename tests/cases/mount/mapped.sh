#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Mapped files: many threads fault at once without deadlock; a shard that is
# truncated under a mapping costs the reader a page and the server nothing.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
file=$mnt/global_step4_universal/zero/block.0001.weight/exp_avg.pt

mkdir "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 2 1100000 || fail "mkrun"
tag=$tmp/run/global_step4
check "convert" ucckpt convert "$tag" "$tmp/copy" >"$tmp/convert.log" 2>&1
copy=$tmp/copy/zero/block.0001.weight/exp_avg.pt
mapload() { timeout 60 "$top_builddir/tests/programs/mapload" "$@"; }

for options in ro crc=zero; do
	mount_fg "$tmp/run" -o "$options" || finish
	if [ "$options" = crc=zero ]; then
		cp "$file" "$tmp/zero.pt"
		copy=$tmp/zero.pt
	fi
	for turn in 1 2 3; do
		check "$options, turn $turn: 64 threads fault and get on" mapload "$file" "$copy" </dev/null >/dev/null
	done
	# Several mapping processes and readers run at the same time.
	for i in 1 2 3 4; do
		mapload "$file" "$copy" </dev/null >/dev/null &
		pids[i]=$!
		cmp "$file" "$copy" || fail "$options: read beside mappings"
	done
	for i in 1 2 3 4; do
		check "$options: process $i of four" wait "${pids[i]}"
	done
	unmount
done
copy=$tmp/copy/zero/block.0001.weight/exp_avg.pt

# Truncate the shards while the file is mapped: pages not yet read cannot be served.
mount_fg "$tmp/run" || finish
mkfifo "$tmp/hold"
mapload "$file" "$copy" <"$tmp/hold" >"$tmp/mapped" 2>"$tmp/err" &
holder=$!
exec 9>"$tmp/hold"
until [ -s "$tmp/mapped" ] || ! kill -0 $holder 2>/dev/null; do sleep 0.02; done
for f in "$tag"/zero_*; do
	truncate -s 5000 "$f"
done
exec 9>&-
wait "$holder"
status=$?
# Either all pages had been read ahead, or one was missing; other bytes never appear.
check "a reader of cut shards gets the old bytes or none (status $status: $(cat "$tmp/err"))" \
	test "$status" -eq 0 -o "$status" -eq 3
check "the server lives" test -f "$mnt/.ucfs/stats"
check "and says which shard it was" grep -q 'zero_pp_rank_._.*truncated' \
	<(cat "$file" >/dev/null 2>&1; cat "$tmp/log")
unmount
finish
