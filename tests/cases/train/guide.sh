#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The short form of the guide: its output is complete, every topology continues like the first
# run, and a failed run leaves nothing mounted.
pictures=yes
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

guide=$top_srcdir/examples/guide.sh
data=$good/megatron/data/tiny_text_document

# rows RUN COLUMN: print how many rows of a run's table have a value in the column.
rows() {
	awk -F, -v run="$1" -v column="$2" '$1 == run && $column != ""' "$out/guide.csv" | wc -l
}

# loss RUN STEP
loss() {
	awk -F, -v run="$1" -v step="$2" '$1 == run && $2 == step { print $3 }' "$out/guide.csv"
}

mounted() { grep -qF " $out/" /proc/self/mounts; }

# A smaller model than the guide's learns in as many steps.
small=(--n_layer 2 --n_embd 32 --lr 5e-3)

# Ranks | first run | topologies that continue it
plan="4 gpt2_tp2_pp2_dp1_sp1 gpt2_tp4_pp1_dp1_sp1 gpt2_tp1_pp1_dp4_sp1
2 gpt2_tp2_pp1_dp1_sp1 gpt2_tp1_pp1_dp2_sp1 gpt2_tp1_pp2_dp1_sp1"

while read -r ranks first others; do
	out=$tmp/guide$ranks
	bash "$guide" -s -n "$ranks" "$data" "$out" "${small[@]}" >"$tmp/said" 2>&1 </dev/null ||
		fail "$ranks ranks: $(tail -n 20 "$tmp/said")"
	check "$ranks ranks: the columns" test "$(head -n 1 "$out/guide.csv")" = run,step,loss,valid_loss
	check "all steps of the first run" test "$(rows "$first" 3)" = 20
	check "with validations" test "$(rows "$first" 4)" = 20
	for run in $others; do
		check "$run: steps from the middle on" test "$(rows "$run" 3)" = 10
		check "$run: validations" test "$(rows "$run" 4)" = 10
	done
	check "two go on alike" test "$(grep -c '^10 steps, at most .* apart$' "$tmp/said")" = 2
	check "from the weights alone" test "$(rows weights_only 3)" = 10
	# Its first batch is the run's first one, whose loss was far higher then.
	check "which had learned" awk -v a="$(loss weights_only 11)" -v b="$(loss "$first" 1)" \
		'BEGIN { exit !(a > 0 && a < b - 0.5) }'
	check "without their optimizer" grep -q "fresh optimizer state" "$out/weights_only.log"
	check "nothing else" test "$(wc -l <"$out/guide.csv")" = 51
	! command -v gnuplot >/dev/null || check "the picture" test \
		"$(head -c 8 "$out/guide.png" | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a
	if mounted; then
		fail "still mounted: $(grep -F " $out/" /proc/self/mounts)"
	fi
done <<<"$plan"

if bash "$guide" -s "$data" "$tmp/guide4" >"$tmp/said" 2>&1; then
	fail "a directory of another guide was taken"
fi
check "which is named" grep -q "^guide: $tmp/guide4/trained is there already" "$tmp/said"
out=$tmp/failed
if bash "$guide" -s "$tmp/none" "$out" >"$tmp/said" 2>&1; then
	fail "no data: was accepted"
fi
check "the run's own message" grep -q "^uctrain: $tmp/none: cannot open" "$tmp/said"
for wrong in "-n 1 $data $out" "-n 9 $data $out" "$data" "-x $data $out"; do
	# shellcheck disable=SC2086 # words
	bash "$guide" $wrong >"$tmp/said" 2>&1
	check "'$wrong': status 2" test $? = 2
	check "'$wrong': usage" grep -q "^usage: guide.sh" "$tmp/said"
done
finish
