#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Shards on slow storage: the same bytes, few unnecessary reads, many parallel requests, bounded
# memory, and EIO for a shard that changes meanwhile.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/far_lib.sh
. "$(dirname "$0")/../far_lib.sh"
sanitized_by remote/http remote/faults

# 36 files of 2.8 MB, and one that contains them all.
mkdir "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 12 700000 4 || fail "mkrun"
tag=$tmp/run/global_step4
check "convert" ucckpt convert "$tag" "$tmp/copy" >"$tmp/convert.log" 2>&1

# be_far [OPTION...]: serve the run with a latency of 3 ms.
be_far() { "$slowfs" -d 3000 "$@" "$tmp/run" "$far"; }
# within BYTES: check that at most 1.1 times this many bytes were read, and not far fewer.
within() {
	local -r bytes=$(far_count bytes)

	[ "$bytes" -le $(($1 / 10 * 11)) ] && [ "$bytes" -ge $(($1 / 10 * 5)) ]
}
size=$(du -sb "$tmp/copy" | cut -f1)

# ucckpt convert.
be_far || fail "slowfs"
check "convert from afar" ucckpt convert "$far/global_step4" "$tmp/far_copy" >"$tmp/convert.log" 2>&1
check "the same bytes" diff -r "$tmp/copy" "$tmp/far_copy"
check "read about once" within "$size"
check "with several requests at once" test "$(far_count most)" -ge 4
leave "$far"
rm -rf "$tmp/far_copy"

# ucckpt extract.
be_far || fail "slowfs"
check "extract from afar" ucckpt extract "$far" global_step4_universal "$tmp/there" >"$tmp/extract.log" 2>&1
check "extract: the same bytes" diff -r "$tmp/copy" "$tmp/there/global_step4_universal"
check "extract: with several requests at once" test "$(far_count most)" -ge 4
leave "$far"
rm -rf "$tmp/there"

# ucckpt check and diff.
shards=$(du -sb "$tag" | cut -f1)
be_far || fail "slowfs"
check "check from afar" ucckpt check --data "$far/global_step4" >"$tmp/check.log" 2>&1
check "all was read about once" within "$shards"
check "check: with several requests at once" test "$(far_count most)" -ge 8
leave "$far"
be_far || fail "slowfs"
check "diff from afar" ucckpt diff "$far/global_step4" "$tag" >"$tmp/diff.log" 2>&1
check "diff: with several requests at once" test "$(far_count most)" -ge 8
leave "$far"

# A converted tree has a file of 2.8 MB for each tensor: eleven requests of 256 KiB, and some for
# its directory.
"$slowfs" -d 3000 "$tmp/copy" "$far" || fail "slowfs"
check "diff with a copy that is far" ucckpt diff "$tag" "$far" >"$tmp/diff.log" 2>&1
check "diff: its requests are large" test "$(far_count reads)" -le $((36 * 10))
leave "$far"

# Mounts.
for options in ro readahead=8M; do
	be_far -d 15000 # longer than a busy machine takes between two requests
	mount_fg "$far" -o "$options" || finish
	check "$options: the same bytes" diff -r "$mnt/global_step4_universal" "$tmp/copy"
	# When memory is short, blocks that nobody reads for seconds are evicted.
	[[ $options == *=8M ]] || check "$options: read about once" within "$size"
	check "$options: several requests at once" test "$(far_count most)" -ge 4
	leave "$mnt"
	wait "$server"
	leave "$far"
done
be_far
mount_fg "$far" -o readahead=0 || finish
check "nothing is read ahead" diff -r "$mnt/global_step4_universal" "$tmp/copy"
check "one request at a time, as far as the kernel sends them" test "$(far_count most)" -le 8
leave "$mnt"
wait "$server"
leave "$far"

# The shards are open before the first reader arrives.
early=$(($(ls "$tag" | wc -l) * 2)) # reads by the plan, and opens for readers
be_far
mount_fg "$far" || finish
for _ in $(seq 100); do
	[ "$(far_count opens)" -lt "$early" ] || break
	sleep 0.1
done
sleep 0.5
opens=$(far_count opens)
check "shards are opened early" test "$opens" -ge "$early"
file=zero/block.0011.weight/exp_avg.pt
check "the first reader" cmp "$mnt/global_step4_universal/$file" "$tmp/copy/$file"
check "opens none" test "$(far_count opens)" = "$opens"
leave "$mnt"
wait "$server"
leave "$far"

# Read all pieces of a file at once; the same requests return its bytes.
mkdir "$tmp/large"
"$top_builddir/tests/programs/mkrun" "$tmp/large" 2 4000000 4 || fail "mkrun"
"$slowfs" -d 100000 "$tmp/large" "$far"
mount_fg "$far" -o crc=exact,readahead=32M || finish
file=$mnt/global_step4_universal/zero/block.0000.weight/exp_avg.pt
tail -c 1 "$file" >"$tmp/end"
check "a checksum: many requests at once" test "$(far_count most)" -ge 10
cat "$file" >"$tmp/file.pt"
check "the bytes are not read again" within "$(stat -c %s "$file")"
check "and are right" bash -c "ucckpt convert '$tmp/large/global_step4' '$tmp/large_copy' &&
	cmp '$tmp/file.pt' '$tmp/large_copy/zero/block.0000.weight/exp_avg.pt'" >"$tmp/convert.log" 2>&1
leave "$mnt"
wait "$server"
leave "$far"

# Memory holds 10 of the 16 MB: only the rest is read again.
"$slowfs" "$tmp/large" "$far"
mount_fg "$far" -o crc=exact,readahead=4M || finish
tail -c 1 "$file" >"$tmp/end"
check "a file larger than the memory is right" cmp "$file" "$tmp/file.pt"
bytes=$(far_count bytes)
echo "$bytes bytes read of a file of $(stat -c %s "$file")"
check "and is read half again" test "$bytes" -le $(($(stat -c %s "$file") * 3 / 2))
leave "$mnt"
wait "$server"
leave "$far"
rm -rf "$tmp/large" "$tmp/large_copy"

# Memory stays bounded.
be_far
mount_fg "$far" -o readahead=8M || finish
cat "$mnt"/global_step4_universal/zero/*/*.pt >/dev/null
memory=$(awk '$1 == "RssAnon:" { print $2 }' "/proc/$server/status")
if ! grep -q asan <(ldd "$(command -v ucfs)"); then
	check "8 MiB of memory, and what the server has anyway" test "$memory" -lt $((40 * 1024))
fi
leave "$mnt"
wait "$server"
leave "$far"

# Save a shard again.
be_far
mount_fg "$far" || finish
first=$mnt/global_step4_universal/zero/block.0000.weight/fp32.pt
last=$mnt/global_step4_universal/zero/block.0011.weight/fp32.pt
check "before" cmp "$first" "$tmp/copy/zero/block.0000.weight/fp32.pt"
exec 3<"$last"
for f in "$tag"/zero_pp_rank_*; do
	tr '\0' '\1' <"$f" >"$f.new"
	mv "$f.new" "$f"
done
# Names on the store are cached for a second, and checked as often as their cost allows.
sleep 2
for _ in $(seq 40); do
	dd bs=64K count=1 <&3 2>/dev/null || break
	sleep 0.5
done >"$tmp/got"
exec 3<&-
got=$(stat -c %s "$tmp/got")
was=$tmp/copy/zero/block.0011.weight/fp32.pt
check "a file that was open fails" test "$got" -lt "$(stat -c %s "$was")"
check "after bytes of its generation" cmp -n "$got" "$tmp/got" "$was"
check "and gives no bytes of another generation" bash -c "! cat '$last' >'$tmp/other'" 2>/dev/null
leave "$mnt"
wait "$server"
leave "$far"

# The store does not return the types of directory entries, so each is looked up.
mkdir "$tmp/many" && touch "$tmp/many/"{1..200}
"$slowfs" -d 5000 "$tmp/many" "$far"
ucckpt info "$far" >"$tmp/info.log" 2>&1
check "types that are not told: many lookups at once" test "$(far_count most)" -ge 8
leave "$far"

# A run has many files beside its tags, and the store returns their types: no lookup is needed.
mkdir "$tmp/names"
"$top_builddir/tests/programs/mkrun" "$tmp/names" 2 1000 4 || fail "mkrun"
touch "$tmp/names/"{1..3000}
asked() { echo $(($(far_count lookups) + $(far_count getattrs))); }
"$slowfs" -t -d 3000 "$tmp/names" "$far"
ucckpt info "$far" >"$tmp/info.log" 2>&1
check "many names: info asks for few: $(asked)" test "$(asked)" -lt 300
mount_fg "$far" || finish
before=$(asked)
check "many names: all are listed" test "$(find "$mnt" -maxdepth 1 -name '[1-9]*' | wc -l)" = 3000
check "many names: listing asks for few: $(asked), of $before before" test $(($(asked) - before)) -lt 300
leave "$mnt"
wait "$server"
leave "$far"
finish
