#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The example program that reads shards without FUSE compiles with only the installed header, and
# copies every file of every kind of tree.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse

mkdir -p "$tmp/include/ucfs"
cp "$top_srcdir/ckpt/vfile/ucfs_ioctl.h" "$tmp/include/ucfs/"
# shellcheck disable=SC2086 # $CC may have flags
${CC:-cc} -Wall -Wextra -Werror -Wno-sign-compare -I"$tmp/include" -o "$tmp/extents" \
	"$top_srcdir/examples/extents.c" || { fail "the example does not compile"; finish; }
for name in z1_tied_frozen_buffers_dp2 z3_groups2_dp2 meg_tp2_dp2_z1_fp32; do
	mount_fg "$good/$name/$(tag_of $name)" || finish
	n=0
	while read -r f; do
		cmp "$f" <("$tmp/extents" "$f") || fail "$name: $f"
		n=$((n + 1))
	done < <(find "$mnt" -type f)
	check "$name: there were files" test "$n" -gt 10
	unmount
done

cp -r "$good/z3_groups2_dp2/$(tag_of z3_groups2_dp2)" "$tmp/tag"
mount_fg "$tmp/tag" || finish
for shard in "$tmp"/tag/*optim_states.pt; do
	echo x >>"$shard"
done
check "without a file: how it is used" grep -q '^usage: extents FILE' <("$tmp/extents" 2>&1)
check "a shard that has changed is not copied" grep -q 'fp32.pt: Input/output error' \
	<("$tmp/extents" "$(find "$mnt/zero" -name fp32.pt | head -n 1)" 2>&1 >/dev/null)
check "what is in no mount has no extents" grep -q '^extents: ' <("$tmp/extents" "$top_srcdir/README.md" 2>&1)
unmount
finish
