#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The Python package on real checkpoints: test_*.py beside this file.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
here=$(cd "$(dirname "$0")" && pwd)

[ "${sanitize:-no}" = no ] || skip "Python has no sanitizers, which the library needs"
[ -e "$top_builddir/libuckpt.so.0" ] || skip "no libuckpt.so.0"
for python in ${UCFS_PYTHON:+"$UCFS_PYTHON"} python3 /usr/bin/python3 none; do
	"$python" -c 'import numpy' 2>/dev/null && break
done
[ "$python" != none ] || skip "no python3 with numpy"

PYTHONPATH=$here:$(realpath "$top_srcdir")/python
UCFS_LIBRARY=$(realpath "$top_builddir")/libuckpt.so.0
UCFS_PROGRAM=$(realpath "$top_builddir")/ucfs
export PYTHONPATH UCFS_LIBRARY UCFS_PROGRAM PYTHONDONTWRITEBYTECODE=1 GOOD=$good TMPDIR=$tmp
check "all of test_*.py" "$python" -W error::ResourceWarning -m unittest discover \
	-s "$here" -p "${1:-test_*.py}"
finish
