#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An unprivileged user mounts through fusermount3.  The kernel refuses passthrough, so every file
# is streamed; nothing else differs.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
nobody=65534

as_nobody() {
	setpriv --reuid=$nobody --regid=$nobody --clear-groups --inh-caps=-all "$@"
}

# root becomes that user, in a mount namespace where the user may open the device.
case ${1:-} in
'')
	if [ "$(id -u)" -eq 0 ]; then
		require setpriv
		require unshare
		[ -c /dev/fuse ] || skip "no /dev/fuse"
		unshare -m true 2>/dev/null || skip "no mount name spaces for root"
		unshare -m --propagation slave bash "$0" open_device
		exit
	fi
	;;
open_device)
	mknod -m 666 "$tmp/fuse" c 10 229 2>/dev/null || skip "cannot make a device for nobody"
	mount --bind "$tmp/fuse" /dev/fuse 2>/dev/null || skip "cannot bind a device for nobody"
	(: <>/dev/fuse) 2>/dev/null || skip "devices below $tmp cannot be opened"
	as_nobody test -x "$(command -v ucfs)" -a -r "$top_builddir" ||
		skip "nobody may not enter $top_builddir"
	as_nobody bash "$0" ordinary
	exit
	;;
esac

require_fuse
mkdir "$tmp/run"
"$top_builddir/tests/programs/mkrun" "$tmp/run" 2 1100000 || fail "mkrun"
tag=$tmp/run/global_step4
check "convert" ucckpt convert "$tag" "$tmp/copy" >"$tmp/convert.log" 2>&1

count() { awk -v name="$1" '$1 == name { print $2 }' "$mnt/.ucfs/stats"; }

mount_fg "$tmp/run" || finish
check "the tree" diff -r "$mnt/global_step4_universal" "$tmp/copy"
for _ in 1 2 3 4; do
	diff -r "$mnt/global_step4_universal" "$tmp/copy" &
	pids+=($!)
done
for pid in "${pids[@]}"; do
	check "one of four readers" wait "$pid"
done
check "mapped" "$top_builddir/tests/programs/mapload" \
	"$mnt/global_step4_universal/zero/block.0000.weight/fp32.pt" \
	"$tmp/copy/zero/block.0000.weight/fp32.pt" </dev/null >/dev/null
check "nothing is passed through" \
	test "$(count opens_passthrough)" -eq 0
check "everything is streamed" test "$(count opens_streamed)" -gt 30
check "no open failed" test "$(count opens_failed)" -eq 0
check "and nothing is complained of" test ! -s "$tmp/log"
unmount

# A user who copies a mount can write to the copy and remove it.
mkdir "$tmp/small"
cp -r "$good/z1_fp32_dp2/global_step4" "$tmp/small"
cp -r "$good/z0_fp32_dp2/global_step4" "$tmp/small/stage0"
cp -r "$good/dcp_fsdp2_dp2_fp32" "$tmp/small/dcp"
chmod -R u+w "$tmp/small"
mount_fg "$tmp/small" || finish
for copier in 'cp -r "$1/." "$2"' 'rsync -a "$1/" "$2"' 'tar -C "$1" -cf - . | tar -C "$2" -xf -'; do
	command -v "${copier%% *}" >/dev/null || continue
	mkdir "$tmp/to"
	check "copied by $copier" bash -o pipefail -c "$copier" sh "$mnt" "$tmp/to"
	check "all is there" diff -r "$mnt" "$tmp/to"
	# shellcheck disable=SC2016 # of the shell that find starts
	check "saved into" find "$tmp/to" -depth -exec sh -c '
		for f; do [ ! -d "$f" ] || f=$f/saved; echo >>"$f" || exit; done' sh '{}' +
	check "removed" rm -r "$tmp/to" </dev/null
done
check "the mount is read-only" sh -c "! touch '$mnt/global_step4/new' 2>/dev/null"
check "so are its views" sh -c "! touch '$mnt/latest_universal' 2>/dev/null"
unmount

# A server that may not unmount lets fusermount3 do it.
mount_fg "$tmp/small" -o auto_unmount || finish
kill -KILL "$server"
wait "$server" 2>/dev/null
server=
for _ in $(seq 100); do
	grep -q -F " $mnt " /proc/self/mounts || break
	sleep 0.05
done
check "auto_unmount" eval "! grep -q -F ' $mnt ' /proc/self/mounts"
finish
