#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two ranks, each with a processor, share a model of 124 million parameters, by
# tensors or as two stages of a pipeline with 8 micro-batches, in turns with two
# data-parallel ranks; a rank's memory is compared with that of a single rank.
# For comparison, ranks that cut the positions of rows are measured, too.
# Takes minutes, and 3 GiB of memory for the one rank.
. "${BASH_SOURCE%/*}/lib.sh"

command -v mpirun >/dev/null || skip "no mpirun"
command -v uctrain >/dev/null || skip "uctrain is not in PATH"
begin_work
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

flags=(--model gpt2 --seq_length 256 --train_batch_size 8 --steps 3 --zero_stage 0
	--run_name it --log_dir "$work")

# run SERIES RANKS MICRO-BATCH FLAG...: prints the tokens per second of the last step, and a rank's
# largest resident set in MiB.
run() {
	local words
	rm -rf "$work/it"
	mpirun -n "$2" uctrain "${flags[@]}" --train_micro_batch_size_per_gpu "$3" "${@:4}" \
		>"$work/words" 2>&1 || skip "$(grep '^uctrain: ' "$work/words" | tail -n 1)"
	words=$(awk -F, 'END { print $5, $6 / 1048576 }' "$work/it/metrics.csv")
	add "$1" "${words% *}"
	add "$1.memory" "${words#* }"
}

printf 'dimensions: %d rounds, load average %s\n' "$rounds" "$(cut -d' ' -f1 /proc/loadavg)"
for ((i = 0; i < rounds; i++)); do
	run data 2 4
	run tensor 2 8 --tensor_model_parallel_size 2
	run pipeline 2 1 --pipeline_model_parallel_size 2
	run sequence 2 8 --sequence_parallel_size 2
	run rows 2 8 --tensor_model_parallel_size 2 --sequence_parallel
done
run one 1 8
row_of "gpt2, two data-parallel ranks" data tokens/s
for kind in tensor pipeline; do
	row_of "  $kind" $kind tokens/s
	bar "  to data-parallel ones" "$(ratio "$(median $kind)" "$(median data)")" ">=" 0.8
	bar "  memory to one rank's" "$(ratio "$(median $kind.memory)" "$(median one.memory)")" "<" 0.6
done
row_of "  sequence" sequence tokens/s
row_of "  tensor, with rows of the residual stream" rows tokens/s
for kind in sequence rows; do
	row "  $kind: memory to one rank's" "$(ratio "$(median $kind.memory)" "$(median one.memory)")"
done
