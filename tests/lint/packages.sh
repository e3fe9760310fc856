#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the published packages into fresh roots of distributions, and mounts there: the static
# programs, the Debian package and the wheel.
#
#   tests/lint/packages.sh [-d DIR] BUILD [SUITE...]
#
#   -d DIR   where roots are made and found again (default: /var/tmp/ucfs-roots)
#   BUILD    the build directory in which `make static deb` was run, and
#            `distros.sh -w bullseye`
#
# Without SUITE: bookworm, for which the packages were built, and bullseye and trixie, which have an
# older and a newer libc, for the static programs and the wheel.  Needs root, debootstrap and
# /dev/fuse.  Not part of `make check`: it makes root file systems.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
roots=/var/tmp/ucfs-roots
while getopts d: option; do
	case $option in
	d) roots=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
build=$(cd "${1:?BUILD}" && pwd) || exit 2
shift
[ $# -gt 0 ] || set -- bookworm bullseye trixie
[ "$(id -u)" -eq 0 ] || { echo "packages.sh: needs root, for chroot" >&2; exit 77; }
command -v debootstrap >/dev/null || { echo "packages.sh: no debootstrap" >&2; exit 77; }
[ -c /dev/fuse ] || { echo "packages.sh: no /dev/fuse" >&2; exit 77; }
failed=0

# Test in each root: the ucfs in PATH must mount a checkpoint, and ucckpt must find the mount
# equal to the checkpoint.
cat >"$build/served.sh" <<'EOF'
set -e
tag=$(echo /good/z1_fp32_dp2/global_step*[0-9])
mkdir -p /mnt/ucfs
ucfs "$tag" /mnt/ucfs
trap 'fusermount3 -u /mnt/ucfs' EXIT
ls /mnt/ucfs/zero | grep -q .
ucckpt diff --strict "$tag" /mnt/ucfs
EOF

# in_root ROOT COMMAND: run it with the tests' checkpoints in /good.
in_root()
{
	# shellcheck disable=SC2016 # $0 and on are the inner shell's
	unshare -m --propagation private sh -c 'mkdir -p "$0/good" "$0/out" &&
		mount --bind "$1" "$0/good" && mount --bind "$2" "$0/out" &&
		cp "$5" "$0/tmp/packages.py" &&
		mount -t proc proc "$0/proc" &&
		touch "$0/dev/fuse" && mount --bind /dev/fuse "$0/dev/fuse" &&
		cp -L /etc/resolv.conf "$0/etc/resolv.conf" &&
		exec chroot "$0" env -i PATH="$3" HOME=/root LC_ALL=C.UTF-8 \
			DEBIAN_FRONTEND=noninteractive sh -c "$4"' \
		"$1" "$top/tests/good" "$build" \
		"${2:+$2:}/usr/sbin:/usr/bin:/sbin:/bin" "$3" "$top/tests/lint/packages.py"
}

# try SUITE WHAT PATH COMMAND: in a copy of the root COMMAND installs the package, and served.sh
# finds the programs first in PATH.
try()
{
	local copy=$roots/$1.copy

	rm -rf "$copy"
	cp -a "$roots/$1.fresh" "$copy"
	if in_root "$copy" "$3" "$4 && sh /out/served.sh" >"$copy.log" 2>&1; then
		echo "$1: $2: served"
	else
		echo "$1: $2: FAILED, see $copy.$2.log"
		mv "$copy.log" "$copy.$2.log"
		failed=$((failed + 1))
	fi
	rm -rf "$copy"
}

for suite in "$@"; do
	if [ ! -f "$roots/$suite.fresh/.ucfs-made" ]; then
		rm -rf "${roots:?}/$suite.fresh"
		debootstrap --variant=minbase --include=fuse3 "$suite" \
			"$roots/$suite.fresh" >"$roots/$suite.fresh.log" 2>&1 ||
			{ echo "$suite: no root could be made"; continue; }
		touch "$roots/$suite.fresh/.ucfs-made"
	fi
	try "$suite" static /out/static true
	try "$suite" wheel /opt/v/bin 'apt-get -qq update &&
		apt-get -qq -y --no-install-recommends install python3-venv python3-numpy openssl &&
		python3 -m venv --system-site-packages /opt/v &&
		/opt/v/bin/pip install -q --no-index /out/ucfs-*.whl &&
		/opt/v/bin/python /tmp/packages.py /good/z1_fp32_dp2'
	[ "$suite" != bookworm ] ||
		try "$suite" deb "" 'apt-get -qq update &&
			apt-get -qq -y --no-install-recommends install $(ls /out/deb/*.deb | grep -v dbgsym) &&
			man=/usr/share/man/man8/mount.ucfs.8.gz && test -e $man &&
			mkdir -p /mnt/t && mount -t ucfs -o ro /good/z1_fp32_dp2 /mnt/t &&
			umount /mnt/t && uctrain --help >/dev/null &&
			apt-get -qq -y --no-install-recommends install openssl libcurl4 &&
			python3 /tmp/packages.py /good/z1_fp32_dp2'
done
rm -f "$build/served.sh"
[ "$failed" -eq 0 ]
