#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Merge rules of the user, in `convert` and in a mount: Megatron's query_key_value
# in thirds becomes Q, K and V, and nothing else changes.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

name=meg_tp2_dp2_z1_fp32
run=$good/$name
tag=$(tag_of $name)
qkv=zero/language_model.encoder.layers.0.self_attention.query_key_value.weight/fp32.pt

# Print the bytes of the only tensor in a file.
tensor() { unzip -p "$1" '*/data/0'; }

# in_thirds FILE: blocks of 4 rows (of 8 floats), which two ranks saved as QKVQKV,
# as QQKKVV.
in_thirds() {
	local block

	for block in 0 3 1 4 2 5; do
		tail -c +$((1 + 128 * block)) "$1" | head -c 128
	done
}

ucckpt convert "$run/$tag" "$tmp/plain" 2>"$tmp/said" || fail "convert"
check "a guess is told" grep -q "$(basename "$(dirname "$qkv")").*megatron-qkv-thirds" "$tmp/said"
ucckpt convert --preset megatron-qkv-thirds "$run/$tag" "$tmp/thirds" 2>"$tmp/said" || fail "convert --preset"
check "not where the user said" test -z "$(grep -v "to load it: " "$tmp/said")"
tensor "$tmp/plain/$qkv" >"$tmp/rows"
check "the preset sorts Q, K and V" cmp <(in_thirds "$tmp/rows") <(tensor "$tmp/thirds/$qkv")
check "and only them" test -z \
	"$(diff -rq "$tmp/plain" "$tmp/thirds" | grep -v query_key_value)"
ucckpt convert --preset megatron-qkv-by-head "$run/$tag" "$tmp/heads" || fail "convert --preset"
check "by head they stay as they are" diff -r "$tmp/plain" "$tmp/heads"

cat >"$tmp/rules.json" <<'END'
{ "parameter_with_3_sub_params_cat_dim_0": [".*query_key_value\\.(weight|bias)$"] }
END
ucckpt convert --rules "$tmp/rules.json" "$run/$tag" "$tmp/own" || fail "convert --rules"
check "rules from a file do the same" diff -r "$tmp/thirds" "$tmp/own"

# Mistakes in rules.
ucckpt convert --preset megatron "$run/$tag" "$tmp/no" 2>"$tmp/said"
check "unknown presets are a usage error" test $? = 2
check "that names those there are" grep -q megatron-qkv-by-head "$tmp/said"
echo '{ "tp_replicated_parameter_patterns": ["no such parameter"] }' >"$tmp/unused.json"
ucckpt convert --rules "$tmp/unused.json" "$run/$tag" "$tmp/no" 2>"$tmp/said"
check "a pattern without a parameter is an error" test $? = 1
check "by name" grep -q "no such parameter" "$tmp/said"
echo '{ "tp_replicated_parameter_patterns": [".*query_key_value.weight"] }' >"$tmp/damaged.json"
ucckpt convert --no_strict --rules "$tmp/damaged.json" --preset megatron-qkv-thirds "$run/$tag" "$tmp/replicated" ||
	fail "rules and preset"
check "a file comes before a preset" test \
	"$(tensor "$tmp/replicated/$qkv" | wc -c)" = $(($(wc -c <"$tmp/rows") / 2))

# Tensor-parallel ranks do not record how they partition a parameter: only that parameter is
# refused, by name.
run=$good/moe_tp2_ep2_dp2_z1
ucckpt convert "$run" "$tmp/no" 2>"$tmp/said"
check "no tree is guessed" test $? = 1
check "by the name of a parameter" grep -q "mp_rank_00_model_states.pt: dense.down: nothing says how 2.*and so 5 more" \
	"$tmp/said"
tree=global_step3_universal/zero
expert=moe.0.deepspeed_moe.experts.deepspeed_experts.2.weight
ucckpt cat "$run" $tree/$expert/exp_avg.pt >"$tmp/expert.pt" 2>/dev/null || fail "an expert needs no rule"
ucckpt cat "$run" $tree/dense.up/fp32.pt >/dev/null 2>"$tmp/said"
check "a cut one does" test $? = 1
check "and is named" grep -q "dense.up: nothing says how 2" "$tmp/said"
ucckpt convert --view zero --ranks 1 "$run" "$tmp/recut" 2>/dev/null || fail "a re-cut needs none"
for source in "$run" "$tmp/recut"; do
	ucckpt convert --no_strict --rules "$good/moe_tp.rules" "$source" "$tmp/tree" 2>/dev/null ||
		fail "convert --rules"
	check "rules do not change an expert" cmp "$tmp/expert.pt" "$tmp/tree/zero/$expert/exp_avg.pt"
	rm -r "$tmp/tree"
done
ucckpt convert --preset megatron-qkv-thirds "$run" "$tmp/preset" 2>/dev/null || fail "convert --preset"

# Through a mount.
run=$good/$name
require_fuse
for options in ro preset=megatron-qkv-thirds "rules=$tmp/rules.json"; do
	want=thirds
	[ "$options" != ro ] || want=plain
	mount_fg "$run" -o "$options" || continue
	check "$options: as convert writes it" diff -r "$tmp/$want" "$tmp/mnt/${tag}_universal"
	unmount
done
ucfs "$run" "$tmp/mnt" -o preset=megatron 2>"$tmp/said"
check "a mount refuses unknown presets" grep -q "preset=megatron: .*megatron-qkv-thirds" "$tmp/said"
ucfs "$run" "$tmp/mnt" -o rules="$tmp/none.json" 2>"$tmp/said"
check "and files that are not there" grep -q "none.json: cannot open: No such file" "$tmp/said"
finish
