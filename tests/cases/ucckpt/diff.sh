#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucckpt diff: checkpoints with the same contents are equal in any layout, and differences are
# named.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

# run_diff STATUS ARGUMENT...: run it with the report in $tmp/said.
run_diff() {
	local want=$1 status
	shift
	ucckpt diff "$@" >"$tmp/said" 2>"$tmp/errors"
	status=$?
	check "diff $*: exit status $status: $(cat "$tmp/said" "$tmp/errors")" test $status = "$want"
	[ "$want" = 2 ] || check "diff $*: nothing on stderr" test ! -s "$tmp/errors"
}

# says LINE...: check that the report has the compared names, and these lines.
says() {
	printf '%s\n' "$@" >"$tmp/want"
	check "the report" diff -u "$tmp/want" <(grep -v '^[AB]: ' "$tmp/said")
}

# some NAME...: print all names; under sanitizers every fourth, since the same code reads them
# (unit/views/test_good reads every one).
some() {
	local step=1
	[ "${sanitize:-no}" = no ] || step=4
	printf '%s\n' "$@" | awk -v step=$step 'NR % step == 1 || step == 1'
}

# Each checkpoint equals its universal tree.
for name in $(some autoep2_dp4_z3_bf16 autotp2_llama_uneven_z1_dp1 autotp2_llama_z3_dp1 hf_trainer \
	legacy_z2_bf16_master_bf16_dp2 meg_tp2_dp2_z1_bf16 moe2_ep2_dp4_z1 pp2_tp2_dp2_z1_bf16 \
	tp2_dp2_z3 z1_sgd_dp2 z1_tied_frozen_buffers_dp2 z2_round_robin_dp3 z3_nvme_dp2 \
	z3_tied_frozen_buffers_dp2); do
	tag=$good/$name/$(tag_of $name)
	ucckpt convert "$tag" "$tmp/tree" >"$tmp/said" 2>&1 || fail "convert $name: $(cat "$tmp/said")"
	run_diff 0 "$tag" "$tmp/tree"
	rm -r "$tmp/tree"
done

# It also equals the weights in its views, whatever the tree lacks, or has cut or rounded: buffers
# and frozen parameters, padded vocabularies, tied names.
for name in $(some autoep2_dp4_z3_bf16 curves/gpt2_z2_bf16_dp4 meg_tp1_dp2_z1_bf16 meg_tp2_dp2_z1_bf16 \
	moe2_ep2_dp4_z1 old0.16.9_z2_bf16_tied_frozen_buffers_dp2 pp2_tp2_dp2_z1_bf16 tp2_dp2_z3 \
	z1_bf16opt_tied_frozen_buffers_dp2 z2_padded_vocab_dp2 z3_frozen_exclude_dp2 z3_nvme_dp2 \
	z3_padded_vocab_dp2 z3_tied_frozen_buffers_dp2); do
	for to in hf fp32; do
		ucckpt convert --view $to "$good/$name" "$tmp/weights" >"$tmp/said" 2>&1 ||
			fail "convert $name: $(cat "$tmp/said")"
		run_diff 0 "$good/$name" "$tmp/weights"
		run_diff 0 "$tmp/weights" "$good/$name"
		file=$(find "$tmp/weights" -name 'model.safetensors')
		[ -z "$file" ] || flip "$file" $(($(stat -c %s "$file") - 2))
		[ -z "$file" ] || run_diff 1 "$good/$name" "$tmp/weights"
		rm -r "$tmp/weights"
	done
done

# Stages partition the same numbers in different ways.
while read -r a b status; do
	run_diff "$status" "$good/$a" "$good/$b"
done <<END
z1_fp32_dp2 z2_fp32_dp2 0
z1_fp32_dp2 z3_fp32_dp2 0
z3_fp32_dp2 z1_fp32_dp2 0
z1_fp32_dp2 legacy_z3_fp32_dp2 0
z1_fp32_dp2 z1_fp32_dp4 1
z1_fp32_dp2 pp2_dp1_z1_fp32 1
END
run_diff 0 "$good/z1_fp32_dp2" "$good/z3_fp32_dp2/global_step4"
check "it is reported what was compared" diff <(head -n 2 "$tmp/said") - <<END
A: $good/z1_fp32_dp2/global_step4 (ZeRO checkpoint)
B: $good/z3_fp32_dp2/global_step4 (ZeRO checkpoint)
END
says "equal: 68 states of 17 parameters"

# Weights alone, of other types.
for name in hfdir_bin hfdir_bin_sharded hfdir_gpt2_bf16_sharded; do
	ucckpt convert "$good/$name" "$tmp/tree" >"$tmp/said" 2>&1 || fail "convert $name: $(cat "$tmp/said")"
	run_diff 0 "$good/$name" "$tmp/tree"
	check "$name: the states are reported once" grep -q -x "note: A has no exp_avg, exp_avg_sq" "$tmp/said"
	run_diff 1 "$good/$name" "$tmp/tree" --strict
	rm -r "$tmp/tree"
done
ucckpt convert "$good/hfdir_types" "$tmp/tree" >"$tmp/said" 2>&1
run_diff 1 "$good/hfdir_types" "$tmp/tree"
says "different: 1 of 21 states of 21 parameters, by up to 6.08e-17 (relative 6.08e-09)" \
	"note: A has no exp_avg, exp_avg_sq" "note: states with equal values of different types: 16" \
	"of.float64 fp32: 1 of 15 elements differ, by up to 6.08e-17 (relative 6.08e-09), the first at [2, 1], float64 in A, float32 in B"
rm -r "$tmp/tree"

# Tied parameters appear under one name.
tag=$good/z1_tied_frozen_buffers_dp2/global_step4
ucckpt convert --view hf "$tag" "$tmp/once" >/dev/null 2>&1 || fail "convert to hf"
ucckpt convert --view fp32 "$tag" "$tmp/twice" >/dev/null 2>&1 || fail "convert to fp32"
ucckpt convert "$tag" "$tmp/u" >/dev/null 2>&1
# Model states in a tree record the same ties as a ZeRO checkpoint.
for a in "$tag" "$tmp/u"; do
	run_diff 0 "$a" "$tmp/once"
	types=("note: states with equal values of different types: 2")
	[ "$a" != "$tag" ] || types=() # types of its own views
	says "equal: 23 states of 23 parameters" "note: B has no exp_avg, exp_avg_sq, step" \
		"note: B stores tied parameters once, under another name: 1" "${types[@]}"
	run_diff 0 "$tmp/once" "$a" --all
	check "which is reported" grep -q -x "head.weight fp32: the same, as embed.weight in A" "$tmp/said"
	run_diff 0 "$tmp/twice" "$a"
	check "nothing is missing" test "$(grep -c "are tied to" "$tmp/said")" = 0
done
run_diff 0 "$tmp/u" "$tmp/once" --json --all
check "JSON reports it, too" test "$(tr -d ' \t\n' <"$tmp/said" |
	grep -o '"parameter":"[a-z.]*","tied_[ab]":"[a-z.]*","state":"[a-z0-9]*","kind":"[a-z]*"')" = \
	'"parameter":"head.weight","tied_b":"embed.weight","state":"fp32","kind":"same"'
# Each of the tied names works, also the one that ties do not lead to.
cp -r "$tmp/once" "$tmp/head"
LC_ALL=C sed -i 's/"embed\.weight":{/"head.weight": {/' "$tmp/head/model.safetensors"
for a in "$tag" "$tmp/u"; do
	run_diff 0 "$a" "$tmp/head" --all
	check "which is reported: $(cat "$tmp/said")" grep -q -x "embed.weight fp32: the same, as head.weight in B" "$tmp/said"
	run_diff 0 "$tmp/head" "$a"
	check "it is one" grep -q -x "note: A stores tied parameters once, under another name: 1" "$tmp/said"
done
# A side with only the other name has no states of it.
mv "$tmp/u/zero/embed.weight" "$tmp/embed"
run_diff 1 "$tmp/u" "$tag"
check "states are missing" grep -q -x "embed.weight exp_avg: only in B, as head.weight in A" "$tmp/said"
mv "$tmp/embed" "$tmp/u/zero/embed.weight"
# Weights with different values are not tied, whatever is recorded.
cp "$tmp/u/zero/ln_f.weight/fp32.pt" "$tmp/u/zero/head.weight/fp32.pt"
run_diff 1 "$tmp/u" "$tmp/once"
check "they are compared" grep -q -x \
	"head.weight fp32: shape \[6\] in A, \[13, 6\] in B, as embed.weight in B" "$tmp/said"
# Without model states on either side ties are unknown.
rm "$tmp/u/"*model_states.pt
run_diff 1 "$tmp/u" "$tmp/once"
check "a name that is missing: $(cat "$tmp/said")" grep -q -x "head.weight: only in A" "$tmp/said"
# The tree of ZeRO-3 has one of the names; the side with both has no model states.
ucckpt convert --view fp32 "$good/z3_padded_vocab_dp2" "$tmp/both" >/dev/null 2>&1
ucckpt convert "$good/z3_padded_vocab_dp2" "$tmp/one" >/dev/null 2>&1
run_diff 0 "$tmp/both" "$tmp/one"
check "the head is the embedding" grep -q -x \
	"note: B stores tied parameters once, under another name: 1" "$tmp/said"
run_diff 1 "$tmp/both" "$tmp/one" --strict
rm -r "$tmp/u"

# Differences are named.
tag=$good/z1_fp32_dp2/global_step4
ucckpt convert "$tag" "$tmp/u" >/dev/null 2>&1
zero=$tmp/v/zero

# fresh: make $tmp/v the tree of $tag, to be changed.
fresh() {
	rm -rf "$tmp/v"
	cp -r "$tmp/u" "$tmp/v"
}

# put FILE ELEMENT BYTES: set an element of four bytes to BYTES (for printf).
put() {
	# shellcheck disable=SC2059 # the bytes are a format
	printf "$3" | dd of="$1" bs=1 conv=notrunc status=none \
		seek=$(($(start_of "$1" data/0) + 4 * $2))
}
one='\x00\x00\x80\x3f' half='\x00\x00\x00\x3f' nan='\x00\x00\xc0\x7f' nan1='\x01\x00\xc0\x7f'
inf='\x00\x00\x80\x7f' zero_='\x00\x00\x00\x00' minus_zero='\x00\x00\x00\x80'

# One element of A and of B | the report about them
while IFS='|' read -r a b said; do
	fresh
	put "$tmp/u/zero/cube/exp_avg.pt" 17 "$a"
	put "$zero/cube/exp_avg.pt" 17 "$b"
	if [ -z "$said" ]; then
		run_diff 0 "$tmp/u" "$tmp/v"
		continue
	fi
	run_diff 1 "$tmp/u" "$tmp/v"
	check "says '$said' in: $(cat "$tmp/said")" grep -q -x -F \
		"cube exp_avg: 1 of 30 elements differ, $said, the first at [1, 0, 2]" "$tmp/said"
done <<END
$one|$one|
$nan|$nan|
$inf|$inf|
$one|$half|by up to 0.5 (relative 0.5)
$half|$one|by up to 0.5 (relative 0.5)
$zero_|$half|by up to 0.5 (relative 1)
$zero_|$minus_zero|by up to 0 (relative 0)
$nan|$nan1|1 of them NaN or infinite
$nan|$one|1 of them NaN or infinite
$one|$inf|1 of them NaN or infinite
END
rm -r "$tmp/u"
ucckpt convert "$tag" "$tmp/u" >/dev/null 2>&1

# One element of A and of B | options | are they equal?
while IFS='|' read -r a b options status; do
	fresh
	put "$tmp/u/zero/cube/exp_avg.pt" 17 "$a"
	put "$zero/cube/exp_avg.pt" 17 "$b"
	# shellcheck disable=SC2086 # several words
	run_diff "$status" $options "$tmp/u" "$tmp/v"
done <<END
$one|$half|--rtol 1|0
$one|$half|--rtol 0.99|1
$half|$one|--rtol 0.5|0
$half|$one|--rtol 0.49|1
$half|$one|--atol 0.5|0
$half|$one|--atol 0.49|1
$half|$one|--atol 0.2 --rtol 0.3|0
$half|$one|--atol 0.2 --rtol 0.29|1
$zero_|$minus_zero|--rtol 1e-9|0
$nan|$nan1|--rtol 9 --atol 9|1
$one|$inf|--rtol 9 --atol 9|1
$inf|$one|--rtol 9 --atol 9|1
END
put "$tmp/u/zero/cube/exp_avg.pt" 17 "$one"
put "$zero/cube/exp_avg.pt" 17 "$half"
run_diff 0 --atol 1 --all "$tmp/u" "$tmp/v"
check "it is reported" grep -q -x "cube exp_avg: within the tolerance" "$tmp/said"
run_diff 0 --atol 1 --rtol 0.25 --json "$tmp/u" "$tmp/v"
check "JSON, too" grep -q '"rtol":0.25,"atol":1,' <(tr -d ' \t\n' <"$tmp/said")
rm -r "$tmp/u"
ucckpt convert "$tag" "$tmp/u" >/dev/null 2>&1

# The report lists the ten parameters that differ most; --all shows the others.
run_diff 1 "$tag" "$good/z1_fp32_dp4" --all
sed -n 's/^\([^ ]*\) .*(relative \([0-9.e+-]*\)), the first at .*/\2 \1/p' "$tmp/said" | LC_ALL=C sort -g -r |
	awk '!seen[$2]++ { print $2 }' >"$tmp/ranking"
check "more than ten differ" test "$(wc -l <"$tmp/ranking")" -gt 10
run_diff 1 "$tag" "$good/z1_fp32_dp4"
check "ten are listed, the worst first" diff <(head -n 10 "$tmp/ranking") \
	<(sed -n 's/^\([^ ]*\) [^ ]*: [0-9]* of .*/\1/p' "$tmp/said" | uniq)
check "the others are counted" grep -q -x \
	"and $(($(wc -l <"$tmp/ranking") - 10)) more parameters that differ (--all)" "$tmp/said"

# Flip a bit of a shard for which no tree was made.
cp -r "$tag" "$tmp/flipped"
shard=$tmp/flipped/zero_pp_rank_1_mp_rank_00_optim_states.pt
flip "$shard" "$(start_of "$shard" data/1)"
run_diff 1 "$tag" "$tmp/flipped"
check "one element: $(cat "$tmp/said")" test "$(grep -c ' 1 of [0-9]* elements differ' "$tmp/said")" = 1
check "in all" grep -q '^different: 1 of 68 states of 17 parameters, by up to ' "$tmp/said"

# No directory can have this name.
cp -r "$tag" "$tmp/names"
LC_ALL=C sed -i 's/X\x04\x00\x00\x00tail/X\x04\x00\x00\x00\/ail/g' "$tmp/names/"*.pt
run_diff 0 "$tmp/names" "$tmp/names"
run_diff 1 "$tmp/names" "$tag"
says "different: 0 of 64 states of 16 parameters; 1 parameters only in A; 1 parameters only in B" \
	"/ail: only in A" "tail: only in B"

# Flip a bit of a model's last weight.
cp -r "$good/hfdir_gpt2_bf16_sharded" "$tmp/hf"
flip "$tmp/hf/model-00003-of-00003.safetensors" \
	$(($(stat -c %s "$tmp/hf/model-00003-of-00003.safetensors") - 2))
run_diff 1 "$good/hfdir_gpt2_bf16_sharded" "$tmp/hf"
check "one weight: $(cat "$tmp/said")" grep -q -E -x \
	'transformer\.[a-z0-9_.]* fp32: 1 of [0-9]* elements differ, by up to .*' "$tmp/said"
check "alone" grep -q '^different: 1 of 28 states of 28 parameters, by up to ' "$tmp/said"

fresh
rm -r "${zero:?}/cube" "${zero:?}/tail/exp_avg.pt"
cp "$zero/one/exp_avg_sq.pt" "$zero/one/noise.pt"
cp "$zero/head.weight/fp32.pt" "$zero/embed.weight/fp32.pt"
cp "$zero/blocks.0.ln.bias/fp32.pt" "$zero/blocks.0.fc1.bias/fp32.pt"
put "$tmp/v/zero/ln_f.weight/fp32.pt" 0 "$one"
put "$tmp/u/zero/ln_f.weight/fp32.pt" 0 "$half"
run_diff 1 "$tmp/u" "$tmp/v"
check "the tied weights were not the same" grep -q '^embed.weight fp32: 78 of 78 ' "$tmp/said"
sed -i '/^embed.weight/d; s/, by up to.*//' "$tmp/said"
says "different: 4 of 63 states of 16 parameters" "note: A has no noise" \
	"blocks.0.fc1.bias fp32: shape [10] in A, [6] in B" "cube: only in A" \
	"tail exp_avg: only in A" "ln_f.weight fp32: 1 of 6 elements differ"
run_diff 1 "$tmp/v" "$tmp/u"
check "the other way round" grep -q -x "cube: only in B" "$tmp/said"
rm -r "$tmp/u"
ucckpt convert "$tag" "$tmp/u" >/dev/null 2>&1

# States that one side never has, and different types, count only on request.
fresh
rm "$zero"/*/exp_avg*.pt
run_diff 0 "$tmp/v" "$tag"
says "equal: 34 states of 17 parameters" "note: A has no exp_avg, exp_avg_sq"
run_diff 1 --strict "$tmp/v" "$tag"
ucckpt convert "$good/z1_cpuadam_dp2" "$tmp/int" >/dev/null 2>&1
fresh
cp "$tmp/int/zero/embed.weight/step.pt" "$zero/tail/step.pt"
run_diff 0 "$tmp/u" "$tmp/v"
says "equal: 68 states of 17 parameters" "note: states with equal values of different types: 1"
run_diff 1 "$tmp/u" "$tmp/v" --strict
run_diff 0 "$tmp/u" "$tmp/v" --all
check "--all lists all" test "$(grep -c ': the same' "$tmp/said")" = 68
check "with their types" grep -q -x 'tail step: the same, float32 in A, int64 in B' "$tmp/said"
check "the weights first" diff <(grep '^cube ' "$tmp/said") - <<END
cube fp32: the same
cube exp_avg: the same
cube exp_avg_sq: the same
cube step: the same
END
put "$tmp/u/zero/tail/step.pt" 0 "$half"
run_diff 1 "$tmp/u" "$tmp/v"
says "different: 1 of 68 states of 17 parameters, by up to 3.5 (relative 0.875)" \
	"tail step: 1 of 1 elements differ, by up to 3.5 (relative 0.875), the first at [], float32 in A, int64 in B"

# A flat tensor has a length instead of a shape.
ucckpt convert "$good/z3_fp32_dp2" "$tmp/flat" >/dev/null 2>&1
put "$tmp/flat/zero/cube/fp32.pt" 17 "$nan"
cp "$tmp/flat/zero/one/fp32.pt" "$tmp/flat/zero/tail/fp32.pt"
run_diff 1 "$tmp/flat" "$tag"
says "different: 2 of 51 states of 17 parameters" "note: A has no step" \
	"cube fp32: 1 of 30 elements differ, 1 of them NaN or infinite, the first at [1, 0, 2]" \
	"tail fp32: shape [1] in A, [3] in B"

# Change the last element of a large tensor.
mkdir "$tmp/large"
"$top_builddir/tests/programs/mkrun" "$tmp/large" 1 200000 || fail mkrun
ucckpt convert "$tmp/large" "$tmp/tree" >/dev/null 2>&1
run_diff 0 "$tmp/large" "$tmp/tree"
put "$tmp/tree/zero/block.0000.weight/exp_avg.pt" 199999 "$nan"
run_diff 1 "$tmp/large" "$tmp/tree"
says "different: 1 of 4 states of 1 parameters" \
	"block.0000.weight exp_avg: 1 of 200000 elements differ, 1 of them NaN or infinite, the first at [199999]"
rm -r "$tmp/u"
ucckpt convert "$tag" "$tmp/u" >/dev/null 2>&1

# JSON output.
fresh
rm -rf "${zero:?}/one" "${zero:?}"/*/exp_avg_sq.pt
put "$zero/cube/fp32.pt" 29 "$nan"
run_diff 1 --json "$tmp/u" "$tmp/v"
tr -d '\t\n' <"$tmp/said" >"$tmp/json"
for words in '{"equal":false,"strict":false,"rtol":0,"atol":0,"a":{' '"kind":"universal checkpoint","only":1,"has_no":[],"tied":0}' \
	'"only":0,"has_no":["exp_avg_sq"],"tied":0}' '"parameters":16,"states":48,' '"differ":1,' \
	'"differences":[{"parameter":"cube","state":"fp32","kind":"values","counts":true,"type_a":"float32","type_b":"float32","elements":30,"differ":1,"not_finite":1,"max_abs":0,"max_rel":0,"first":[1, 2, 4]}, {"parameter":"one","kind":"only_in_a","counts":true}]}'; do
	check "$words is in: $(cat "$tmp/json")" grep -q -F -e "$words" <(sed 's/: */:/g; s/":\([^ ]\)/":\1/g' "$tmp/json")
done

# trouble WORDS ARGUMENT...
trouble() {
	local words=$1
	shift
	run_diff 2 "$@"
	check "says '$words': $(cat "$tmp/errors")" grep -q "^ucckpt: .*$words" "$tmp/errors"
	check "and no more" test "$(wc -l <"$tmp/errors")" = 1
	check "reports nothing" test ! -s "$tmp/said"
}
truncate -s -3000 "$shard"
trouble "flipped/zero_pp_rank_1_mp_rank_00_optim_states.pt: " "$tag" "$tmp/flipped"
trouble "flipped/zero_pp_rank_1_mp_rank_00_optim_states.pt: " "$tmp/flipped" "$tag"
truncate -s -1 "$tmp/hf/model-00002-of-00003.safetensors"
trouble "hf/model-00002-of-00003.safetensors: " "$tmp/hf" "$tag"
fresh
truncate -s 1000 "$zero/cube/exp_avg.pt"
trouble "v/zero/cube/exp_avg.pt: " "$tmp/u" "$tmp/v"
fresh
echo no >"$zero/cube/exp_avg.pt"
trouble "v/zero/cube/exp_avg.pt: not a file of torch.save" "$tmp/v" "$tmp/u"
fresh
for i in $(seq 17); do
	cp "$zero/cube/fp32.pt" "$zero/cube/state$i.pt"
done
trouble "more than 16 states" "$tmp/u" "$tmp/v"
trouble "none: " "$tag" "$tmp/none"
mkdir "$tmp/empty"
trouble "empty: no DeepSpeed checkpoint here" "$tmp/empty" "$tag"
trouble "diff: expected A and B" "$tag"
trouble "diff: expected A and B" "$tag" "$tag" "$tag"
trouble "diff: --rtol: rtol=-1: not a number of at least 0" --rtol -1 "$tag" "$tag"
trouble "diff: --atol: atol=1x: not a number of at least 0" --atol 1x "$tag" "$tag"
trouble "diff: --atol: atol=nan: not a number of at least 0" --atol nan "$tag" "$tag"
trouble "diff: --frobnicate: unknown option" --frobnicate "$tag" "$tag"
ucckpt diff "$tag" "$tag" >/dev/full 2>"$tmp/errors"
check "output that cannot be written: exit status 2" test $? = 2
check "--help" grep -q '^usage: ucckpt diff' <(ucckpt diff --help)
finish
