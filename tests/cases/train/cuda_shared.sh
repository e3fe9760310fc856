#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on CUDA that share a model, by tensors or by layers, train as one rank does, and
# as ranks on the CPU: with NCCL, which exchanges what is on the GPUs, and through
# hosts.  Without a GPU, CUDA and NCCL are emulated.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

# A short text: a validation is of all its last tenth.
head -c 1400 "$top_srcdir/LICENSE" >"$tmp/text"
# 257 tokens do not divide: the last tensor-parallel rank has rows of padding.
flags=("${tiny[@]}" --n_layer 3 --n_embd 16 --vocab_size 257 --seq_length 16 --lr 1e-3
	--data "$tmp/text" --train_batch_size 8 --train_micro_batch_size_per_gpu 2
	--eval_interval 2 --steps 2)
shared() { echo "--tensor_model_parallel_size $1 --pipeline_model_parallel_size $2"; }

# Ranks | of them tensor-parallel | stages | ZeRO's | micro-batch
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

for how in nccl host; do
	exchange_by $how
	while read -r ranks tensor pipe stage micro; do
		# shellcheck disable=SC2046 # words
		train_later "$ranks" $how-n$ranks-t$tensor-p$pipe-z$stage "${flags[@]}" \
			$(shared "$tensor" "$pipe") --zero_stage "$stage" \
			--train_micro_batch_size_per_gpu "$micro"
	done <<<"$plan"
	# shellcheck disable=SC2046
	for dtype in $dtypes; do
		train_later 4 $how-$dtype "${flags[@]}" $(shared 2 2) --dtype $dtype --dropout 0.1
	done
	# shellcheck disable=SC2046
	for ranks in 2 4; do
		train_later $ranks $how-exact$ranks "${flags[@]}" $(shared 1 2) --rank_invariant
	done
done
train_all

alike "one rank" 1e-4 cpu one
for how in nccl host; do
	while read -r ranks tensor pipe stage micro; do
		name=$how-n$ranks-t$tensor-p$pipe-z$stage
		alike $name 1e-5 one $name
		check "$name: its way" exchanged_by $how $name
	done <<<"$plan"
	# 16-bit types round other sums.
	for dtype in $dtypes; do
		d=$(apart one-$dtype $how-$dtype 1)
		check "$how, $dtype with dropout: $d apart" within 3e-3 "$d"
	done
	same_bits "$how: rank-invariant" $how-exact2 $how-exact4
done

# --- what a step copies between host and device -----------------------------------

emulated && [ -n "$dtypes" ] || finish

# A step of bf16 on two ranks as rank $4 sees it, less what one rank alone copies: numbers
# and bytes of copies to the device, and to the host in the second step.
step() {
	local how=$1 ranks=$2 tensor=$3 of=$4 name=traffic-$1-$2-$3

	# shellcheck disable=SC2046
	[ -e "$tmp/$name.$of" ] ||
		CUDAEMU_STEPS=$tmp/$name train "$ranks" "$name" "${tiny[@]}" --dtype bf16 \
			--train_batch_size 1 --zero_stage 0 $(shared "$tensor" $((ranks / tensor))) --steps 3
	awk '{ for (i = 1; i <= 4; i++) { d[i] = $i - a[i]; a[i] = $i } }
		END { print d[1], d[2], d[3], d[4] }' "$tmp/$name.$of"
}

beyond_one() {
	paste -d' ' <(step host 1 1 0) <(step "$@") | awk '{ print $5 - $1, $6 - $2, $7 - $3, $8 - $4 }'
}

# Through hosts: the residual stream of 32 rows of 32, as floats, forward and backward once for
# each of attention and MLP of two blocks, for the embedding, and for the head; three floats of
# each row from one rank, and for it from two.  The sum of squares, a double, goes both ways.
sums=$((2 * 2 * 2 + 2)) stream=$((32 * 32 * 4)) numbers=$((32 * 3 * 4))
tensor_due="$((sums + 3)) $((sums * stream + 2 * numbers + 8)) $((sums + 2)) $((sums * stream + numbers + 8))"
# Activations and their gradient in bf16, the embedding's gradient of both ends, and the squares.
cut=$((stream / 2 + 256 * 32 * 4 + 8))

export CUDAEMU_DEVICES=own
for of in 0 1; do
	check "hosts, tensors, rank $of: $(beyond_one host 2 2 $of)" \
		test "$(beyond_one host 2 2 $of)" = "$tensor_due"
	check "hosts, stages, rank $of: $(beyond_one host 2 1 $of)" \
		test "$(beyond_one host 2 1 $of)" = "3 $cut 3 $cut"
	export CUDAEMU_NCCL=1
	check "NCCL, tensors, rank $of: $(beyond_one nccl 2 2 $of)" \
		test "$(beyond_one nccl 2 2 $of)" = "0 0 0 0"
	check "NCCL, stages, rank $of: $(beyond_one nccl 2 1 $of)" \
		test "$(beyond_one nccl 2 1 $of)" = "0 0 0 0"
	unset CUDAEMU_NCCL
done
finish
