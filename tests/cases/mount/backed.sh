#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Files that the kernel reads itself have the same bytes: model states pass
# through to their shard, large files to the memory that caches them.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
mnt=$tmp/mnt
zero=$mnt/global_step4_universal/zero

# Nine files of 4.4 MB each, just above the size from which files are cached.
mkdir "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 3 1100000 || fail "mkrun"
tag=$tmp/run/global_step4
check "convert" ucckpt convert "$tag" "$tmp/copy" >"$tmp/convert.log" 2>&1
(cd "$tmp/copy/zero" && find . -name '*.pt' -size +4M | sort) >"$tmp/large"
check "nine large files" test "$(wc -l <"$tmp/large")" -eq 9

# count NAME: a number of the mount's statistics.
count() { awk -v name="$1" '$1 == name { print $2 }' "$mnt/.ucfs/stats"; }
read_all() {
	local f
	while read -r f; do
		cmp "$zero/$f" "$tmp/copy/zero/$f" || return 1
	done <"$tmp/large"
}
# settle NAME: read everything until a statistic has grown.  Memory is prepared in
# the background, and only when the processor is otherwise idle.
settle() {
	for _ in $(seq 300); do
		read_all || { fail "other bytes on the way"; return 1; }
		[ "$(count "$1")" -eq 0 ] || return 0
		sleep 0.1
	done
	return 1
}

# --- streamed -----------------------------------------------------------------
mount_fg "$tmp/run" -o no_cache || finish
check "streamed: the tree" diff -r "$mnt/global_step4_universal" "$tmp/copy"
check "streamed: again" read_all
check "nothing is assembled" test "$(count assembled)" -eq 0
check "and takes no memory" test "$(count cache_bytes)" -eq 0
check "opens are counted" test "$(count opens_streamed)" -ge 18
check "reads are" test "$(count reads)" -ge 18
check "bytes are" test "$(count read_bytes)" -ge $((9 * 4400000 * 2))
check "shards are where they come from" test "$(count shard_bytes)" -ge $((9 * 4400000 * 2))
check "times are reported" grep -q '^read_us .*<[0-9]*:[0-9]' "$mnt/.ucfs/stats"
streamed=$(count opens_streamed)
check "JSON says the same" test "$(tr ',{' '\n\n' <"$mnt/.ucfs/stats.json" | sed -n 's/"opens_streamed"://p')" \
	-ge "$streamed"
if command -v python3 >/dev/null; then
	check "and is JSON" python3 -m json.tool "$mnt/.ucfs/stats.json" /dev/null
fi
check "a reader of the statistics sees current numbers" test "$(stat -c %s "$mnt/.ucfs/stats")" -gt 300
kill -USR1 "$server"
for _ in $(seq 100); do
	[ -s "$tmp/log" ] && break
	sleep 0.05
done
check "SIGUSR1 logs them" grep -q '^ucfs: {"opens_streamed":[0-9]' "$tmp/log"
identical=$(count opens_passthrough)
unmount

# --- passed through --------------------------------------------------------------
if [ "$identical" -eq 0 ]; then
	skip "no passthrough here (Linux 6.9, CAP_SYS_ADMIN); what is streamed was tested"
fi
mount_fg "$tmp/run" -o cache_size=64M || finish
reads=$(count reads)
check "model states" cmp "$mnt/global_step4_universal/mp_rank_00_model_states.pt" "$tag/mp_rank_00_model_states.pt"
check "are passed through" test "$(count opens_passthrough)" -eq 1
check "mapped" "$top_builddir/tests/programs/mapload" "$mnt/global_step4_universal/mp_rank_00_model_states.pt" \
	"$tag/mp_rank_00_model_states.pt" </dev/null >/dev/null
check "the server is not asked for their bytes" test "$(count reads)" -lt $((reads + 10))
check "large files are assembled after a while" settle opens_cached
check "then found so" settle cache_hits
check "the whole tree is the same" diff -r "$mnt/global_step4_universal" "$tmp/copy"
check "unzip's view of an assembled file" test "$(tail -c 22 "$zero/block.0001.weight/fp32.pt" | md5sum)" = \
	"$(tail -c 22 "$tmp/copy/zero/block.0001.weight/fp32.pt" | md5sum)"
check "sizes are exact" cmp <(cd "$zero" && xargs wc -c <"$tmp/large") <(cd "$tmp/copy/zero" && xargs wc -c <"$tmp/large")

# Eight ranks read the same files in the same order, and eight in other orders.
for i in 1 2 3 4 5 6 7 8; do
	read_all &
	pids[i]=$!
done
for i in 1 2 3 4 5 6 7 8; do
	(cd "$zero" && { tail -n "+$i" "$tmp/large"; head -n $((i - 1)) "$tmp/large"; } | xargs cat | wc -c) >"$tmp/rank$i" &
	pids[8 + i]=$!
done
for pid in "${pids[@]}"; do
	check "one of sixteen readers" wait "$pid"
done
all=$(cd "$tmp/copy/zero" && xargs cat <"$tmp/large" | wc -c)
for i in 1 2 3 4 5 6 7 8; do
	check "rotated reader $i has all bytes" test "$(cat "$tmp/rank$i")" -eq "$all"
done
check "no handle is left" test "$(count open_files)" -le 1
check "no open failed" test "$(count opens_failed)" -eq 0
unmount

# --- memory that is used again -----------------------------------------------------
# Room for three files: each pass through all nine reuses all of it.
mount_fg "$tmp/run" -o cache_size=19M || finish
check "with little memory, too" settle opens_cached
check "and ahead of a reader that goes through them" settle prefetched
f=$(head -n 1 "$tmp/large")
mkfifo "$tmp/hold"
for _ in $(seq 100); do # until it is an assembled one that is mapped
	before=$(count opens_cached)
	"$top_builddir/tests/programs/mapload" "$zero/$f" "$tmp/copy/zero/$f" <"$tmp/hold" >"$tmp/mapped" &
	holder=$!
	exec 9>"$tmp/hold"
	until [ -s "$tmp/mapped" ] || ! kill -0 $holder 2>/dev/null; do sleep 0.02; done
	[ "$(count opens_cached)" -lt $((before + 2)) ] || break
	exec 9>&-
	check "mapped, as it happens not assembled" wait "$holder"
	sleep 0.1
done
check "an assembled file is mapped" test "$(count opens_cached)" -ge $((before + 2))
evicted=$(count evicted)
for _ in 1 2 3 4 5 6 7 8; do
	check "others are read meanwhile" read_all
done
check "and its memory was wanted" test "$(count evicted)" -gt "$evicted"
check "but somebody holds it" test "$(count still_mapped)" -ge 1
check "memory stays in its bound" test "$(count cache_bytes)" -le $((19 << 20))
exec 9>&-
check "a mapping keeps its bytes when its file is given up" wait "$holder"
unmount

# --- by default, and for non-blocking readers ---------------------------------------
mount_fg "$tmp/run" || finish
check "files are assembled by default" settle opens_cached
sleep 0.5 # what is being assembled ahead
assembled=$(count assembled)
while read -r f; do
	check "$f without waiting" cmp <(dd if="$zero/$f" iflag=nonblock bs=1M status=none) "$tmp/copy/zero/$f"
done <"$tmp/large"
check "nothing is cached for a non-blocking reader" test "$(count assembled)" -eq "$assembled"
unmount

# --- small files ----------------------------------------------------------------------
mount_fg "$tmp/run" -o no_cache || finish
small=$mnt/global_step4_universal/zero/optimizer_state.pt
[ "$(stat -c %s "$small")" -le 131072 ] || fail "a file of 128 KiB at most was wanted"
own=$(count reads) # what it takes to ask
own=$(($(count reads) - own))
reads=$(count reads)
for _ in 1 2 3; do
	check "a small file, by few bytes at a time" cmp <(dd if="$small" bs=512 status=none) \
		"$tmp/copy/zero/optimizer_state.pt"
done
check "came with its open" test "$(count reads)" -eq $((reads + own))
unmount

# --- shards that change ------------------------------------------------------------
mount_fg "$tmp/run" -o cache_size=64M || finish
check "assembled" settle cache_hits
: >"$tmp/log"
echo x >>"$tag/zero_pp_rank_0_mp_rank_00_optim_states.pt"
sleep 0.2 # paths are looked at ten times a second
first=$(head -n 1 "$tmp/large")
check "a file whose shard was written to is an error" grep -q 'Input/output error' \
	<(cat "$zero/$first" 2>&1 >/dev/null)
check "with one line" test "$(wc -l <"$tmp/log")" -eq 1
check "that names the shard" grep -q 'zero_pp_rank_0_.*since' "$tmp/log"
echo x >>"$tag/mp_rank_00_model_states.pt"
sleep 0.2
check "so is one that is a shard" grep -q 'Input/output error' \
	<(cat "$mnt/global_step4_universal/mp_rank_00_model_states.pt" 2>&1 >/dev/null)
check "the server lives" test -n "$(count reads)"
unmount
finish
