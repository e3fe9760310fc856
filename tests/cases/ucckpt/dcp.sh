#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch distributed checkpoints as sources: a checkpoint converted to one, with the names of any
# program, equals the original; the newest of a run is found by its number; a schedule continues;
# without an optimizer the states are zeros; damage is found.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

# equal A B: check that all states of both are the same.
equal() {
	ucckpt diff "$1" "$2" >"$tmp/diff" 2>&1 ||
		fail "$1 and $2 differ: $(cat "$tmp/diff")"
}

for name in z1_groups2_dp2 z3_groups2_dp2 z2_groups3_dp3 tp2_dp2_z1_bf16 z3_bf16_dp2 \
	moe_ep2_dp4_z2 autoep2_dp4_z2_bf16; do
	for style in fsdp2 flat titan titan_fused accelerate lightning fabric; do
		check "$name as $style" ucckpt convert --view dcp --dcp_style $style \
			"$good/$name/$(tag_of "$name")" "$tmp/$name-$style" >/dev/null
		equal "$good/$name/$(tag_of "$name")" "$tmp/$name-$style"
	done
done

# Real checkpoints: test_good.c compares the universal tree with the truth; here its tensors equal
# the weights.
for digests in "$good"/dcp_*.digests; do
	name=$(basename "$digests" .digests)
	grep -q '^refuse' "$digests" && continue
	[ "$name" = dcp_buffers ] && continue # weights as a source cannot have complex numbers
	check "$name" ucckpt convert "$good/$name" "$tmp/$name" >/dev/null 2>&1
	check "$name: weights" ucckpt convert --view hf "$good/$name" "$tmp/$name-hf" >/dev/null 2>&1
	equal "$tmp/$name" "$tmp/$name-hf"
done

# torch lists a pipeline's stages in reverse.
name=dcp_pp2_unflattened
ucckpt cat "$good/$name" ckpt_universal/mp_rank_00_model_states.pt >"$tmp/states"
check "stages are in order" test "$(grep -ao '[a-z]*[.]weight' "$tmp/states" | awk '!seen[$0]++' | tr '\n' ' ')" = \
	"embed.weight norm.weight head.weight "
check "what no group lists is named" grep -q "3 parameters that have states, such as embed.weight, are in none" \
	<(ucckpt info "$good/$name")

# Set the rows of a head for fused queries, keys and values.
check "other heads" grep -q "wq.weight: has no heads of 5 rows" \
	<(ucckpt -o head_dim=5 info "$good/dcp_titan_fused")
# check answers for the style that convert is told to write.
check "another style" grep -q "option head_dim=N tells (convert --view dcp is not possible)" \
	<(ucckpt -o dcp_style=titan_fused check "$good/dcp_titan_dp2")
check "own style" grep -q -- "--view dcp$" <(ucckpt check "$good/dcp_titan_dp2")
ucckpt convert --view dcp --dcp_style titan_fused "$good/dcp_titan_fused" "$tmp/fused" >/dev/null 2>&1
check "fused again" grep -q "qkv_linear.wqkv.weight.exp_avg.distcp" "$tmp/fused/.metadata"
equal "$good/dcp_titan_fused" "$tmp/fused"
cp -r "$good/dcp_titan_fused" "$tmp/transposed"
LC_ALL=C sed -zi 's/\(K\x18K\x05\x86q.\)K\x05K\x01\x86/\1K\x01K\x18\x86/g' "$tmp"/transposed/step-4/*.distcp
ucckpt convert "$tmp/transposed" "$tmp/untransposed" >"$tmp/said" 2>&1
check "rows that are not contiguous: $(cat "$tmp/said")" grep -q \
	"wqkv.weight.exp_avg.*: a chunk is not contiguous, so a part of it cannot be read" "$tmp/said"

# Megatron-Core's groups follow from a rule: decaying parameters, others, experts.
ucckpt info "$good/dcp_mcore_experts" | sed -n 's/^group \(.\) *\([0-9]*\) parameters.* step 2 .*/\1 \2/p' >"$tmp/groups"
check "groups: $(cat "$tmp/groups")" cmp "$tmp/groups" <(printf '0 7\n1 10\n2 4\n')

# A run of checkpoints.
mkdir "$tmp/run"
for step in 9 10; do
	cp -r "$tmp/z1_groups2_dp2-titan" "$tmp/run/step-$step"
done
cp -r "$tmp/z3_groups2_dp2-accelerate" "$tmp/run/checkpoint-8"
check "the newest" grep -q "step-10 (" <(ucckpt info "$tmp/run" | grep ^checkpoint)

# Each node has the files of its ranks.
mkdir -p "$tmp/n0/run" "$tmp/n1/run"
cp -r "$good/dcp_fsdp2_dp4_uneven/ckpt" "$tmp/n0/run/step-4"
mkdir "$tmp/n1/run/step-4"
mv "$tmp/n0/run/step-4/__"[13]_0.distcp "$tmp/n1/run/step-4"
equal "{$tmp/n0/run,$tmp/n1/run}" "$tmp/dcp_fsdp2_dp4_uneven"
check "the rest of a union" grep -q \
	"^[^:]*: $tmp/n0/run/step-4/__[13]_0.distcp: is missing, and .metadata says" \
	<(ucckpt info "$tmp/n0/run" 2>&1)
check "blobs of a union" ucckpt check --data "{$tmp/n0/run,$tmp/n1/run}" >/dev/null

# DeepSpeed loads the state of its schedule, of any kind.
ucckpt cat "$good/dcp_titan_dp2" step-4_universal/mp_rank_00_model_states.pt >"$tmp/states" ||
	fail "no model states"
for name in last_epoch last_batch_iteration; do
	check "$name" grep -aq $name "$tmp/states"
done

# Accelerate's model without its optimizer.
ucckpt convert "$good/dcp_accelerate_fsdp2_dp2/checkpoint-4/pytorch_model_fsdp_0" "$tmp/weights" \
	>"$tmp/said" 2>&1 || fail "weights: $(cat "$tmp/said")"
check "a warning" grep -q "there is no optimizer: its states are zeros" "$tmp/said"
for param in "$tmp"/dcp_accelerate_fsdp2_dp2/zero/*/; do
	param=$(basename "$param")
	check "$param" cmp "$tmp/dcp_accelerate_fsdp2_dp2/zero/$param/fp32.pt" \
		"$tmp/weights/zero/$param/fp32.pt"
	state=$tmp/weights/zero/$param/exp_avg.pt
	check "$param: zeros" cmp -n 32 -i "$(start_of "$state" data/0):0" "$state" /dev/zero
done

# Averaged weights beside the model's, which are shown by default (test_good.c).
averaged=$good/dcp_averaged
check "what was chosen" grep -q "warning: the weights are those of app.model; also in it, and not shown: app.ema" \
	<(ucckpt info "$averaged")
check "the averaged weights" ucckpt convert --model app.ema "$averaged" "$tmp/ema" >"$tmp/said" 2>&1
check "whose states: $(cat "$tmp/said")" grep -q "the optimizer's states are those of app.model" "$tmp/said"
check "of their own" test "$(tail -c +$(($(start_of "$tmp/ema/zero/bias/fp32.pt" data/0) + 1)) \
	"$tmp/ema/zero/bias/fp32.pt" | head -c 12 | sha256sum | head -c 16)" = 2b3397d75435136d
check "of all views" grep -q "those of app.model; also in it, and not shown: app.ema" \
	<(ucckpt convert --view hf "$averaged" "$tmp/averaged-hf" 2>&1)
check "no such dict" grep -q "was asked for is not in it; dicts of tensors: app.ema, app.model" \
	<(ucckpt -o model=ema info "$averaged" 2>&1)

# Buffers of any type and order of elements are served unchanged; a warning names those without a
# plain form, and everything else is served.
buffers=$good/dcp_buffers
ucckpt convert --view dcp "$buffers" "$tmp/buffers" >"$tmp/said" 2>&1 || fail "buffers: $(cat "$tmp/said")"
ucckpt convert --view hf "$buffers" "$tmp/buffers-hf" >"$tmp/said-hf" 2>&1 || fail "TAG_hf: $(cat "$tmp/said-hf")"
while read -r name bytes sum; do
	file=$tmp/buffers/model.$name.distcp
	if [ "$sum" = - ]; then
		check "$name is left out" test ! -e "$file"
		check "and named" grep -q "left out.*[ ,]$name" "$tmp/said"
	else
		check "$name" test "$(tail -c "$bytes" "$file" | sha256sum | head -c 64)" = "$sum"
	fi
	if [ "$sum" = - ] || [ "$name" = c32 ]; then
		check "$name in TAG_hf" grep -q "left out.*[ ,]$name\|$name: left out" "$tmp/said-hf"
	else
		check "$name in TAG_hf" grep -aq "\"$name\"" "$tmp/buffers-hf/model.safetensors"
	fi
done <"$buffers/buffers"
check "settings that are tensors" ucckpt convert "$buffers" "$tmp/settings" >/dev/null 2>&1
for name in lr betas; do
	check "$name" grep -aq "$name" "$tmp/settings/zero/optimizer_state.pt"
done
check "all is whole" ucckpt check --data "$buffers" >/dev/null

# A changed byte of a tensor: only the checksum shows it.
cp -r "$good/dcp_fsdp2_dp4_uneven/ckpt" "$tmp/damaged"
check "whole" ucckpt check --data "$tmp/damaged" >/dev/null
flip "$tmp/damaged/__1_0.distcp" $(($(start_of "$tmp/damaged/__1_0.distcp" data/0) + 4))
check "not read" ucckpt check "$tmp/damaged" >/dev/null
ucckpt check --data "$tmp/damaged" >"$tmp/said" && fail "damage was not found"
check "the blob: $(cat "$tmp/said")" grep -q \
	"^problem: $tmp/damaged/__1_0.distcp: [a-z0-9._]*: member data/0: is damaged: the CRC-32" \
	"$tmp/said"

# Records of a view have no checksums.
check "a view is whole" ucckpt check --data "$tmp/z1_groups2_dp2-fsdp2" >"$tmp/said"
check "without checksums: $(cat "$tmp/said")" grep -q -E \
	"^note: $tmp/z1_groups2_dp2-fsdp2: ([0-9]+) of \\1 entries have no checksums: they were read" \
	"$tmp/said"
finish
