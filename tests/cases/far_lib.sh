# SPDX-License-Identifier: Apache-2.0
# Slow storage for cases: tests/bench/slowfs on $far.  Source this after lib.sh.
# shellcheck shell=bash
require_fuse
far=$tmp/far
slowfs=$top_builddir/tests/bench/slowfs
[ -x "$slowfs" ] || skip "tests/bench/slowfs is not built"
mkdir "$far"

# leave DIR: unmount it; it may be busy for a moment.
leave() {
	for _ in $(seq 50); do
		umount "$1" 2>/dev/null || fusermount3 -u "$1" 2>/dev/null
		mountpoint -q "$1" || return 0
		sleep 0.1
	done
	return 1
}
trap 'leave "$tmp/mnt"; leave "$far"; cleanup' EXIT

# far_count NAME: prints a counter of the store.
far_count() { awk -v name="$1" '$1 == name { print $2 }' "$far/.slowfs"; }
