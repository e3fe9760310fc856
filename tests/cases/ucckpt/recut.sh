#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucckpt convert --view zero writes a checkpoint that every other command accepts, with the same
# tensors in any stage.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

# recut CASE RANKS STAGE: write $out; STAGE may be empty.
recut() {
	out=$tmp/$1/dp$2$3
	local options=(--view zero --ranks "$2")
	[ -z "$3" ] || options+=(--stage "$3")
	ucckpt convert "${options[@]}" "$good/$1/$(tag_of "$1")" "$out" >"$tmp/said" 2>&1
}

# weights DIRECTORY: print the SHA-256 of its weights, including frozen ones and buffers.
weights() {
	rm -rf "$tmp/weights"
	ucckpt convert --view hf "$1" "$tmp/weights" >"$tmp/said" 2>&1 &&
		sha256sum <"$tmp/weights/model.safetensors"
}

# Plain data parallelism: convert each stage to each.
for name in z2_groups2_dp2 z2_round_robin_dp3 z1_bf16opt_dp2 z3_subgroup_dp2 \
	z1_tied_frozen_buffers_dp2 z3_tied_frozen_buffers_dp2; do
	source=$good/$name/$(tag_of "$name")
	wanted=$(weights "$source")
	for stage in '' 1 2 3; do
		recut "$name" 3 "$stage" || {
			fail "$name: stage $stage: $(cat "$tmp/said")"
			continue
		}
		# Only trees of stages 1 and 2 have tensors that the optimizer does not own.
		if [[ -z $stage || $name != *frozen* ]] || { [ "$stage" != 3 ] && [[ $name = z1* ]]; }; then
			ucckpt diff "$source" "$out" >"$tmp/said" ||
				fail "$name: stage $stage: $(cat "$tmp/said")"
		fi
		ucckpt check --data "$out" >"$tmp/said" ||
			fail "$name: stage $stage: $(cat "$tmp/said")"
		check "$name: stage $stage: the same weights" test "$(weights "$out")" = "$wanted"
		check "$name: stage $stage: as many shards as ranks" \
			test "$(find "$out" -name '*optim_states.pt' | wc -l)" = 3
	done
	rm -rf "${tmp:?}/$name"
done

name=z1_fp32_dp4
recut "$name" 2 ''
recut "$name" 2 3
check "info says how many ranks" grep -q '2' <(ucckpt info "$out")

# refused WHY OPTION...: convert fails with this message and writes nothing.
refused() {
	ucckpt convert "${@:2}" "$tmp/none" >"$tmp/said" 2>&1 && fail "${*:2}: not refused"
	check "${*:2}: says why" grep -q -e "$1" "$tmp/said"
	check "${*:2}: writes nothing" test ! -e "$tmp/none"
}

source=$good/$name/$(tag_of "$name")
refused 'zero: needs ranks=N' --view zero "$source"
refused 'ranks requires view=zero' --ranks 2 "$source"
refused 'ranks=0: not a number of ranks' --view zero --ranks 0 "$source"
refused 'ranks=4097: not a number of ranks' --view zero --ranks 4097 "$source"
refused 'stage=2: ' --stage 2 "$source"
refused 'stage=any requires view=universal' --view zero --ranks 2 --stage any "$source"
refused 'stage=4: must be .*1, 2 or 3' --view zero --ranks 2 --stage 4 "$source"
refused 'cannot change with frozen experts' --view zero --ranks 2 --stage 1 \
	"$good/moe_ep2_dp2_z2_frozen/$(tag_of moe_ep2_dp2_z2_frozen)"
refused 'cannot change with experts, but from 1 to 2' --view zero --ranks 2 --stage 3 \
	"$good/moe_ep2_dp2_z1/$(tag_of moe_ep2_dp2_z1)"
refused 'spread over 2 ranks: with ZeRO-3, 3 must be a multiple' --view zero --ranks 3 \
	"$good/autoep2_dp2_z3/$(tag_of autoep2_dp2_z3)"
refused 'cannot change with tensor or pipeline parallelism' --view zero --ranks 2 --stage 3 \
	"$good/meg_tp2_dp2_z1_bf16/$(tag_of meg_tp2_dp2_z1_bf16)"
refused 'records no param_groups' --view zero --ranks 2 --stage 3 \
	"$good/z1_elastic_dp2/$(tag_of z1_elastic_dp2)"

# A rank's file has one wrong name and right shapes.
cp -r "$source" "$tmp/damaged"
chmod -R u+w "$tmp/damaged"
LC_ALL=C sed -i s/_rebuild_tensor_v2/_rebuild_tensor_v9/ \
	"$tmp/damaged/zero_pp_rank_2_mp_rank_00_optim_states.pt"
refused 'zero_pp_rank_2_mp_rank_00_optim_states.pt: ' --view zero --ranks 3 "$tmp/damaged"
cp -r "$good/z3_subgroup_dp2/$(tag_of z3_subgroup_dp2)" "$tmp/shapeless"
chmod -R u+w "$tmp/shapeless"
LC_ALL=C sed -i 's/X\x0c\x00\x00\x00param_shapes/X\x0c\x00\x00\x00param_shapez/' \
	"$tmp/shapeless/zero_pp_rank_1_mp_rank_00_model_states.pt"
refused 'param_shapes is not that of other ranks' --view zero --ranks 3 "$tmp/shapeless"
finish
