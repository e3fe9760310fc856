#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whether files are streamed or the kernel reads the shards, the bytes are the same, and
# statistics tell which.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
view=$mnt/global_step4_universal

# Nine files of 4.4 MB each.
mkdir "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 3 1100000 || fail "mkrun"
tag=$tmp/run/global_step4
check "convert" ucckpt convert "$tag" "$tmp/copy" >"$tmp/convert.log" 2>&1
(cd "$tmp/copy" && find zero -name '*.pt' -size +4M | sort) >"$tmp/large"
check "nine large files" test "$(wc -l <"$tmp/large")" -eq 9

# count NAME: print a number of the mount's statistics.
count() { awk -v name="$1" '$1 == name { print $2 }' "$mnt/.ucfs/stats"; }
read_all() {
	local f
	while read -r f; do
		cmp "$view/$f" "$tmp/copy/$f" || return 1
	done <"$tmp/large"
}

# Streamed files.
mount_fg "$tmp/run" || finish
check "the tree" diff -r "$view" "$tmp/copy"
check "again" read_all
check "opens are counted" test "$(count opens_streamed)" -ge 18
check "reads are" test "$(count reads)" -ge 18
check "bytes are" test "$(count read_bytes)" -ge $((9 * 4400000 * 2))
check "times are reported" grep -q '^read_us .*<[0-9]*:[0-9]' "$mnt/.ucfs/stats"
check "a reader of the statistics sees current numbers" test "$(stat -c %s "$mnt/.ucfs/stats")" -gt 100
while read -r f; do
	check "$f without waiting" cmp <(dd if="$view/$f" iflag=nonblock bs=1M status=none) "$tmp/copy/$f"
done <"$tmp/large"

# Batch systems send this signal to all processes of a job before they end it.
kill -USR1 "$server"

# Eight ranks read the same files in the same order, and eight in other orders.
for i in 1 2 3 4 5 6 7 8; do
	read_all &
	pids[i]=$!
done
for i in 1 2 3 4 5 6 7 8; do
	(cd "$view" && { tail -n "+$i" "$tmp/large"; head -n $((i - 1)) "$tmp/large"; } | xargs cat | wc -c) >"$tmp/rank$i" &
	pids[8 + i]=$!
done
for pid in "${pids[@]}"; do
	check "one of sixteen readers" wait "$pid"
done
all=$(cd "$tmp/copy" && xargs cat <"$tmp/large" | wc -c)
for i in 1 2 3 4 5 6 7 8; do
	check "rotated reader $i has all bytes" test "$(cat "$tmp/rank$i")" -eq "$all"
done
check "no handle is left" test "$(count open_files)" -le 1
check "no open failed" test "$(count opens_failed)" -eq 0

# Small files are cached.
small=$view/zero/optimizer_state.pt
[ "$(stat -c %s "$small")" -le 131072 ] || fail "a file of 128 KiB at most was wanted"
own=$(count reads) # reads that fetch the counters
own=$(($(count reads) - own))
reads=$(count reads)
for _ in 1 2 3; do
	check "a small file, by few bytes at a time" cmp <(dd if="$small" bs=512 status=none) \
		"$tmp/copy/zero/optimizer_state.pt"
done
check "came with its open" test "$(count reads)" -eq $((reads + own))

# The kernel reads the shard directly.
model=$view/mp_rank_00_model_states.pt
identical=$(count opens_passthrough)
if [ "$identical" -gt 0 ]; then
	reads=$(count reads)
	exec 5<"$model" 6<"$model"
	check "model states, by two readers" cmp /dev/fd/5 "$tag/mp_rank_00_model_states.pt"
	exec 5<&-
	check "one stays" cmp /dev/fd/6 "$tag/mp_rank_00_model_states.pt"
	exec 6<&-
	check "and are opened again" cmp "$model" "$tag/mp_rank_00_model_states.pt"
	check "are passed through" test "$(count opens_passthrough)" -ge $((identical + 3))
	check "mapped" "$top_builddir/tests/programs/mapload" "$model" \
		"$tag/mp_rank_00_model_states.pt" </dev/null >/dev/null
	check "the server is not asked for their bytes" test "$(count reads)" -lt $((reads + 10))
	# Handles are open when the mount goes away.
	exec 5<"$model"
	fusermount3 -uz "$mnt"
	exec 5<&-
	wait "$server"
	check "an unmount with an open file" test $? -eq 0
	mount_fg "$tmp/run" || finish
fi

# Shards change.
check "before" read_all
: >"$tmp/log"
echo x >>"$tag/zero_pp_rank_0_mp_rank_00_optim_states.pt"
sleep 0.2 # paths are checked ten times a second
first=$(head -n 1 "$tmp/large")
check "a file whose shard was written to is an error" grep -q 'Input/output error' \
	<(cat "$view/$first" 2>&1 >/dev/null)
check "with one line" test "$(wc -l <"$tmp/log")" -eq 1
check "that names the shard" grep -q 'zero_pp_rank_0_.*since' "$tmp/log"
echo x >>"$tag/mp_rank_00_model_states.pt"
sleep 0.2
check "so is one that is a shard" grep -q 'Input/output error' <(cat "$model" 2>&1 >/dev/null)
check "the server lives" test -n "$(count reads)"
unmount
finish
