#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# DeepSpeed continues from PyTorch distributed checkpoints; see dcp_resume.py.
#
#     UCFS_PYTHON=/venv/bin/python dcp_resume.sh [CASE...]
#
# Needs a Python with deepspeed and transformers (0.19.8 and 5.24 were used); no GPU.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed transformers
require_ucfs

make_scratch mnt
"$UCFS_PYTHON" "$here/dcp_resume.py" "$scratch" "$@"
