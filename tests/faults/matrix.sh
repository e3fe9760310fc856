#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every source, view, fault and way in: each file is right, or there is one error.
# Preloaded into a program with sanitizers, halfway.so comes before them.
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0"
exec "$top_builddir/tests/faults/matrix" "${top_srcdir:?}/tests/good"
