#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A run resumed on the same number of ranks continues as if it had not been
# interrupted, both from the shards and from the mounted tree.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

flags=("${tiny[@]}" --n_embd 16 --seq_length 16 --train_batch_size 16 --train_micro_batch_size_per_gpu 4
	--deterministic)

long 100 20

# resume STAGE DTYPE: "equal" asks for the same bits.
resume() {
	local stage=$1 dtype=$2 run=$tmp/z$1_$2 name=z$1_$2
	local f=("${flags[@]}" --zero_stage "$stage" --dtype "$dtype")

	train 4 "$name" "${f[@]}" --steps $((2 * steps)) --checkpoint_dir "$run" \
		--checkpoint_interval $steps --async_save
	check "$name: latest names the newest" test "$(cat "$run/latest")" = global_step$((2 * steps))
	check "$name: check finds it whole" ucckpt check --data "$run/global_step$steps"
	train 4 "$name-zero" "${f[@]}" --steps $((2 * steps)) --resume="$run" \
		--checkpoint_tag global_step$steps
	check "$name: resuming goes on with the next step" \
		test "$(losses "$name-zero" | head -n 1 | cut -d' ' -f1)" = $((steps + 1))
	check "$name: from shards, bit for bit" \
		within 0 "$(apart "$name" "$name-zero" $((steps + 1)))"

	mount_fg "$run" || return
	train 4 "$name-mount" "${f[@]}" --steps $((2 * steps)) --resume \
		--universal_checkpoint --checkpoint_dir "$tmp/mnt" \
		--checkpoint_tag global_step${steps}_universal
	unmount
	check "$name: from the mount, bit for bit" \
		within 0 "$(apart "$name" "$name-mount" $((steps + 1)))"
}

for stage in 1 2 3; do
	resume "$stage" fp32
done

# On other ranks from the re-cut shards, as from the universal tree.
mount_fg "$tmp/z1_fp32" || finish
for n in 2 8; do
	f=("${flags[@]}" --train_micro_batch_size_per_gpu 2 --steps $((steps + 5)) --resume="$tmp/mnt")
	train $n tree-$n "${f[@]}" --zero_stage 1 --universal_checkpoint \
		--checkpoint_tag global_step${steps}_universal
	train $n recut-$n "${f[@]}" --zero_stage 1 --checkpoint_tag global_step${steps}_dp$n
	train $n recut3-$n "${f[@]}" --zero_stage 3 --checkpoint_tag global_step${steps}_dp${n}_z3
	for run in recut-$n recut3-$n; do
		check "$run: it goes on with the next step" \
			test "$(losses $run | head -n 1 | cut -d' ' -f1)" = $((steps + 1))
	done
	check "re-cut for $n ranks, bit for bit" within 0 "$(apart tree-$n recut-$n $((steps + 1)))"
	check "re-cut for stage 3 and $n ranks" within 2e-6 "$(apart tree-$n recut3-$n $((steps + 1)))"
done
unmount

# The learning rate schedule continues, too.
train 2 warm "${tiny[@]}" --train_batch_size 16 --steps 6 --lr_schedule warmup \
	--warmup_steps 4 --min_lr 0 --checkpoint_dir "$tmp/warm" --checkpoint_interval 2
train 2 warm-on "${tiny[@]}" --train_batch_size 16 --steps 6 --lr_schedule warmup \
	--warmup_steps 4 --min_lr 0 --resume="$tmp/warm" --checkpoint_tag global_step2
check "steps are lines where nobody watches" test "$(grep -c '^step ' "$tmp/warm.log")" = 6
rates() { awk -F, -v from="$2" 'NR > 1 && $1 > from { print $3 }' "$tmp/logs/$1/metrics.csv"; }
check "a warm-up is resumed" test "$(rates warm 2)" = "$(rates warm-on 2)"
check "and has warmed up" test "$(rates warm 0 | sort -g | uniq | wc -l)" -ge 4
check "to the full rate" test "$(rates warm 0 | tail -n 1)" = 0.005

# Without a schedule, the learning rate and Adam's other hyperparameters are the
# checkpoint's, as in DeepSpeed; without optimizer states, they are the flags'.
other=("${tiny[@]}" --train_batch_size 16 --steps 8 --lr 1e-4 --resume="$tmp/warm"
	--checkpoint_tag global_step6)
train 2 kept "${other[@]}"
check "a rate is the checkpoint's" test "$(rates kept 0 | sort -u)" = 0.005
check "which is reported" grep -q "hyperparameters, not the configuration.s: lr 0.005, " "$tmp/kept.log"
train 2 new "${other[@]}" --no_load_optimizer_states
check "a new optimizer's is not" test "$(rates new 0 | sort -u)" = 0.0001

# A vocabulary gets padding and loses it again; checkpoints declare it in between.
train 1 words "${flags[@]}" --steps 1 --checkpoint_dir "$tmp/words"
train 1 padded "${flags[@]}" --vocab_size 264 --steps 2 --resume="$tmp/words" \
	--checkpoint_dir "$tmp/padded"
train 1 bare "${flags[@]}" --steps 3 --resume="$tmp/padded"
check "padding goes again" test "$(losses bare | cut -d' ' -f1)" = 3

resume 1 bf16
resume 3 fp16
finish
