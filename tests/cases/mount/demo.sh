#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The demonstration completes, and its output shows what it claims.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
[ -x "$top_builddir/uctrain" ] || skip "the trainer was not built"
require mpirun
require unzip

# ./bootstrap runs it like this, knowing only the build directory.
env -u top_srcdir -u top_builddir bash "$top_srcdir/tests/demo.sh" "$top_builddir" "$tmp/log" \
	>"$tmp/out" 2>&1 || fail "it stopped: $(tail -n 30 "$tmp/log")"
check "it compares what was mounted" grep -q '^\$ diff -r mnt/' "$tmp/log"
check "it packs a tag" grep -q '^run/.*[.]ucpack: [0-9]* files' "$tmp/log"
check "and those of ranks that share the model" \
	test "$(grep -c '10 steps, at most .* apart' "$tmp/log")" = 2
# Show the output to the user.
check "a few lines: $(cat "$tmp/out")" test "$(wc -l <"$tmp/out")" -le 14
check "the files are the converter's" grep -q '^89 files .* each equals' "$tmp/out"
check "losses side by side" grep -q '^ *60 ' "$tmp/out"
check "and how far they are apart" grep -q '^30 steps, at most .* apart' "$tmp/out"
check "and where the rest is" grep -q "$tmp/log" "$tmp/out"
finish
