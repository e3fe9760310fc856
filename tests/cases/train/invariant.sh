#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# With --rank_invariant, four ranks' checkpoint goes on bit for bit as they do,
# on any number of ranks, in any stage, with any micro-batch; dropout included.
# What sums are made of is the same then, so a single bit that the mount or a
# rank got wrong would show.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

flags=("${tiny[@]}" --train_batch_size 24 --dropout 0.1 --rank_invariant --eval_interval 5
	--data "$top_srcdir/LICENSE")

long 60 5
all=(--steps $((10 + steps)))

# Saved in stage | resumed in stage | on ranks | with micro-batches of
plan="1 1 1 24
1 2 3 4
1 3 2 2
2 0 3 1
2 3 1 6
3 1 2 3
3 2 3 2
3 3 1 3"

# Steps and both losses.
bits() { awk -F, 'NR > 1 && $1 > 10 { print $1, $2, $8 }' "$tmp/logs/$1/metrics.csv"; }

for saved in 1 2 3; do
	run=$tmp/run$saved
	train 4 "base$saved" "${flags[@]}" "${all[@]}" --zero_stage "$saved" \
		--train_micro_batch_size_per_gpu 2 --checkpoint_dir "$run" \
		--checkpoint_interval 10
	bits "base$saved" >"$tmp/base$saved.bits"
	check "stage $saved: $steps steps" \
		test "$(wc -l <"$tmp/base$saved.bits")" -eq "$steps"
	mount_fg "$run" || finish
	while read -r from stage ranks micro; do
		[ "$from" = "$saved" ] || continue
		name=z${from}_to_z${stage}_on_$ranks
		train "$ranks" "$name" "${flags[@]}" "${all[@]}" --zero_stage "$stage" \
			--train_micro_batch_size_per_gpu "$micro" --resume \
			--universal_checkpoint --checkpoint_dir "$tmp/mnt" \
			--checkpoint_tag global_step10_universal
		check "$name: the same bits" cmp "$tmp/base$saved.bits" <(bits "$name")
	done <<<"$plan"
	unmount
done
check "whatever the stage" cmp "$tmp/base1.bits" "$tmp/base3.bits"
finish
