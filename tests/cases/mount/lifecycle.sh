#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How mounts start and end: by hand, by mount(8) and its helpers, in the background; by a signal,
# by fusermount3.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
tag=$good/z1_fp32_dp2/global_step4
mkdir -p "$mnt"

check "--help" grep -q 'usage: ucfs SOURCE... MOUNTPOINT' <(ucfs --help)
check "--version" grep -q '^ucfs [0-9]' <(ucfs -V)
check "no arguments: a usage line" grep -q usage <(ucfs 2>&1)

# Check whether the server of $mnt has exited.
gone() {
	for _ in $(seq 100); do
		pgrep -f "ucfs .*$mnt" >/dev/null || return 0
		sleep 0.05
	done
	return 1
}

check "mounts in the background, ready at once" ucfs "$tag" "$mnt"
check "and serves" test -f "$mnt/zero/cube/fp32.pt"
check "under its name" grep -q "fuse.ucfs ro" <(grep "$mnt" /proc/mounts)
check "fusermount3 -u" fusermount3 -u "$mnt"
check "ends the server" gone

for signal in TERM INT; do
	ucfs "$tag" "$mnt" || fail "mount"
	pkill -"$signal" -f "ucfs .*$mnt"
	check "SIG$signal ends the server" gone
	check "and unmounts" test ! -e "$mnt/zero"
done

# Kill a server that has answered; check that its mount is gone.  A dead mount is still a mount,
# which mountpoint(1) denies.
killed_leaves_none() {
	mount_fg "$tag" -o auto_unmount || finish
	ls "$mnt" >/dev/null || fail "its root is not listed"
	kill -KILL "$server"
	wait "$server" 2>/dev/null
	server=
	for _ in $(seq 100); do
		grep -q -F " $mnt " /proc/self/mounts || return 0
		sleep 0.05
	done
	fusermount3 -u "$mnt"
	return 1
}
check "auto_unmount: a server that is killed leaves no mount" killed_leaves_none

# A later mount at the same path stays, even if the kernel reuses the id.
mount_fg "$tag" -o auto_unmount || finish
keeper=$(pgrep -P "$server")
kill -STOP "$keeper"
kill -KILL "$server"
wait "$server" 2>/dev/null
fusermount3 -u -z "$mnt"
mount_fg "$tag" || finish
kill -CONT "$keeper"
sleep 0.3
check "auto_unmount leaves another's mount alone" test -f "$mnt/zero/cube/fp32.pt"
unmount
for _ in $(seq 100); do
	kill -0 "$keeper" 2>/dev/null || break
	sleep 0.05
done
check "nothing is left of it" eval "! kill -0 $keeper 2>/dev/null"

# The mount ends with its owner, here the writer of a pipe, but open files stay readable.
mkfifo "$tmp/owner"
exec 8<>"$tmp/owner"
mount_fg "$tag" -o until=7 7<"$tmp/owner" 8>&- || finish
exec 7<"$mnt/zero/cube/fp32.pt" 8>&-
for _ in $(seq 200); do
	mountpoint -q "$mnt" || break
	sleep 0.05
done
check "until: the mount ends with its owner" eval "! mountpoint -q '$mnt'"
check "and what is open stays readable" test "$(wc -c <&7)" -gt 100
exec 7<&-
wait "$server"
check "then the server ends" test $? = 0
server=
check "until: must be open" eval "! ucfs '$tag' '$mnt' -o until=9 9>&- 2>'$tmp/log'"
check "and is named" grep -q 'until=9: not an open descriptor' "$tmp/log"

# Readers with open files get errors, and the server leaks nothing.
mount_fg "$tag" || finish
exec 5<"$mnt/zero/cube/fp32.pt" 6<"$mnt/.ucfs/stats"
kill -TERM "$server"
check "files are open when it leaves" wait "$server"
exec 5<&- 6<&-
server=

# The unmount arrives while a request is read.  Sanitizers allow no preloading.
race=$top_builddir/tests/faults/unmount_race.so
if [ "${sanitize:-no}" = no ] && [ -r "$race" ] && LD_PRELOAD=$race true 2>/dev/null; then
	LD_PRELOAD=$race mount_fg "$tag" || finish
	check "it serves" test -f "$mnt/zero/cube/fp32.pt"
	unmount
else
	echo "note: an unmount while a request is taken is not tried: it takes preloading"
fi

# Run it as mount(8) runs its helpers.
mkdir "$tmp/bin"
ln -s "$(command -v ucfs)" "$tmp/bin/mount.ucfs"
check "mount.ucfs SOURCE DIR -n -s -o ..." \
	"$tmp/bin/mount.ucfs" "$tag" "$mnt" -n -s -o rw,nofail,x-systemd.automount,_netdev,noauto,user,nosuid,nodev,relatime
check "serves" test -f "$mnt/zero/cube/fp32.pt"
fusermount3 -u "$mnt"
check "mount.ucfs -f mounts nothing" "$tmp/bin/mount.ucfs" "$tag" "$mnt" -f -o ro
check "indeed" test ! -e "$mnt/zero"

if [ "$(id -u)" -ne 0 ] || [ ! -x /sbin/mount.fuse3 ] || ! unshare -m true 2>/dev/null; then
	echo "note: mount -t not tried: it takes root, mount.fuse3 and a mount namespace"
else
	# mount(8) looks for helpers in /sbin and sets its own PATH, so ucfs is installed there, in
	# a private mount namespace.
	mkdir "$tmp/up"
	cat >"$tmp/installed.sh" <<-EOF
	mount -t tmpfs tmpfs "$tmp/up" && mkdir "$tmp/up/u" "$tmp/up/w" || exit 77
	mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$tmp/up/u,workdir=$tmp/up/w" /usr/sbin || exit 77
	ln -s "$(command -v ucfs)" /usr/sbin/ucfs && ln -s ucfs /usr/sbin/mount.ucfs || exit 77
	served() { test -f "$mnt/zero/cube/fp32.pt" && umount "$mnt"; }
	mount -t fuse.ucfs "$tag" "$mnt" -o ro,allow_other && served || exit 1
	mount -t ucfs "$tag" "$mnt" && served || exit 2
	echo "$tag $mnt ucfs ro,noauto,allow_other,nofail 0 0" >"$tmp/fstab"
	mount -T "$tmp/fstab" "$mnt" && served || exit 3
	echo "$tag $mnt fuse.ucfs defaults,noauto,x-systemd.automount 0 0" >"$tmp/fstab"
	mount -T "$tmp/fstab" "$mnt" && served || exit 4
	EOF
	unshare -m sh "$tmp/installed.sh"
	status=$?
	case $status in
	0) ;;
	77) echo "note: mount -t not tried: no overlay here" ;;
	*) fail "mount -t fuse.ucfs, -t ucfs, fstab: step $status" ;;
	esac
	check "the servers are gone" gone
fi

# An overlay holds the files that a program saves over the mount (ucfs-deploy(7)).
if [ "$(id -u)" -ne 0 ] || ! unshare -m true 2>/dev/null; then
	echo "note: no overlay tried: it takes root and a mount namespace"
else
	mkdir "$tmp/over"
	cat >"$tmp/over.sh" <<-EOF
	mount -t tmpfs tmpfs "$tmp/over" && cd "$tmp/over" && mkdir new work run || exit 77
	ucfs "${tag%/*}" "$mnt" || exit 1
	mount -t overlay overlay -o "lowerdir=$mnt,upperdir=new,workdir=work" run || { umount "$mnt"; exit 77; }
	diff -r "$mnt" run && cp -r run/global_step4 run/global_step5 && printf global_step5 >run/latest &&
		grep -qx global_step5 run/latest && grep -qx global_step4 "$mnt/latest" &&
		diff -r new/global_step5 "$tag" && test "\$(echo new/*)" = "new/global_step5 new/latest"
	status=\$?
	umount run && umount "$mnt" && exit \$((status ? 2 : 0))
	EOF
	unshare -m sh "$tmp/over.sh"
	status=$?
	case $status in
	0) ;;
	77) echo "note: no overlay here" ;;
	*) fail "an overlay on the mount: step $status" ;;
	esac
	check "its server is gone" gone
fi
finish
