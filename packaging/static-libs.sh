#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# packaging/static-libs.sh PREFIX
#
# Puts into PREFIX/lib the static libraries that Debian and Ubuntu do not
# package as configure finds the shared ones: libcjson.a and libisal.a, and a
# libxxhash.a that chooses among the processor's vectors.  They are made from the
# distribution's own sources.  What is there already is left.  Needs nasm.
set -eu
# Asked for first: a minute of other libraries precedes the one that needs it.
missing=
for program in nasm pkg-config apt-get "${CC:-gcc}"; do
	command -v "${program%% *}" >/dev/null || missing+=" ${program%% *}"
done
if [ -n "$missing" ]; then
	echo "static-libs.sh: not installed, and needed for static libraries:$missing" >&2
	exit 1
fi
prefix=$(mkdir -p "$1/lib/pkgconfig" && cd "$1" && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# Sources are not in a default sources.list: it is read as one of sources here,
# and nothing of the system's is changed.
sources()
{
	mkdir -p "$work/parts" "$work/lists/partial"
	local f
	for f in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
		[ -f "$f" ] || continue
		sed 's/^Types: *deb$/Types: deb-src/; s/^deb /deb-src /' "$f" \
			>"$work/parts/${f##*/}"
	done
	mv "$work/parts/sources.list" "$work/sources.list" 2>/dev/null ||
		: >"$work/sources.list"
	apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/sources.list"
		-o "Dir::Etc::sourceparts=$work/parts"
		-o "Dir::State::lists=$work/lists"
		-o APT::Sandbox::User=root)
	"${apt[@]}" update
}

# unpack PACKAGE: its source, in $work/PACKAGE
unpack()
{
	[ -n "${apt+set}" ] || sources
	(cd "$work" && "${apt[@]}" source --only-source "$1" >/dev/null)
	mv "$work/$1"-*/ "$work/$1"
}

# pc NAME VERSION: a pkg-config file, so that configure finds lib/libNAME.a
pc()
{
	cat >"$prefix/lib/pkgconfig/lib$1.pc" <<-EOF
	Name: lib$1
	Description: static lib$1
	Version: $2
	Cflags: -I$prefix/include
	Libs: -L$prefix/lib -l$1
	EOF
}

mkdir -p "$prefix/include/isa-l"

if [ ! -f "$prefix/lib/pkgconfig/libcjson.pc" ]; then
	version=$(pkg-config --modversion libcjson)
	unpack cjson
	${CC:-gcc} -O2 -c -o "$work/cJSON.o" "$work/cjson/cJSON.c"
	ar crs "$prefix/lib/libcjson.a" "$work/cJSON.o"
	cp "$work/cjson/cJSON.h" "$prefix/include/"
	pc cjson "$version"
fi

if [ ! -f "$prefix/lib/pkgconfig/libxxhash.pc" ]; then
	version=$(pkg-config --modversion libxxhash)
	unpack xxhash
	files=(xxhash)
	if [ "$(uname -m)" = x86_64 ]; then
		files+=(xxh_x86dispatch)
	fi
	for f in "${files[@]}"; do
		${CC:-gcc} -O3 -c -o "$work/$f.o" "$work/xxhash/$f.c"
	done
	ar crs "$prefix/lib/libxxhash.a" "$work"/xxh*.o
	cp "$work/xxhash"/xxh*.h "$prefix/include/"
	pc xxhash "$version"
fi

# The part that ucfs uses, checksums; a vector unit is chosen when it runs.
if [ ! -f "$prefix/lib/pkgconfig/libisal.pc" ]; then
	version=$(pkg-config --modversion libisal)
	unpack libisal
	make -s -C "$work/libisal" -f Makefile.unx units=crc lib >"$work/log" 2>&1 ||
		{ cat "$work/log" >&2; exit 1; }
	cp "$work/libisal/bin/isa-l.a" "$prefix/lib/libisal.a"
	cp "$work/libisal"/include/crc*.h "$prefix/include/isa-l/"
	pc isal "$version"
fi
