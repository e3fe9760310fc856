#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs on the CPU and on CUDA have the same learning curve, and each resumes the other's
# checkpoints.  Without a GPU, CUDA is emulated.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

flags=("${tiny[@]}" --train_batch_size 2 --train_micro_batch_size_per_gpu 1)
find_cuda
# The host cannot access an emulated device's memory.
[ "${sanitize:-no}" != no ] || export CUDAEMU_APART=1
steps=2
[ "${cuda[0]}" != uctrain ] || steps=100

on_cuda() {
	local rank=("${cuda[@]}")

	train "$@" --device cuda
}

half=$((steps / 2))
stages=(1 2 3)
recomputed=(blocks gelu norms gelu,norms)
if [ "${sanitize:-no}" != no ]; then
	echo "under sanitizers: one stage on three ranks, and one way to recompute"
	stages=(3)
	recomputed=(gelu,norms)
fi
for dtype in fp32 bf16; do
	f=("${flags[@]}" --dtype "$dtype")
	train 1 "cpu-$dtype" "${f[@]}" --steps "$steps" \
		--checkpoint_dir "$tmp/cpu-$dtype" --checkpoint_interval "$half"
	on_cuda 1 "cuda-$dtype" "${f[@]}" --steps "$steps" \
		--checkpoint_dir "$tmp/cuda-$dtype" --checkpoint_interval "$half"
	check "$dtype: CUDA's checkpoint is whole" ucckpt check --data "$tmp/cuda-$dtype/global_step$half"
	train 1 "cpu-resumed-$dtype" "${f[@]}" --steps "$steps" \
		--resume="$tmp/cuda-$dtype" --checkpoint_tag "global_step$half"
	on_cuda 1 "cuda-resumed-$dtype" "${f[@]}" --steps "$steps" --recompute \
		--resume="$tmp/cpu-$dtype" --checkpoint_tag "global_step$half"
done

# Two ranks on the CPU resume a checkpoint of three.
several=("${tiny[@]}" --train_batch_size 6 --train_micro_batch_size_per_gpu 1)
train 1 one "${several[@]}" --steps 2
for stage in "${stages[@]}"; do
	on_cuda 3 "three-z$stage" "${several[@]}" --zero_stage "$stage" --steps 2 \
		--checkpoint_dir "$tmp/three-z$stage" --checkpoint_interval 1
	check "stage $stage on three ranks" within 1e-4 "$(apart one "three-z$stage" 1)"
	ucckpt convert "$tmp/three-z$stage/global_step1" "$tmp/three-z$stage/tree" >/dev/null ||
		fail "convert stage $stage"
	train 2 "two-z$stage" "${several[@]}" --zero_stage "$stage" --steps 2 \
		--resume="$tmp/three-z$stage/tree" --universal_checkpoint
	check "stage $stage goes on with two on the CPU" within 1e-4 "$(apart one "two-z$stage" 2)"
done

# Any number of ranks gives bit-identical results.
same=("${several[@]}" --rank_invariant --steps 2)
on_cuda 1 same1 "${same[@]}"
on_cuda 3 same3 "${same[@]}" --zero_stage 3
check "rank-invariant: one and three ranks" within 0 "$(apart same1 same3 1)"
on_cuda 2 same2 "${same[@]}" --zero_stage 2
check "rank-invariant: one and two ranks" within 0 "$(apart same1 same2 1)"

# Recomputed activations have the same bits.
bits=("${flags[@]}" --deterministic --dropout 0.1 --dtype bf16 --steps 2)
on_cuda 1 kept "${bits[@]}"
for what in "${recomputed[@]}"; do
	on_cuda 1 "again-$what" "${bits[@]}" --recompute="$what"
	check "recomputed: $what" within 0 "$(apart kept "again-$what" 1)"
done

# More positions than a tile has.
wide=(--dtype bf16 --n_positions 64 --seq_length 64 --steps 2)
train 1 wide-cpu "${flags[@]}" "${wide[@]}"
on_cuda 1 wide "${flags[@]}" "${wide[@]}" --deterministic
check "attention" within 0.1 "$(apart wide-cpu wide 1)"
on_cuda 1 wide-again "${flags[@]}" "${wide[@]}" --deterministic
check "attention, again" within 0 "$(apart wide wide-again 1)"

# These need a real GPU.
if [ "${cuda[0]}" = uctrain ] && command -v compute-sanitizer >/dev/null; then
	check "compute-sanitizer" compute-sanitizer --error-exitcode 9 uctrain \
		"${flags[@]}" --device cuda --steps 2 --log_dir "$tmp/logs" >/dev/null
else
	echo "compute-sanitizer: not here, or no GPU"
fi

# Losses begin at 5.5; the limit is 2 % of that.
check "fp32: the curves are one" within 1e-4 "$(apart cpu-fp32 cuda-fp32 1)"
check "bf16: the curves stay together" within 0.1 "$(apart cpu-bf16 cuda-bf16 1)"
for dtype in fp32:1e-4 bf16:0.1; do
	check "$dtype: the CPU goes on from CUDA's" \
		within "${dtype#*:}" "$(apart "cpu-${dtype%:*}" "cpu-resumed-${dtype%:*}" $((half + 1)))"
	check "$dtype: CUDA goes on from the CPU's" \
		within "${dtype#*:}" "$(apart "cuda-${dtype%:*}" "cuda-resumed-${dtype%:*}" $((half + 1)))"
done
finish
