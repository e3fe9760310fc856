#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Programs with torch's own sharding load TAG_dcp of runs that DeepSpeed saved, without
# changes, and continue training (dcp_view.py, dcp_view_tp.py).  Other versions of torch
# can read the views, too (dcp_read.py).
#
#     UCFS_PYTHON=/venv/bin/python [UCFS_PYTHON_OLD=/old/bin/python] dcp_view.sh
#
# Needs a Python with torch (2.15 was used), transformers, accelerate and deepspeed, and
# optionally a second one with an older torch (2.4.1 was used); no GPU.  Takes minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed transformers accelerate
require_ucfs

make_scratch mnt
for name in z1_tied_frozen_buffers_dp2 z3_tied_frozen_buffers_dp2 moe_ep2_dp2_z1; do
	ucfs "$good/$name" "$mnt" || exit 1
	for python in "$UCFS_PYTHON" ${UCFS_PYTHON_OLD:+"$UCFS_PYTHON_OLD"}; do
		"$python" "$here/dcp_read.py" "$mnt/global_step4_dcp" || fail "$name"
	done
	fusermount3 -u "$mnt"
done
"$UCFS_PYTHON" "$here/dcp_view.py" "$scratch" || fail "dcp_view.py"
for stage in 1 3; do
	run=$scratch/z$stage
	"$UCFS_PYTHON" "$here/dcp_view_tp.py" save "$run" $stage || fail "train stage $stage"
	ucfs "$run" "$mnt" || exit 1
	follow=(-W ignore "$here/dcp_view_tp.py" follow "$run" "$mnt")
	for mesh in 1x1 1x2 2x1 2x2; do
		"$UCFS_PYTHON" "${follow[@]}" $mesh || fail "stage $stage on $mesh ranks"
	done
	for mesh in ${UCFS_PYTHON_OLD:+1x1 1x2}; do
		"$UCFS_PYTHON_OLD" "${follow[@]}" "$mesh" || fail "stage $stage on $mesh ranks"
	done
	fusermount3 -u "$mnt"
done
[ $failures = 0 ]
