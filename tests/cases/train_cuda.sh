#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs on the CPU and on CUDA learn alike, and each resumes what the other has
# saved.  Where there is no GPU, CUDA is emulated.
# shellcheck source=tests/cases/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

flags=("${tiny[@]}" --train_batch_size 2 --train_micro_batch_size_per_gpu 1)
steps=4
if uctrain "${flags[@]}" --device cuda --steps 1 --log_dir "$tmp/probe" >"$tmp/probe.log" 2>&1; then
	steps=100
	cuda=(uctrain)
elif [ -x "$top_builddir/tests/uctrain_emulated" ]; then
	cuda=("$top_builddir/tests/uctrain_emulated")
else
	skip "no GPU ($(tail -n 1 "$tmp/probe.log")), and nothing that emulates one"
fi

on_cuda() {
	local rank=("${cuda[@]}")

	train "$@" --device cuda
}

half=$((steps / 2))
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


# Losses begin at 5.5: 2 % of them.
check "fp32: the curves are one" within 1e-4 "$(apart cpu-fp32 cuda-fp32 1)"
check "bf16: the curves stay together" within 0.1 "$(apart cpu-bf16 cuda-bf16 1)"
for dtype in fp32:1e-4 bf16:0.1; do
	check "$dtype: the CPU goes on from CUDA's" \
		within "${dtype#*:}" "$(apart "cpu-${dtype%:*}" "cpu-resumed-${dtype%:*}" $((half + 1)))"
	check "$dtype: CUDA goes on from the CPU's" \
		within "${dtype#*:}" "$(apart "cuda-${dtype%:*}" "cuda-resumed-${dtype%:*}" $((half + 1)))"
done
finish
