#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A source that cannot be served fails the mount command with one line.  A shard that
# cannot be read gives EIO and one line in the log (tests/faults/matrix.c has the faults).
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
mkdir -p "$mnt"

# refused SOURCE WORDS: without -f, so the failure precedes daemonising.
refused() {
	local out
	if out=$(ucfs "$1" "$mnt" 2>&1); then
		fail "$1 was mounted"
		fusermount3 -u "$mnt"
		return
	fi
	[ "$(wc -l <<<"$out")" -eq 1 ] || fail "$1: more than one line: $out"
	grep -q -e "$2" <<<"$out" || fail "$1: said '$out', not '$2'"
}

mkdir "$tmp/empty"
refused "$tmp/empty" "no DeepSpeed checkpoint"
refused "$tmp/nowhere" "No such file"
refused /dev/null "not a directory"
for digests in "$good"/*.digests; do
	name=$(basename "$digests" .digests)
	grep -q '^refuse' "$digests" && refused "$good/$name/$(tag_of "$name")" "$name"
done
tag=$good/z1_fp32_dp4/global_step4
for missing in zero_pp_rank_1_mp_rank_00_optim_states.pt zero_pp_rank_3_mp_rank_00_optim_states.pt \
	mp_rank_00_model_states.pt; do
	rm -rf "$tmp/damaged"
	cp -r "$tag" "$tmp/damaged"
	rm "$tmp/damaged/$missing"
	refused "$tmp/damaged" "missing"
done
# Two ranks wrote to the same file, so half of the data is missing.
refused "$good/sp2_dp2_z3/global_step4" "rank_0_mp_rank_00_optim_states.pt: .*(one, .*sequence parallel"
check "a bad option is named" grep -q 'crc=no' <(ucfs "$tag" "$mnt" -o crc=no 2>&1)
check "a missing mount point is named" grep -q "$tmp/no" <(ucfs "$tag" "$tmp/no" 2>&1)
# Mounting opens one optimizer shard; damage in other shards is found when they are read.
rm -rf "$tmp/damaged"
cp -r "$tag" "$tmp/damaged"
for f in "$tmp"/damaged/zero_pp_rank_[1-3]*; do
	echo garbage >"$f"
done
if mount_fg "$tmp/damaged"; then
	check "the parameters are listed" test -d "$mnt/zero/ln_f.bias"
	check "the model states are served" cmp "$tag/mp_rank_00_model_states.pt" "$mnt/mp_rank_00_model_states.pt"
	check "their data is an error" grep -q 'Input/output error' <(cat "$mnt"/zero/*/fp32.pt 2>&1 >/dev/null)
	check "with a line that names the shard" grep -q 'rank_[1-3].*not a file of torch.save' "$tmp/log"
	cat "$mnt"/zero/*/fp32.pt >/dev/null 2>&1
	check "each cause has one line for each file" test -z "$(sort "$tmp/log" | uniq -d)"
	check "in .ucfs/errors with a count" grep -q 'rank_1.*not a file of torch.save (repeated [0-9,]* time' "$mnt/.ucfs/errors"
	check "which the log lacks" test "$(grep -c repeated "$tmp/log")" -eq 0
	unmount
	check "until the end" grep -q 'rank_1.*not a file of torch.save (repeated [0-9,]* time' "$tmp/log"
fi

mkdir "$tmp/run"
cp -r "$tag" "$tmp/run"
mkdir "$tmp/run/mnt"
check "a mount point within the source is refused" grep -q inside <(ucfs "$tmp/run" "$tmp/run/mnt" 2>&1)

finish
