#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# packaging/static-libs.sh PREFIX [curl]
#
# Puts into PREFIX/lib the static libraries that Debian and Ubuntu do not
# package as configure finds the shared ones: libcjson.a and libisal.a, and a
# libxxhash.a that chooses among the processor's vectors; with `curl` also a
# libcurl.a that needs only OpenSSL, and OpenSSL.  They are made from the
# distribution's own sources, and can be linked into a shared library.  What is
# there already is left.  PREFIX/licenses has the licences of all that is linked.
# Needs nasm.
set -eu
cc="${CC:-gcc} -fPIC"
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
	cp "$work/$1/debian/copyright" "$prefix/licenses/$1"
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

mkdir -p "$prefix/include/isa-l" "$prefix/licenses"
for package in zlib1g libzstd libpcre2 nettle libfuse3; do
	[ ! -d "/usr/share/doc/$package-dev" ] ||
		cp "/usr/share/doc/$package-dev/copyright" "$prefix/licenses/$package"
done

if [ ! -f "$prefix/lib/pkgconfig/libcjson.pc" ]; then
	version=$(pkg-config --modversion libcjson)
	unpack cjson
	$cc -O2 -c -o "$work/cJSON.o" "$work/cjson/cJSON.c"
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
		$cc -O3 -c -o "$work/$f.o" "$work/xxhash/$f.c"
	done
	ar crs "$prefix/lib/libxxhash.a" "$work"/xxh*.o
	cp "$work/xxhash"/xxh*.h "$prefix/include/"
	pc xxhash "$version"
fi

# The part that ucfs uses, checksums; a vector unit is chosen when it runs.
if [ ! -f "$prefix/lib/pkgconfig/libisal.pc" ]; then
	version=$(pkg-config --modversion libisal)
	unpack libisal
	make -s -C "$work/libisal" -f Makefile.unx CC="$cc" units=crc lib >"$work/log" 2>&1 ||
		{ cat "$work/log" >&2; exit 1; }
	cp "$work/libisal/bin/isa-l.a" "$prefix/lib/libisal.a"
	cp "$work/libisal"/include/crc*.h "$prefix/include/isa-l/"
	pc isal "$version"
fi

[ "${2-}" = curl ] || exit 0

# Nothing of the system's configuration is read: it may be that of another release.
openssl_options="no-shared no-module no-dso no-engine no-legacy no-tests
	no-autoload-config no-comp no-ssl3 no-dtls no-srp no-psk"
if [ ! -f "$prefix/lib/pkgconfig/openssl.pc" ]; then
	unpack openssl
	# shellcheck disable=SC2086 # a list
	(cd "$work/openssl" &&
		CC="$cc" ./config $openssl_options --prefix="$prefix" --libdir=lib \
			--openssldir=/etc/ssl &&
		make -s -j"$(nproc)" build_libs && make -s install_dev) \
		>"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
fi

# HTTP, TLS and proxies.
curl_options=$(printf -- '--disable-%s ' shared ares alt-svc cookies dateparse dict doh \
	file ftp gopher hsts imap ldap ldaps libcurl-option manual mime mqtt netrc ntlm \
	ntlm-wb pop3 rtsp smb smtp telnet tftp tls-srp unix-sockets &&
	printf -- '--without-%s ' ca-bundle ca-path brotli gssapi libidn2 libpsl librtmp \
		libssh2 nghttp2 zlib zstd)
if [ ! -f "$prefix/lib/pkgconfig/libcurl.pc" ]; then
	unpack curl
	# shellcheck disable=SC2086 # a list
	(cd "$work/curl" &&
		CC="$cc" PKG_CONFIG_PATH=$prefix/lib/pkgconfig ./configure $curl_options \
			--with-openssl="$prefix" --enable-threaded-resolver --prefix="$prefix" &&
		make -s -j"$(nproc)" -C lib install && make -s install-pkgconfigDATA) \
		>"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
fi
