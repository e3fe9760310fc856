#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs of PEFT: PeftModel.from_pretrained makes the same model from TAG_hf as from
# the adapter that PEFT saved (lora.py).
#
#     UCFS_PYTHON=/venv/bin/python lora.sh
#
# Needs a Python with deepspeed, peft and transformers; no GPU.  Takes a minute.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed peft transformers
require_ucfs
make_scratch mnt
export TMPDIR=$scratch
cd "$scratch" || exit 1

PYTHONPATH=$here/on_cpu PYTHONDONTWRITEBYTECODE=1 "$UCFS_PYTHON" -m torch.distributed.run \
	--nproc_per_node 2 "$here/make_lora.py" . lora_trainer_z2_dp2 lora_dora_z3_dp2 \
	lora_named_z1_dp2 lora_two_z2_dp2 peft_ia3_z3_dp2 peft_prompt_z2_dp2 >said 2>&1 || {
	tail -n 5 said
	exit 1
}
while read -r run saved dir; do
	ucfs "$run" "$mnt" || exit 1
	"$UCFS_PYTHON" "$here/lora.py" "$mnt/global_step4_hf$dir" "$saved" 2>said ||
		fail "$run: $(tail -n 3 said)"
	fusermount3 -u "$mnt"
done <<-END
	lora_trainer_z2_dp2/checkpoint-4 lora_trainer_z2_dp2/checkpoint-4
	lora_dora_z3_dp2 lora_dora_z3_dp2
	lora_named_z1_dp2 lora_named_z1_dp2/mine
	lora_two_z2_dp2 lora_two_z2_dp2/late /late
	lora_two_z2_dp2 lora_two_z2_dp2/early /early
	peft_ia3_z3_dp2 peft_ia3_z3_dp2
	peft_prompt_z2_dp2 peft_prompt_z2_dp2
END
[ "$failures" -eq 0 ]
