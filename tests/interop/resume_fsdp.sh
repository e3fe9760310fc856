#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Trains with FSDP2, saves per-rank files like verl, and models with buffers and frozen
# parameters like DCP and Accelerate, and lets DeepSpeed continue from a mount, on one to three
# ranks in stages 1 to 3.
#
#     UCFS_PYTHON=/venv/bin/python resume_fsdp.sh
#
# Needs a Python with deepspeed (0.19.8 was used); no GPU.  Takes three minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed
require_ucfs
make_scratch mnt

TMPDIR=$scratch "$UCFS_PYTHON" "$here/resume_fsdp.py" "$scratch"
