#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Trains mixtures of experts with DeepSpeed and lets engines of other numbers
# of ranks and expert-parallel ranks load what a mount makes of them: every
# weight and every state must be that of the training processes.
#
#     UCFS_PYTHON=/venv/bin/python resume_experts.sh
#
# Needs a Python with deepspeed (0.19.8 was used); no GPU.  Takes minutes.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1

skip()
{
	echo "skipped: $*"
	exit 77
}

[ -n "${UCFS_PYTHON:-}" ] || skip "UCFS_PYTHON does not name a python"
export DS_ACCELERATOR=cpu
"$UCFS_PYTHON" -c 'import deepspeed' >/dev/null 2>&1 ||
	skip "$UCFS_PYTHON has no deepspeed"
command -v ucfs >/dev/null || skip "no ucfs in PATH"
command -v fusermount3 >/dev/null || skip "no fusermount3"
[ -w /dev/fuse ] || skip "/dev/fuse cannot be opened"

exec "$UCFS_PYTHON" "$here/resume_experts.py"
