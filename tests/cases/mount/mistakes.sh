#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# For a mistake on the command line, or a machine that cannot mount, one line names what was
# written and says what to do.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
tag=$good/z1_fp32_dp2/global_step4
mkdir "$mnt"
touch "$tmp/file"

# refused "WORDS" ARGUMENTS...: exits with 1 after one line that begins with the words.
refused() {
	local words=$1 out
	shift
	if out=$(ucfs "$@" 2>&1); then
		fail "ucfs $* succeeded"
		fusermount3 -u "$mnt"
	fi
	case $out in
	"ucfs: $words"*) ;;
	*) fail "ucfs $*: said '$out', not '$words'" ;;
	esac
	[ "$(wc -l <<<"$out")" -eq 1 ] || fail "ucfs $*: several lines: $out"
}

# Mistyped options get a suggestion.
refused "-o stge=any: unknown option; did you mean stage=any?" "$tag" "$mnt" -o ro,stge=any
refused "-o chekc: unknown option; did you mean check?" "$tag" "$mnt" -o chekc
refused "-o vew: unknown option; did you mean view=...?" "$tag" "$mnt" -o vew
refused "-o something: unknown option; see ucfs --help" "$tag" "$mnt" -o something
refused "--forground: unknown option; did you mean --foreground?" "$tag" "$mnt" --forground
refused "-x: unknown option; see" "$tag" "$mnt" -x
refused "-o crc: needs a value" "$tag" "$mnt" -o crc
refused "-o check=1: takes no value" "$tag" "$mnt" -o check=1
refused "-o no_cache: unknown option" "$tag" "$mnt" -o no_cache
refused "-o no_strict: is an option of ucckpt convert" "$tag" "$mnt" -o no_strict
refused "-o part=1/2: is an option of ucckpt's commands" "$tag" "$mnt" -o part=1/2
refused "-o remount: no option can be changed" "$tag" "$mnt" -o remount,ro
refused "log=-: only with -f" "$tag" "$mnt" -o log=-
refused "libfuse: missing argument after" "$tag" "$mnt" -o

# Options that mount(8) and systemd add are accepted, and so are long options.
for options in rw,exec,suid,dev,atime,diratime,relatime \
	ro,noexec,nosuid,nodev,noatime,nodiratime,_netdev,noauto,nofail \
	user=me,users,group,defaults,x-systemd.automount,x-mount.mkdir,comment=x,nosymfollow; do
	check "$options" ucfs "$tag" "$mnt" "--options=$options"
	check "serves" test -f "$mnt/zero/cube/fp32.pt"
	fusermount3 -u "$mnt"
done
check "--options LIST" ucfs "$tag" "$mnt" --options ro,crc=zero
fusermount3 -u "$mnt"
check "options before --" ucfs -o crc=zero -- "$tag" "$mnt"
check "serves" test -f "$mnt/zero/cube/fp32.pt"
fusermount3 -u "$mnt"
server=
ucfs "$tag" "$mnt" --foreground 2>"$tmp/log" &
server=$!
for _ in $(seq 200); do
	mountpoint -q "$mnt" && break
	sleep 0.05
done
unmount

# Invalid mount points.
refused "mount point $tmp/file: Not a directory" "$tag" "$tmp/file"
refused "mount point $tmp/none: No such file" "$tag" "$tmp/none"
ucfs "$tag" "$mnt" || fail "mount"
refused "mount point $mnt: is a ucfs mount already; unmount it with: fusermount3 -u $mnt" "$tag" "$mnt"
check "-o nonempty insists" ucfs "$tag" "$mnt" -o nonempty
check "on two" test "$(grep -c " $mnt fuse.ucfs" /proc/mounts)" = 2
fusermount3 -u "$mnt"
fusermount3 -u "$mnt"
blank="$tmp/a b"
mkdir "$blank"
ucfs "$tag" "$blank" || fail "mount"
refused "mount point $blank: is a ucfs mount already" "$tag" "$blank"
fusermount3 -u "$blank"

mount_fg "$tag"
{ kill -KILL "$server" && wait "$server"; } 2>/dev/null
server=
refused "mount point $mnt: a mount whose server has ended; remove it with: fusermount3 -u $mnt" "$tag" "$mnt"
check "which removes it" fusermount3 -u "$mnt"

# On a machine that cannot mount, the last line is from ucfs.
explained() {
	grep -q -e "^ucfs: cannot mount on $mnt: $1.*; 'ucckpt convert' writes the same" "$tmp/out" ||
		fail "said '$(cat "$tmp/out")', not '$1'"
}
if [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null; then
	# The mount point may be in /dev/shm, which disappears.
	# shellcheck disable=SC2016 # for the inner shell
	unshare -m sh -c 'mount -t tmpfs tmpfs /dev && mkdir -p "$3" && "$@"' sh \
		"$(command -v ucfs)" "$tag" "$mnt" >"$tmp/out" 2>&1 && fail "mounted without /dev/fuse"
	explained "there is no /dev/fuse: load .* 'modprobe fuse', .*--device /dev/fuse"
	if command -v setpriv >/dev/null; then
		setpriv --bounding-set -sys_admin ucfs "$tag" "$mnt" >"$tmp/out" 2>&1 &&
			fail "mounted without CAP_SYS_ADMIN"
		explained "root may not mount here: .*--cap-add SYS_ADMIN"
	fi
else
	echo "note: machines that cannot mount not tried: it takes root and a mount namespace"
fi
finish
