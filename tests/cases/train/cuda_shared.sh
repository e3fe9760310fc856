#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on CUDA that share a model, by tensors or by layers, train like one rank and like ranks on
# the CPU.  NCCL exchanges data of the GPUs.  Without a GPU, both are emulated.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

# Validation uses the whole last tenth of the text, so it is short.
head -c 1400 "$top_srcdir/LICENSE" >"$tmp/text"
# 257 tokens are not divisible: the last tensor-parallel rank has padding rows.
flags=("${tiny[@]}" --n_layer 3 --n_embd 16 --vocab_size 257 --seq_length 16 --lr 1e-3
	--data "$tmp/text" --train_batch_size 8 --train_micro_batch_size_per_gpu 2
	--eval_interval 2 --steps 2)
shared() { echo "--tensor_model_parallel_size $1 --pipeline_model_parallel_size $2"; }

# Ranks | of which tensor-parallel | stages | ZeRO stage | micro-batch
plan="4 2 1 0 2
4 2 1 2 1
4 2 1 3 2
4 1 2 1 2
3 1 3 1 1
4 2 2 1 2"
dtypes="bf16 fp16"
if [ "${sanitize:-no}" != no ]; then
	echo "under sanitizers: only the last topology, fp32, and no copies are counted"
	plan=${plan##*$'\n'} dtypes=
fi

train_later 1 cpu "${flags[@]}"
train_all
find_cuda
rank=("${cuda[@]}")
device=(--device cuda)
train_later 1 one "${flags[@]}"
for dtype in $dtypes; do
	train_later 1 one-$dtype "${flags[@]}" --dtype $dtype --dropout 0.1
done

while read -r ranks tensor pipe stage micro; do
	# shellcheck disable=SC2046 # words
	train_later "$ranks" n$ranks-t$tensor-p$pipe-z$stage "${flags[@]}" \
		$(shared "$tensor" "$pipe") --zero_stage "$stage" \
		--train_micro_batch_size_per_gpu "$micro"
done <<<"$plan"
# shellcheck disable=SC2046
for dtype in $dtypes; do
	train_later 4 shared-$dtype "${flags[@]}" $(shared 2 2) --dtype $dtype --dropout 0.1
done
# shellcheck disable=SC2046
for ranks in 2 4; do
	train_later $ranks exact$ranks "${flags[@]}" $(shared 1 2) --rank_invariant
done
train_all

alike "one rank" 1e-4 cpu one
while read -r ranks tensor pipe stage micro; do
	name=n$ranks-t$tensor-p$pipe-z$stage
	alike $name 1e-5 one $name
done <<<"$plan"
# In 16-bit types the rounding of sums differs.
for dtype in $dtypes; do
	d=$(apart one-$dtype shared-$dtype 1)
	check "$dtype with dropout: $d apart" within 3e-3 "$d"
done
same_bits "rank-invariant" exact2 exact4

emulated && [ -n "$dtypes" ] || finish

# A bf16 step on two ranks as rank $3 sees it, less the copies of a single rank: print numbers and
# bytes of copies to the device, and to the host in the second step.
step() {
	local ranks=$1 tensor=$2 of=$3 name=traffic-$1-$2

	# shellcheck disable=SC2046
	[ -e "$tmp/$name.$of" ] ||
		CUDAEMU_STEPS=$tmp/$name train "$ranks" "$name" "${tiny[@]}" --dtype bf16 \
			--train_batch_size 1 --zero_stage 0 $(shared "$tensor" $((ranks / tensor))) --steps 3
	awk '{ for (i = 1; i <= 4; i++) { d[i] = $i - a[i]; a[i] = $i } }
		END { print d[1], d[2], d[3], d[4] }' "$tmp/$name.$of"
}

beyond_one() {
	paste -d' ' <(step 1 1 0) <(step "$@") | awk '{ print $5 - $1, $6 - $2, $7 - $3, $8 - $4 }'
}

# Data exchanged by ranks never passes through the host.
for of in 0 1; do
	check "tensors, rank $of: $(beyond_one 2 2 $of)" test "$(beyond_one 2 2 $of)" = "0 0 0 0"
	check "stages, rank $of: $(beyond_one 2 1 $of)" test "$(beyond_one 2 1 $of)" = "0 0 0 0"
done
finish
