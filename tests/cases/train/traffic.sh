#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Count the operations of a step on emulated GPUs, for each stage on one and two ranks: copies
# between host and device, in numbers and bytes, the host's waits, launches of kernels, products,
# bytes zeroed, and for a replayed step the host's calls.  Only the necessary ones may occur.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

rank=("$top_builddir/tests/programs/uctrain_emulated")
[ -x "${rank[0]}" ] || skip "nothing emulates a GPU"
export CUDAEMU_NCCL=1 CUDAEMU_DEVICES=own

# step: print the counters of the given rank's third step, in the order of struct cudaemu_traffic.
step() {
	awk -v fourth="${fourth["$1-$2-$3-$4"]}" 'NR == fourth - 1 { split($0, a) }
		NR == fourth { for (i = 1; i <= NF; i++) printf "%d%s", $i - a[i], i < NF ? " " : "\n" }' \
		"$tmp/$1-$3-$4.$5"
}

# runs HOW RANKS PASSES STAGE...: run each stage.  Each rank has a row per pass.  Names that end
# in 16 reduce gradients in 16 bits; with -boundary, once per step.
runs() {
	local how=$1 ranks=$2 passes=$3 stage flags=() steps=0

	case $how in
	*16) flags=(--communication_data_type bf16) ;;
	*-boundary) flags=(--reduce_at_boundary) ;;
	esac

	for stage in "${@:4}"; do
		train_later "$ranks" "run-$how-$stage-$ranks-$passes" "${tiny[@]}" --device cuda \
			--dtype bf16 --train_batch_size $((ranks * passes)) \
			--train_micro_batch_size_per_gpu 1 --zero_stage "$stage" --steps 4 \
			"${flags[@]}"
		# Counters at the start of the fourth step.
		fourth["$how-$stage-$ranks-$passes"]=$((steps += 4))
	done
	CUDAEMU_STEPS=$tmp/$how-$ranks-$passes train_all
}
declare -A fourth

# Elements of $tiny's units: the embeddings, two blocks, the last norm.  All parameters have even
# sizes, so that halves need no padding; the middle is in the first block.
embed=$((256 * 32 + 32 * 32)) block=$((12 * 32 * 32 + 13 * 32)) last=$((2 * 32))
all=$((embed + 2 * block + last))
half=$((all / 2))
# Stage 3 gathers the embeddings for both ends, and each block forward and backward.
gathered=$((2 * embed + 4 * block + last))
params=28 gathers=$((2 * 2 + 4 * 12 + 2))

# Every step copies the tokens and targets of all passes, rows of 32 int32; what differs between
# passes, 16 bytes each, and between updates, 32; the losses, and the norm, doubles.  Each is one
# copy.
due_copies() {
	echo 3 $((256 * $4 + 16 * $4 + 32)) 2 $((8 * $4 + 8))
}

# Kernels of a pass: the embeddings, the last norm and its gradient, the losses and their sum,
# four of the embeddings' gradient, and for each block two norms and attention; backward, three of
# attention, and for each norm the rows and the sums of their chunks.  Of an update: two for the
# norm of the gradient, the clipping factor, and Adam.
pass=$((1 + 1 + 2 + 2 + 4 + 2 * (3 + 3 + 4))) update=4
# The first pass adds nothing to a gradient.  Later ones add two biases of each block, which
# products sum, if the buffer is the rank's for all passes; else the reduced gradients.
due_launches() {
	local added

	case ${1##*[a-z]},$2,$3,$5 in
	16,[23],*) added=0 ;;
	,[01],* | 16,[01],*) added=$((2 * 2)) ;;
	,2,1,*) added=4 ;;
	,2,2,0) added=2 ;;
	,2,2,1) added=3 ;;
	,3,*) added=$params ;;
	esac
	echo $((update + $4 * pass + ($4 - 1) * added + $(due_rounding "$@")))
}

# With 16 bits each unit is rounded, in all passes from stage 2 on, and this rank's pieces are
# cast back to float32: two or three units, or each parameter.
due_rounding() {
	case $1,$2 in
	nccl16,0) echo $((4 + 4)) ;;
	nccl16,1) echo $((4 + 2 + $5)) ;;
	nccl16,2) echo $((($4) * (4 + 2 + $5))) ;;
	nccl16,3) echo $(($4 * (4 + params))) ;;
	*) echo 0 ;;
	esac
}

# Products: four for each block and one for the head, forward and twice backward.
products=$((3 * (2 * 4 + 1)))

# Zeroed bytes: the losses, the norm, the gradient of the residual stream in each pass, and that of
# the positions, not all of which a row may have: once or, in buffers of units, in each pass.
due_zeroed() {
	local positions=1

	[ "$2" -ge 2 ] && positions=$4
	echo $((2 + $4 + positions)) \
		$((8 * $4 + 8 + $4 * 2 * 32 * 32 + positions * 4 * 32 * 32))
}

# Collectives of NCCL: the sum of each unit's gradient, from stage 2 on in each pass; the norm;
# and the weights, which stage 3 gathers by unit in each pass: the embeddings for both ends,
# blocks forward and backward.
due_collectives() {
	case $1,$2 in
	one,*) echo 0 ;;
	nccl*,0) echo 4 ;;
	nccl*,1) echo $((4 + 1 + 1)) ;;
	nccl*,2) echo $((4 * $4 + 1 + 1)) ;;
	nccl*,3) echo $(((4 + 2 + 2 * 2 + 1) * $4 + 1)) ;;
	esac
}

# Bytes that a rank contributes to reductions: its whole gradient, and the norm's double.
due_reduced() {
	case $1,$2 in
	one,*) echo 0 ;;
	nccl,0) echo $((4 * all)) ;;
	nccl,1) echo $((4 * all + 8)) ;;
	nccl,*) echo $(($4 * 4 * all + 8)) ;;
	nccl16,0) echo $((2 * all)) ;;
	nccl16,1) echo $((2 * all + 8)) ;;
	nccl16,*) echo $(($4 * 2 * all + 8)) ;;
	esac
}

# The host waits once.  Two calls replay a step: the copy of its tokens, and the graph.
due() {
	echo "$(due_copies "$@")" 1 "$(due_launches "$@")" $((products * $4)) \
		"$(due_zeroed "$@")" "$(due_collectives "$@")" "$(due_reduced "$@")" 2
}

while read -r how ranks passes; do
	runs "$how" "$ranks" "$passes" 0 1 2 3
	for stage in 0 1 2 3; do
		for of in $(seq 0 $((ranks - 1))); do
			set -- "$how" "$stage" "$ranks" "$passes" "$of"
			check "$how, stage $stage, rank $of of $ranks, $passes passes: $(step "$@")" \
				test "$(step "$@")" = "$(due "$@")"
		done
	done
done <<<"one 1 1
one 1 3
nccl 2 1
nccl 2 3
nccl16 2 3"

# Stage 2 with three passes and one reduction has the counters of stage 1.
runs nccl-boundary 2 3 2
for of in 0 1; do
	set -- nccl-boundary 2 2 3 $of
	check "stage 2 at the boundary, rank $of: $(step "$@")" test "$(step "$@")" = "$(due nccl 1 2 3 $of)"
done

# Chunks of logits take a quarter of the remaining memory; with --deterministic their size is the
# same on any machine.  A chunk needs three products.
products_of() {
	local memory=$1 ranks=$2
	shift 2
	CUDAEMU_MEMORY=$((memory << 20)) CUDAEMU_TRAFFIC=$tmp/logits \
		train "$ranks" "logits-$memory-$ranks${1-}" --n_layer 1 --n_head 1 \
		--n_embd 8 --vocab_size 32768 --n_positions 64 --seq_length 64 --train_batch_size $((4 * ranks)) \
		--train_micro_batch_size_per_gpu 4 --steps 1 --device cuda "$@"
	cut -d ' ' -f 7 "$tmp/logits.0"
}
# 256 rows of 128 KiB.
whole=$(products_of 4096 1)
check "logits: half fit in a quarter of what is left" test "$(products_of 90 1)" = $((whole + 3))
check "logits: half at least" test "$(products_of 20 1)" = $((whole + 3))
check "logits: as on any machine" test "$(products_of 90 1 --deterministic)" = "$whole"

# refused "why" NAME RANKS: ranks that share a GPU, or lack NCCL, end with one message.
refused() {
	if try_train "$3" "$2" "${tiny[@]}" --device cuda --train_batch_size "$3" --steps 1; then
		fail "$2: was accepted"
	fi
	check "$2: one message" test "$(grep -c -e "^uctrain: .*$1" -e "built without it$" "$tmp/$2.log")" = 1
}
unset CUDAEMU_DEVICES
refused "ranks 0 and 2 share device 0000:00:00.0; each needs a GPU of its own" shared 3
unset CUDAEMU_NCCL
refused "2 ranks with GPUs need NCCL: the GPUs are emulated" own 2
finish
