#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A server without access to /dev/fuse serves an inherited descriptor on which a broker has
# mounted; and root of a user namespace mounts by itself.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
fdmount=$top_builddir/tests/programs/fdmount
[ -x "$fdmount" ] || skip "tests/programs/fdmount is not built"

mkdir "$tmp/run" "$mnt"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 2 1000 || fail "mkrun"
check "convert" ucckpt convert "$tmp/run/global_step4" "$tmp/copy" >"$tmp/convert.log" 2>&1

# User nobody can read everything that the server needs, but not the device.
run_as=()
options=ro,fsname=ucfs,subtype=ucfs
if [ "$(id -u)" -eq 0 ]; then
	require setpriv
	run_as=(setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all)
	options+=,allow_other
	chmod 755 "$tmp"
	"${run_as[@]}" test -x "$(command -v ucfs)" || skip "nobody may not run ucfs"
fi
"$fdmount" "$options" "$mnt" 9 "${run_as[@]}" ucfs "$tmp/run" /dev/fd/9 \
	-o allow_other 2>"$tmp/log" &
server=$!
for _ in $(seq 100); do
	[ -d "$mnt/.ucfs" ] && break
	sleep 0.05
done
check "an inherited descriptor is served" diff -r "$mnt/global_step4_universal" "$tmp/copy"
check "in the foreground" kill -0 "$server"
unmount
check "without complaint" test ! -s "$tmp/log"

# refused REASON FD: the inherited descriptor FD, which may be closed, is refused.
refused() {
	ucfs "$tmp/run" /dev/fd/9 2>"$tmp/log" && fail "$1: served"
	check "$1" grep -q "mount point /dev/fd/9: $1" "$tmp/log"
}
refused "Bad file descriptor" 9>&-
refused "not a descriptor of /dev/fuse" 9</dev/null

if unshare -rm sh -c ': <>/dev/fuse' 2>/dev/null; then
	# shellcheck disable=SC2016 # the inner shell's
	check "root of a user namespace mounts" unshare -rm sh -c \
		'ucfs "$0/run" "$0/mnt" && diff -r "$0/mnt/global_step4_universal" "$0/copy" && umount "$0/mnt"' \
		"$tmp"
fi
finish
