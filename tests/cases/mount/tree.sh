#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The mount serves every reference file byte for byte, knows its size before any
# read, and has no other files.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse

for digests in $(good_cases); do
	name=$(basename "$digests" .digests)
	grep -q '^file ' "$digests" || continue
	mount_fg "$good/$name/$(tag_of "$name")" || continue
	cd "$tmp/mnt" || exit 1
	sed -n 's/^file \(.*\) \([0-9]*\) [0-9a-f]*$/\2 .\/\1/p' "$digests" |
		sort -k2 >"$tmp/sizes"
	sed -n 's/^file \(.*\) [0-9]* \([0-9a-f]*\)$/\2  .\/\1/p' "$digests" \
		>"$tmp/sums"
	find . -type f -printf '%s %p\n' | sort -k2 >"$tmp/found"
	if grep -q '^complete$' "$digests"; then
		sed -n 's/^exists /.\//p' "$digests" >"$tmp/others"
		cut -d' ' -f2- "$tmp/sizes" | cat - "$tmp/others" | sort >"$tmp/want"
		cut -d' ' -f2- "$tmp/found" | sort >"$tmp/have"
		check "$name: exactly the converter's files" cmp "$tmp/want" "$tmp/have"
	fi
	check "$name: sizes before reading" test -z \
		"$(comm -23 <(sort "$tmp/sizes") <(sort "$tmp/found"))"
	check "$name: the converter's bytes" sha256sum --quiet -c "$tmp/sums"
	cd "$tmp" || exit 1
	unmount
done
finish
