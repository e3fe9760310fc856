#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pkg-config finds the library where `make install` puts it; the example that uses it compiles as
# C and as C++, and reads a checkpoint.  Installed programs use the installed library.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

env -u MAKEFLAGS -u MFLAGS make -C "${top_builddir:?}" -s install DESTDIR="$tmp/root" \
	>"$tmp/log" 2>&1 || { fail "make install: $(tail -n 5 "$tmp/log")"; finish; }
pc=$(find "$tmp/root" -name uckpt.pc)
export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$tmp/root
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
export LD_LIBRARY_PATH=${pc%/pkgconfig/*}
flags=$(pkg-config --cflags --libs uckpt) || fail "pkg-config does not find the library"
[ "${sanitize:-no}" = no ] || flags+=" -fsanitize=$sanitize"

run=$good/z1_fp32_dp2
view=$(tag_of z1_fp32_dp2)_universal

# example COMPILER...: check the program's output about the parameters' files.
example()
{
	# shellcheck disable=SC2086 # flags are a list
	"$@" -Wall -Wextra -Werror -o "$tmp/uckpt" "$top_srcdir/examples/uckpt.c" $flags &&
		"$tmp/uckpt" "$run" "$view/zero"
}

# shellcheck disable=SC2086 # $CC may have flags
example ${CC:-cc} >"$tmp/c" || fail "the example in C"
ucckpt convert "$run" "$tmp/written" >/dev/null || fail "no tree to compare with"
(cd "$tmp/written" && find zero -type f | while read -r f; do
	echo "$view/$f $(stat -c %s "$f") $(head -c 8 "$f" | od -An -tx1 | tr -d ' \n')"
done) | LC_ALL=C sort >"$tmp/expected"
check "there are files" test -s "$tmp/expected"
check "the example lists them with their sizes and first bytes" \
	diff "$tmp/expected" <(LC_ALL=C sort "$tmp/c")
if command -v g++ >/dev/null && [ "${sanitize:-no}" = no ]; then
	check "the example in C++ does the same" diff "$tmp/c" <(example g++ -x c++)
fi
check "a source that does not exist is named" grep -q '^uckpt: /nowhere: ' \
	<("$tmp/uckpt" /nowhere 2>&1)

for program in "$tmp/root"/*/bin/uc* "$tmp/root"/*/*/bin/uc*; do
	[ -f "$program" ] || continue
	check "${program##*/} does not look for libraries beside it" \
		test -z "$(readelf -d "$program" | grep ORIGIN)"
	check "${program##*/} runs" "$program" --version
done
finish
