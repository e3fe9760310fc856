#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucckpt check finds everything that is wrong with a checkpoint, including tensors.
# (unit/convert/test_forms_agree shows that it reports nothing for DeepSpeed's.)
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/ucckpt/report.sh
. "$(dirname "$0")/report.sh"

run_check() { report check "$@"; }

run_check 0 "$good/z1_fp32_dp2"
says "checkpoint $good/z1_fp32_dp2/global_step4 (named by latest)" "files 3, .*" \
	"parameters 17, in 70 files of the universal tree" \
	"can convert --view universal" "--view universal --stage any" "--view hf" "--view fp32" \
	"--view dcp" "--view zero" \
	"the checkpoint is whole; tensors were not read (--data)"
run_check 0 --json --data "$good/meg_tp2_dp2_z1_fp32"
says "{" '"data": true,' '"whole": true,' '"files": 6,' '"replicas": [1-9][0-9]*,' \
	'"notes": \[\],' '"warnings": \[.*' '"problems": \[\]' "}"
run_check 0 --json "$good/moe_layers_dp4_z0"
says '"whole": true,' '"convert": \["--view hf", "--view fp32", "--view dcp"\],' '"notes": \[".*do not tell which layers.*"\],'

# Without the optimizer's files weights are served, but a run cannot resume.
damaged z1_fp32_dp2
rm zero_pp_rank_*
run_check 1 .
says "problem: .*copy the optimizer shards of all ranks.*" "can convert --view hf" "--view fp32" "--view dcp"
problems 1
cd "$tmp" || exit 1
damaged pp2_dp1_z1_fp32
rm zero_pp_rank_*
run_check 1 .
says "problem: .*mp_rank_01_model_states.pt: .*copy the optimizer shards of all ranks.*" "can convert --view hf" "--view fp32"
ucckpt convert --view hf . "$tmp/bare" >/dev/null 2>&1
ucckpt convert --view hf "$good/pp2_dp1_z1_fp32" "$tmp/all" >/dev/null 2>&1
check "weights of layers" cmp "$tmp/bare/model.safetensors" "$tmp/all/model.safetensors"
rm -r "$tmp/bare" "$tmp/all" layer_03-*
run_check 1 .
says "problem: .*3\..*: the file of its layer is missing"
cd "$tmp" || exit 1
damaged z3_fp32_dp2
rm zero_pp_rank_*_optim_states.pt
run_check 1 .
says "problem: .*copy the optimizer shards of all ranks, which with ZeRO-3 alone have the weights"
cd "$tmp" || exit 1

# A changed byte of a tensor: only the checksum shows it, naming the file and the member.
for what in zero_pp_rank_1_mp_rank_00_optim_states.pt:data/1 mp_rank_00_model_states.pt:data/0; do
	shard=${what%:*} member=${what#*:}
	damaged z1_fp32_dp2
	flip "$shard" $(($(start_of "$shard" "$member") + 4))
	run_check 0 .
	problems 0
	run_check 1 --data .
	says "problem: .*/$shard: member $member: is damaged: the CRC-32 .*"
	problems 1
done

# Replicated numbers of two ranks: only the step has to be equal.
shard=zero_pp_rank_1_mp_rank_00_optim_states.pt
for what in "0 data/1" "1 data/0"; do
	damaged z1_nadam_dp2
	flip $shard "$(start_of $shard "${what#* }")"
	run_check "${what% *}" .
done
says "problem: .* differ in step of group 0: not of one step?"

# Files of experts that a mount does not open: each has its own expert, whole.
damaged moe_ep2_dp2_z1
cp layer_0_expert_3_mp_rank_00_model_states.pt layer_0_expert_2_mp_rank_00_model_states.pt
truncate -s 2000 layer_0_expert_1_mp_rank_00_model_states.pt
run_check 1 .
says "problem: .*/layer_0_expert_1_mp_rank_00_model_states.pt: .*truncated.*" \
	"problem: .*/layer_0_expert_2_mp_rank_00_model_states.pt: has no .*experts.2.*"
damaged moe_ep2_dp2_z2_frozen
cp layer_0_expert_3_mp_rank_00_model_states.pt layer_0_expert_2_mp_rank_00_model_states.pt
run_check 1 .
says "problem: .*/layer_0_expert_2_mp_rank_00_model_states.pt: has a .*experts.3.*, which does not belong to expert 2"

# A ZeRO-3 rank records which experts it has.
damaged autoep2_dp4_z3_bf16
cp zero_pp_rank_2_mp_rank_00_model_states.pt zero_pp_rank_3_mp_rank_00_model_states.pt
run_check 1 .
says "problem: .*_rank_3_.*: is of expert-parallel rank 0 .*, but data-parallel rank 3 is rank 1 of 2"
problems 1

# In the module of another data-parallel rank, which no view reads: a tensor that reaches beyond its
# storage, and a buffer that differs from rank 0's.
damaged z3_tied_frozen_buffers_dp2
model=zero_pp_rank_1_mp_rank_00_model_states
LC_ALL=C sed -i 's/QK\x00K\x06\x85/QK\x7fK\x06\x85/' $model.pt
run_check 1 .
says "problem: .*/$model.pt: running: tensor reaches element 132 of a storage of 6"
problems 1
damaged z3_tied_frozen_buffers_dp2
start=$(start_of $model.pt data/3)
flip $model.pt "$start"
name=$(LC_ALL=C grep -obUaF $model/data/3 $model.pt | tail -n 1 | cut -d: -f1)
tail -c +$((start + 1)) $model.pt | head -c 24 | gzip -c | tail -c 8 | head -c 4 |
	dd of=$model.pt bs=1 seek=$((name - 30)) conv=notrunc status=none
run_check 0 --data .
says "warning: .*: buffer running differs between data-parallel ranks: that of rank 0 is read"
check "others are equal" test "$(grep -c "^warning: .*buffer" "$tmp/said")" = 1

# A shard of ZeRO-3 in place of another rank's.
damaged z3_fp32_dp2
cp zero_pp_rank_0_mp_rank_00_optim_states.pt zero_pp_rank_1_mp_rank_00_optim_states.pt
run_check 0 .
says "warning: .*_rank_1_.*: has the same content as zero_pp_rank_0_mp_rank_00_optim_states.pt: .*"
run_check 0 "$good/z3_fp32_dp2"
check "its own shards are not copies" test "$(grep -c "has the same content" "$tmp/said")" = 0

# The container without zip has no checksums: check reads its bytes, and reports that.
run_check 0 --data "$good/legacy_z3_fp32_dp2/global_step4"
says "note: .*/zero_pp_rank_0_mp_rank_00_model_states.pt: has no checksums.*"
damaged legacy_z3_fp32_dp2
truncate -s -1 zero_pp_rank_1_mp_rank_00_optim_states.pt
run_check 1 .
says "problem: .*/zero_pp_rank_1_mp_rank_00_optim_states.pt: .*"
problems 1

# Of the files of tensors on NVMe one is missing, one truncated, one of another size.
run_check 0 --data "$good/z3_nvme_dp2/global_step4"
problems 0
damaged z3_nvme_dp2
cd offloaded_tensors || exit 1
rm rank00/1_3.tensor.swp
truncate -s 1000 rank01/exp_avg-1_3.tensor.swp
cd ..
run_check 1 .
says "problem: .*/offloaded_tensors/rank00/1_3.tensor.swp: is missing: .*" \
	"problem: .*/rank01/exp_avg-1_3.tensor.swp: has 1000 bytes, but .* take 2048"
problems 2
damaged z3_nvme_dp2
truncate -s 3072 offloaded_tensors/rank00/exp_avg_sq-1_3.tensor.swp
run_check 1 .
says "problem: .*/rank00/exp_avg_sq-1_3.tensor.swp: has 3072 bytes, but .*"
problems 1

# Damage in the file of a pipeline's layer, which no mount serves.
damaged pp2_dp2_z1_bf16
for layer in layer_*; do break; done
flip "$layer" "$(start_of "$layer" data/0)"
run_check 1 --data .
says "problem: .*/$layer: member data/0: is damaged: .*"
problems 1

damaged pp2_tp2_dp2_z1_bf16
rm layer_02-model_01-model_states.pt
truncate -s 700 layer_03-model_00-model_states.pt
run_check 1 .
says "problem: .*/layer_03-model_00-model_states.pt: .*" \
	"problem: .*: the file of layer 2, tensor-parallel rank 1, is missing"
problems 2
ucckpt info . >"$tmp/said"
check "info: a layer's file: exit status 1" test $? = 1
problems 2
damaged old0.14.4_pp2_dp2_z1_bf16_tied
rm layer_03-model_states.pt
run_check 1 .
says "problem: .*: the file of layer 3, tensor-parallel rank 0, is missing"
problems 1

# A replica of a layer norm that differs from the other rank's: its checksum is wrong, too, if there
# is one.
damaged meg_tp2_dp2_z1_fp32
shard=zero_pp_rank_0_mp_rank_01_optim_states.pt
start=$(start_of $shard data/1)
replica="problem: .*: parameter language_model.embedding.position_embeddings.weight:"
replica+=" exp_avg differs between tensor-parallel ranks 0 and 1, from element 2 on"
replica+=" (zero_pp_rank_0_mp_rank_00_optim_states.pt at [0-9]*, $shard at $((start + 392)))"
flip $shard $((start + 4 * 98 + 1))
flip $shard $((start + 4 * 99 + 1))
run_check 0 .
run_check 1 --data .
says "problem: .*/$shard: member data/1: is damaged: .*" "$replica"
problems 2
LC_ALL=C grep -obUaF $'PK\x01\x02' $shard | cut -d: -f1 >"$tmp/headers"
while read -r at; do
	dd if=/dev/zero of=$shard bs=1 seek=$((at + 16)) count=4 conv=notrunc status=none
done <"$tmp/headers"
run_check 1 --data .
says "note: .*/$shard: has no checksums.*" "$replica"
problems 1

# Two pipeline stages share an embedding: their copies are compared.
damaged pp2_dp2_z1_bf16_tied
run_check 0 --data .
says "replicas [1-9][0-9]* pairs of slices compared"
for shard in zero_pp_rank_*_mp_rank_01_optim_states.pt bf16_zero_pp_rank_*_mp_rank_01_optim_states.pt; do
	[ -f "$shard" ] && dd if=/dev/zero of="$shard" bs=1 count=200 conv=notrunc \
		seek="$(start_of "$shard" data/1)" status=none
done
run_check 1 --data .
says "problem: .*: parameter .*: [a-z0-9_]* differs between pipeline stages 0 and 1, .*"

# Each stage trains its own copies of the module's other weights.
run_check 0 --data "$good/pp2_dp1_z1_tied_positions"
says "note: parameter tied_modules.ends.positions: pipeline stage 1 has a copy of its own; that of stage 0 is read"
damaged pp2_dp1_z1_tied_positions
shard=zero_pp_rank_0_mp_rank_01_optim_states.pt
dd if=/dev/zero of=$shard bs=1 count=80 conv=notrunc seek="$(start_of $shard data/1)" status=none
run_check 1 --data .
says "problem: .*: parameter tied_modules.ends.words: [a-z0-9_]* differs between pipeline stages 0 and 1, .*"

# Damage in a piece that an affine map places on all ranks: on the second rank, on the last.
for rank in 01 03; do
	damaged autotp4_llama_kv2_z1_dp1
	run_check 0 --data .
	says "replicas [1-9][0-9]* pairs of slices compared"
	shard=zero_pp_rank_0_mp_rank_${rank}_optim_states.pt
	flip "$shard" $(($(start_of "$shard" data/1) + 4 * 5 + 1))
	run_check 1 --data .
	says "problem: .*/$shard: member data/1: is damaged: .*" \
		"problem: .*: parameter model.embed_tokens.weight: exp_avg differs between tensor-parallel ranks 0 and ${rank#0}, from element 5 on"
	problems 2
done

# Everything that is missing or damaged is reported once.
damaged z1_fp32_dp4
rm zero_pp_rank_1_mp_rank_00_optim_states.pt
truncate -s -100 zero_pp_rank_2_mp_rank_00_optim_states.pt
run_check 1 --data .
says "problem: .*data-parallel rank 1.* missing.*" \
	"problem: .*/zero_pp_rank_1_mp_rank_00_optim_states.pt: missing" \
	"problem: .*/zero_pp_rank_2_mp_rank_00_optim_states.pt: .*"
problems 3
damaged z1_fp32_dp4
rm zero_pp_rank_3_mp_rank_00_optim_states.pt
run_check 1 .
says "problem: .*dp_world_size 4.*"

# Damage the first shards of both tensor-parallel ranks; the others are still read.
damaged meg_tp2_dp2_z1_fp32
for shard in zero_pp_rank_0_mp_rank_0[01]_optim_states.pt zero_pp_rank_1_mp_rank_01_optim_states.pt; do
	truncate -s -100 "$shard"
done
run_check 1 --data .
says "problem: .*/zero_pp_rank_0_mp_rank_00_optim_states.pt: .*" \
	"problem: .*/zero_pp_rank_0_mp_rank_01_optim_states.pt: .*" \
	"problem: .*/zero_pp_rank_1_mp_rank_01_optim_states.pt: .*"
problems 3

# A member's header is not where the directory says.
damaged z1_fp32_dp2
shard=zero_pp_rank_0_mp_rank_00_optim_states.pt
flip $shard "$(LC_ALL=C grep -obUaE '[a-z0-9_]+/version' $shard | head -n 1 | cut -d: -f1)"
run_check 1 .
says "problem: .*/$shard: no local header of member version at .*"
problems 1

# Change the step in a shard's optimizer (the bytes of the first storage, a float32 4, become 2),
# and that of one tensor-parallel rank.
for shard in zero_pp_rank_1_mp_rank_00_optim_states.pt zero_pp_rank_[01]_mp_rank_01_optim_states.pt; do
	damaged meg_tp2_dp2_z1_fp32
	for f in $shard; do
		printf '\0\0\0\100' |
			dd of="$f" bs=1 seek="$(start_of "$f" data/0)" conv=notrunc status=none
	done
	run_check 1 .
	says "problem: .* differ in step of group 0: not of one step?"
done

# Change the global step in model states (a one-byte integer, 4).
damaged meg_tp2_dp2_z1_fp32
LC_ALL=C grep -obUa $'global_steps[^K]*K\x04' mp_rank_01_model_states.pt | head -n 1 >"$tmp/step"
at=$(cut -d: -f1 "$tmp/step")
flip mp_rank_01_model_states.pt $((at + $(cut -d: -f2- "$tmp/step" | wc -c) - 2))
run_check 1 .
says "problem: .*/mp_rank_01_model_states.pt: is of global step 5, but mp_rank_00_model_states.pt is of 4: files of different checkpoints"
problems 1

# A shard of another run.
damaged z3_fp32_dp2
cp "$good/z3_fp32_dp3/global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt" .
run_check 1 .
says "problem: .*/zero_pp_rank_1_mp_rank_00_optim_states.pt: .*"
problems 1

# Model states of another version.
damaged old0.16.9_z3_dp2
cp "$good/z3_fp32_dp2/global_step4/zero_pp_rank_1_mp_rank_00_model_states.pt" .
run_check 1 .
says "problem: .*/zero_pp_rank_1_mp_rank_00_model_states.pt: was written by DeepSpeed 0.19.8, but .* by 0.16.9: files of different checkpoints"
problems 1

cd "$tmp" || exit 1
ucckpt check >/dev/null 2>"$tmp/errors"
check "no directory: exit status 2" test $? = 2
check "no directory: usage" grep -q '^ucckpt: check: expected a DIRECTORY' "$tmp/errors"
ucckpt check --dat=1 "$good" >/dev/null 2>"$tmp/errors"
check "an option's value: exit status 2" test $? = 2
ucckpt check "$tmp/none" >/dev/null 2>"$tmp/errors"
check "a directory that is none: exit status 1" test $? = 1

# Hugging Face weights: torch's files have checksums, safetensors do not.
for name in hfdir_bin hfdir_gpt2_bf16_sharded hfdir_types; do
	run_check 0 --data "$good/$name"
	says "checkpoint $good/$name (Hugging Face weights)" "can convert --view universal" \
		"--view universal --stage any" "the checkpoint is whole"
	notes=$(find "$good/$name" -name '*.safetensors' | wc -l)
	check "$name: $notes notes" test "$(grep -c '^note: .*has no checksums' "$tmp/said")" = "$notes"
done
cp -r "$good/hfdir_bin" "$tmp/weights"
flip "$tmp/weights/pytorch_model.bin" \
	$(($(start_of "$tmp/weights/pytorch_model.bin" data/0) + 1))
run_check 0 "$tmp/weights"
run_check 1 --data "$tmp/weights"
says "problem: .*/pytorch_model.bin: member data/0: is damaged: the CRC-32 .*"
problems 1
mkdir "$tmp/empty"
run_check 1 "$tmp/empty"
says "problem: .*no DeepSpeed checkpoint here.*"
ucckpt check "$good/z1_fp32_dp2" >/dev/full 2>"$tmp/errors"
check "output that cannot be written: exit status 1" test $? = 1
check "--help" grep -q '^usage: ucckpt check' <(ucckpt check --help)
# Damage data that other forms need, but not the universal tree: a rank's part of the frozen
# parameters.
damaged z3_tied_frozen_buffers_dp2
LC_ALL=C sed -i s/frozen_param_fragments/frozen_param_fragmentz/ \
	zero_pp_rank_1_mp_rank_00_model_states.pt
run_check 1 .
says "problem: .*frozen_param_fragments: .* is missing (needed by convert --view hf, --view fp32, --view dcp, --view zero)" \
	"can convert --view universal" "--view universal --stage any"
problems 1
for to in dcp hf fp32 "zero --ranks 3"; do
	# shellcheck disable=SC2086 # several words
	check "convert --view $to refuses it" test "$(ucckpt convert --view $to . "$tmp/none" \
		>"$tmp/said" 2>&1; echo $?)" = 1
	check "and names the file" grep -q zero_pp_rank_1_mp_rank_00_model "$tmp/said"
done
for stage in native any; do
	check "convert --stage $stage" ucckpt convert --stage $stage . "$tmp/u" >/dev/null
	rm -r "$tmp/u"
done
cd "$tmp" || exit 1
# A state that cannot be divided rules out the views that divide it.
run_check 0 "$good/z1_soap_dp2"
says "note: .*state Q of group 0 is a list: .* (convert --view universal, .*--view zero is not possible)" \
	"the checkpoint is whole; tensors were not read (--data)"
finish
