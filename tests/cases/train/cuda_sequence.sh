#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on CUDA that cut the positions of rows, around attention (Ulysses) or within a
# tensor-parallel group (Megatron's), train like one rank and like ranks on the CPU, with NCCL.
# Without a GPU, both are emulated.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
sanitized_by train/sequence train/cuda_shared
require_train

# Validation uses the whole last tenth of the text, so it is short.
head -c 800 "$top_srcdir/LICENSE" >"$tmp/text"
flags=("${tiny[@]}" --n_head 4 --n_embd 32 --vocab_size 257 --seq_length 16 --lr 1e-3
	--data "$tmp/text" --train_batch_size 4 --train_micro_batch_size_per_gpu 2
	--eval_interval 2 --steps 2)

# Ranks | of which sequence-parallel | tensor-parallel | stages | ZeRO stage | more
plan="2 2 1 1 1
2 1 2 1 1 --sequence_parallel
4 4 1 1 3
4 2 2 1 2 --recompute
4 2 2 1 1 --sequence_parallel
4 2 1 2 1 --train_micro_batch_size_per_gpu 1
4 1 2 2 0 --sequence_parallel --dropout 0.1"
dtypes="bf16 fp16"
if [ "${sanitize:-no}" != no ]; then
	echo "under sanitizers: only the last topology, fp32, and no copies are counted"
	plan=${plan##*$'\n'} dtypes=
fi

# Set $name and $how_cut for a row of the plan.
row() {
	name=n$1-s$2-t$3-p$4-z$5${*:6}
	name=${name// /}
	how_cut=(--sequence_parallel_size "$2" --tensor_model_parallel_size "$3"
		--pipeline_model_parallel_size "$4" --zero_stage "$5" "${@:6}")
}

while read -r line; do
	# shellcheck disable=SC2086 # words
	row $line
	train_later "${line%% *}" "cpu-$name" "${flags[@]}" "${how_cut[@]}"
done <<<"$plan"
train_all
find_cuda
rank=("${cuda[@]}")
device=(--device cuda)
train_later 1 one "${flags[@]}"
train_later 1 one-drop "${flags[@]}" --dropout 0.1
for dtype in $dtypes; do
	train_later 1 one-$dtype "${flags[@]}" --dtype $dtype --dropout 0.1
done

while read -r line; do
	# shellcheck disable=SC2086
	row $line
	train_later "${line%% *}" "$name" "${flags[@]}" "${how_cut[@]}"
done <<<"$plan"
for dtype in $dtypes; do
	train_later 4 cut-$dtype "${flags[@]}" --sequence_parallel_size 2 \
		--tensor_model_parallel_size 2 --sequence_parallel --dtype $dtype --dropout 0.1
done
train_all

while read -r line; do
	# shellcheck disable=SC2086
	row $line
	case $line in *dropout*) one=one-drop ;; *) one=one ;; esac
	alike "$name" 1e-5 $one "$name"
	alike "$name, the CPU's" 1e-4 "cpu-$name" "$name"
done <<<"$plan"
# In 16-bit types the rounding of sums differs.
for dtype in $dtypes; do
	d=$(apart one-$dtype cut-$dtype 1)
	check "$dtype with dropout: $d apart" within 3e-3 "$d"
done

emulated && [ -n "$dtypes" ] || finish

# Print numbers and bytes of copies to the device, and to the host, by rank $1 of two in the
# second step.
step() {
	awk '{ for (i = 1; i <= 4; i++) { d[i] = $i - a[i]; a[i] = $i } }
		END { print d[1], d[2], d[3], d[4] }' "$tmp/traffic-$tokens.$1"
}

# Bytes copied: the tokens and targets of a row, int32; the step's arguments, 48 bytes in two
# copies; and the loss and the norm, doubles.
while read -r tokens cut; do
	# shellcheck disable=SC2086
	CUDAEMU_STEPS=$tmp/traffic-$tokens train 2 "traffic-$tokens" "${tiny[@]}" --dtype bf16 \
		--train_batch_size 1 --zero_stage 0 $cut --steps 3
	for of in 0 1; do
		check "$cut, rank $of: $(step $of)" test "$(step $of)" = "3 $((2 * 4 * tokens + 48)) 2 16"
	done
done <<<"16 --sequence_parallel_size 2
32 --tensor_model_parallel_size 2 --sequence_parallel"
finish
