#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A run of Megatron-DeepSpeed resumes on other tensor-parallel ranks.
#
#     $ export MEGATRON=$HOME/Megatron-DeepSpeed DATA=$HOME/data
#     $ RANKS=2 TENSOR=2 bash megatron_deepspeed.sh
#     $ mkdir mnt
#     $ ucfs -o preset=megatron-qkv-thirds run mnt
#     $ RANKS=4 TENSOR=1 bash megatron_deepspeed.sh mnt/global_step4_universal
#     $ fusermount3 -u mnt
#
# Two GPUs share each layer, train 8 steps and save after 4; of four GPUs each has the whole
# model, and steps 5 to 8 have the same losses.  The directory DATA has text_document.bin
# and .idx, of Megatron's preprocess_data.py, and GPT-2's vocab.json and merges.txt.  Before
# December 2024 Megatron-DeepSpeed saved query_key_value in another order, for which the
# preset is megatron-qkv-by-head.
set -eu -o pipefail
if [ $# -gt 0 ]; then
	set -- --universal-checkpoint --load "${1%/*}" --load-tag "${1##*/}"
else
	set -- --save run
fi
cat >ds_config.json <<END
{"train_batch_size": 8, "train_micro_batch_size_per_gpu": $((8 * TENSOR / ${RANKS:?})),
 "gradient_clipping": 1, "zero_optimization": {"stage": 1}}
END
torchrun --nproc_per_node "$RANKS" "$MEGATRON/pretrain_gpt.py" \
	--tensor-model-parallel-size "$TENSOR" --num-layers 2 --hidden-size 32 \
	--num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 \
	--global-batch-size 8 --micro-batch-size $((8 * TENSOR / RANKS)) --lr 6e-3 --clip-grad 1 \
	--attention-dropout 0 --hidden-dropout 0 --train-iters 8 --save-interval 4 \
	--log-interval 1 --eval-iters 0 --data-path "$DATA/text_document" --split 100,0,0 \
	--vocab-file "$DATA/vocab.json" --merge-file "$DATA/merges.txt" \
	--deepspeed --deepspeed_config ds_config.json --zero-stage 1 "$@" |
	sed -n 's/.*iteration  *\([0-9]*\)\/.*lm loss: \([^ ]*\).*/step \1 loss \2/p'
