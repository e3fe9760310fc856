#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One, two and three ranks resume the checkpoint of four ranks from the mount, in the same or
# another stage, with the accumulation that the batch requires.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
sanitized_by train/parts train/resume
require_train
require_fuse

# Train on text, not on a repeated random batch: a model that memorises a batch becomes so
# sensitive that runs diverge after a difference in the last bit, in PyTorch too.
flags=("${tiny[@]}" --n_embd 16 --seq_length 16 --lr 1e-3 --data "$top_srcdir/LICENSE" --train_batch_size 24
	--train_micro_batch_size_per_gpu 2)

long 20 10

# Saved in stage | resumed in stage | on ranks
plan="1 1 2
1 1 1
1 1 3
1 2 1
1 3 2
2 1 3
2 2 2
2 3 1
3 1 2
3 2 3
3 3 2
3 3 1
3 3 3"

# Then all are tags of one run, and one mount shows all.
for saved in 1 2 3; do
	train_later 4 "base$saved" "${flags[@]}" --zero_stage "$saved" --steps $((10 + steps)) \
		--checkpoint_dir "$tmp/run$saved" --checkpoint_interval 10
done
train_all
mkdir "$tmp/all"
for saved in 1 2 3; do
	mv "$tmp/run$saved/global_step10" "$tmp/all/z$saved"
done
mount_fg "$tmp/all" || finish
while read -r from stage ranks; do
	train_later "$ranks" "z${from}_to_z${stage}_on_$ranks" "${flags[@]}" --zero_stage "$stage" \
		--steps $((10 + steps)) --resume --universal_checkpoint \
		--checkpoint_dir "$tmp/mnt" --checkpoint_tag "z${from}_universal"
done <<<"$plan"
train_all
unmount
while read -r from stage ranks; do
	name=z${from}_to_z${stage}_on_$ranks
	d=$(apart "base$from" "$name" 11)
	echo "$name: $d apart"
	check "$name: $steps steps" within 2e-5 "$d"
done <<<"$plan"
finish
