#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tensor parallelism: ranks that share every layer train as one rank does, and a run
# goes on with more or fewer of them from a mount.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

# 257 tokens do not divide: the last rank has rows of padding.
flags=("${tiny[@]}" --n_head 4 --n_embd 16 --vocab_size 257 --seq_length 16 --lr 5e-4
	--data "$top_srcdir/LICENSE" --train_batch_size 24 --train_micro_batch_size_per_gpu 2
	--eval_interval 10)
t2=(--tensor_model_parallel_size 2)
t4=(--tensor_model_parallel_size 4)

long 100 10
few=$((steps < 20 ? steps : 20)) # for what differs from two ranks in one respect

train 1 one "${flags[@]}" --steps "$steps"
train 2 t2 "${flags[@]}" --steps "$steps" "${t2[@]}"
train 4 t4 "${flags[@]}" --steps "$few" "${t4[@]}"
train 2 again "${flags[@]}" --steps "$steps" "${t2[@]}" --recompute
alike "two ranks" 1e-5 one t2
alike "four ranks" 1e-5 one t4
same_bits "recomputed" t2 again
train 2 half-again "${flags[@]}" --steps "$steps" "${t2[@]}" --recompute=gelu,norms
same_bits "recomputed in part" t2 half-again
for stage in 0 1 2 3; do
	train 4 t2-z$stage "${flags[@]}" --steps "$few" "${t2[@]}" --zero_stage $stage
	alike "two by two ranks, stage $stage" 1e-5 one t2-z$stage
done

# Masks do not depend on how the heads are cut.
shared_alike t2 "${t2[@]}"

# --- from the mount ------------------------------------------------------------

# Saved by | resumed on | of them tensor-parallel | stage
plan="1 2 2 1
1 4 2 2
2 1 1 1
2 2 1 3
2 4 4 1
2 4 2 0"

all=(--steps $((10 + steps)))
for saved in 1 2; do
	train $saved from$saved "${flags[@]}" "${all[@]}" --tensor_model_parallel_size $saved \
		--checkpoint_dir "$tmp/run$saved" --checkpoint_interval 10
	mount_fg "$tmp/run$saved" || finish
	while read -r from ranks tensor stage; do
		[ "$from" = $saved ] || continue
		name=from$from-$ranks-$tensor
		train "$ranks" $name "${flags[@]}" "${all[@]}" --tensor_model_parallel_size "$tensor" \
			--zero_stage "$stage" --resume --universal_checkpoint \
			--checkpoint_dir "$tmp/mnt" --checkpoint_tag global_step10_universal
		alike "$name" 1e-5 from$saved $name
	done <<<"$plan"
	unmount
done

train 1 files "${flags[@]}" "${all[@]}" --resume="$tmp/run2" --checkpoint_tag global_step10
alike "from other ranks' files" 1e-5 from2 files

# Uninterrupted bit for bit from its own files.
train 2 own "${flags[@]}" "${all[@]}" "${t2[@]}" --resume --checkpoint_dir "$tmp/run2" \
	--checkpoint_tag global_step10
check "from its own files" cmp <(sed 1,11d "$tmp/logs/from2/metrics.csv" | cut -d, -f1,2,4,8) \
	<(sed 1d "$tmp/logs/own/metrics.csv" | cut -d, -f1,2,4,8)

# What the ranks saved is whole, and Hugging Face's.
check "both are checkpoints" ucckpt check --data "$tmp/run2/global_step10"
ucckpt convert --to hf "$tmp/run2/global_step10" "$tmp/hf2" >/dev/null
ucckpt convert --to hf "$tmp/run1/global_step10" "$tmp/hf1" >/dev/null
check "as large as one rank's" test "$(wc -c <"$tmp/hf1/model.safetensors")" = \
	"$(wc -c <"$tmp/hf2/model.safetensors")"

# --- what cannot be --------------------------------------------------------------

shared_refused "ranks that do not divide" "divide the 3 ranks" 3 "${t2[@]}"
shared_refused "heads that do not divide" "n_head 1 " 2 --n_head 1 "${t2[@]}"
shared_refused "too few tokens" "vocab_size 5 " 4 --vocab_size 5 "${t4[@]}"
shared_refused "a batch that does not divide" "2 data-parallel ranks" 4 --train_batch_size 9 "${t2[@]}"
finish
