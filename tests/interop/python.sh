#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The Python package against a mount, and against DeepSpeed's zero_to_fp32.py, by torch,
# safetensors, transformers, DeepSpeed and fsspec (python.py).  By hand:
#
#     UCFS_PYTHON=/venv/bin/python python.sh [CASE...]
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed fsspec numpy safetensors torch transformers
require_ucfs
make_scratch mnt
export TMPDIR=$scratch PYTHONPATH=$here/../../python PYTHONDONTWRITEBYTECODE=1
UCFS_LIBRARY=${top_builddir:-.}/libuckpt.so.0 UCFS_PROGRAM=$(command -v ucfs)
export UCFS_LIBRARY UCFS_PROGRAM

if [ $# -eq 0 ]; then
	# shellcheck disable=SC2046 # our own case names: no blanks
	set -- $(cd "$good" && grep -LE '^(refuse|hugging-face)' ./*.digests | sed 's|^\./||; s|\.digests$||')
fi
"$UCFS_PYTHON" "$here/python.py" "$good" "$scratch" "$@" || fail "python.py"
[ "$failures" -eq 0 ]
