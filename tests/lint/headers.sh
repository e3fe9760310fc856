#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Every header compiles by itself and can be included twice.
set -u
cd "${top_srcdir:-$(dirname "$0")/../..}" || exit 1

cc=${CC:-cc}
cppflags=${CPPFLAGS:-"-I. -D_GNU_SOURCE $(pkg-config --cflags fuse3)"}
# VPATH builds pass directories relative to the build directory, so add our own.  If CUDA's headers
# are missing, use those of the emulation.
cppflags="-I. -Itests/cudaemu $cppflags"

# Without FUSE there is no fuse_lowlevel.h.
dirs="ckpt cmd fs gpu"
[ -z "${top_builddir:-}" ] || [ -x "$top_builddir/ucfs" ] || dirs="ckpt cmd gpu"

count=0
failed=0
for h in $(find $dirs -name "*.h"); do
	count=$((count + 1))
	# shellcheck disable=SC2086 # flags are lists
	if ! printf '#include "%s"\n#include "%s"\n' "$h" "$h" |
		$cc $cppflags -std=gnu11 -Wall -Wextra -Werror -fsyntax-only -xc -; then
		echo "$h does not compile alone"
		failed=$((failed + 1))
	fi
done

echo "$count headers looked at, $failed failed"
[ "$count" -gt 0 ] && [ "$failed" -eq 0 ]
