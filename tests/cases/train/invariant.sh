#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# With --rank_invariant, a checkpoint of four ranks continues bit for bit on any number of ranks,
# in any stage, with any micro-batch, also with dropout.  Sums then have the same operands in the
# same order, so a single wrong bit of the mount or a rank would show.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

flags=("${tiny[@]}" --train_batch_size 24 --dropout 0.1 --rank_invariant --eval_interval 5
	--data "$top_srcdir/LICENSE")

long 20 5
all=(--steps $((10 + steps)))

# Tag them all in one run, so that one mount shows all.
plan="1 1 1 24
1 2 3 4
1 3 2 2
2 0 3 1
2 3 1 6
3 1 2 3
3 2 3 2
3 3 1 3"

# Print steps and both losses.
bits() { awk -F, 'NR > 1 && $1 > 10 { print $1, $2, $8 }' "$tmp/logs/$1/metrics.csv"; }

# Then all are tags of one run, and one mount shows all.
for saved in 1 2 3; do
	train_later 4 "base$saved" "${flags[@]}" "${all[@]}" --zero_stage "$saved" \
		--train_micro_batch_size_per_gpu 2 --checkpoint_dir "$tmp/run$saved" \
		--checkpoint_interval 10
done
train_all
mkdir "$tmp/runs"
for saved in 1 2 3; do
	bits "base$saved" >"$tmp/base$saved.bits"
	check "stage $saved: $steps steps" \
		test "$(wc -l <"$tmp/base$saved.bits")" -eq "$steps"
	mv "$tmp/run$saved/global_step10" "$tmp/runs/z$saved"
done
mount_fg "$tmp/runs" || finish
while read -r from stage ranks micro; do
	train_later "$ranks" "z${from}_to_z${stage}_on_$ranks" "${flags[@]}" "${all[@]}" \
		--zero_stage "$stage" --train_micro_batch_size_per_gpu "$micro" --resume \
		--universal_checkpoint --checkpoint_dir "$tmp/mnt" --checkpoint_tag "z${from}_universal"
done <<<"$plan"
train_all
unmount
while read -r from stage ranks micro; do
	name=z${from}_to_z${stage}_on_$ranks
	check "$name: the same bits" cmp "$tmp/base$from.bits" <(bits "$name")
done <<<"$plan"
check "whatever the stage" cmp "$tmp/base1.bits" "$tmp/base3.bits"
finish
