#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Saved state is restored exactly, by any program that saved it and on any number of ranks.
# shellcheck disable=SC2086 # $flags and $tree are words
# shellcheck source=tests/cases/train/ranks_lib.sh
. "$(dirname "$0")/ranks_lib.sh"

# All ranks together read each element of the state once.
read_once() {
	check "$1: each rank read its part" \
		test "$(said "$1" | grep '^read')" = "read ${2:-13536} bytes, 0 past the mount"
}

# Averages over three ranks round differently, so that training on three ranks does not
# have the bits of training on four; the loaded state does.
for stage in 1 2 3; do
	later 4 four-z$stage stage=$stage schedule=2 save="$tmp/four-z$stage"
done
later 4 six stage=1 schedule=2 steps=6
start
for stage in 1 2 3; do
	same "all stages train alike" "$(state four-z1)" four-z$stage
	ucckpt convert "$tmp/four-z$stage/global_step3" "$tmp/four-z$stage/tree" >/dev/null ||
		fail "convert z$stage"
done
# Ranks | saved stage | stage of these ranks
plan=$(printf '%s\n' {1..3}' '{1..3}' '{0..3} | sampled)
while read -r n stage to; do
	into=(stage=$to schedule=2 universal=yes load="$tmp/four-z$stage/tree")
	later $n z$stage-z$to-$n "${into[@]}"
	later $n z$stage-z$to-$n-on "${into[@]}" steps=6
done <<<"$plan"
start
while read -r n stage to; do
	run=z$stage-z$to-$n
	same "of four ranks, $run" "$(state four-z1)" $run
	# In stage 0 every rank reads the whole state.
	read_once $run $((to ? 13536 : n * 13536))
	same "$run goes on" "$(state "$([ $n = 3 ] && echo z1-z0-3-on || echo six)")" $run-on
done <<<"$plan"

rows="0 fp32
1 fp32
2 fp32
3 fp32
1 bf16 1 2
0 fp16
3 fp16 2"

each_row() {
	local stage dtype to_stages run flags
	while read -r stage dtype to_stages; do
		run=$dtype-z$stage
		flags="dtype=$dtype schedule=2"
		[ "$dtype" = fp16 ] && flags+=" dynamic=yes"
		"$1"
	done <<<"$rows"
}

row_saves() {
	later 2 "$run-six" stage=$stage steps=6 $flags
	later 2 "$run" stage=$stage $flags save="$tmp/$run"
	later 2 "$run-again" stage=$stage $flags load="$tmp/$run"
	later 2 "$run-on" stage=$stage $flags load="$tmp/$run" steps=6
}
each_row row_saves
start

row_resumes() {
	same "$run: as it was" "$(state "$run")" "$run-again"
	read_once "$run-again" $((stage ? 13536 : 2 * 13536))
	same "$run: and goes on" "$(state "$run-six")" "$run-on"
	[ "$stage" != 0 ] || return
	ucckpt convert "$tmp/$run/global_step3" "$tmp/$run/global_step3_universal" >/dev/null ||
		fail "convert $run"
	later 1 "$run-other" stage=$stage $flags load="$tmp/$run"
	for to in $to_stages; do
		later $((1 + (stage + to) % 4)) "$run-in$to" stage=$to $flags load="$tmp/$run" universal=yes
	done
}
each_row row_resumes
# Weights of another type than the saved one; the masters are the same.
later 2 becomes-bf16 dtype=bf16 schedule=2
later 4 becomes-fp32 universal=yes load="$tmp/bf16-z1"
start

row_resumed() {
	[ "$stage" != 0 ] || return
	same "$run: other ranks" "$(state "$run")" "$run-other"
	for to in $to_stages; do
		same "$run: from its tree in stage $to" "$(state "$run")" "$run-in$to"
		[ "$to" = 0 ] || read_once "$run-in$to"
	done
}
each_row row_resumed
same "bfloat16 becomes float32" "$(state becomes-bf16)" becomes-fp32

curves="width=32 vocab=256 positions=32"
deepspeed="curves/gpt2_z2_bf16_dp4 2 bf16 0 10 $curves
curves/gpt2_z3_fp32_dp4 3 fp32 0 10 $curves
dsuc_gpt2_z3_offload_dp4 3 fp32 1 4 width=16 vocab=128 positions=32"

while read -r case stage dtype _ _ model; do
	flags="stage=$stage dtype=$dtype $model steps=0 universal=yes"
	mkdir -p "$tmp/$case"
	ucckpt convert "$good/$case/"global_step* "$tmp/$case/tree" >/dev/null || fail "convert $case"
	later 4 "$case" stage=$stage dtype=$dtype $model steps=0 load="$good/$case"
	for n in 1 3; do
		later $n "$case-on-$n" $flags load="$tmp/$case" tag=tree
		later $n "$case-files-$n" $flags universal=no load="$good/$case"
	done
	later 2 "$case-other" $flags stage=$((3 - stage)) load="$tmp/$case/tree"
done <<<"$deepspeed"
start
while read -r case _ _ flavor steps _; do
	want=$(state "$case")
	echo "$case: $want"
	case $want in
	"step $steps "*"flavor $flavor "*) ;;
	*) fail "$case: $(said "$case")" ;;
	esac
	for n in 1 3; do
		same "$case on $n ranks" "$want" "$case-on-$n"
		same "$case on $n ranks, from its files" "$want" "$case-files-$n"
	done
	same "$case in another stage" "$want" "$case-other"
done <<<"$deepspeed"

# 11 of 16 rows are tokens, the others were trained as padding.  A model with 16 rows resumes them
# all; a model of another size has zeros in its padding rows, if any.
for stage in 2 3; do
	case=$good/z${stage}_padded_vocab_dp2
	ucckpt convert "$case/global_step4" "$tmp/padded-z$stage" >/dev/null || fail "convert $case"
	flags="stage=$stage words=11 steps=4"
	tree="universal=yes load=$tmp/padded-z$stage"
	later 2 padded-z$stage $flags vocab=16 load="$case"
	later 2 padded-z$stage-tree $flags vocab=16 $tree
	for rows in 11 12 20; do
		later 2 padded-z$stage-$rows $flags vocab=$rows load="$case"
		for n in 1 3; do
			later $n padded-z$stage-$rows-$n $flags vocab=$rows $tree
		done
	done
	later 2 padded-z$stage-less stage=$stage vocab=10 load="$case"
	later 1 padded-z$stage-less-tree stage=$stage vocab=10 $tree
done
run=$tmp/unpadded
later 2 unpadded stage=2 vocab=11 steps=4 load="$good/z2_padded_vocab_dp2" save="$run"
start
for stage in 2 3; do
	want=$(state padded-z$stage)
	want=${want% and padding}
	same "the same vocabulary" "$want and padding" padded-z$stage
	# DeepSpeed's converter keeps the padding of ZeRO-3.
	same "the same from its tree" \
		"$want$([ $stage = 2 ] || echo " and padding")" padded-z$stage-tree
	for rows in 11 12 20; do
		for n in "" -1 -3; do
			same "other padding is zeros" "$want" padded-z$stage-$rows$n
		done
	done
	for from in "" -tree; do
		refused "a word is missing" "another model: transformer.wte.weight" \
			padded-z$stage-less$from
	done
done
# The second name of the embedding is shown as it was saved.
got=$(ucckpt diff "$good/z2_padded_vocab_dp2/global_step4" "$run/global_step4" | grep -v '^[AB]: ')
check "and words are those of DeepSpeed" test "$got" = \
	"different: 1 of 113 states of 29 parameters
lm_head.weight fp32: shape [16, 6] in A, [11, 6] in B"

kinds=$(for flavor in 0 1 2; do for stage in 1 3; do echo "$flavor $stage"; done; done)
while read -r flavor stage; do
	run=flavor$flavor-z$stage
	later 1 "$run" stage=$stage flavor=$flavor steps=4 save="$tmp/$run"
	later 1 "$run-again" stage=$stage steps=0 load="$tmp/$run"
done <<<"$kinds"
start
while read -r flavor stage; do
	run=flavor$flavor-z$stage
	same "$run" "$(state "$run")" "$run-again"
	ucckpt convert "$tmp/$run/global_step4" "$tmp/$run/tree" >/dev/null
	later 2 "$run-tree" stage=$stage steps=0 universal=yes load="$tmp/$run" tag=tree
	# and is saved unchanged
	later 1 "$run-from" stage=1 steps=0 universal=yes load="$tmp/$run" tag=tree save="$tmp/$run/again"
	later 1 "$run-back" stage=1 steps=0 load="$tmp/$run/again"
done <<<"$kinds"
start
while read -r flavor stage; do
	run=flavor$flavor-z$stage
	same "$run: its tree" "$(state "$run")" "$run-tree"
	same "$run: again" "$(state "$run")" "$run-back"
done <<<"$kinds"

run=$tmp/fp32-z1
tree=$run/global_step3_universal
fresh="updates 0 fp32 .* exp_avg \([0-9a-f]*\) exp_avg_sq \1 "
later 2 parameters universal=yes no_optimizer=yes load="$run" steps=0
start
check "parameters alone: an optimizer of zeros" grep -q "^step 3 $fresh" <<<"$(state parameters)"

rm "$tree/zero/transformer.h.1.ln_2.bias/exp_avg_sq.pt"
later 3 no-state universal=yes load="$run"
later 3 no-state-new universal=yes ignore_missing=yes load="$run" steps=0
start
refused "a state is missing" "transformer.h.1.ln_2.bias/exp_avg_sq.pt" no-state
check "it may begin from zero" \
	grep -q "^1 missing: .*transformer.h.1.ln_2.bias/exp_avg_sq.pt" <<<"$(said no-state-new)"

rm -r "${tree:?}"/zero/*/exp_avg*.pt "${tree:?}"/zero/*/step.pt "${tree:?}/zero/optimizer_state.pt"
later 1 no-states universal=yes ignore_missing=yes load="$run" steps=0
later 1 no-step universal=yes load="$run"
later 1 no-step-needed universal=yes no_optimizer=yes load="$run"
start
check "as all of them may" grep -q "^56 missing: " <<<"$(said no-states)"
check "as zeros" grep -q "^step 3 $fresh" <<<"$(state no-states)"
refused "the step is missing" "optimizer_state.pt: missing" no-step
did no-step-needed

rm -r "${tree:?}/zero/transformer.ln_f.bias"
later 2 no-parameter universal=yes load="$run" ignore_missing=yes

run=$tmp/fp32-z3
models="layers=3|transformer.h.2.
layers=1|it has transformer.h.1.
width=8|another model: transformer.wte.weight has .*, this model's has 11 x 8
positions=6|another model: transformer.wpe.weight
vocab=10|another model: transformer.wte.weight"
for universal in no yes; do
	flags="universal=$universal load=$run"
	while IFS='|' read -r model _; do
		later 2 "$universal-$model" stage=3 $flags $model
	done <<<"$models"
	later 2 "$universal-more" stage=3 $flags vocab=16 steps=0
	# trained rows | padding rows | continued or replaced
	known="stage=3 words=11 load=$tmp/padded-$universal"
	later 2 "$universal-pads" stage=3 $flags vocab=16 words=11 steps=6 save="$tmp/padded-$universal"
	later 2 "$universal-padded" $known vocab=16
	later 2 "$universal-repads" $known vocab=20 save="$tmp/repadded-$universal"
	later 2 "$universal-unpads" stage=1 load="$tmp/repadded-$universal"
	later 2 "$universal-loses" stage=1 vocab=10 load="$tmp/repadded-$universal"
done

mkdir "$tmp/empty"
later 2 none load="$tmp/none"
later 2 empty load="$tmp/empty"
later 2 no-tag load="$run" tag=global_step9
later 2 tree-as-shards load="$run" tag=global_step3_universal
later 2 shards-as-tree load="$run" universal=yes tag=global_step3
start
refused "a parameter is missing" "transformer.ln_f.bias" no-parameter
for universal in no yes; do
	while IFS='|' read -r model cause; do
		refused "universal=$universal, $model" "$cause" "$universal-$model"
	done <<<"$models"
	did "$universal-more" # their rows are zero
	want=$(state "$universal-pads")
	same "padding stays" "${want% and padding} and padding" "$universal-padded"
	for to in repads unpads; do
		same "other padding is zeros" "${want% and padding}" "$universal-$to"
	done
	refused "a word is missing" "another model: transformer.wte.weight" "$universal-loses"
	check "all ranks record the vocabulary rows" test "$(grep -l original_vocab_size \
		"$tmp/padded-$universal"/global_step6/*model_states.pt | wc -l)" = 2
done
refused "no directory" "none: no .latest." none
refused "an empty one" "empty" empty
refused "no such tag" "global_step9: no such checkpoint" no-tag
refused "a tree, as shards" "resume from it with --universal" tree-as-shards
refused "shards, as a tree" "mount it with ucfs" shards-as-tree

echo global_step9 >"$run/latest"
later 2 elsewhere load="$run"
start
refused "latest names what is not there" "names 'global_step9'" elsewhere
rm "$run/latest"
later 2 newest stage=3 load="$run"
start
did newest # there is no `latest`
tree=$tmp/padded-no/tree
ucckpt convert "$tmp/padded-no/global_step6" "$tree" >/dev/null || fail "convert padded"
later 3 tree-padded words=11 vocab=16 universal=yes load="$tree"
later 3 tree-repads words=11 vocab=20 universal=yes load="$tree"
start
same "a tree keeps padding" "${want% and padding} and padding" tree-padded
same "and records which rows are" "${want% and padding}" tree-repads

truncate -s 1000 "$run/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
truncate -s 1000 "$run/global_step3_universal/zero/transformer.wte.weight/fp32.pt"
later 2 shard-cut stage=3 load="$run"
later 2 file-cut stage=3 load="$run" universal=yes
start
refused "a shard is cut off" "zero_pp_rank_1_mp_rank_00_optim_states.pt" shard-cut
refused "a file is cut off" "transformer.wte.weight/fp32.pt" file-cut
finish
