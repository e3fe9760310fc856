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

long 20 10

cases="1 fp32
2 fp32
3 fp32
1 bf16
3 fp16"
cases=$(sampled <<<"$cases")

# each CALL: call it with the name and the flags of each case.
each() {
	local stage dtype name f
	while read -r stage dtype; do
		name=z${stage}_$dtype
		f=("${flags[@]}" --zero_stage "$stage" --dtype "$dtype" --steps $((2 * steps)))
		"$1"
	done <<<"$cases"
}

begin() {
	train_later 4 "$name" "${f[@]}" --checkpoint_dir "$tmp/$name" --checkpoint_interval $steps --async_save
}

# All tags are in one run, so one mount shows all.
gather() {
	check "$name: latest names the newest" test "$(cat "$tmp/$name/latest")" = global_step$((2 * steps))
	check "$name: check finds it whole" ucckpt check --data "$tmp/$name/global_step$steps"
	mv "$tmp/$name/global_step$steps" "$tmp/all/$name"
}

go_on() {
	train_later 4 "$name-zero" "${f[@]}" --resume="$tmp/all" --checkpoint_tag "$name"
	train_later 4 "$name-mount" "${f[@]}" --resume --universal_checkpoint \
		--checkpoint_dir "$tmp/mnt" --checkpoint_tag "${name}_universal"
}

went_on() {
	check "$name: resuming goes on with the next step" \
		test "$(losses "$name-zero" | head -n 1 | cut -d' ' -f1)" = $((steps + 1))
	check "$name: from shards, bit for bit" \
		within 0 "$(apart "$name" "$name-zero" $((steps + 1)))"
	check "$name: from the mount, bit for bit" \
		within 0 "$(apart "$name" "$name-mount" $((steps + 1)))"
}

# A run with a schedule continues, too.
warm=("${tiny[@]}" --train_batch_size 16 --steps 6 --lr_schedule warmup --warmup_steps 4 --min_lr 0)
each begin
train_later 2 warm "${warm[@]}" --checkpoint_dir "$tmp/warm" --checkpoint_interval 2
train_all
mkdir "$tmp/all"
each gather
mount_fg "$tmp/all" || finish
each go_on

# Other ranks resume from the re-cut shards as from the universal tree.
for n in 2 8; do
	f=("${flags[@]}" --train_micro_batch_size_per_gpu 2 --steps $((steps + 5)) --resume="$tmp/mnt")
	train_later $n tree-$n "${f[@]}" --zero_stage 1 --universal_checkpoint --checkpoint_tag z1_fp32_universal
	train_later $n recut-$n "${f[@]}" --zero_stage 1 --checkpoint_tag z1_fp32_dp$n
	train_later $n recut3-$n "${f[@]}" --zero_stage 3 --checkpoint_tag z1_fp32_dp${n}_z3
done
other=("${tiny[@]}" --train_batch_size 16 --steps 8 --lr 1e-4 --resume="$tmp/warm"
	--checkpoint_tag global_step6)
train_later 2 warm-on "${warm[@]}" --resume="$tmp/warm" --checkpoint_tag global_step2
train_later 2 kept "${other[@]}"
train_later 2 new "${other[@]}" --no_load_optimizer_states
train_all
unmount
each went_on
for n in 2 8; do
	for run in recut-$n recut3-$n; do
		check "$run: it goes on with the next step" \
			test "$(losses $run | head -n 1 | cut -d' ' -f1)" = $((steps + 1))
	done
	check "re-cut for $n ranks, bit for bit" within 0 "$(apart tree-$n recut-$n $((steps + 1)))"
	check "re-cut for stage 3 and $n ranks" within 2e-6 "$(apart tree-$n recut3-$n $((steps + 1)))"
done

# The learning rate schedule continues, too.
check "steps are lines where nobody watches" test "$(grep -c '^step ' "$tmp/warm.log")" = 6
rates() { awk -F, -v from="$2" 'NR > 1 && $1 > from { print $3 }' "$tmp/logs/$1/metrics.csv"; }
check "a warm-up is resumed" test "$(rates warm 2)" = "$(rates warm-on 2)"
check "and has warmed up" test "$(rates warm 0 | sort -g | uniq | wc -l)" -ge 4
check "to the full rate" test "$(rates warm 0 | tail -n 1)" = 0.005

# Without a schedule, the learning rate and Adam's other hyperparameters are the
# checkpoint's, as in DeepSpeed; without optimizer states, they are the flags'.
check "a rate is the checkpoint's" test "$(rates kept 0 | sort -u)" = 0.005
check "which is reported" grep -q "hyperparameters, not the configuration.s: lr 0.005, " "$tmp/kept.log"
check "a new optimizer's is not" test "$(rates new 0 | sort -u)" = 0.0001

# The checkpoint also determines whether weight decay is decoupled.  If, like DeepSpeed's, its
# parameter groups do not record this, the configuration decides.
l2=("${tiny[@]}" --train_batch_size 8)
echo '{ "optimizer": { "type": "Adam", "params": { "adam_w_mode": false, "torch_adam": true } } }' >"$tmp/l2.json"
train 1 l2 "${l2[@]}" --deepspeed_config "$tmp/l2.json" --optimizer Adam --weight_decay 1 --lr 5e-3 \
	--steps 8 --checkpoint_dir "$tmp/l2" --checkpoint_interval 4
cp -r "$tmp/l2" "$tmp/l2-silent"
LC_ALL=C sed -i s/decoupled_weight_decay/DECOUPLED_WEIGHT_DECAY/ "$tmp/l2-silent"/global_step4/*_optim_states.pt
check "no group says it" grep -qr DECOUPLED_WEIGHT_DECAY "$tmp/l2-silent"
ucckpt convert "$tmp/l2/global_step4" "$tmp/l2/tree" >/dev/null || fail "convert"
on=("${l2[@]}" --optimizer AdamW --steps 8 --checkpoint_tag)
train 1 l2-on "${on[@]}" global_step4 --resume="$tmp/l2" --checkpoint_dir "$tmp/l2-on" --checkpoint_interval 2
train 1 l2-tree "${on[@]}" tree --universal_checkpoint --resume="$tmp/l2"
train 1 l2-silent-on "${on[@]}" global_step4 --resume="$tmp/l2-silent"
train 1 l2-again "${on[@]}" global_step6 --resume="$tmp/l2-on"
train 1 l2-decoupled "${on[@]}" global_step4 --resume="$tmp/l2" --no_load_optimizer_states
for run in l2-on l2-tree l2-silent-on l2-again; do
	check "$run: Adam goes on" within 0 "$(apart l2 $run 5)"
	check "$run: it is reported" grep -q "weight decay 1 in the gradient (Adam)" "$tmp/$run.log"
done
check "AdamW would not" test "$(within 1e-3 "$(apart l2 l2-decoupled 5)"; echo $?)" = 1

# The flag sets dropout; a message tells if it differs from the checkpoint's.
train 1 drop "${l2[@]}" --dropout 0.25 --steps 1 --checkpoint_dir "$tmp/drop"
for p in 0 0.1; do
	train 1 drop-$p "${l2[@]}" --dropout $p --steps 2 --resume="$tmp/drop"
done
told="^uctrain: the model was trained with a dropout of 0.25, this run has none (--dropout)\$"
check "no dropout: told" test "$(grep -c "$told" "$tmp/drop-0.log")" = 1
check "another one: not" test "$(grep -c "a dropout of" "$tmp/drop-0.1.log")" = 0

# A vocabulary is padded and unpadded again; checkpoints in between declare the padding.
train 1 words "${flags[@]}" --steps 1 --checkpoint_dir "$tmp/words"
train 1 padded "${flags[@]}" --vocab_size 264 --steps 2 --resume="$tmp/words" \
	--checkpoint_dir "$tmp/padded"
train 1 bare "${flags[@]}" --steps 3 --resume="$tmp/padded"
check "padding goes again" test "$(losses bare | cut -d' ' -f1)" = 3
finish
