#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Programs with torch's own sharding continue from TAG_dcp of DeepSpeed's runs by their own
# code, and DeepSpeed continues from their checkpoints: torchtitan's trainer (dcp_titan.py),
# and Lightning's Trainer and Fabric (dcp_lightning.py).
#
#     UCFS_PYTHON=/venv/bin/python dcp_programs.sh [titan] [lightning]
#
# Needs a Python with deepspeed and transformers, and with torchtitan or lightning (0.19.8,
# 5.24, 0.3.0 and 2.6.6 were used, with torch 2.15); no GPU.  Takes minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed transformers
require_ucfs
export OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo

make_scratch mnt
[ $# -gt 0 ] || set -- titan lightning
for program; do
	module=${program/#titan/torchtitan}
	"$UCFS_PYTHON" -c "import $module" 2>/dev/null || {
		echo "not run: $UCFS_PYTHON cannot import $module"
		continue
	}
	mkdir "$scratch/$program" || exit 1
	"$UCFS_PYTHON" -W ignore "$here/dcp_$program.py" "$scratch/$program" ||
		fail "dcp_$program.py"
done
[ $failures = 0 ]
