#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Trains mixtures of experts folded with tensor parallelism (AutoEP with AutoTP), and lets
# DeepSpeed on other numbers of data-parallel ranks, and FSDP2, continue from a mount:
# DeepSpeed itself loads such checkpoints only on the ranks that saved them.
#
#     UCFS_PYTHON=/venv/bin/python resume_folded.sh
#
# Needs a Python with deepspeed (0.19.8 was used); no GPU.  Takes two minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed
require_ucfs
make_scratch mnt

TMPDIR=$scratch "$UCFS_PYTHON" "$here/resume_folded.py" "$scratch"
