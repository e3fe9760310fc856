#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The demonstration runs to its end and shows what it claims.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
[ -x "$top_builddir/uctrain" ] || skip "the trainer was not built"
require mpirun
require unzip

# As ./bootstrap runs it: it knows no more than where the build is.
env -u top_srcdir -u top_builddir bash "$top_srcdir/tests/demo.sh" "$top_builddir" >"$tmp/out" 2>&1 ||
	fail "it stopped: $(tail -n 30 "$tmp/out")"
check "it compares what was mounted" grep -q '^\$ diff -r mnt/' "$tmp/out"
check "it packs a tag" grep -q '^run/.*[.]ucpack: [0-9]* files' "$tmp/out"
check "and losses of four ranks and of two" grep -q ' steps, at most .* apart' "$tmp/out"
check "and those of ranks that share the model" test "$(grep -c '10 steps, at most .* apart' "$tmp/out")" = 2
finish
