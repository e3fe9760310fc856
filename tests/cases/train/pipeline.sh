#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Pipelines: stages that share the layers train like one rank, also with tensor-parallel ranks,
# and a run continues with more or fewer stages from a mount.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

flags=("${tiny[@]}" --n_layer 5 --n_embd 16 --vocab_size 257 --seq_length 16 --lr 5e-4
	--data "$top_srcdir/LICENSE" --train_batch_size 24 --train_micro_batch_size_per_gpu 2
	--eval_interval 10)
shared() { echo "--tensor_model_parallel_size $1 --pipeline_model_parallel_size $2"; }

long 40 10
few=10 # steps of most runs

# Ranks | of which tensor-parallel | stages | ZeRO stage | micro-batch: more micro-batches than
# stages, as many, fewer, and one
plan="2 1 2 1 2
2 1 2 0 12
3 1 3 1 2
5 1 5 1 8
2 1 2 1 24
4 1 2 1 2
4 2 2 1 2
4 2 2 0 6"
plan=$(sampled <<<"$plan")

train_later 1 one "${flags[@]}" --steps "$steps"
many=$steps
while read -r ranks tensor pipe stage micro; do
	# shellcheck disable=SC2046 # words
	train_later "$ranks" n$ranks-t$tensor-p$pipe-z$stage-m$micro "${flags[@]}" --steps "$many" \
		$(shared "$tensor" "$pipe") --zero_stage "$stage" --train_micro_batch_size_per_gpu "$micro"
	many=$few
done <<<"$plan"
p2=(--pipeline_model_parallel_size 2)
train_later 2 again "${flags[@]}" --steps "$steps" "${p2[@]}" --recompute
for method in uniform type:transformer; do
	train_later 2 $method "${flags[@]}" --steps "$few" "${p2[@]}" --partition_method $method
done
# Without tensor cores --tf32 changes nothing; a large eps does.
train_later 1 tf32 "${flags[@]}" --steps "$steps" --tf32 --eps 1e-8
train_later 1 eps "${flags[@]}" --steps "$few" --eps 1e-2
shared_later p2 "${p2[@]}"
all=(--steps $((10 + few)))
# shellcheck disable=SC2046
train_later 4 from "${flags[@]}" "${all[@]}" $(shared 2 2) --checkpoint_dir "$tmp/run" --checkpoint_interval 10

# Combinations that are impossible.
refused_later "ranks that do not divide" "divide the 3 groups of ranks" 3 "${flags[@]}" "${p2[@]}"
refused_later "too few layers" "n_layer 1 is less" 2 "${flags[@]}" --n_layer 1 "${p2[@]}"
refused_later "stage 2" "zero_stage 2; use 0 or 1" 2 "${flags[@]}" --zero_stage 2 "${p2[@]}"
train_all

while read -r ranks tensor pipe stage micro; do
	name=n$ranks-t$tensor-p$pipe-z$stage-m$micro
	alike $name 1e-5 one $name
done <<<"$plan"
same_bits "recomputed" n2-t1-p2-z1-m2 again
for method in uniform type:transformer; do
	alike "stages by $method" 1e-5 one $method
done
same_bits "TF32 on the CPU, and the default eps" one tf32
within 1e-3 "$(apart one eps 5)" && fail "another eps makes no difference"
shared_alike p2

# Resumed on ranks | of which tensor-parallel | stages | ZeRO stage
plan="1 1 1 1
4 1 1 2
2 2 1 1
3 1 3 1
4 2 2 0"
plan=$(sampled <<<"$plan")

check "the files of all stages" test "$(find "$tmp/run/global_step10" -name '*states.pt' | wc -l)" = 8
check "they are a checkpoint" ucckpt check --data "$tmp/run/global_step10"
mount_fg "$tmp/run" || finish
while read -r ranks tensor pipe stage; do
	# shellcheck disable=SC2046
	train_later "$ranks" to-$ranks-$tensor-$pipe "${flags[@]}" "${all[@]}" $(shared "$tensor" "$pipe") \
		--zero_stage "$stage" --resume --universal_checkpoint \
		--checkpoint_dir "$tmp/mnt" --checkpoint_tag global_step10_universal
done <<<"$plan"
train_later 2 to-files "${flags[@]}" "${all[@]}" "${p2[@]}" --resume="$tmp/run" --checkpoint_tag global_step10
train_all
unmount
while read -r ranks tensor pipe _; do
	alike to-$ranks-$tensor-$pipe 1e-5 from to-$ranks-$tensor-$pipe
done <<<"$plan"
alike "from the files themselves" 1e-5 from to-files

try_train 2 high "${flags[@]}" --steps 1 --vocab_size 40 "${p2[@]}"
check "tokens out of range" test $? != 0
check "are named once" test "$(grep -c 'uctrain: .*LICENSE' "$tmp/high.log")" = 1
finish
