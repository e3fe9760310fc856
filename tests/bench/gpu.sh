#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# uctrain on a GPU: training steps of GPT-2 in bfloat16 in turns with PyTorch with
# torch.compile, and against the GPU's peak; loading a checkpoint through the mount's
# extents, against a copy from pinned memory and plain reads of the mounted files.
#
#   gpu.sh [PART...]
#
# Each part takes less than eight minutes, also where a call may not take longer;
# without PART all of them are made:
#
#   tests		test_cuda, test_graph, and a few steps under compute-sanitizer if it is there
#   ops			the operations of a step, one by one (gpuops)
#   gpt2, gpt2-xl	our steps, with and without a CUDA graph
#   gpt2-torch, gpt2-xl-torch
#   			our steps and PyTorch's, in turns
#   load		loading a checkpoint of gpt2-xl
#
# Rounds are made while there is time for another.  What is not in PATH is looked for
# in the build directory, $top_builddir.
#
# UCFS_GPU_SECONDS	the time of a part (420)
# UCFS_DEEPSPEED_PYTHON	a Python with PyTorch for CUDA and transformers; without it
# 			only our side is measured
# UCFS_GPU_TFLOPS	the GPU's dense bfloat16 peak (989: H100, H200)
# UCFS_GPU_BATCH	rows per step of gpt2 and of gpt2-xl ("64 16" with 100 GB of
# 			device memory, as an H200 has, else "32 8"; in a larger
# 			batch the optimizer's share of a step is smaller)
. "${BASH_SOURCE%/*}/lib.sh"

all=(tests ops gpt2 gpt2-xl gpt2-torch gpt2-xl-torch load)
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")
for part in "${parts[@]}"; do
	case " ${all[*]} " in
	*" $part "*) ;;
	*) echo "gpu.sh: $part: not one of ${all[*]}" >&2 && exit 2 ;;
	esac
done
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 ||
	skip "there is no GPU, or no nvidia-smi that lists one"
here=${BASH_SOURCE%/*}
python=${UCFS_DEEPSPEED_PYTHON:-}
[ -z "$python" ] || "$python" -c 'import sys, torch, transformers
sys.exit(not torch.cuda.is_available())' >/dev/null 2>&1 || {
	echo "$python has no PyTorch with CUDA, or no transformers: ours alone"
	python=
}
build=${top_builddir:-.}
PATH=$PATH:$build:$build/tests/bench:$build/tests/unit/train
begin_work

# ours MODEL BATCH STEPS FLAG...: the median of tokens/s after warm-up
ours() {
	rm -rf "$work/logs"
	uctrain --device cuda --dtype bf16 --model "$1" --seq_length 1024 \
		--train_batch_size "$2" --train_micro_batch_size_per_gpu "$2" \
		--steps "$3" --run_name run --log_dir "$work/logs" "${@:4}" \
		2>"$work/words" >/dev/null || return
	awk -F, 'NR > 6 { print $5 }' "$work/logs/run/metrics.csv" | sort -g |
		awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

ours gpt2 1 7 >/dev/null || skip "$(tail -n 1 "$work/words")"

# Floating-point operations per token, forward and backward: 6 per parameter, and
# 12 * layers * width * positions for attention.
utilisation() {
	awk -v rate="$1" -v of="$2" -v peak="${UCFS_GPU_TFLOPS:-989}" 'BEGIN {
		n = of == "gpt2" ? 124439808 : 1557611200
		attention = 12 * 1024 * (of == "gpt2" ? 12 * 768 : 48 * 1600)
		printf "%.3f", rate * (6 * n + attention) / peak / 1e12 }'
}

# in_rounds COMMAND...: as many rounds as there is time for, at least one
in_rounds() {
	local begun longest=0 i

	for ((i = 0; i < rounds; i++)); do
		begun=$SECONDS
		[ "$i" -eq 0 ] || [ $((begun - since + longest)) -lt "$limit" ] ||
			break
		"$@"
		[ $((SECONDS - begun)) -le "$longest" ] ||
			longest=$((SECONDS - begun))
	done
	echo "$part: $i rounds in $((SECONDS - since)) s"
}

step_round() {
	add "$1.ours" "$(ours "$1" "$2" 30)"
	add "$1.queued" "$(ours "$1" "$2" 30 --cuda_graph off)"
}

# steps MODEL BATCH BAR
steps() {
	in_rounds step_round "$1" "$2"
	row_of "$1, $2 x 1024" "$1.ours" tokens/s
	bar "  model FLOP utilisation" \
		"$(utilisation "$(median "$1.ours")" "$1")" ">=" "$3"
	row_of "  without a CUDA graph" "$1.queued" tokens/s
}

torch_round() {
	add "$1.beside" "$(ours "$1" "$2" 30)"
	add "$1.torch" \
		"$("$python" "$here/gpustep.py" step "$1" "$2" 1024 25 2>/dev/null)"
}

# torch_steps MODEL BATCH
torch_steps() {
	[ -n "$python" ] || {
		echo "$part: no PyTorch"
		return 0
	}
	in_rounds torch_round "$1" "$2"
	row_of "$1, $2 x 1024" "$1.beside" tokens/s
	row_of "  PyTorch, compiled" "$1.torch" tokens/s
	bar "  ours to PyTorch's" "$(ratio "$(median "$1.beside")" \
		"$(median "$1.torch")")" ">=" 1.15
}

# unless_missing PROGRAM COMMAND...: its words as they are
unless_missing() {
	command -v "$1" >/dev/null || {
		echo "$part: no $1"
		return 0
	}
	timeout "$limit" "${@:2}" 2>&1 || echo "$part: FAILED: ${*:2}: $?"
}

tests() {
	unless_missing test_cuda test_cuda
	unless_missing test_graph test_graph
	unless_missing compute-sanitizer compute-sanitizer --error-exitcode 9 \
		uctrain --device cuda --dtype bf16 --n_layer 2 --seq_length 64 \
		--train_batch_size 4 --steps 3 --run_name checked \
		--log_dir "$work/logs"
}

ops() {
	local width

	for width in 768 1600; do
		echo "gpuops -w $width"
		unless_missing gpuops gpuops -b 16 -w "$width"
	done
}

# Loading rate in GB/s of the run that logged to $work/words
loaded() {
	sed -n 's/.*: \([0-9.]*\) MB of tensors .*, in \([0-9.]*\) s$/\1 \2/p' \
		"$work/words" | awk '{ printf "%.2f", $1 / 1e3 / $2 }'
}

load_round() {
	local n start

	cat "$work"/run/*/*.pt >/dev/null # into the page cache
	ours gpt2-xl 1 7 --resume="$mnt" --universal_checkpoint >/dev/null
	add load.extents "$(loaded)"
	start=$(date +%s.%N)
	n=$(cat "$mnt"/*_universal/zero/*/{fp32,exp_avg,exp_avg_sq}.pt | wc -c)
	add load.plain "$(awk -v s="$start" -v e="$(date +%s.%N)" \
		-v n="$n" 'BEGIN { printf "%.2f", n / 1e9 / (e - s) }')"
	[ -z "$python" ] ||
		add load.pinned "$("$python" "$here/gpustep.py" copy)"
}

loading() {
	[ -w /dev/fuse ] && command -v ucfs >/dev/null || {
		echo "$part: no ucfs, or no /dev/fuse"
		return 0
	}
	ours gpt2-xl 1 7 --checkpoint_dir "$work/run" >/dev/null
	source=$work/run
	mount_as ro
	in_rounds load_round
	unmount
	row_of "loading gpt2-xl through extents" load.extents GB/s
	row_of "  plain reads of the mount" load.plain GB/s
	[ -n "$python" ] || return 0
	row_of "  cudaMemcpyAsync from pinned memory" load.pinned GB/s
	bar "  extents to pinned memory" "$(ratio "$(median load.extents)" \
		"$(median load.pinned)")" ">=" 0.8
}

printf 'gpu: %s, %d rounds\n' \
	"$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)" "$rounds"
memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits |
	head -n 1)
fits="32 8"
[ "${memory:-0}" -lt 100000 ] || fits="64 16"
read -r small large <<<"${UCFS_GPU_BATCH:-$fits}"
limit=${UCFS_GPU_SECONDS:-420}
for part in "${parts[@]}"; do
	since=$SECONDS
	case $part in
	tests | ops) "$part" ;;
	gpt2) steps gpt2 "$small" 0.50 ;;
	gpt2-xl) steps gpt2-xl "$large" 0.55 ;;
	gpt2-torch) torch_steps gpt2 "$small" ;;
	gpt2-xl-torch) torch_steps gpt2-xl "$large" ;;
	load) loading ;;
	esac
done
