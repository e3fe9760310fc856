#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a step asks of emulated GPUs, for each stage on one and two ranks: copies between
# host and device, in numbers and bytes, the host's waits, launches of kernels, products,
# and what is zeroed: what is due, and nothing else.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

rank=("$top_builddir/tests/programs/uctrain_emulated")
[ -x "${rank[0]}" ] || skip "nothing emulates a GPU"
[ "${sanitize:-no}" = no ] || skip "the copies are the same with a sanitizer"

# A step on the given stage and number of ranks, by the given one: what three steps ask for
# more than two, in the order of struct cudaemu_traffic.
step() {
	local stage=$1 ranks=$2 of=$3

	awk 'NR == 1 { split($0, a) }
		NR == 2 { for (i = 1; i <= NF; i++) printf "%d%s", $i - a[i], i < NF ? " " : "\n" }' \
		"$tmp/$stage-$ranks-2.$of" "$tmp/$stage-$ranks-3.$of"
}

for stage in 0 1 2 3; do
	for ranks in 1 2; do
		for steps in 2 3; do
			export CUDAEMU_TRAFFIC=$tmp/$stage-$ranks-$steps
			train "$ranks" "run-$stage-$ranks-$steps" "${tiny[@]}" --device cuda --dtype bf16 \
				--train_batch_size "$ranks" --train_micro_batch_size_per_gpu 1 \
				--zero_stage "$stage" --steps "$steps"
		done
	done
done
unset CUDAEMU_TRAFFIC

# Elements of $tiny's units: the embeddings, two blocks, the last norm.  All parameters have even
# sizes, so that halves need no padding; the middle is in the first block.
embed=$((256 * 32 + 32 * 32)) block=$((12 * 32 * 32 + 13 * 32)) last=$((2 * 32))
all=$((embed + 2 * block + last))
half=$((all / 2))
# Stage 3 gathers the embeddings for both ends, and each block forward and backward.
gathered=$((2 * embed + 4 * block + last))
params=28 gathers=$((2 * 2 + 4 * 12 + 2))

# Always: tokens and targets, one row of 32 int32 each; the loss and the norm, a double each.
# Gradients are float32, weights bfloat16.  Through the host each rank reads the whole gradient
# and writes its sum; of weights it reads its own part and writes the others'.
due_copies() {
	case $1,$2,$3 in
	*,1,*) echo 2 256 2 16 ;;
	0,2,*) echo 3 $((256 + 4 * all)) 3 $((16 + 4 * all)) ;;
	1,2,*) echo 4 $((256 + 4 * half + 2 * half)) 5 $((16 + 4 * all + 2 * half)) ;;
	# By unit: one has pieces of both ranks, two or three one of this rank.
	2,2,0) echo 5 $((256 + 4 * half + 2 * half)) 8 $((16 + 4 * all + 2 * half)) ;;
	2,2,1) echo 6 $((256 + 4 * half + 2 * half)) 8 $((16 + 4 * all + 2 * half)) ;;
	3,2,*) echo $((2 + params + gathers)) $((256 + 4 * half + gathered)) \
		$((2 + 2 * params + gathers)) $((16 + 4 * all + gathered)) ;;
	esac
}

# A block: two norms and attention; backward, attention in three kernels, and of each norm the rows
# and the sums of their chunks.  Once: the embeddings, the last norm and its gradient, the losses and
# their sum, four kernels of the embeddings' gradient, the norm of the gradient in two, and Adam.
# Nothing is added to a gradient by the first micro-batch.
launches=$((2 * (3 + 3 + 4) + 1 + 1 + 2 + 2 + 4 + 2 + 1))
# Four of each block and the head, forward and twice backward.
products=$((3 * (2 * 4 + 1)))

# The loss, the norm, the gradients of the residual stream and of positions, which need not all be
# in a row.
zeroed="4 $((8 + 8 + 2 * 32 * 32 + 4 * 32 * 32))"

# The host waits for each copy, after the pass, and after the update.
due() {
	local copies in out

	copies=$(due_copies "$@")
	read -r in _ out _ <<<"$copies"
	echo "$copies" $((in + out + 2)) "$launches" "$products" "$zeroed"
}

for stage in 0 1 2 3; do
	for ranks in 1 2; do
		for of in $(seq 0 $((ranks - 1))); do
			check "stage $stage, rank $of of $ranks: $(step "$stage" "$ranks" "$of")" \
				test "$(step "$stage" "$ranks" "$of")" = "$(due "$stage" "$ranks" "$of")"
		done
	done
done

# A build without NCCL gives that as the cause.
no_nccl="^uctrain: NCCL is not used, .*: this uctrain was built without it$"
reported_once() {
	test "$(grep -c -e "^uctrain: NCCL is not used, .*: $1\$" -e "$no_nccl" "$tmp/$2.log")" = 1
}

# Two ranks say once why they do not use NCCL, and only then.
check "one rank: no warning" test "$(grep -c 'NCCL is not used' "$tmp/run-1-1-2.log")" = 0
train 3 shared "${tiny[@]}" --device cuda --train_batch_size 3 --steps 1
train 2 own "${tiny[@]}" --device cuda --train_batch_size 2 --steps 1
check "three ranks on two devices: the cause" \
	reported_once "ranks 0 and 2 share device 0000:00:00.0" shared
check "a device each, but no NCCL: the cause" reported_once "the GPUs are emulated" own
# As with Slurm, which shows each rank its own device as number 0.
CUDAEMU_DEVICES=own train 3 visible "${tiny[@]}" --device cuda --train_batch_size 3 --steps 1
check "each rank sees its own device alone" reported_once "the GPUs are emulated" visible
finish
