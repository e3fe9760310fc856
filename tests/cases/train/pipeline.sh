#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Pipelines: stages that share the layers train as one rank does, also with
# tensor-parallel ranks, and a run goes on with more or fewer of them from a mount.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

flags=("${tiny[@]}" --n_layer 5 --n_embd 16 --vocab_size 257 --seq_length 16 --lr 5e-4
	--data "$top_srcdir/LICENSE" --train_batch_size 24 --train_micro_batch_size_per_gpu 2
	--eval_interval 10)
shared() { echo "--tensor_model_parallel_size $1 --pipeline_model_parallel_size $2"; }

long 100 10
few=$((steps < 20 ? steps : 20)) # of most runs

# Ranks | of them tensor-parallel | stages | ZeRO's | micro-batch: more of them than
# stages, as many, fewer, and one
plan="2 1 2 1 2
2 1 2 0 12
3 1 3 1 2
5 1 5 1 8
2 1 2 1 24
4 1 2 1 2
4 2 2 1 2
4 2 2 0 6"

train 1 one "${flags[@]}" --steps "$steps"
many=$steps
while read -r ranks tensor pipe stage micro; do
	name=n$ranks-t$tensor-p$pipe-z$stage-m$micro
	# shellcheck disable=SC2046 # words
	train "$ranks" $name "${flags[@]}" --steps "$many" $(shared "$tensor" "$pipe") \
		--zero_stage "$stage" --train_micro_batch_size_per_gpu "$micro"
	alike $name 1e-5 one $name
	many=$few
done <<<"$plan"

p2=(--pipeline_model_parallel_size 2)
train 2 again "${flags[@]}" --steps "$steps" "${p2[@]}" --recompute
same_bits "recomputed" n2-t1-p2-z1-m2 again
shared_alike p2 "${p2[@]}"

# --- from the mount ------------------------------------------------------------

# Resumed on ranks | of them tensor-parallel | stages | ZeRO's
plan="1 1 1 1
4 1 1 2
2 2 1 1
3 1 3 1
4 2 2 0"

all=(--steps $((10 + few)))
# shellcheck disable=SC2046
train 4 from "${flags[@]}" "${all[@]}" $(shared 2 2) --checkpoint_dir "$tmp/run" --checkpoint_interval 10
check "the files of all stages" test "$(find "$tmp/run/global_step10" -name '*states.pt' | wc -l)" = 8
check "they are a checkpoint" ucckpt check --data "$tmp/run/global_step10"
mount_fg "$tmp/run" || finish
while read -r ranks tensor pipe stage; do
	name=to-$ranks-$tensor-$pipe
	# shellcheck disable=SC2046
	train "$ranks" $name "${flags[@]}" "${all[@]}" $(shared "$tensor" "$pipe") \
		--zero_stage "$stage" --resume --universal_checkpoint \
		--checkpoint_dir "$tmp/mnt" --checkpoint_tag global_step10_universal
	alike $name 1e-5 from $name
done <<<"$plan"
unmount
train 2 to-files "${flags[@]}" "${all[@]}" "${p2[@]}" --resume="$tmp/run" --checkpoint_tag global_step10
alike "from the files themselves" 1e-5 from to-files

# --- what cannot be --------------------------------------------------------------

shared_refused "ranks that do not divide" "divide the 3 groups of ranks" 3 "${p2[@]}"
shared_refused "too few layers" "n_layer 1 is less" 2 --n_layer 1 "${p2[@]}"
shared_refused "stage 2" "zero_stage 2; use 0 or 1" 2 --zero_stage 2 "${p2[@]}"

try_train 2 high "${flags[@]}" --steps 1 --vocab_size 40 "${p2[@]}"
check "tokens out of range" test $? != 0
check "are named once" test "$(grep -c 'uctrain: .*LICENSE' "$tmp/high.log")" = 1
finish
