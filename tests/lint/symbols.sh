#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The library exports exactly the functions that its header declares, and the package's symbols file
# lists them.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../cases/lib.sh"

sed -n 's/^[a-z].*\<\(uckpt_[a-z_]*\)(.*/\1/p' "$top_srcdir/ckpt/uckpt.h" | sort >"$tmp/declared"
nm -D --defined-only "${top_builddir:?}/libuckpt.so.0" | awk '{ print $3 }' | sort >"$tmp/defined"
check "functions are declared" test -s "$tmp/declared"
check "they, and no others, are there" diff "$tmp/declared" "$tmp/defined"
check "debian/libuckpt0.symbols has them" diff "$tmp/defined" \
	<(sed -n 's/^ \(.*\)@Base .*/\1/p' "$top_srcdir/debian/libuckpt0.symbols" | sort)
finish
