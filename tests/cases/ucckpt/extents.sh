#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucckpt extents prints where a mounted file's bytes lie; the bytes are there.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

echo hello >"$tmp/plain"
ucckpt extents "$tmp/plain" >"$tmp/out" 2>"$tmp/said"
check "a plain file: exit status 1" test $? = 1
check "a plain file" grep -q "^ucckpt: $tmp/plain: is not a file of a checkpoint in a ucfs mount" "$tmp/said"
ucckpt extents "$tmp/none" >"$tmp/out" 2>"$tmp/said"
check "no file: exit status 1" test $? = 1
check "no file" grep -q "^ucckpt: $tmp/none: cannot open" "$tmp/said"
ucckpt extents 2>"$tmp/said"
check "no argument: exit status 2" test $? = 2
check "--help" grep -q '^usage: ucckpt extents' <(ucckpt extents --help)

require_fuse

# Rebuild a file from its table: literals and casts from the file, the rest from the shards.
rebuild() {
	local offset length kind from source
	ucckpt extents "$1" | tail -n +2 |
		while read -r offset length kind from source; do
			if [ "$kind" != source ]; then
				source=$1
				from=$offset
			fi
			tail -c +$((from + 1)) "$source" | head -c "$length"
		done
}

for name in z1_fp32_dp3 z3_fp32_dp4 z1_tied_frozen_buffers_dp2; do
	mount_fg "$good/$name/$(tag_of "$name")" || continue
	find "$tmp/mnt" -name '*.pt' >"$tmp/files"
	while read -r file; do
		check "$name: ${file#"$tmp"/mnt/}" cmp "$file" <(rebuild "$file")
	done <"$tmp/files"
	file=$(find "$tmp/mnt" -name '*model_states.pt' | head -n 1)
	check "$name: a copy is one run" test "$(ucckpt extents "$file" | wc -l)" = 2
	ucckpt extents --json "$file" >"$tmp/out" || fail "$name: --json"
	check "$name: JSON" grep -q '"kind":.*"source"' "$tmp/out"
	check "$name: JSON with the size" grep -q "\"bytes\":[[:space:]]*$(stat -c %s "$file")" "$tmp/out"
	ucckpt extents "$tmp/mnt/zero" 2>"$tmp/said"
	check "$name: a directory is none" test $? = 1
	unmount
done
finish
