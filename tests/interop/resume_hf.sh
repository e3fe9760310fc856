#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# DeepSpeed starts training from mounted Hugging Face weights, in every stage, with
# torch's Adam and with its own (resume_hf.py).
#
#     UCFS_PYTHON=/venv/bin/python resume_hf.sh
#
# Needs a Python with deepspeed (0.19.8 was used), transformers and safetensors;
# no GPU.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed transformers safetensors
require_ucfs
make_scratch weights

ucfs "$good/hfdir_gpt2_bf16_sharded" "$mnt" -o stage=any || exit 1
for case in "1 AdamW" "2 AdamW" "3 AdamW" "1 Adam offload"; do
	# shellcheck disable=SC2086 # words
	"$UCFS_PYTHON" "$here/resume_hf.py" "$scratch" weights $case \
		>"$scratch/said" 2>&1 || {
		fail "stage $case"
		tail -n 5 "$scratch/said"
	}
	grep '^stage' "$scratch/said"
done
[ "$failures" -eq 0 ]
