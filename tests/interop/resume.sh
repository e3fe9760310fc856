#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Trains with DeepSpeed, saves, and resumes on other ranks, from the tree of
# DeepSpeed's converter and from a mount.  Both must go on alike to the last
# bit.  What is varied is told by the Python scripts beside this file:
#
#     resume            the number of data-parallel ranks
#     resume_parallel   tensor and pipeline parallelism
#     resume_optimizers the optimizer; a mount only, the converter fails
#     cross_stage       the stage; there is nothing of the converter's to compare
#
#     UCFS_PYTHON=/venv/bin/python resume.sh [SCRIPT [CASE...]]
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

scratch=$(mktemp -d) || exit 1
clean_up()
{
	for m in "$scratch"/*/*/mount; do
		if fusermount3 -u "$m" 2>/dev/null; then
			echo "unmounted $m"
		fi
	done
	rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

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
for script in resume resume_parallel resume_optimizers cross_stage; do
	run "$script" || failed=1
done
exit $failed
