#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Gradients summed in 16 bits give the same curve in all stages, also with several micro-batches
# per step.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

long 40 10
flags=("${tiny[@]}" --lr 5e-4 --train_batch_size 8 --train_micro_batch_size_per_gpu 2 --steps "$steps")

plan="bf16 2
bf16 3"
stages=(3)
if [ "${sanitize:-no}" = no ]; then
	plan+="
bf16 0
bf16 1
fp16 1
fp16 3"
	stages=(1 3)
else
	echo "under sanitizers: two curves, and stage 3 alone on devices"
fi

while read -r dtype stage; do
	f=("${flags[@]}" --dtype "$dtype" --zero_stage "$stage")
	train_later 2 "$dtype-z$stage" "${f[@]}"
	train_later 2 "$dtype-z$stage-half" "${f[@]}" --communication_data_type "$dtype"
done <<<"$plan"
echo '{ "communication_data_type": "bf16", "bf16": { "enabled": true }, "zero_optimization": { "stage": 2 } }' >"$tmp/ds.json"
train_later 2 json "${flags[@]}" --deepspeed_config "$tmp/ds.json"
train_all

while read -r dtype stage; do
	name=$dtype-z$stage
	d=$(apart "$name" "$name-half" 1)
	echo "$dtype, stage $stage: $d apart"
	check "$dtype, stage $stage: $d apart" within 3e-3 "$d"
	if cmp -s <(losses "$name") <(losses "$name-half"); then
		fail "$dtype, stage $stage: nothing was rounded"
	fi
done <<<"$plan"
# The same on devices, with NCCL.
same_bits "DeepSpeed's configuration" bf16-z2-half json

# The same on devices, with NCCL.
find_cuda
rank=("${cuda[@]}")
for stage in "${stages[@]}"; do
	train_later 2 "cuda-z$stage" "${flags[@]}" --device cuda --steps 4 --dtype bf16 \
		--zero_stage "$stage" --communication_data_type bf16
done
train_all
for stage in "${stages[@]}"; do
	d=$(apart "bf16-z$stage" "cuda-z$stage" 1)
	echo "CUDA, stage $stage: $d apart"
	check "CUDA, stage $stage: $d apart" within 3e-3 "$d"
done
finish
