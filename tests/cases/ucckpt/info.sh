#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucckpt info describes a checkpoint and lists everything that is wrong with it.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/ucckpt/report.sh
. "$(dirname "$0")/report.sh"

info() { report info "$@"; }

info 0 "$good/z1_fp32_dp2/global_step4"
says "checkpoint $good/z1_fp32_dp2/global_step4" "written by DeepSpeed 0.19.8" \
	"ZeRO stage 1" "ranks 2 data-parallel, 1 tensor-parallel, 1 pipeline stages" "global step 4" \
	"master weights float32" "module float32" \
	"parameters 17 of the optimizer, 486 elements" \
	"group 0 17 parameters, float32; step 4 (float32 tensor), exp_avg float32, exp_avg_sq float32" \
	"universal tree 70 files, 118.6 KiB" "cube 2 x 3 x 5 30 0" "one 1 1 0" \
	"blocks.{0..1}.fc1.weight 10 x 6 x2 120 0" "no problems found"
problems 0
info 0 --parameters "$good/z1_fp32_dp2/global_step4"
says "blocks.0.fc1.weight 10 x 6 60 0" "blocks.1.fc1.weight 10 x 6 60 0" "tail 3 3 0"
info 0 "$good/dsuc_gpt2_z3_offload_dp4"
says "parameters 28 of the optimizer, 9,152 elements" \
	"transformer.h.{0..1}.attn.c_attn.weight 16 x 48 x2 1.5 K 0" \
	"transformer.wte.weight 128 x 16 2.0 K 0"
check "a model of two layers fits a screen" test "$(wc -l <"$tmp/said")" -le 40
# Experts have local numbers in names of different groups; all combinations are one line.
info 0 "$good/moe2_ep2_dp4_z1"
says "moe.{0..1}.deepspeed_moe.experts.deepspeed_experts.{0..3}.* x8 .*"

info 0 --json "$good/z1_fp32_dp2"
says '"chosen": "latest",' '"stage": 1,' '"dp_degree": 2,' '"mp_degree": 1,' \
	'"ds_version": "0.19.8",' '"global_step": 4,' '"module_dtype": "float32",' \
	'"master_dtype": "float32",' '"name": "exp_avg_sq",' '"value": 4' \
	'"name": "cube",' '"shape": \[2, 3, 5\],' '"whole": true,' '"problems": \[\]'

info 0 "$good/z3_bf16_dp2"
says "checkpoint $good/z3_bf16_dp2/global_step4 (named by latest)" "ZeRO stage 3" \
	"module bfloat16" "master weights float32" "convert --view universal yes" \
	"--view universal --stage any yes"
info 0 --json "$good/z3_subgroup_dp2/"
says '"stage": 3,' '"whole": true,' '"group": 2,\?'

# Buffers, frozen parameters; wrong slice mappings; patterns without a match.
info 0 "$good/z1_tied_frozen_buffers_dp2"
says ".* more in the module (frozen, tied, buffers), .* elements" ".* module .*"
info 0 "$good/z1_round_robin_dp3"
says "warning: round_robin_gradients was on: .*turn it off to resume from the universal tree.*TAG_dpN.*"
info 0 "$good/z1_unused_pattern_strict_dp2"
says "warning: .*matches no parameter: nomatch.*"

# ZenFlow's optimizer counts micro-batches: 4 of 2 global steps (the tag's name is wrong).
info 0 "$good/z2_zenflow_dp2"
says "warning: .*global_steps is 2, but the tag's name says .*: renamed tag.*" ".*; step 4 (int),.*"
check "ZenFlow's steps are right" test "$(grep -c '^warning: ' "$tmp/said")" = 1

# Without the pattern that names them, position embeddings are joined, as in an untied GPT of
# Megatron-DeepSpeed with tensor parallelism.
cp -r "$good/meg_tp2_dp2_z1_fp32/global_step4" "$tmp/positions"
positions=language_model.embedding.position_embeddings.weight
for file in "$tmp/positions"/mp_rank_0?_model_states.pt; do
	pattern=$(LC_ALL=C grep -obUaF $positions "$file" | tail -n 1 | cut -d: -f1)
	printf tied | dd of="$file" bs=1 seek="$pattern" conv=notrunc status=none
done
info 0 "$tmp/positions"
says "$positions 8 x 8 .*" \
	"warning: $positions: .* joins the copies of 2 tensor-parallel ranks to 8x8, .*; it is 4x8 with preset=megatron-qkv-thirds.*"
ucckpt convert --no_strict --preset megatron-qkv-thirds "$tmp/positions" "$tmp/mended" >"$tmp/said" 2>&1
check "the preset mends it" cmp "$tmp/mended/zero/$positions/fp32.pt" \
	<(ucckpt convert "$good/meg_tp2_dp2_z1_fp32" "$tmp/whole" >"$tmp/said" 2>&1 &&
		cat "$tmp/whole/zero/$positions/fp32.pt")
info 0 "$good/meg_tp2_dp2_z1_fp32"
says "$positions 4 x 8 .*"
check "with the pattern there is no warning" test "$(grep -c "warning: $positions" "$tmp/said")" = 0

# Experts: their ranks, and a warning about DeepSpeed's loader for native ones.
info 0 "$good/moe2_ep2_dp4_z1"
says "experts 4 in each of 2 MoE layers, shared by 2 ranks" "warning: moe.0.*only with ep_size 1"
info 0 "$good/moe_ep1_dp2_z2_bf16"
says "experts 4 in each of 1 MoE layers, shared by 1 ranks"
check "one rank's experts need no warning" test "$(grep -c '^warning: ' "$tmp/said")" = 0
info 0 --json "$good/autoep2_dp2_z3"
says '"experts": 4,' '"ep_size": 2,' '"autoep": true'

# All tags of a run, the newest last, and the missing parts of broken ones.
run=$tmp/run
mkdir "$run"
cp -r "$good/z1_fp32_dp2/global_step4" "$run/global_step3"
cp -r "$good/meg_tp2_dp2_z1_bf16/global_step4" "$run/global_step8"
cp -r "$good/z3_bf16_dp2/global_step4" "$run"
rm "$run/global_step3/"*zero_pp_rank_0_*
mkdir "$run/global_step5" "$run/logs" "$run/step-6"
: >"$run/step-6/__0_0.distcp"
cp "$good/z3_bf16_dp2/global_step4/"*_model_states.pt "$run/global_step5"
cp -r "$run/global_step5" "$run/global_step4_universal"
mkdir "$run/global_step4_universal/zero" "$run/global_step7"
printf global_step4 >"$run/latest"
info 0 "$run"
says "tag saved step kind dp x tp x pp dtype size" \
	"global_step3 .*: the optimizer shard of data-parallel rank 0, .* is missing .*" \
	"global_step5 .*: copy the optimizer shards of all ranks, which with ZeRO-3 alone have the weights" \
	"step-6 .*: an unfinished PyTorch distributed checkpoint: .*" \
	"global_step7 .*: no DeepSpeed checkpoint here: .*" \
	"global_step8 .* 4 ZeRO-1 2 x 2 x 1 bfloat16 .* KiB" \
	"global_step4 .* 4 ZeRO-3 2 x 1 x 1 bfloat16 .* KiB latest" "checkpoint $run/global_step4 .*"
check "other directories are no tags" test "$(grep -cE '^(logs|.*_universal) ' "$tmp/said")" = 0
check "the newest is last" grep -q '^global_step4 ' <(grep '^global_step' "$tmp/said" | tail -n 1)
info 0 --json "$run"
says '"tags": .*' '"kind": "ZeRO-1",' '"latest": true,' '"problem": null,'
rm -r "$run"

# How the tag of a run is chosen.
mkdir "$run"
cp -r "$good/z1_fp32_dp2/global_step4" "$run/global_step9"
cp -r "$run/global_step9" "$run/global_step10"
cp -r "$run/global_step9" "$run/best"
info 0 "$run"
says "checkpoint $run/global_step10 (highest step)"
printf 'global_step9\n' >"$run/latest"
info 0 "$run/"
says "checkpoint $run/global_step9 (named by latest)"
# What `latest` holds but names no tag is said, since it may have been meant to choose an older one.
while read -r what words; do
	rm -rf "${run:?}/latest"
	case $what in
	directory) mkdir "$run/latest" ;;
	loop) ln -s latest "$run/latest" ;;
	*) printf '%s' "${what%nothing}" >"$run/latest" ;;
	esac
	info 0 "$run"
	says "checkpoint $run/global_step10 (highest step)" "warning: $run/latest *$words.*"
	ucckpt convert "$run" "$tmp/newest" >/dev/null 2>"$tmp/said"
	check "convert warns of it: $what" grep -q "warning: $run/latest *$words" "$tmp/said"
	rm -r "$tmp/newest"
done <<'END'
../run/global_step9 names ../run/global_step9, which is not a ZeRO checkpoint here
nothing names nothing
directory : not a regular file
loop : cannot open
END
rm "$run/latest"
printf global_step11 >"$run/latest"
info 0 "$run"
says "checkpoint $run/global_step10 .*" "warning: .*latest names global_step11.*"
rm -r "${run:?}"/global* "${run:?}/latest"
cp -r "$run/best" "$run/worst"
touch -d 2001-01-01 "$run/worst"
info 0 "$run"
says "checkpoint $run/best (last modified)"

# Tags lie below a trainer's output directory: the newest is described, the others are named.
info 0 "$good/hf_trainer"
says "checkpoint $good/hf_trainer/checkpoint-4/global_step4 (the newest below)"
check "a single tag needs no warning" test "$(grep -c '^warning: ' "$tmp/said")" = 0
mkdir -p "$tmp/out/checkpoint-4" "$tmp/out/epoch=1-step=9.ckpt"
cp -r "$good/z1_fp32_dp2/global_step4" "$tmp/out/checkpoint-4"
cp -r "$good/z1_fp32_dp2/global_step4" "$tmp/out/epoch=1-step=9.ckpt/checkpoint"
info 0 "$tmp/out"
says "checkpoint $tmp/out/checkpoint-4/global_step4 (the newest below)" \
	"warning: $tmp/out: tags in directories below: checkpoint-4/global_step4, epoch=1-step=9.ckpt/checkpoint"
info 0 --json "$tmp/out"
says '"chosen": "below",'
check "check takes the same" grep -q "checkpoint-4/global_step4 (the newest below)" \
	<(ucckpt check "$tmp/out")
check "convert, too" ucckpt convert "$tmp/out" "$tmp/tree" >/dev/null 2>&1
cp "$good/hfdir_types/model.safetensors" "$tmp/out"
info 0 "$tmp/out"
says "checkpoint $tmp/out (Hugging Face weights)" "warning: .*: tags in directories below: .*"

# Hugging Face weights.
info 0 "$good/hfdir_types"
says "checkpoint $good/hfdir_types (Hugging Face weights)" "parameters 21, 1,758 elements" \
	"universal tree 64 files, .*" "parameter shape elements type" \
	"long 1500 1.5 K bfloat16" "no problems found"
info 0 --json "$good/hfdir_bin"
says '"chosen": "weights",' '"count": 12,' '"name": "half",' '"dtype": "float16"' '"whole": true,'
cp "$good/hfdir_bin/pytorch_model.bin" "$tmp/out"
truncate -s 2000 "$tmp/out/model.safetensors"
info 1 "$tmp/out"
says "problem: $tmp/out/model.safetensors: .*"

damaged z1_fp32_dp4
rm zero_pp_rank_1_mp_rank_00_optim_states.pt zero_pp_rank_3_mp_rank_00_optim_states.pt
truncate -s -100 zero_pp_rank_2_mp_rank_00_optim_states.pt
info 1 .
says "problem: .*data-parallel rank 1.* missing.*" \
	"problem: .*/zero_pp_rank_1_mp_rank_00_optim_states.pt: missing" \
	"problem: .*/zero_pp_rank_3_mp_rank_00_optim_states.pt: missing" \
	"problem: .*/zero_pp_rank_2_mp_rank_00_optim_states.pt: .*"
problems 4
info 1 --json .
says '"whole": false,' '"problems": \[.*rank_1.*'

# Damaged shards get one line each, whichever they are.
for rank in 0 1 3; do
	damaged z1_fp32_dp4
	truncate -s -100 zero_pp_rank_${rank}_mp_rank_00_optim_states.pt
	: >zero_pp_rank_2_mp_rank_00_optim_states.pt
	info 1 .
	says "problem: .*zero_pp_rank_${rank}_mp_rank_00_optim_states.pt: .*" \
		"problem: .*zero_pp_rank_2_mp_rank_00_optim_states.pt: .*" "ZeRO stage 1"
	problems 2
done
info 0 --quick .
says "no problems found in one rank.s files (--quick)"

# With a shard of another step the checkpoint is a mixture.
damaged z3_fp32_dp2
cp "$good/z3_fp32_dp3/global_step4/zero_pp_rank_1_mp_rank_00_optim_states.pt" .
truncate -s -100 zero_pp_rank_1_mp_rank_00_model_states.pt
info 1 .
says "problem: .*zero_pp_rank_1_mp_rank_00_optim_states.pt.*" \
	"problem: .*zero_pp_rank_1_mp_rank_00_model_states.pt.*"
problems 2

damaged z3_fp32_dp2
rm zero_pp_rank_0_mp_rank_00_model_states.pt
info 1 .
says "problem: .*/zero_pp_rank_0_mp_rank_00_model_states.pt: missing"
damaged z1_fp32_dp2
rm mp_rank_00_model_states.pt
info 1 .
says "problem: .*model_states.pt file: it is missing"

# The rank never existed: there is no list of a million missing files.
damaged z1_fp32_dp2
mv zero_pp_rank_1_mp_rank_00_optim_states.pt zero_pp_rank_999999_mp_rank_00_optim_states.pt
info 1 .
says "problem: .*more files are missing (not listed)"
cp zero_pp_rank_999999_mp_rank_00_optim_states.pt zero_pp_rank_1_mp_rank_00_optim_states.pt
info 0 .
says "warning: .*files of a former save are left out: zero_pp_rank_999999_mp_rank_00_optim_states.pt" \
	"convert *--view universal *yes"

cd "$tmp" || exit 1
ucckpt info >/dev/null 2>"$tmp/errors"
check "no directory: exit status 2" test $? = 2
check "no directory: usage" grep -q '^ucckpt: info: expected a DIRECTORY' "$tmp/errors"
ucckpt info "$tmp/none" >/dev/null 2>"$tmp/errors"
check "a directory that is none: exit status 1" test $? = 1
check "a directory that is none" grep -q "^ucckpt: $tmp/none: " "$tmp/errors"
ucckpt info "$good/z1_fp32_dp2" >/dev/full 2>"$tmp/errors"
check "output that cannot be written: exit status 1" test $? = 1
check "output that cannot be written" grep -q 'cannot write' "$tmp/errors"
check "--help" grep -q '^usage: ucckpt info' <(ucckpt info --help)
finish
