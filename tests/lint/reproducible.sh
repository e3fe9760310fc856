#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds and packages are the same, byte for byte, in any place and at any time: here in the tree,
# and from two copies of it that differ in path, times, modes, umask and time zone, and in how
# configure is called.
#
# `make check` compares a few objects, with what debuggers read, the archive of `make dist`, and the
# wheel that has no programs.  By hand, in a build directory,
#
#     top_srcdir=.. top_builddir=. CC=gcc ../tests/lint/reproducible.sh all
#
# builds and compares the library and the programs, without CUDA, which takes minutes.  Neither says
# anything of another compiler, or of other versions of libraries and tools.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../cases/lib.sh"
[ "${sanitize:-no}" = no ] || skip "it configures builds of its own: the sanitizers make no difference"
require xz
require python3
unset SOURCE_DATE_EPOCH MAKEFLAGS MFLAGS MAKELEVEL
goals=(ckpt/base/json.o ckpt/format/value.o ckpt/views/view.o)
results=("${goals[@]}")
export XZ_OPT=-0
if [ "${1-}" = all ]; then
	goals=(all)
	results=(libuckpt.so.0 ucckpt ucfs uctrain ucplot)
	XZ_OPT=-e
fi

# make_in DIRECTORY CONFIGURE
make_in() {
	(
		mkdir "$1" && cd "$1" || exit
		"$2" --quiet --cache-file="$tmp/config.cache" --without-cuda CC="$CC" \
			CFLAGS="-g -O1" && make -s -j2 "${goals[@]}" &&
			SOURCE_DATE_EPOCH=0 python3 ../packaging/wheel.py 0 any .. .
	) >"$tmp/log" 2>&1 || fail "$1: $(tail -n 5 "$tmp/log")"
}

# archive_of BUILD: pack in the build, under a name that no release has.
archive_of() {
	make -C "$1" -s dist distdir=reproduced >"$tmp/log" 2>&1 ||
		fail "make dist in $1: $(tail -n 5 "$tmp/log")"
}

first=$tmp/reproduced
second=$tmp/a/longer/path
archive_of "$top_builddir"
mv "$top_builddir/reproduced.tar.xz" "$tmp"
tar -C "$tmp" -xf "$tmp/reproduced.tar.xz"
mkdir -p "${second%/*}"
cp -R "$first" "$second"
chmod -R go= "$second"
find "$second" -exec touch -d 2001-02-03 {} +
mkdir "$second/tests/interop/__pycache__" # running the scripts leaves this
make_in "$first/build" ../configure
umask 077
export TZ=Asia/Tokyo
make_in "$second/obj" "$second/configure"
archive_of "$second/obj"
check "the archive is reproducible" cmp "$tmp/reproduced.tar.xz" "$second/obj/reproduced.tar.xz"

cd "$first/build" || exit
for file in "${results[@]}" ucfs-*.whl; do
	check "$file is reproducible" cmp "$file" "$second/obj/$file"
done
finish
