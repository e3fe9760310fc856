#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The three tests of the DSUC demo at full size, on the CPU: its model (4 layers, 4
# heads, width 128, vocabulary 50257), batches of 16 rows of 128 tokens, saved
# half-way.
#
#   1  resumed on the same ranks, from ZeRO shards and from the mount
#   2  one rank against accumulation on one and on two
#   3  the four ranks' checkpoint on 2, 1 and (batches of 24) 3 ranks
#
# Reports the largest difference of losses, the bytes that each rank read, and memory
# per rank by stage; curves go to $UCFS_DSUC_OUT.
#
# UCFS_DSUC_STEPS	steps of a run (200); the second half is resumed
# UCFS_DSUC_STAGES	stages of tests 1 and 3 ("1 2 3")
# UCFS_DSUC_OUT		directory for curves and logs (default: discarded)
# UCFS_DSUC_FLAGS	further flags of all runs, such as --rank_invariant
# UCFS_DSUC_DATA	--data (synthetic: one batch repeated, as in the demo)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
top_srcdir=${top_srcdir:-$(cd "$here/../.." && pwd)}
steps=${UCFS_DSUC_STEPS:-200}
half=$((steps / 2))

# shellcheck source=tests/cases/train/train_lib.sh
. "$top_srcdir/tests/cases/train/train_lib.sh"
require_train
require_fuse
export TRAIN_SECONDS=7200

flags=(--model gpt2-dsuc --seq_length 128 --gradient_clipping 1
	--data "${UCFS_DSUC_DATA:-synthetic}" --steps "$steps")
read -ra more <<<"${UCFS_DSUC_FLAGS:-}"
flags+=(${more[@]+"${more[@]}"})

row() { printf '%-52s %s\n' "$1" "$2"; }
memory_of() {
	awk -F, 'END { printf "%.0f MiB resident, ", $6 / 1048576 }' \
		"$tmp/logs/$1/metrics.csv"
	sed -n 's/.*each keeps \(.*\) of training state.*/\1 of them state/p' \
		"$tmp/$1.log"
}
read_by() { sed -n 's/.*at step [0-9]*: \(.*\) of tensors were.*/\1/p' "$tmp/$1.log"; }

echo "DSUC: $steps steps ${UCFS_DSUC_FLAGS:-}, saved at $half, load average $(cut -d' ' -f1 /proc/loadavg)"
for stage in ${UCFS_DSUC_STAGES-1 2 3}; do
	run=$tmp/run$stage
	f=("${flags[@]}" --zero_stage "$stage" --train_batch_size 16
		--train_micro_batch_size_per_gpu 4)
	train 4 "dp4_z$stage" "${f[@]}" --checkpoint_dir "$run" \
		--checkpoint_interval "$half"
	row "stage $stage on 4 ranks: memory of a rank" "$(memory_of "dp4_z$stage")"
	train 4 "dp4_z$stage-zero" "${f[@]}" --resume="$run" \
		--checkpoint_tag "global_step$half"
	row "1: resumed from shards on 4" \
		"$(apart "dp4_z$stage" "dp4_z$stage-zero" "$half")"
	mount_fg "$run" || exit 1
	for n in 4 2 1; do
		train "$n" "dp${n}_z$stage-mount" "${f[@]}" --universal_checkpoint \
			--resume="$tmp/mnt" \
			--checkpoint_tag "global_step${half}_universal"
		row "$((n == 4 ? 1 : 3)): from the mount on $n (read $(read_by "dp${n}_z$stage-mount"))" \
			"$(apart "dp4_z$stage" "dp${n}_z$stage-mount" "$half")"
	done
	unmount
done

f=("${flags[@]}" --train_batch_size 16)
train 1 whole "${f[@]}" --train_micro_batch_size_per_gpu 16
train 1 one_x4 "${f[@]}" --train_micro_batch_size_per_gpu 4
train 2 two_x2 "${f[@]}" --train_micro_batch_size_per_gpu 4
row "2: one rank, accumulation 4" "$(apart whole one_x4 1)"
row "2: two ranks, accumulation 2" "$(apart whole two_x2 1)"

f=("${flags[@]}" --train_batch_size 24 --train_micro_batch_size_per_gpu 2)
train 4 dp4_b24 "${f[@]}" --checkpoint_dir "$tmp/run24" --checkpoint_interval "$half"
mount_fg "$tmp/run24" || exit 1
train 3 dp3_b24 "${f[@]}" --universal_checkpoint --resume="$tmp/mnt" \
	--checkpoint_tag "global_step${half}_universal"
unmount
row "3: batches of 24, from the mount on 3" "$(apart dp4_b24 dp3_b24 "$half")"

if [ -n "${UCFS_DSUC_OUT:-}" ]; then
	mkdir -p "$UCFS_DSUC_OUT"
	cp -r "$tmp/logs" "$UCFS_DSUC_OUT"
	if command -v gnuplot >/dev/null; then
		ucplot "$tmp"/logs/* --png -o "$UCFS_DSUC_OUT/dsuc"
	fi
fi
finish
