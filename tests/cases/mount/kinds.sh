#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The mount and ucckpt recognise directories of other formats, and give the same advice.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
mkdir "$mnt"

# refused PATH "WORDS": ucfs and each command of ucckpt refuse the path with one line that ends in
# these words.
refused() {
	local path=$1 words=$2 tool out
	for tool in "ucfs $path $mnt" "ucckpt convert $path $tmp/out" \
		"ucckpt info $path" "ucckpt check $path"; do
		if out=$($tool 2>&1); then
			fail "$tool: accepted"
			fusermount3 -u "$mnt" 2>/dev/null
		fi
		[ "$(grep -c -E "^(ucfs|ucckpt|problem): $path(/[^ ]*)?: .*$words" <<<"$out")" = 1 ] ||
			fail "$tool: did not say '$words': $out"
	done
}

# Files of each writer : words of the message.
while IFS=: read -r names words; do
	mkdir "$tmp/dir"
	for name in $names; do
		case $name in
		*/) mkdir "$tmp/dir/$name" ;;
		*) echo 1 >"$tmp/dir/$name" ;;
		esac
	done
	refused "$tmp/dir" "$words"
	rm -r "$tmp/dir"
done <<'EOT'
.metadata __0_0.distcp __1_0.distcp:metadata.*opcode 0x[0-9a-f]* without a mark
__0.metadata __0_0.distcp:distributed checkpoint with metadata of each rank.*no_dist=False
__0_0.distcp __1_0.distcp:unfinished .*\.metadata, which is written last, is missing
common.pt metadata.json:Megatron-LM.* Hugging Face
iter_0000004/ latest_checkpointed_iteration.txt:Megatron-LM.* Hugging Face
mp_rank_00/ mp_rank_01/:Megatron-LM.* Hugging Face
mp_rank_00_000/ mp_rank_00_001/:Megatron-LM.* Hugging Face
model_optim_rng.pt:Megatron-LM.* Hugging Face
optimizer_0/ pytorch_model_fsdp_0/ random_states_0.pkl scheduler.bin:Accelerate with FSDP, but .*/\.metadata.* is missing
model.pt optimizer.pt:file of torch.save.* pytorch_model.bin
consolidated.00.pth params.json:file of torch.save.* pytorch_model.bin
last.ckpt:file of torch.save.* pytorch_model.bin
model_world_size_2_rank_0.pt optim_world_size_2_rank_0.pt:the file of rank 1 is missing beside
model_world_size_2_rank_1.pt:the file of rank 0 is missing beside
model_world_size_1_rank_0.pt model_world_size_2_rank_0.pt:is of another save than
model_world_size_1_rank_0.pt optim_world_size_2_rank_0.pt:is of another save than
pytorch_model_fsdp_0_rank0.bin pytorch_model_fsdp_0_rank2.bin:the file of rank 1 is missing beside
shard-00001-model-00001-of-00002.safetensors shard-00002-model-00002-of-00002.safetensors:is missing
pytorch_model_fsdp.bin:not a file of torch.save
weights.safetensors:under the name model.safetensors
mp_rank_00_model_states.pt:not a file of torch.save
mp_rank_01_model_states.pt:copy the optimizer shards of all ranks; a checkpoint without ZeRO
mp_rank_00_model_states.pt zero/:already a universal checkpoint: load it as it is
source.txt zero/:already a universal checkpoint: load it as it is
notes.txt:no DeepSpeed checkpoint here
EOT
refused "$good/hfdir_bin/pytorch_model.bin" "their directory can be mounted and converted"
refused "$good/z1_fp32_dp2/latest" "not a directory, and not a pack"

if [ -x "$top_builddir/uctrain" ]; then
	mkdir "$tmp/dcp"
	touch "$tmp/dcp/__0_0.distcp"
	check "uctrain, too" grep -q "$tmp/dcp/__0_0.distcp: .*unfinished" \
		<(uctrain --resume="$tmp/dcp" 2>&1)
fi

# A converted tree is refused; beside its tag it is shown unchanged, without a warning.
cp -r "$good/z1_fp32_dp2" "$tmp/run"
ucckpt convert "$tmp/run/global_step4" "$tmp/run/global_step4_universal" >/dev/null ||
	fail "convert"
refused "$tmp/run/global_step4_universal" "already a universal checkpoint: load it as it is"
mount_fg "$tmp/run" || finish
check "the tree is shown" cmp "$tmp/run/global_step4_universal/zero/cube/fp32.pt" \
	"$mnt/global_step4_universal/zero/cube/fp32.pt"
unmount
check "no warning: $(cat "$tmp/log")" test "$(grep -c 'will not be served' "$tmp/log")" = 0

finish
