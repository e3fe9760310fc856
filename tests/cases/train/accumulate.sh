#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Gradient accumulation gives the gradient of the large batch, however ranks and micro-batches
# divide the batch.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

long 100 25
flags=("${tiny[@]}" --train_batch_size 16 --steps "$steps")

# Print the largest relative difference of the first $3 losses.
relative() {
	awk -v last="$3" '
	FNR == NR { a[$1] = $2; next }
	$1 <= last {
		d = ($2 - a[$1]) / a[$1]
		if (d < 0)
			d = -d
		if (d > max || !n)
			max = d
		n++
	}
	END { print n == last ? max : "none" }' <(losses "$1") <(losses "$2")
}

train 1 whole "${flags[@]}" --train_micro_batch_size_per_gpu 16
train 1 four "${flags[@]}" --train_micro_batch_size_per_gpu 4
train 2 two "${flags[@]}" --train_micro_batch_size_per_gpu 4
train 2 two3 "${flags[@]}" --train_micro_batch_size_per_gpu 4 --zero_stage 3
for run in four two two3; do
	check "$run: 20 steps" within 1e-5 "$(relative whole "$run" 20)"
	check "$run: $steps steps" within 1e-3 "$(relative whole "$run" "$steps")"
done
finish
