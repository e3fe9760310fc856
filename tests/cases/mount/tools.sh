#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Standard tools work on a mount.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse

name=z1_tied_frozen_buffers_dp2
mount_fg "$good/$name/$(tag_of $name)" || finish

ls -lR "$mnt" >"$tmp/ls1" 2>&1 || fail "ls -lR"
ls -liR "$mnt" >"$tmp/i1"
cp -r "$mnt" "$tmp/copy" || fail "cp -r"
check "cp -r copies the tree" diff -r "$mnt" "$tmp/copy"
check "ucckpt diff: the checkpoint" ucckpt diff "$good/$name/$(tag_of $name)" "$mnt" >"$tmp/diff"
check "its own copy" ucckpt diff --strict "$mnt" "$tmp/copy" >"$tmp/diff"
check "apparent sizes are the copy's" test \
	"$(du -s --apparent-size -B1 "$mnt"/zero/*/*.pt | cut -f1)" = \
	"$(du -s --apparent-size -B1 "$tmp"/copy/zero/*/*.pt | cut -f1)"
check "du counts blocks" test "$(du -s "$mnt" | cut -f1)" -gt 50
check "link counts: a directory in each directory" test \
	"$(stat -c %h "$mnt/zero")" -eq $((2 + $(find "$mnt/zero" -mindepth 1 -type d | wc -l)))
check "find sees all" test "$(find "$mnt" -type f | wc -l)" = "$(find "$tmp/copy" -type f | wc -l)"
check "tar is complete" cmp <(tar -C "$mnt" -cf - --sort=name --mtime=@0 --owner=0 --group=0 --mode=a=r .) \
	<(tar -C "$tmp/copy" -cf - --sort=name --mtime=@0 --owner=0 --group=0 --mode=a=r .)
if command -v rsync >/dev/null; then
	check "rsync -a copies" rsync -a --chmod=u+w "$mnt/" "$tmp/rsynced"
	check "and finds nothing to do again" test -z \
		"$(rsync -ai --chmod=u+w "$mnt/" "$tmp/rsynced" | grep '^>f')"
fi
check "cmp" cmp "$mnt/zero/cube/fp32.pt" "$tmp/copy/zero/cube/fp32.pt"
check "md5sum" test "$(md5sum <"$mnt/zero/cube/fp32.pt")" = "$(md5sum <"$tmp/copy/zero/cube/fp32.pt")"
check "tail reads the end" cmp <(tail -c 700 "$mnt/zero/cube/fp32.pt") <(tail -c 700 "$tmp/copy/zero/cube/fp32.pt")
check "dd reads odd pieces" cmp <(dd if="$mnt/zero/cube/fp32.pt" bs=37 2>/dev/null) "$tmp/copy/zero/cube/fp32.pt"
check "df: the blocks of the source's file system" test "$(df --output=size "$mnt" | tail -n 1)" = \
	"$(df --output=size "$good" | tail -n 1)"
check "blocks of 1 MiB for those who ask" test "$(stat -c %o "$mnt/zero/cube/fp32.pt")" = 1048576
check "mapped memory equals what is read" "$top_builddir/tests/programs/mapcmp" "$mnt/zero/cube/fp32.pt" "$mnt/mp_rank_00_model_states.pt"
if command -v unzip >/dev/null; then
	find "$mnt/zero" -name '*.pt' | while read -r f; do
		unzip -tqq "$f" >/dev/null || echo "$f"
	done >"$tmp/unzip"
	check "unzip -t finds every checksum right" test ! -s "$tmp/unzip"
fi

check "touch: EROFS" grep -q 'Read-only' <(touch "$mnt/new" 2>&1)
check "write: EROFS" grep -q 'Read-only' <(bash -c "echo >'$mnt/zero/cube/fp32.pt'" 2>&1)
check "mkdir: EROFS" grep -q 'Read-only' <(mkdir "$mnt/dir" 2>&1)
check "rm: EROFS" grep -q 'Read-only' <(rm -f "$mnt/zero/cube/fp32.pt" 2>&1)
check "mv: EROFS" grep -q 'Read-only' <(mv "$mnt/zero" "$mnt/one" 2>&1)
check "chmod: EROFS" grep -q 'Read-only' <(chmod u+w "$mnt/zero" 2>&1)

if [ "$(id -u)" -eq 0 ]; then
	echo 2 >/proc/sys/vm/drop_caches 2>/dev/null
fi
ls -liR "$mnt" >"$tmp/i2"
check "inode numbers stay" cmp "$tmp/i1" "$tmp/i2"
check "no two files share one" test -z "$(find "$mnt" -printf '%i\n' | sort | uniq -d)"

# Eight concurrent readers.
for i in 1 2 3 4 5 6 7 8; do
	(cd "$mnt" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$tmp/sum$i" &
	pids[i]=$!
done
wait "${pids[@]}"
(cd "$tmp/copy" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$tmp/sum"
for i in 1 2 3 4 5 6 7 8; do
	check "reader $i of eight" cmp "$tmp/sum" "$tmp/sum$i"
done
unmount

mount_fg "$good/$name/$(tag_of $name)" -o crc=zero || finish
check "crc=zero changes checksums only" test \
	"$(cmp -l "$mnt/zero/cube/fp32.pt" "$tmp/copy/zero/cube/fp32.pt" | wc -l)" -gt 20
check "and no sizes" cmp <(cd "$mnt" && find . -type f -printf '%s %p\n' | sort) \
	<(cd "$tmp/copy" && find . -type f -printf '%s %p\n' | sort)
check "the tensor (120 bytes from 768 on) is the same" cmp \
	<(tail -c +769 "$mnt/zero/cube/exp_avg.pt" | head -c 120) \
	<(tail -c +769 "$tmp/copy/zero/cube/exp_avg.pt" | head -c 120)
unmount

# A tree for engines of any stage, whichever stage saved it.
for name2 in z1_groups2_dp2 z3_groups2_dp2 meg_tp2_dp2_z1_fp32; do
	mount_fg "$good/$name2/$(tag_of $name2)" -o stage=any || finish
	check "$name2: model states under stage 1's name" test -f "$mnt/mp_rank_00_model_states.pt"
	check "$name2: and stage 3's" test -f "$mnt/zero_pp_rank_0_mp_rank_00_model_states.pt"
	check "$name2: which are the same" cmp "$mnt/mp_rank_00_model_states.pt" \
		"$mnt/zero_pp_rank_0_mp_rank_00_model_states.pt"
	check "$name2: every parameter has a step" test \
		"$(find "$mnt/zero" -name step.pt | wc -l)" = "$(find "$mnt/zero" -name exp_avg.pt | wc -l)"
	check "$name2: every file can be read" tar -C "$mnt" -cf "$tmp/any.tar" .
	check "$name2: the optimizer's file is small" test "$(stat -c %s "$mnt/zero/optimizer_state.pt")" -lt 8192
	rm -rf "$tmp/out"
	check "$name2: ucckpt converts to the same" ucckpt convert --stage any \
		"$good/$name2/$(tag_of $name2)" "$tmp/out/tree"
	check "$name2: indeed" diff -r "$mnt" "$tmp/out/tree"
	unmount
done

cp -r "$good/$name/$(tag_of $name)" "$tmp/private"
chmod 0600 "$tmp/private"/*
mount_fg "$tmp/private" || finish
check "who may not read the shards may not read their tensors" test \
	"$(stat -c %a "$mnt/zero/cube/fp32.pt")" = 600
unmount

mount_fg "$good/$name/$(tag_of $name)" -o uid=1234,gid=567 || finish
check "uid= and gid=" test "$(stat -c %u:%g "$mnt/zero/cube/fp32.pt")" = 1234:567
unmount
finish
