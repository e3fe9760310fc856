#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Operations of different streams give the same bits, in a run and its checkpoints, in any order
# that events allow: an emulated GPU takes another random order in each run of a process, starting
# from $CUDAEMU_SEED.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

rank=("$top_builddir/tests/programs/uctrain_emulated")
[ -x "${rank[0]}" ] || skip "nothing emulates a GPU"
export CUDAEMU_NCCL=1 CUDAEMU_DEVICES=own
orders="0 1 2"

flags=("${tiny[@]}" --device cuda --dtype bf16 --train_micro_batch_size_per_gpu 1 --eval_interval 2)

# in_stage STAGE NAME FLAG...: train; stage 0 has one rank, which waits less often, since values
# that ranks agree on wait for the device.
in_stage() {
	train_later $(($1 ? 2 : 1)) "$2" "${flags[@]}" --train_batch_size 4 --zero_stage "$1" "${@:3}"
}

for i in $orders; do
	for stage in 0 2 3; do
		in_stage $stage "stage$stage-$i" --steps 4 --cuda_graph off --async_save \
			--checkpoint_interval 2 --checkpoint_dir "$tmp/stage$stage-$i.ckpt"
	done
	train_later 2 "tensor-$i" "${flags[@]}" --steps 2 --train_batch_size 2 --dropout 0.1 \
		--tensor_model_parallel_size 2 --sequence_parallel
	train_later 2 "sequence-$i" "${flags[@]}" --steps 2 --train_batch_size 2 --dropout 0.1 \
		--sequence_parallel_size 2
	train_later 2 "pipeline-$i" "${flags[@]}" --steps 2 --train_batch_size 4 \
		--pipeline_model_parallel_size 2
done
train_all
for i in $orders; do
	for stage in 0 2 3; do
		(cd "$tmp/stage$stage-$i.ckpt" && find . -name '*.pt' -exec sha256sum {} + | sort) >"$tmp/sums-$stage-$i"
		check "stage $stage, $i: checkpoints" test -s "$tmp/sums-$stage-$i"
		check "stage $stage, $i: the same files" cmp "$tmp/sums-$stage-0" "$tmp/sums-$stage-$i"
		in_stage $stage "resumed$stage-$i" --steps 6 --resume --checkpoint_dir "$tmp/stage$stage-$i.ckpt"
	done
done
train_all
for i in $orders; do
	for kind in stage0 stage2 stage3 tensor sequence pipeline resumed0 resumed2 resumed3; do
		same_bits "$kind, $i" "$kind-0" "$kind-$i"
	done
done
finish
