#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A server under valgrind, from which everything is read, neither leaks nor reads uninitialised
# memory.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
require valgrind
grep -q -E '__asan_init|__tsan_init' "$(command -v ucfs)" && skip "built with a sanitizer"

# lib.sh's mount_fg calls `ucfs'; this function runs it under valgrind.
real=$(command -v ucfs)
ucfs() {
	exec valgrind -q --leak-check=full --show-leak-kinds=definite,indirect,possible \
		--errors-for-leak-kinds=definite,indirect,possible --error-exitcode=9 "$real" "$@"
}

for name in z1_tied_frozen_buffers_dp2 z3_subgroup_dp2 hf_trainer; do
	source=$good/$name
	[ -d "$source/global_step4" ] && source=$source/global_step4
	mount_fg "$source" || continue
	check "$name: everything can be read" cp -r "$tmp/mnt" "$tmp/copy.$name"
	ls "$tmp/mnt/zero/nothing" 2>/dev/null && fail "$name: a name that is none"
	unmount
	check "$name: valgrind is silent" test ! -s "$tmp/log"
done
finish
