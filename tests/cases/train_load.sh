#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What was saved is found again, whoever saved it and on however many ranks
# (ranks_checkpoint.c trains, and prints digests of its state).
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cases/mpi.sh
. "$(dirname "$0")/mpi.sh"
require_mpi

program=$top_builddir/tests/ranks_checkpoint
[ -x "$program" ] || skip "the trainer was not built"

# state N KEY=VALUE...: what N ranks have in the end
state() {
	on_ranks "$1" "$program" "${@:2}" 2>"$tmp/words"
}

# same "what" WANT N KEY=VALUE...
same() {
	local what=$1 want=$2 got
	shift 2
	got=$(state "$@") || fail "$what: $(cat "$tmp/words")"
	[ "$got" = "$want" ] || fail "$what: $got, not $want"
}

# refused "what" PATTERN N KEY=VALUE...: fails, and says PATTERN
refused() {
	local what=$1 pattern=$2
	shift 2
	state "$@" >"$tmp/refused" && fail "$what: was accepted"
	grep -q -e "$pattern" "$tmp/words" || fail "$what: $(cat "$tmp/words")"
}

# The bytes that all ranks have read, and those past a mount.
bytes_read() {
	awk '/^rank/ { all += $3; past += $5 } END { print all + 0, past + 0 }' "$tmp/words"
}

# only LINES LINE: are all of them this one?
only() { [ "$(sort -u <<<"$1")" = "$2" ]; }

# --- what four ranks saved in any stage, in every stage on fewer ---------------

# Averages of three ranks' gradients round in their own way, so training on three
# ranks does not have the bits of training on four; what they load has.
saves=() loads=() steps=()
for stage in 1 2 3; do
	saves+=(-- stage=$stage schedule=2 save="$tmp/four-z$stage")
done
four=$(state 4 "${saves[@]:1}")
three=$(head -n 1 <<<"$four")
check "all stages train alike" only "$four" "$three"
six=$(state 4 stage=1 schedule=2 steps=6)
for stage in 1 2 3; do
	tree=$tmp/four-z$stage/tree
	ucckpt convert "$tmp/four-z$stage/global_step3" "$tree" >/dev/null || fail "convert z$stage"
	for to in 0 1 2 3; do
		into=(-- stage=$to schedule=2 universal=yes load="$tree")
		loads+=("${into[@]}")
		steps+=("${into[@]}" steps=6)
	done
done
for n in 1 2 3; do
	got=$(state $n "${loads[@]:1}")
	check "each stage of four ranks in each stage on $n" test "$(wc -l <<<"$got")" = 12
	check "they are the same" only "$got" "$three"
	# In stage 0 every rank reads all.
	check "each rank read its part" test "$(bytes_read)" = "$((13536 * 3 * (3 + n))) 0"
	got=$(state $n "${steps[@]:1}")
	check "and go on" only "$got" "$([ $n = 3 ] && head -n 1 <<<"$got" || echo "$six")"
done

# --- our own, of every stage and type -----------------------------------------

while read -r stage dtype to_stages; do
	run=$tmp/$dtype-z$stage
	flags=(dtype=$dtype schedule=2)
	[ "$dtype" = fp16 ] && flags+=(dynamic=yes)
	six=$(state 2 stage=$stage steps=6 "${flags[@]}")
	three=$(state 2 stage=$stage "${flags[@]}" save="$run")
	same "$run: as it was" "$three" 2 stage=$stage "${flags[@]}" load="$run"
	check "$run: each rank read its part" test "$(bytes_read)" = \
		"$((stage ? 13536 : 2 * 13536)) 0"
	same "$run: and goes on" "$six" 2 stage=$stage "${flags[@]}" load="$run" steps=6
	[ "$stage" != 0 ] || continue
	refused "$run: other ranks" "by 2 ranks, and this run has 1; mount" \
		1 stage=$stage "${flags[@]}" load="$run"
	ucckpt convert "$run/global_step3" "$run/global_step3_universal" >/dev/null ||
		fail "convert $run"
	for to in $to_stages; do
		n=$((1 + (stage + to) % 4))
		same "$run: from its tree in stage $to on $n ranks" "$three" \
			$n stage=$to "${flags[@]}" load="$run" universal=yes
		if [ "$to" != 0 ]; then
			check "each rank read its part" test "$(bytes_read)" = "13536 0"
		fi
	done
done <<END
0 fp32
1 fp32
2 fp32
3 fp32
1 bf16 1 2
0 fp16
3 fp16 2
END

# Another type of weights than it was saved with: masters are masters.
same "bfloat16 becomes float32" "$(state 2 dtype=bf16 schedule=2)" 4 universal=yes load="$tmp/bf16-z1"

# --- of real DeepSpeed --------------------------------------------------------

deepspeed() {
	local case=$1 stage=$2 dtype=$3 want
	local flags=(stage=$stage dtype=$dtype "${@:4}" steps=0)
	want=$(state 4 "${flags[@]}" load="$good/$case") || fail "$case: $(cat "$tmp/words")"
	echo "$case: $want"
	mkdir -p "$tmp/$case"
	ucckpt convert "$good/$case/"global_step* "$tmp/$case/tree" >/dev/null || fail "convert $case"
	for n in 1 3; do
		same "$case on $n ranks" "$want" $n "${flags[@]}" \
			universal=yes load="$tmp/$case" tag=tree
	done
	same "$case in another stage" "$want" 2 "${flags[@]}" stage=$((3 - stage)) \
		universal=yes load="$tmp/$case/tree"
	case $want in
	"step ${5#*=} "*"flavor ${4#*=} "*) ;;
	*) fail "$case: $want" ;;
	esac
}
curves=(width=32 vocab=256 positions=32)
deepspeed curves/gpt2_z2_bf16_dp4 2 bf16 flavor=0 steps=10 "${curves[@]}"
deepspeed curves/gpt2_z3_fp32_dp4 3 fp32 flavor=0 steps=10 "${curves[@]}"
deepspeed dsuc_gpt2_z3_offload_dp4 3 fp32 flavor=1 steps=4 width=16 vocab=128 positions=32

# --- vocabularies with padding --------------------------------------------------

# Of 16 rows 11 are words, the others have learnt that they never come.  They stay
# where the model has as many; any other has zeros in their place, or none.
for stage in 2 3; do
	case=$good/z${stage}_padded_vocab_dp2
	ucckpt convert "$case/global_step4" "$tmp/padded-z$stage" >/dev/null || fail "convert $case"
	same=(-- stage=$stage words=11 steps=4)
	tree=(universal=yes load="$tmp/padded-z$stage")
	shards=() trees=()
	for rows in 11 12 20; do
		shards+=("${same[@]}" vocab=$rows load="$case")
		trees+=("${same[@]}" vocab=$rows "${tree[@]}")
	done
	got=$(state 2 "${same[@]:1}" vocab=16 load="$case" "${same[@]}" vocab=16 "${tree[@]}" "${shards[@]}")
	mapfile -t got <<<"$got"
	words=${got[0]% and padding}
	check "the same vocabulary" test "${got[0]}" = "$words and padding"
	# Of ZeRO-3 DeepSpeed's converter keeps the padding.
	check "the same from its tree" test "${got[1]}" = \
		"$words$([ $stage = 2 ] || echo " and padding")"
	check "other padding is zeros" test "${got[*]:2}" = "$words $words $words"
	for n in 1 3; do
		got=$(state $n "${trees[@]:1}")
		check "on $n ranks, too" test "${got//$'\n'/ }" = "$words $words $words"
	done
	refused "a word is missing" "another model: transformer.wte.weight" 2 \
		stage=$stage vocab=10 load="$case"
	refused "a word is missing" "another model: transformer.wte.weight" 1 \
		stage=$stage vocab=10 "${tree[@]}"
done
run=$tmp/unpadded
state 2 stage=2 vocab=11 steps=4 load="$good/z2_padded_vocab_dp2" save="$run" >/dev/null
# The other name of the embedding is shown as it was saved.
got=$(ucckpt diff "$good/z2_padded_vocab_dp2/global_step4" "$run/global_step4" | grep -v '^[AB]: ')
check "and words are those of DeepSpeed" test "$got" = \
	"lm_head.weight fp32: shape [16, 6] in A, [11, 6] in B
different: 1 of 113 states of 29 parameters"

# --- steps and kinds of Adam --------------------------------------------------

for flavor in 0 1 2; do
	for stage in 1 3; do
		run=$tmp/flavor$flavor-z$stage
		want=$(state 1 stage=$stage flavor=$flavor steps=4 save="$run")
		same "$run" "$want" 1 stage=$stage steps=0 load="$run"
		ucckpt convert "$run/global_step4" "$run/tree" >/dev/null
		same "$run: its tree" "$want" 2 stage=$stage steps=0 universal=yes load="$run" tag=tree
		# and is saved as it came
		state 1 stage=1 steps=0 universal=yes load="$run" tag=tree save="$run/again" >/dev/null
		same "$run: again" "$want" 1 stage=1 steps=0 load="$run/again"
	done
done

# --- not everything -----------------------------------------------------------

run=$tmp/fp32-z1
tree=$run/global_step3_universal
fresh="updates 0 fp32 .* exp_avg \([0-9a-f]*\) exp_avg_sq \1 "
got=$(state 2 universal=yes no_optimizer=yes load="$run" steps=0)
check "parameters alone: an optimizer of zeros" grep -q "^step 3 $fresh" <<<"$got"

rm "$tree/zero/transformer.h.1.ln_2.bias/exp_avg_sq.pt"
refused "a state is missing" "transformer.h.1.ln_2.bias/exp_avg_sq.pt" 3 universal=yes load="$run"
got=$(state 3 universal=yes ignore_missing=yes load="$run" steps=0)
check "it may begin from zero" grep -q "^1 missing: .*transformer.h.1.ln_2.bias/exp_avg_sq.pt" <<<"$got"
rm -r "$tree"/zero/*/exp_avg*.pt "$tree"/zero/*/step.pt "$tree/zero/optimizer_state.pt"
got=$(state 1 universal=yes ignore_missing=yes load="$run" steps=0)
check "as all of them may" grep -q "^56 missing: " <<<"$got"
check "as zeros" grep -q "^step 3 $fresh" <<<"$got"
refused "the step is missing" "optimizer_state.pt: is missing" 1 universal=yes load="$run"
check "parameters alone need none" state 1 universal=yes no_optimizer=yes load="$run" >/dev/null
rm -r "$tree/zero/transformer.ln_f.bias"
refused "a parameter is missing" "transformer.ln_f.bias" 2 universal=yes load="$run" ignore_missing=yes

# --- another model ------------------------------------------------------------

run=$tmp/fp32-z3
for universal in no yes; do
	flags=(stage=3 universal=$universal load="$run")
	refused "more layers" "transformer.h.2." 2 "${flags[@]}" layers=3
	refused "fewer layers" "this one has no transformer.h.1." 2 "${flags[@]}" layers=1
	refused "wider" "another model: transformer.wte.weight has .*, and this model's 11 x 8" 2 "${flags[@]}" width=8
	refused "more positions" "another model: transformer.wpe.weight" 2 "${flags[@]}" positions=6
	refused "fewer words" "another model: transformer.wte.weight" 2 "${flags[@]}" vocab=10
	check "more words: their rows are zero" state 2 "${flags[@]}" vocab=16 steps=0 >"$tmp/more"
	# and taking them away again needs to know that they are padding
	state 2 stage=1 universal=$universal load="$run" vocab=16 steps=0 save="$tmp/padded-$universal" >/dev/null
	refused "they are words now" "another model: transformer.wte.weight" 2 \
		stage=1 load="$tmp/padded-$universal"
done

# --- not there, or not what it should be --------------------------------------

refused "no directory" "none: no .latest." 2 load="$tmp/none"
mkdir "$tmp/empty"
refused "an empty one" "empty" 2 load="$tmp/empty"
refused "no such tag" "global_step9: there is no such checkpoint" 2 load="$run" tag=global_step9
refused "a tree, as shards" "resume from it with --universal" 2 load="$run" tag=global_step3_universal
refused "shards, as a tree" "mount it with ucfs" 2 load="$run" universal=yes tag=global_step3
echo global_step9 >"$run/latest"
refused "latest names what is not there" "names 'global_step9'" 2 load="$run"
rm "$run/latest"
check "without latest, the newest" state 2 stage=3 load="$run" >/dev/null
truncate -s 1000 "$run/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
refused "a shard is cut off" "zero_pp_rank_1_mp_rank_00_optim_states.pt" 2 stage=3 load="$run"
truncate -s 1000 "$run/global_step3_universal/zero/transformer.wte.weight/fp32.pt"
refused "a file is cut off" "transformer.wte.weight/fp32.pt" 2 stage=3 load="$run" universal=yes
finish
