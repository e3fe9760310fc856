#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Training in DeepSpeed begins with weights of Hugging Face that are mounted, in
# every stage, with torch's Adam and with its own (resume_hf.py).
#
#     UCFS_PYTHON=/venv/bin/python resume_hf.sh
#
# Needs a Python with deepspeed (0.19.8 was used), transformers and safetensors;
# no GPU.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1

skip()
{
	echo "skipped: $*"
	exit 77
}

[ -n "${UCFS_PYTHON:-}" ] || skip "UCFS_PYTHON does not name a python"
"$UCFS_PYTHON" -c 'import transformers, safetensors' >/dev/null 2>&1 ||
	skip "$UCFS_PYTHON has no transformers"
command -v ucfs >/dev/null || skip "no ucfs in PATH"
[ -w /dev/fuse ] || skip "/dev/fuse cannot be opened"

scratch=$(mktemp -d) || exit 1
clean_up()
{
	fusermount3 -u "$scratch/weights" 2>/dev/null
	rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM

mkdir "$scratch/weights"
ucfs "$here/../good/hfdir_gpt2_bf16_sharded" "$scratch/weights" -o dialect=any ||
	exit 1
rc=0
for case in "1 AdamW" "2 AdamW" "3 AdamW" "1 Adam offload"; do
	# shellcheck disable=SC2086 # words
	"$UCFS_PYTHON" "$here/resume_hf.py" "$scratch" weights $case \
		>"$scratch/said" 2>&1 || {
		echo "FAILED: stage $case"
		tail -n 5 "$scratch/said"
		rc=1
	}
	grep '^stage' "$scratch/said"
done
exit $rc
