#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds this tree in the root file systems of distributions, and runs there the
# tests that need no mount (make check-mountless).
#
#   tests/lint/distros.sh [-k] [-w] [-d DIR] [SUITE[:CONFIGURE-ARGUMENT...]...]
#
#   -d DIR   where roots are made and found again (default: /var/tmp/ucfs-roots)
#   -k       keep the build, in DIR/SUITE/build/ucfs
#   -w       make a wheel for the SUITE's glibc and later ones instead of testing, and
#            put it here; bullseye's glibc serves distributions that are past their ends
#
# Without SUITE, all that README promises.  CONFIGURE-ARGUMENTs are separated by
# colons; the compiler that CC=NAME names is installed by that name.  Needs
# root, and debootstrap, which checks Ubuntu's signatures if it has the keyring
# of Ubuntu's archive.  Not part of `make check`: it downloads 300 MB for each
# root.  A root that cannot be made is named, and is no failure.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
roots=/var/tmp/ucfs-roots
keep=no
wheel=no
while getopts kwd: option; do
	case $option in
	k) keep=yes ;;
	w) wheel=yes ;;
	d) roots=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- bookworm bookworm:CC=clang-14:CXX=clang++-14 \
	trixie jammy noble
[ "$(id -u)" -eq 0 ] || { echo "distros.sh: needs root, for chroot" >&2; exit 77; }
command -v debootstrap >/dev/null || { echo "distros.sh: no debootstrap" >&2; exit 77; }

packages="autoconf automake gcc g++ make libc6-dev pkg-config libfuse3-dev
	libcjson-dev zlib1g-dev libisal-dev libzstd-dev libxxhash-dev libpcre2-dev
	nettle-dev libcurl4-openssl-dev
	libcmocka-dev libopenmpi-dev openmpi-bin libdnnl-dev
	fuse3 unzip rsync procps"

# make_root SUITE: make a root file system in $roots/SUITE unless it exists.
make_root()
{
	local root=$roots/$1 components=main from=()

	[ -f "$root/.ucfs-made" ] && return
	case $1 in
	# debootstrap's script for all of Ubuntu; older ones lack noble's name.
	jammy | noble)
		components=main,universe
		from=(http://archive.ubuntu.com/ubuntu gutsy)
		;;
	esac
	rm -rf "$root"
	debootstrap --variant=minbase --components="$components" "$1" "$root" \
		"${from[@]}" && touch "$root/.ucfs-made"
}

# inside SUITE COMMAND...: run it in the root, with /proc and a resolver.
inside()
{
	local root=$roots/$1
	shift
	cp -L /etc/resolv.conf "$root/etc/resolv.conf"
	# shellcheck disable=SC2016 # $0 and $@ are the inner shell's
	unshare -m sh -c 'mount -t proc proc "$0/proc" &&
		mount -t tmpfs tmpfs "$0/dev/shm" &&
		exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin \
			HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"' \
		"$root" "$@"
}

# install_in SUITE PACKAGE...: install those packages that the distribution has.
install_in()
{
	local suite=$1 p have=()
	shift
	inside "$suite" apt-get -qq update || return
	for p in "$@"; do
		inside "$suite" apt-cache show "$p" >/dev/null 2>&1 && have+=("$p")
	done
	inside "$suite" apt-get -qq -y --no-install-recommends install "${have[@]}"
}

# make_wheel SUITE: build in the directory of the unpacked tree.  The linked libraries are those
# of Debian 12, which has longer support.
make_wheel()
{
	install_in "$1" nasm perl dpkg-dev python3 ca-certificates || return
	inside "$1" sh -c 'echo "deb-src http://deb.debian.org/debian bookworm main" \
			>/etc/apt/sources.list.d/wheel.list
		cd /build/ucfs/b && make -s wheel
		rc=$?
		rm -f /etc/apt/sources.list.d/wheel.list
		exit $rc' || return
	cp "$roots/$1"/build/ucfs/b/ucfs-*.whl .
}

# build_and_test SUITE CONFIGURE-ARGUMENT...
build_and_test()
{
	local suite=$1 build=$roots/$1/build/ucfs argument compiler=()
	shift
	for argument in "$@"; do
		case $argument in
		CC=clang-*) compiler+=("${argument#CC=}" "libomp${argument#CC=clang}-dev") ;;
		CC=*) compiler+=("${argument#CC=}") ;;
		esac
	done
	# shellcheck disable=SC2086 # a list of words
	install_in "$suite" $packages "${compiler[@]}" || return
	rm -rf "$build" && mkdir -p "$build" || return
	git -C "$top" ls-files -z | tar -C "$top" --null -T - -c | tar -x -C "$build" ||
		return
	# shellcheck disable=SC2016 # $@ is the inner shell's
	inside "$suite" sh -c 'cd /build/ucfs && autoreconf -fi && mkdir b && cd b &&
		../configure -q --enable-werror "$@"' sh "$@" || return
	if [ "$wheel" = yes ]; then
		make_wheel "$suite" || return
	else
		# Build goals in turn, since each runs make by itself.
		inside "$suite" make -s -j2 -C /build/ucfs/b all || return
		inside "$suite" make -s -j2 -C /build/ucfs/b check-mountless || return
	fi
	[ "$keep" = yes ] || rm -rf "$build"
}

mkdir -p "$roots"
failed=0
for word in "$@"; do
	suite=${word%%:*}
	log=$roots/${word//[:\/]/_}.log
	IFS=: read -r -a arguments <<<"${word#"$suite"}"
	if ! make_root "$suite" >"$log" 2>&1; then
		echo "$word: no root could be made, see $log"
	elif build_and_test "$suite" "${arguments[@]:1}" >>"$log" 2>&1; then
		[ "$wheel" = no ] || continue
		echo "$word: $(grep -c '^PASS' "$log") tests pass," \
			"$(grep -c '^SKIP' "$log") are skipped"
	else
		echo "$word: FAILED, see $log"
		failed=$((failed + 1))
	fi
done
[ "$failed" -eq 0 ]
