#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Megatron-DeepSpeed itself continues from the trainer's checkpoints in its names: from the
# mount, on any numbers of tensor-parallel ranks, stages and data-parallel ranks, and from
# the files, on the same numbers.  Its losses equal those of the uninterrupted trainer.
#
#     UCFS_PYTHON=/venv/bin/python UCFS_MEGATRON=/src/Megatron-DeepSpeed megatron.sh
#
# Needs a Python with deepspeed (0.19.8 was used), regex, six, nltk, einops and pybind11,
# and Megatron-DeepSpeed's source (4efb479d of 2025-07-16 was used), of which a copy is
# changed to run without a GPU.  Takes twenty minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_megatron
require_programs mpirun uctrain
require_ucfs
make_scratch mnt

megatron=$scratch/megatron
copy_megatron "$megatron"
data=$good/megatron/data

clip=1

# go_on DIRECTORY TAG TENSOR PIPE DATA TYPE FLAG...: run Megatron's steps 21 to 25; write "step
# loss" per line to $scratch/theirs.
go_on() {
	local from=$1 tag=$2 t=$3 p=$4 d=$5 type=$6 bf16='' flag=()
	local micro=$((8 / d / 4))
	shift 6
	if [ "$type" = bf16 ]; then
		bf16=', "bf16": {"enabled": true}'
		[ $stage = 0 ] || bf16+=', "data_types": {"grad_accum_dtype": "fp32"}'
		flag=(--bf16)
	fi
	printf '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": %d,
		"gradient_clipping": %d, "zero_optimization": {"stage": %d}%s}' \
		$micro $clip $stage "$bf16" >"$scratch/ds.json"
	(cd "$megatron" && LOCAL_SIZE=$((t * p * d)) OMP_NUM_THREADS=1 timeout 600 \
		"$UCFS_PYTHON" -m torch.distributed.run --standalone --nproc_per_node $((t * p * d)) \
		pretrain_gpt.py --tensor-model-parallel-size "$t" --pipeline-model-parallel-size "$p" \
		--num-layers 2 --hidden-size 16 --num-attention-heads 4 --seq-length 32 \
		--max-position-embeddings 32 --micro-batch-size "$micro" --global-batch-size 8 \
		--train-iters 100 --exit-interval 25 --lr 6e-3 --min-lr 6e-4 --lr-decay-style cosine \
		--weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.95 --clip-grad 1.0 \
		--attention-dropout 0 --hidden-dropout 0 --openai-gelu --no-bias-gelu-fusion \
		--no-bias-dropout-fusion --no-masked-softmax-fusion --no-gradient-accumulation-fusion \
		--data-path "$data/tiny_text_document" --data-cache-path "$scratch/cache" --split 98,2,0 \
		--vocab-file "$megatron/vocab.json" --merge-file "$megatron/merges.txt" \
		--make-vocab-size-divisible-by 1 --num-workers 0 --log-interval 1 --eval-iters 1 \
		--eval-interval 1000 --save-interval 1000 --distributed-backend gloo --cpu-optimizer \
		--cpu_torch_adam --deepspeed --deepspeed_config "$scratch/ds.json" --zero-stage $stage \
		"${flag[@]}" --load "$from" --load-tag "$tag" "$@") >"$scratch/log" 2>&1
	sed -n 's/.*iteration  *\([0-9]*\)\/.*lm loss: \([^ ]*\).*/\1 \2/p' "$scratch/log" >"$scratch/theirs"
}

# loses_what LIMIT METRICS: compare the losses with those of the trainer's own steps.
loses_what() {
	awk -F'[, ]' -v limit="$1" '
	FNR == NR { if (FNR > 1) ours[$1] = $2; next }
	{
		d = $2 - ours[$1]
		if (d < 0)
			d = -d
		if (d > max)
			max = d
		n++
	}
	END { printf "%d losses, %g apart\n", n, max; exit !(n == 5 && max <= limit) }' \
		"$2" "$scratch/theirs"
}

expect() {
	local what=$1 said
	shift
	if said=$("$@"); then
		echo "ok: $what: $said"
	else
		fail "$what: $said"
		tail -n 15 "$scratch/log"
	fi
}

# save_on RANKS NAME FLAG...: train 100 steps with uctrain, saved in $run.
save_on() {
	run=$scratch/$2
	metrics=$scratch/$2-log/metrics.csv
	on_ranks "$1" uctrain --n_layer 2 --n_head 4 --n_embd 16 --n_positions 32 --seq_length 32 \
		--vocab_size 128 --data "$data/tiny_text_document" --data_samples "$data/train" \
		--train_batch_size 8 --train_micro_batch_size_per_gpu 2 --lr 6e-3 --min_lr 6e-4 \
		--lr_schedule cosine --steps 100 --betas 0.9,0.95 --weight_decay 0.1 --names megatron --checkpoint_dir "$run" \
		--checkpoint_interval 20 --log_dir "$scratch" --run_name "$2-log" "${@:3}" \
		</dev/null >"$scratch/log" 2>&1 || fail "$2: $(tail -n 5 "$scratch/log")"
}

# Saved by ranks | tensor-parallel | stages | type | largest difference
stage=1
while read -r ranks tensor pipe type limit; do
	case=t$tensor-p$pipe-$type
	save_on "$ranks" "$case" --dtype "$type" --tensor_model_parallel_size "$tensor" \
		--pipeline_model_parallel_size "$pipe"
	go_on "$run" global_step20 "$tensor" "$pipe" $((ranks / tensor / pipe)) "$type" </dev/null
	expect "$case, from its files" loses_what "$limit" "$metrics"
	ucfs "$run" "$mnt" || fail "$case: mounted"
	for other in "1 1 1" "1 1 2" "2 1 1" "1 2 1" "2 2 1"; do
		# shellcheck disable=SC2086 # numbers
		go_on "$mnt" global_step20_universal $other "$type" --universal-checkpoint </dev/null
		expect "$case, from the mount on $other" loses_what "$limit" "$metrics"
	done
	fusermount3 -u "$mnt"
done <<<"4 2 2 fp32 1e-5
2 1 1 fp32 1e-5
2 2 1 bf16 3e-3"

# Without Megatron's pipeline engine DeepSpeed's converter fails.
stage=2
save_on 4 stage2 --tensor_model_parallel_size 2 --zero_stage 2
ucfs "$run" "$mnt" || fail "stage2: mounted"
for other in "1 1 2" "2 1 1"; do
	# shellcheck disable=SC2086 # numbers
	go_on "$mnt" global_step20_universal $other fp32 --universal-checkpoint --no-pipeline-parallel
	expect "stage 2, from the mount on $other" loses_what 1e-5 "$metrics"
done
fusermount3 -u "$mnt"

# converts: check that the mount's tree equals the one that DeepSpeed's converter makes of $run.
converts() {
	"$UCFS_PYTHON" -m deepspeed.checkpoint.ds_to_universal --input_folder "$run/global_step20" \
		--output_folder "$run-tree" >"$scratch/log" 2>&1 &&
		diff -r "$run-tree" "$mnt/global_step20_universal"
}

# Stage 3 has no pipeline engine either, but the converter can read it.
stage=3
while read -r ranks tensor type limit; do
	case=stage3-t$tensor-$type
	save_on "$ranks" "$case" --zero_stage 3 --dtype "$type" --tensor_model_parallel_size "$tensor"
	go_on "$run" global_step20 "$tensor" 1 $((ranks / tensor)) "$type" --no-pipeline-parallel </dev/null
	expect "$case, from its files" loses_what "$limit" "$metrics"
	ucfs "$run" "$mnt" || fail "$case: mounted"
	expect "$case, as converted" converts
	# DeepSpeed does not cut a tree for Megatron's tensor-parallel ranks in stage 3.
	for n in 1 2; do
		[ "$tensor" = 1 ] || break
		go_on "$mnt" global_step20_universal 1 1 $n "$type" --universal-checkpoint \
			--no-pipeline-parallel </dev/null
		expect "$case, from the mount on $n" loses_what "$limit" "$metrics"
	done
	fusermount3 -u "$mnt"
done <<<"2 1 bf16 3e-3
2 1 fp32 1e-5
4 2 fp32 1e-5"

# Ranks that cut sequences, in Megatron's way or Ulysses', save the same files: the converter
# reads them, and Megatron continues from the files and from the mount, also without cutting.
while read -r stage ranks tensor pipe cut more; do
	case=$cut-z$stage-p$pipe
	# shellcheck disable=SC2086 # a flag, with a number or without
	save_on "$ranks" "$case" --zero_stage "$stage" --tensor_model_parallel_size "$tensor" \
		--pipeline_model_parallel_size "$pipe" --${cut/=/ }
	# shellcheck disable=SC2086 # a flag or none
	go_on "$run" global_step20 "$tensor" "$pipe" $((ranks / tensor / pipe)) fp32 $more </dev/null
	expect "$case, from its files" loses_what 1e-5 "$metrics"
	ucfs "$run" "$mnt" || fail "$case: mounted"
	expect "$case, as converted" converts
	# shellcheck disable=SC2086
	go_on "$mnt" global_step20_universal 1 1 1 fp32 --universal-checkpoint $more </dev/null
	expect "$case, from the mount on one" loses_what 1e-5 "$metrics"
	fusermount3 -u "$mnt"
done <<<"1 2 2 1 sequence_parallel
1 4 1 2 sequence_parallel_size=2
3 2 1 1 sequence_parallel_size=2 --no-pipeline-parallel"

# Stage 0 resumes only from its files.  DeepSpeed's norm then counts shared parameters repeatedly.
stage=0 clip=1000
while read -r ranks tensor pipe type limit more; do
	case=stage0-t$tensor-p$pipe-$type
	save_on "$ranks" "$case" --zero_stage 0 --dtype "$type" --tensor_model_parallel_size "$tensor" \
		--pipeline_model_parallel_size "$pipe" --gradient_clipping $clip
	# shellcheck disable=SC2086 # a flag or none
	go_on "$run" global_step20 "$tensor" "$pipe" $((ranks / tensor / pipe)) "$type" $more </dev/null
	expect "$case, from its files" loses_what "$limit" "$metrics"
done <<<"2 1 1 fp32 1e-5
4 2 2 fp32 1e-5
2 2 1 bf16 3e-3 --no-pipeline-parallel"
[ "$failures" -eq 0 ]
