#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A checkpoint of FSDP2 continues in uctrain, in any stage and on any number of ranks, as in
# FSDP2: run.json has the tokens of each step, and the losses (good/README.md).
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

# numbers KEY: print the numbers of a list in $run, or of a list of lists.
numbers() {
	grep -oE "\"$1\": \[[][0-9., ]*" "$run" | grep -oE '[0-9.]+'
}

# Flags from the run's config, except those that differ.
model=(--n_layer 2 --n_head 2 --n_embd 16 --vocab_size 64 --n_positions 16
	--seq_length 16 --lr 5e-3 --weight_decay 0.01 --gradient_clipping 1 --optimizer AdamW)
case=$good/dcp_fsdp2_dp2_fp32
run=$case/run.json
for token in $(numbers tokens); do
	# shellcheck disable=SC2059 # the byte is the format
	printf "\\$(printf %03o "$token")\0\0\0"
done >"$tmp/tokens.i32"
mkdir -p "$tmp/logs/fsdp2"
{
	echo step,loss
	numbers losses_after | awk '{ print NR + 4 "," $0 }'
} >"$tmp/logs/fsdp2/metrics.csv"

for stage in 1 2 3; do
	for ranks in 1 2; do
		name=z$stage-dp$ranks
		train "$ranks" "$name" "${model[@]}" --data "$tmp/tokens.i32" --steps 14 \
			--zero_stage "$stage" --train_batch_size 8 \
			--train_micro_batch_size_per_gpu $((8 / ranks)) --resume="$case"
		d=$(apart fsdp2 "$name" 5)
		check "$name: as FSDP2 went on ($d apart)" within 1e-6 "$d"
	done
done
finish
