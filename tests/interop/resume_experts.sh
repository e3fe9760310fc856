#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Trains mixtures of experts with DeepSpeed and lets engines of other numbers of ranks and
# expert-parallel ranks load them from a mount: every weight and every state must equal those of the
# training processes.
#
#     UCFS_PYTHON=/venv/bin/python resume_experts.sh
#
# Needs a Python with deepspeed (0.19.8 was used); no GPU.  Takes minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed
require_ucfs
make_scratch mnt

TMPDIR=$scratch "$UCFS_PYTHON" "$here/resume_experts.py"
