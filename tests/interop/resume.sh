#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Trains with DeepSpeed, saves, and resumes on other ranks, from the tree of
# DeepSpeed's converter and from a mount.  Both must continue bit for bit
# equally.  The Python scripts beside this file vary:
#
#     resume            the number of data-parallel ranks
#     resume_parallel   tensor and pipeline parallelism
#     resume_optimizers the optimizer; a mount only, the converter fails
#     cross_stage       the stage; the converter has nothing to compare with
#     recut             ranks and stage, from TAG_dpN, without load_universal
#     recut_good        the same for tests/good, compared with the trained states
#
# and only if named, since they need transformers and accelerate:
#
#     recut_curves      TAG_dpN of tests/good/curves, by losses
#     recut_hf          Hugging Face's Trainer and Accelerate resume from TAG_dpN
#
#     UCFS_PYTHON=/venv/bin/python resume.sh [SCRIPT [CASE...]]
#
# Needs a Python with deepspeed (0.19.8 was used); no GPU.  Takes minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed
require_ucfs

make_scratch mnt

# $1: a script; the rest are cases of it.
run()
{
	script=$1
	shift
	mkdir "$scratch/$script" &&
		"$UCFS_PYTHON" "$here/$script.py" "$scratch/$script" "$@"
}

if [ $# -gt 0 ]; then
	run "$@"
	exit
fi
failed=0
for script in resume resume_parallel resume_optimizers cross_stage recut \
	recut_good; do
	run "$script" || failed=1
done
exit $failed
