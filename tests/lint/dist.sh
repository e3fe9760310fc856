#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make dist` packs every file of the repository.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../cases/lib.sh"
# Files of the repository that are not part of the program.
not_packed='^(\.ci/.*|\.gitignore)$'

require git
git -C "$top_srcdir" rev-parse --verify -q HEAD >/dev/null || skip "not a repository"
env -u MAKEFLAGS -u MFLAGS make -C "$top_builddir" -s distdir distdir="$tmp/packed" >"$tmp/log" 2>&1 ||
	fail "make distdir: $(tail -n 5 "$tmp/log")"
while read -r file; do
	[ -e "$tmp/packed/$file" ] || fail "make dist leaves out $file"
done < <(git -C "$top_srcdir" ls-files | grep -vE "$not_packed")
finish
