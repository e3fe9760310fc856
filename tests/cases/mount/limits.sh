#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A server with few descriptors, little address space or little memory serves the
# right bytes or an error, is not killed, and ends cleanly.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
run=$good/dsuc_gpt2_z3_offload_dp4
[ "${sanitize:-no}" = no ] || skip "sanitizers need more than any limit allows"

# From here on `ucfs` runs $limit, then the server.
ucfs=$(command -v ucfs)
mkdir "$tmp/bin"
cat >"$tmp/bin/ucfs" <<-EOF
#!/bin/bash
eval "\$limit" || exit
exec "$ucfs" "\$@"
EOF
chmod +x "$tmp/bin/ucfs"
PATH=$tmp/bin:$PATH
export limit=

mount_fg "$run" || finish
(cd "$mnt" && find . -path ./.ucfs -prune -o -type f -print | sort | xargs md5sum) >"$tmp/whole"
unmount
check "there is something to compare" test "$(wc -l <"$tmp/whole")" -gt 90

# under LIMIT: three parallel readers compare all files; $unread counts the failed reads.
under() {
	local readers=()

	limit=$1
	mount_fg "$run" || return
	for i in 1 2 3; do
		(cd "$mnt" && LC_ALL=C md5sum --quiet -c "$tmp/whole" >"$tmp/read.$i" 2>/dev/null) &
		readers+=($!)
	done
	wait "${readers[@]}"
	check "$1: no other bytes" test -z "$(cat "$tmp"/read.* | grep 'FAILED$')"
	unread=$(cat "$tmp"/read.* | grep -c 'FAILED open or read')
	unmount
}

# Few descriptors.
under "ulimit -n 20"
check "ulimit -n 20: everything can be read" test "$unread" -eq 0
# The kernel and libfuse decide how many are needed to read anything.
for n in 9 11 13 16; do
	under "ulimit -n $n"
done

# Little address space: stacks and heaps of threads leave a varying rest for shards.
for v in 200000 400000; do
	under "ulimit -v $v"
done
under "ulimit -v 2000000"
check "ulimit -v 2000000: everything can be read" test "$unread" -eq 0

# Use a cgroup below this test's own, whose limits still apply.
make_cgroup() {
	local own

	own=$(sed -n 's/^[0-9]*:\([^:]*,\)*memory\(,[^:]*\)*://p' /proc/self/cgroup)
	cgroup=/sys/fs/cgroup/memory$own/ucfs-limits.$$
	[ "$(id -u)" = 0 ] && [ -n "$own" ] && mkdir "$cgroup" 2>/dev/null &&
		echo 150M >"$cgroup/memory.limit_in_bytes"
}

if ! make_cgroup; then
	echo "note: no server in a cgroup: it takes root and cgroups v1"
	finish
fi
trap 'cleanup; rmdir "$cgroup"' EXIT

# 45 files of 4.4 MB: more than the cgroup holds.
mkdir "$tmp/large"
"$top_builddir/tests/programs/mkrun" "$tmp/large" 15 1100000 || fail "mkrun"
limit=
mount_fg "$tmp/large" || finish
(cd "$mnt/global_step4_universal" && find zero -name '*.pt' -size +4M | sort | xargs md5sum) >"$tmp/whole"
unmount
check "they are 45" test "$(wc -l <"$tmp/whole")" -eq 45

limit="echo \$\$ >$cgroup/cgroup.procs"
mount_fg "$tmp/large" || finish
readers=()
for i in $(seq 64); do
	# Each reader begins elsewhere.
	(
		eval "${limit//\$\$/$BASHPID}" && cd "$mnt/global_step4_universal" &&
			cat "$tmp/whole" "$tmp/whole" | sed -n "$((i % 45 + 1)),+5p" |
			LC_ALL=C md5sum --quiet -c >"$tmp/read.$i" 2>&1
	) &
	readers+=($!)
done
for pid in "${readers[@]}"; do
	wait "$pid" || fail "a reader: $(cat "$tmp"/read.* | head -n 3)"
done
check "nothing is killed in 150 MB" grep -qx "oom_kill 0" "$cgroup/memory.oom_control"
unmount
finish
