#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A tag was saved again over files of an earlier save: views show the newer save, and messages
# name the old files.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

# again FORMER NEWER: make $tag NEWER's tag, saved over FORMER's.
tag=$tmp/run/again
again() {
	rm -rf "$tmp/run"
	mkdir -p "$tag"
	cp -r "$good/$1/$(tag_of "$1")/." "$tag"
	chmod -R u+w "$tag"
	cp -r "$good/$2/$(tag_of "$2")/." "$tag"
	find "$tag" -type f -exec touch -d '2026-01-02 03:04:05' {} +
}

# written FORM SOURCE DIRECTORY
written() {
	rm -rf "$3"
	ucckpt convert --view "$1" "$2" "$3" >"$tmp/said" 2>&1 || fail "$2: $(cat "$tmp/said")"
}

# Former save | newer save | a name that is left out, or - | how many more than five.  All files
# have the same time.
while IFS='|' read -r former newer left more; do
	again "$former" "$newer"
	for form in universal fp32; do
		written $form "$good/$newer/$(tag_of "$newer")" "$tmp/wanted"
		written $form "$tag" "$tmp/found"
		check "$former, then $newer: $form" diff -r "$tmp/wanted" "$tmp/found"
	done
	if [ "$left" = - ]; then
		check "$newer: no file is left" test -z "$(grep former "$tmp/said")"
	else
		check "$newer: names $left" grep -q "former save are left .*$left" "$tmp/said"
	fi
	check "$newer: and how many more" test "$(sed -n 's/.* and \([0-9]*\) more$/\1/p' "$tmp/said")" = "$more"
	check "$former, then $newer: whole" ucckpt check --data "$tag" >"$tmp/said"
done <<'END'
z1_fp32_dp4|z1_fp32_dp2|zero_pp_rank_2_mp_rank_00_optim_states.pt, zero_pp_rank_3_mp_rank_00_optim_states.pt|
z1_fp32_dp2|z1_fp32_dp4|-|
z3_fp32_dp4|z3_fp32_dp2|zero_pp_rank_3_mp_rank_00_model_states.pt|
z3_fp32_dp3|z1_fp32_dp2|zero_pp_rank_0_mp_rank_00_model_states.pt|
z3_fp32_dp2|z2_fp32_dp2|zero_pp_rank_1_mp_rank_00_model_states.pt|
z2_fp32_dp4|z3_fp32_dp2|, mp_rank_00_model_states.pt|
z1_fp32_dp4|z1_bf16_dp2| zero_pp_rank_0_mp_rank_00_optim_states.pt|
z1_bf16_dp2|z1_bf16opt_dp2|-|
z1_bf16_dp2|z1_fp32_dp4|bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt|
z3_fp32_dp4|z3_bf16_dp2|zero_pp_rank_2_mp_rank_00_model_states.pt|1
meg_tp2_dp2_z1_bf16|meg_tp1_dp2_z1_bf16|, mp_rank_01_model_states.pt|
tp3_dp1_z1|tp2_dp2_z1_bf16|mp_rank_02_model_states.pt|
tp2_dp2_z3|z3_fp32_dp2|zero_pp_rank_1_mp_rank_01_model_states.pt|
pp2_dp2_z1_bf16|z1_fp32_dp2|bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt|6
moe_ep2_dp4_z2|moe_ep2_dp2_z1|zero_pp_rank_3_mp_rank_00_optim_states.pt|
pp2_dp2_z0_fp32|z0_fp32_dp2|out: mp_rank_01_model_states.pt, layer_00-model_states.pt|2
autoep2_dp4_z3_bf16|autoep2_dp2_z3|bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt|1
END

# Only files of a pipeline's layers remain.
rm -rf "$tag"
cp -r "$good/z1_fp32_dp2/$(tag_of z1_fp32_dp2)" "$tag"
cp "$good"/pp2_dp1_z1_fp32/*/layer_0[01]* "$tag"
written fp32 "$good/z1_fp32_dp2/$(tag_of z1_fp32_dp2)" "$tmp/wanted"
written fp32 "$tag" "$tmp/found"
check "layers of a former pipeline are no weights" diff -r "$tmp/wanted" "$tmp/found"
check "and are named" grep -q "left out: layer_00-model_states.pt, layer_01-model_states.pt" "$tmp/said"

# Both saves have all ranks: only the times show which is newer.
refused() {
	ucckpt check "$tag" >"$tmp/said" && fail "$1: not refused"
	check "$1: says why" grep -q "$2" "$tmp/said"
}
again z3_bf16_dp2 z1_fp32_dp2
refused "times are equal" "zero_pp_rank_0_mp_rank_00_model_states.pt.*side by side"
touch -d '2026-01-02 03:04:06' "$tag"/zero_pp_rank_*_optim_states.pt
written fp32 "$good/z1_fp32_dp2/$(tag_of z1_fp32_dp2)" "$tmp/wanted"
written fp32 "$tag" "$tmp/found"
check "the newer by its time" diff -r "$tmp/wanted" "$tmp/found"

# Without ZeRO there are no shards.
again z1_fp32_dp2 z0_fp32_dp2
refused "stage 0 over stage 1" "saved without ZeRO: .*zero_pp_rank_0_mp_rank_00_optim_states.pt"

# Files that the newer save lacks are reported as missing, even if the former one left them.
again z3_fp32_dp3 z1_fp32_dp2
rm "$tag/zero_pp_rank_1_mp_rank_00_optim_states.pt"
refused "a shard is missing" "optimizer shard of data-parallel rank 1, .* is missing"
again z1_fp32_dp4 z1_fp32_dp2
cp "$good/z1_fp32_dp4/$(tag_of z1_fp32_dp4)/zero_pp_rank_1_mp_rank_00_optim_states.pt" "$tag"
refused "a shard of the former save in its place" "zero_pp_rank_1_.*partitioned over 4 ranks"
finish
