#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sequence parallelism: ranks that cut the positions of rows, around attention (Ulysses) or within
# a tensor-parallel group (Megatron's), train like one rank, and a run continues with more or
# fewer of them.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

flags=("${tiny[@]}" --n_head 4 --n_embd 16 --vocab_size 257 --seq_length 16 --lr 5e-4
	--data "$top_srcdir/LICENSE" --train_batch_size 24 --train_micro_batch_size_per_gpu 3
	--eval_interval 10)
shared() {
	echo "--sequence_parallel_size $1 --tensor_model_parallel_size $2 --pipeline_model_parallel_size $3"
}

long 40 10
few=10 # steps of most runs

# Ranks | of which sequence-parallel | tensor-parallel | stages | ZeRO stage | more
plan="2 2 1 1 1
4 4 1 1 0 --train_micro_batch_size_per_gpu 6
4 2 1 1 2
2 1 2 1 1 --sequence_parallel
4 2 1 1 3 --recompute
4 2 2 1 2
4 2 1 2 1
4 1 4 1 2 --sequence_parallel
4 1 2 2 0 --sequence_parallel
4 2 2 1 1 --sequence_parallel"
plan=$(sampled <<<"$plan")

train_later 1 one "${flags[@]}" --steps "$steps"
many=$steps
while read -r ranks sequence tensor pipe stage more; do
	name=n$ranks-s$sequence-t$tensor-p$pipe-z$stage${more// /}
	# shellcheck disable=SC2046,SC2086 # words
	set -- $(shared "$sequence" "$tensor" "$pipe") --zero_stage "$stage" $more
	train_later "$ranks" $name "${flags[@]}" --steps "$many" "$@"
	many=$few
done <<<"$plan"

s2=(--sequence_parallel_size 2)
cut=(--tensor_model_parallel_size 2 --sequence_parallel)
train_later 2 again "${flags[@]}" --steps "$steps" "${s2[@]}" --recompute
train_later 2 cut-again "${flags[@]}" --steps "$few" "${cut[@]}" --recompute
shared_later s2 "${s2[@]}"
shared_later cut "${cut[@]}"
train_later 4 both "${flags[@]}" --steps "$few" --dropout 0.1 "${s2[@]}" "${cut[@]}"

# Combinations that are impossible.
refused_later "ranks that do not divide" "sequence_parallel_size 2: does not divide the 3 groups of ranks" \
	3 "${flags[@]}" "${s2[@]}"
refused_later "heads that do not divide" "the 1 heads" 2 "${flags[@]}" --n_head 1 "${s2[@]}"
refused_later "positions that do not divide" "seq_length 15" 2 "${flags[@]}" --seq_length 15 "${s2[@]}"
refused_later "a batch that does not divide" "2 data-parallel ranks" 4 \
	"${flags[@]}" --train_batch_size 9 "${s2[@]}"
refused_later "no tensor-parallel ranks" "needs --tensor_model_parallel_size" 2 \
	"${flags[@]}" --sequence_parallel
refused_later "rows that do not divide" "a row of 15 positions" 2 "${flags[@]}" --seq_length 15 \
	--tensor_model_parallel_size 2 --sequence_parallel
train_all

while read -r ranks sequence tensor pipe stage more; do
	name=n$ranks-s$sequence-t$tensor-p$pipe-z$stage${more// /}
	alike $name 1e-5 one $name
done <<<"$plan"
same_bits "recomputed" n2-s2-t1-p1-z1 again
same_bits "recomputed rows" n2-s1-t2-p1-z1--sequence_parallel cut-again
shared_alike s2
shared_alike cut
# With both partitions at once dropout masks are the same.
alike "both, with dropout" 1e-5 s2-one-drop both

# ZeRO partitions over data- and sequence-parallel ranks, which does not matter to a resumed run.
# Saved by | of them sequence-parallel | stage; resumed on | of them sequence- |
# tensor-parallel | stage | from the files or the mount
plan="4 2 1 4 1 1 1 files
4 2 1 4 4 1 1 files
4 2 1 1 1 1 0 mount
4 2 1 2 1 2 1 mount
4 2 1 4 2 2 2 mount
2 2 3 2 2 1 3 files
2 2 3 1 1 1 3 mount"
plan=$(sampled <<<"$plan")

all=(--steps $((10 + few)))
saves="4 2 1
2 2 3"
while read -r from cut stage; do
	# shellcheck disable=SC2046
	train_later "$from" from-$from-$cut-z$stage "${flags[@]}" "${all[@]}" $(shared "$cut" 1 1) \
		--zero_stage "$stage" --checkpoint_dir "$tmp/from-$from-$cut-z$stage" --checkpoint_interval 10
done <<<"$saves"
train_later 2 without-zero "${flags[@]}" "${all[@]}" "${s2[@]}" --zero_stage 0 \
	--checkpoint_dir "$tmp/without-zero" --checkpoint_interval 10
train_all
train_later 4 without-zero-on-4 "${flags[@]}" "${all[@]}" "${s2[@]}" --zero_stage 0 \
	--resume="$tmp/without-zero" --checkpoint_tag global_step10

# resumed CALL: call it for each line of the plan that resumes $run.
resumed() {
	local name saved cut_of stage_of ranks sequence tensor then way
	while read -r saved cut_of stage_of ranks sequence tensor then way; do
		[ "$run" = "from-$saved-$cut_of-z$stage_of" ] || continue
		name=$run-on-$ranks-s$sequence-t$tensor-z$then
		"$1"
	done <<<"$plan"
}

go_on() {
	local where=(--checkpoint_dir "$tmp/mnt" --checkpoint_tag global_step10_universal --universal_checkpoint)
	[ $way = mount ] || where=(--resume="$tmp/$run" --checkpoint_tag global_step10)
	# shellcheck disable=SC2046
	train_later "$ranks" $name "${flags[@]}" "${all[@]}" $(shared "$sequence" "$tensor" 1) \
		--zero_stage "$then" --resume "${where[@]}"
}

went_on() {
	alike $name 1e-5 $run $name
}

while read -r from cut stage; do
	run=from-$from-$cut-z$stage
	check "$run is a checkpoint" ucckpt check --data "$tmp/$run/global_step10"
	mount_fg "$tmp/$run" || finish
	resumed go_on
	train_all
	unmount
	resumed went_on
done <<<"$saves"
alike "without ZeRO" 1e-5 without-zero without-zero-on-4
check "shards of data- and sequence-parallel ranks" test \
	"$(find "$tmp/from-4-2-z1/global_step10" -name '*_optim_states.pt' | wc -l)" = 4
finish
