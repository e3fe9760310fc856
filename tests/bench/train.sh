#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Training steps on the CPU (forward, backward, AdamW) in turns with the same in PyTorch;
# and GEMM throughput relative to the machine's SGEMM peak, alone and within the
# operations.  UCFS_DEEPSPEED_PYTHON names a Python that has PyTorch and transformers.
#
# Waiting threads sleep soon, on both sides: by default they spin and keep processors
# from others.  On a shared machine the processor time of a step says more than its
# seconds.
. "${BASH_SOURCE%/*}/lib.sh"

python=${UCFS_DEEPSPEED_PYTHON:-}
[ -n "$python" ] || skip "UCFS_DEEPSPEED_PYTHON is not set"
"$python" -c 'import torch, transformers' >/dev/null 2>&1 ||
	skip "$python has no PyTorch or no transformers"
here=${BASH_SOURCE%/*}
ours=${top_builddir:-.}/tests/bench/trainstep
[ -x "$ours" ] || skip "the trainer is not built"
begin_work
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} GOMP_SPINCOUNT=1000

# both SERIES "TOKENS/S MILLISECONDS"
both() {
	add "$1" "${2% *}"
	add "$1.cpu" "${2#* }"
}

# compare MODEL BATCH SEQ STEPS BAR
compare() {
	local -r model=$1 bar=$5
	local i reached around

	for ((i = 0; i < rounds; i++)); do
		both "$model.ours" "$("$ours" "${@:1:4}" 2>/dev/null)"
		both "$model.torch" "$("$python" "$here/trainstep.py" \
			"${@:1:4}" 2>/dev/null)"
		read -r reached around _ < <("$ours" -p "${@:1:4}")
		add "$model.peak" "$reached"
		add "$model.around" "$around"
	done
	row_of "$model, $2 x $3" "$model.ours" tokens/s
	row_of "  PyTorch" "$model.torch" tokens/s
	row_of "  a step" "$model.ours.cpu" "processor ms"
	row_of "  a step of PyTorch" "$model.torch.cpu" "processor ms"
	bar "  ours to PyTorch's" "$(ratio "$(median "$model.ours")" \
		"$(median "$model.torch")")" ">=" "$bar"
	bar "  the same by processor time" "$(ratio \
		"$(median "$model.torch.cpu")" \
		"$(median "$model.ours.cpu")")" ">=" "$bar"
	bar "  products to SGEMM's peak" "$(median "$model.peak")" ">=" 0.85
	row_of "  with softmax, bias, GELU" "$model.around" "to the peak"
}

printf 'train: %d threads, %d rounds, load average %s\n' \
	"$OMP_NUM_THREADS" "$rounds" "$(cut -d' ' -f1 /proc/loadavg)"
compare gpt2-dsuc 16 128 5 1.8
compare gpt2 4 64 3 1.25
