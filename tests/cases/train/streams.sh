#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The order in which a GPU does what different streams have been given changes no bit of
# a run or of its checkpoints, where events leave one: emulated GPUs take another order for
# each seed.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

rank=("$top_builddir/tests/programs/uctrain_emulated")
[ -x "${rank[0]}" ] || skip "nothing emulates a GPU"
export CUDAEMU_NCCL=1 CUDAEMU_DEVICES=own
seeds=8
[ "${sanitize:-no}" = no ] || seeds=1

flags=("${tiny[@]}" --device cuda --dtype bf16 --train_micro_batch_size_per_gpu 1 --eval_interval 2)
kinds=(stage0 stage2 stage3 tensor sequence pipeline)
for seed in $(seq 0 $seeds); do
	for stage in 0 2 3; do
		train_later 2 "stage$stage-$seed" "${flags[@]}" --steps 4 --train_batch_size 4 \
			--zero_stage $stage --cuda_graph off --async_save --checkpoint_interval 2 \
			--checkpoint_dir "$tmp/stage$stage-$seed.ckpt"
	done
	train_later 2 "tensor-$seed" "${flags[@]}" --steps 2 --train_batch_size 2 --dropout 0.1 \
		--tensor_model_parallel_size 2 --sequence_parallel
	train_later 2 "sequence-$seed" "${flags[@]}" --steps 2 --train_batch_size 2 --dropout 0.1 \
		--sequence_parallel_size 2
	train_later 2 "pipeline-$seed" "${flags[@]}" --steps 2 --train_batch_size 4 \
		--pipeline_model_parallel_size 2
	CUDAEMU_SEED=$seed train_all
	for kind in "${kinds[@]}"; do
		same_bits "$kind, seed $seed" "$kind-0" "$kind-$seed"
	done
	for stage in 0 2 3; do
		(cd "$tmp/stage$stage-$seed.ckpt" && find . -name '*.pt' -exec sha256sum {} + | sort) >"$tmp/sums-$stage-$seed"
		check "stage $stage, seed $seed: checkpoints" test -s "$tmp/sums-$stage-$seed"
		check "stage $stage, seed $seed: the same files" cmp "$tmp/sums-$stage-0" "$tmp/sums-$stage-$seed"
		# Loading, too.
		train_later 2 "again$stage-$seed" "${flags[@]}" --steps 6 --train_batch_size 4 \
			--zero_stage $stage --resume --checkpoint_dir "$tmp/stage$stage-$seed.ckpt"
	done
	CUDAEMU_SEED=$seed train_all
	for stage in 0 2 3; do
		same_bits "resumed, stage $stage, seed $seed" "again$stage-0" "again$stage-$seed"
	done
done
finish
