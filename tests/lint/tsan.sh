#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# tsan.sh [DIR]: the unit tests of fs/, and of two contexts at once, under the thread sanitizer, built in DIR
# (build-tsan by default).  Run by hand: building ckpt/ a second time takes a
# minute, too long for `make check`.
set -eu
src=$(cd "$(dirname "$0")/../.." && pwd)
dir=${1:-$src/build-tsan}
mkdir -p "$dir"
cd "$dir"
[ -f config.status ] || "$src/configure" -q --without-cuda \
	--enable-sanitize=thread CFLAGS="-g -O1"
tests=$(cd "$src" && ls tests/unit/tree/test_*.c tests/unit/fs/test_*.c tests/unit/io/test_context.c | sed 's/\.c$//')
# shellcheck disable=SC2086 # names of ours
make -s -j2 $tests
export TSAN_OPTIONS="halt_on_error=1 exitcode=66 ${TSAN_OPTIONS:-}"
for test in $tests; do
	"./$test"
done
