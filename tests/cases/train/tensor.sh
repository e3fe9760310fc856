#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tensor parallelism: ranks that share every layer train like one rank, and a run continues with
# more or fewer of them from a mount.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

# 257 tokens are not divisible: the last rank has padding rows.
flags=("${tiny[@]}" --n_head 4 --n_embd 16 --vocab_size 257 --seq_length 16 --lr 5e-4
	--data "$top_srcdir/LICENSE" --train_batch_size 24 --train_micro_batch_size_per_gpu 3
	--eval_interval 10)
t2=(--tensor_model_parallel_size 2)
t4=(--tensor_model_parallel_size 4)

long 40 10
few=10 # steps of runs that differ from two ranks in one respect

train_later 1 one "${flags[@]}" --steps "$steps"
train_later 2 t2 "${flags[@]}" --steps "$steps" "${t2[@]}"
train_later 4 t4 "${flags[@]}" --steps "$few" "${t4[@]}"
train_later 2 again "${flags[@]}" --steps "$steps" "${t2[@]}" --recompute
train_later 2 half-again "${flags[@]}" --steps "$steps" "${t2[@]}" --recompute=gelu,norms
for stage in 0 1 2 3; do
	train_later 4 t2-z$stage "${flags[@]}" --steps "$few" "${t2[@]}" --zero_stage $stage
done
shared_later t2 "${t2[@]}"
all=(--steps 20)
for saved in 1 2; do
	train_later $saved from$saved "${flags[@]}" "${all[@]}" --tensor_model_parallel_size $saved \
		--checkpoint_dir "$tmp/run$saved" --checkpoint_interval 10
done

# Combinations that are impossible.
refused_later "ranks that do not divide" "divide the 3 ranks" 3 "${flags[@]}" "${t2[@]}"
refused_later "heads that do not divide" "n_head 1 " 2 "${flags[@]}" --n_head 1 "${t2[@]}"
refused_later "too few tokens" "vocab_size 5 " 4 "${flags[@]}" --vocab_size 5 "${t4[@]}"
refused_later "a batch that does not divide" "2 data-parallel ranks" 4 \
	"${flags[@]}" --train_batch_size 9 "${t2[@]}"
train_all

alike "two ranks" 1e-5 one t2
alike "four ranks" 1e-5 one t4
same_bits "recomputed" t2 again
same_bits "recomputed in part" t2 half-again
for stage in 0 1 2 3; do
	alike "two by two ranks, stage $stage" 1e-5 one t2-z$stage
done
# Dropout masks do not depend on the partition of the heads.
shared_alike t2

# Saved by | resumed on | of which tensor-parallel | stage
plan="1 2 2 1
1 4 2 2
2 1 1 1
2 2 1 3
2 4 4 1
2 4 2 0"
plan=$(sampled <<<"$plan")

for saved in 1 2; do
	mount_fg "$tmp/run$saved" || finish
	while read -r from ranks tensor stage; do
		[ "$from" = $saved ] || continue
		train_later "$ranks" from$from-$ranks-$tensor "${flags[@]}" "${all[@]}" \
			--tensor_model_parallel_size "$tensor" --zero_stage "$stage" --resume \
			--universal_checkpoint --checkpoint_dir "$tmp/mnt" \
			--checkpoint_tag global_step10_universal
	done <<<"$plan"
	if [ $saved = 2 ]; then
		train_later 1 files "${flags[@]}" "${all[@]}" --resume="$tmp/run2" --checkpoint_tag global_step10
		train_later 2 own "${flags[@]}" "${all[@]}" "${t2[@]}" --resume --checkpoint_dir "$tmp/run2" \
			--checkpoint_tag global_step10
	fi
	train_all
	unmount
done
while read -r from ranks tensor _; do
	alike "from $from on $ranks" 1e-5 from$from from$from-$ranks-$tensor
done <<<"$plan"
alike "from other ranks' files" 1e-5 from2 files
# From its own files the run continues bit for bit.
check "from its own files" cmp <(sed 1,11d "$tmp/logs/from2/metrics.csv" | cut -d, -f1,2,4,8) \
	<(sed 1d "$tmp/logs/own/metrics.csv" | cut -d, -f1,2,4,8)

# The checkpoint of the ranks is whole, and so are its Hugging Face weights.
check "both are checkpoints" ucckpt check --data "$tmp/run2/global_step10"
ucckpt convert --view hf "$tmp/run2/global_step10" "$tmp/hf2" >/dev/null
ucckpt convert --view hf "$tmp/run1/global_step10" "$tmp/hf1" >/dev/null
check "as large as one rank's" test "$(wc -c <"$tmp/hf1/model.safetensors")" = \
	"$(wc -c <"$tmp/hf2/model.safetensors")"
finish
