#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A step that is replayed as a CUDA graph computes the same bits as one that is queued call by call,
# while learning rate, masks and the scale of the loss change.  If a step cannot be recorded, the
# run says so, or continues without a graph.  traffic.sh counts the calls.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
find_cuda
rank=("${cuda[@]}")

# The number of calls in a step does not depend on the length of rows and the number of tokens.
tiny+=(--n_embd 16 --seq_length 16 --vocab_size 64)
flags=("${tiny[@]}" --device cuda --steps 5 --lr_schedule cosine --warmup_steps 2)

# both "what" RANKS FLAG...: check that a run is the same with and without graphs.
pairs=()
both() {
	local name=${#pairs[@]}
	pairs+=("$1")
	train_later "$2" "$name-off" "${flags[@]}" "${@:3}" --cuda_graph off
	train_later "$2" "$name-on" "${flags[@]}" "${@:3}" --cuda_graph on
}

cat >"$tmp/scaled.json" <<'EOF'
{"fp16": {"enabled": true, "initial_scale_power": 24, "loss_scale_window": 2, "hysteresis": 1}}
EOF
both "fp32, dropout, passes" 1 --train_batch_size 4 --train_micro_batch_size_per_gpu 2 --dropout 0.1
both "fp16, scales" 1 --train_batch_size 2 --train_micro_batch_size_per_gpu 1 \
	--deepspeed_config "$tmp/scaled.json"
if [ "${sanitize:-no}" != no ]; then
	echo "under sanitizers: two precisions, and NCCL in 16 bits alone"
	stages=()
	nccl_stages=()
else
	both "bf16, recomputed" 1 --dtype bf16 --train_batch_size 1 --recompute --dropout 0.1
	# More positions than a tile of attention has.
	both "64 positions" 1 --dtype bf16 --train_batch_size 1 --n_positions 64 --seq_length 64 --n_layer 1
	stages=(0 3)
	nccl_stages=(0 1 2 3)
fi
# Operations of validations and saves in between are queued without graphs.
for stage in "${stages[@]}"; do
	both "stage $stage, validations, saves" 1 --dtype bf16 --train_batch_size 2 --eval_interval 2 \
		--zero_stage $stage --checkpoint_dir "$tmp/saves$stage" --checkpoint_interval 2
done
# NCCL's collectives are recorded on a separate stream.
if emulated; then
	for stage in "${nccl_stages[@]}"; do
		both "NCCL, stage $stage" 2 --dtype bf16 --train_batch_size 4 --zero_stage "$stage" \
			--train_micro_batch_size_per_gpu 1 --eval_interval 2
	done
	nccl_bf16=(--dtype bf16 --train_batch_size 4 --zero_stage 3
		--train_micro_batch_size_per_gpu 1 --communication_data_type bf16)
	nccl_name=${#pairs[@]}
	both "NCCL, in 16 bits" 2 "${nccl_bf16[@]}"
	[ "${sanitize:-no}" != no ] ||
		both "NCCL, at the boundary" 2 --dtype bf16 --train_batch_size 4 --zero_stage 2 \
			--train_micro_batch_size_per_gpu 1 --reduce_at_boundary
fi
train_all
for name in "${!pairs[@]}"; do
	same_bits "${pairs[name]}" "$name-off" "$name-on"
done
scales=$(cut -d, -f7 "$tmp/logs/1-on/metrics.csv" | tail -n +2 | xargs)
check "scales: $scales" test "$(tr ' ' '\n' <<<"$scales" | sort -u | wc -l)" -gt 2

# refused "why" RANKS FLAG...: there is one message if a graph is requested.
refused() {
	local why=$1
	rm -rf "$tmp/logs/refused"
	if try_train "$2" refused "${tiny[@]}" --train_batch_size 2 --steps 3 --cuda_graph on "${@:3}"; then
		fail "$why: was accepted"
	fi
	check "$why: one message" test "$(grep -c '^uctrain: .*cuda_graph' "$tmp/refused.log")" = 1
	grep -q "^uctrain: --cuda_graph on: .*$why" "$tmp/refused.log" || fail "$why: $(tail -n 5 "$tmp/refused.log")"
}
refused "the device is not a GPU" 1 --device cpu
refused "sums over ranks are made by hosts" 1 --device cuda --rank_invariant
refused "ranks share a model or its rows" 2 --device cuda --tensor_model_parallel_size 2
if emulated; then
	refused "ranks share a model or its rows" 2 --device cuda --sequence_parallel_size 2
	NCCL_EMULATED_VERSION=2804 refused "NCCL is older than 2.9.6" 2 --device cuda
	CUDAEMU_GRAPHS=none refused "cudaGraphInstantiateWithFlags: out of memory" 1 --device cuda

	# By default graphs are used only where possible.
	CUDAEMU_GRAPHS=none train 1 without "${flags[@]}" --train_batch_size 4 \
		--train_micro_batch_size_per_gpu 2 --dropout 0.1
	same_bits "a driver that cannot" 0-off without
	check "a driver that cannot: one warning" test "$(grep -c 'going on without' "$tmp/without.log")" = 1

	# NCCL of one rank cannot record a collective.
	NCCL_EMULATED_UNRECORDED=1 train 2 nccl-without "${flags[@]}" "${nccl_bf16[@]}"
	same_bits "an NCCL that cannot" "$nccl_name-off" nccl-without
	check "an NCCL that cannot: one warning" test \
		"$(grep -c 'going on without: rank 1: nccl' "$tmp/nccl-without.log")" = 1
	NCCL_EMULATED_UNRECORDED=1 refused "rank 1: nccl" 2 --device cuda --zero_stage 2
fi
finish
