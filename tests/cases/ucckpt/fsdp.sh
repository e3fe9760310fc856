#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# FSDP checkpoints that ranks saved by torch.save: all views have the same numbers; a run means the
# actor of its newest complete step, with the configuration beside it; one of several models can be
# chosen; damage and files of several saves are found.  test_good.c compares the tensors with the
# truth.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

equal() {
	ucckpt diff "$1" "$2" >"$tmp/diff" 2>&1 ||
		fail "$1 and $2 differ: $(cat "$tmp/diff")"
}

for name in verl_dp3 verl_hsdp verl_tp full hf_sharded; do
	source=$good/fsdp_$name
	for to in universal dcp zero hf fp32; do
		check "$name to $to" ucckpt convert --view $to $([ $to = zero ] && echo --ranks 2) \
			"$source" "$tmp/$name-$to" >/dev/null 2>&1
		equal "$tmp/$name-universal" "$tmp/$name-$to"
	done
	check "$name is whole" grep -q "the checkpoint is whole" <(ucckpt check --data "$source")
done
check "the configuration" cmp "$tmp/verl_dp3-hf/config.json" \
	"$good/fsdp_verl_dp3/global_step_3/actor/huggingface/config.json"

# The run has a critic that was saved after the actor, and an interrupted save of the last step.
mkdir -p "$tmp/run/global_step_10"
for dir in global_step_3/actor global_step_3/critic global_step_10/actor; do
	mkdir -p "$tmp/run/$dir"
	cp -r "$good/fsdp_verl_dp3/global_step_3/actor/." "$tmp/run/$dir"
done
newest() {
	ucckpt info "$tmp/run" | sed -n 's|^checkpoint  *[^ ]*/run/\([^ ]*\) .*|\1|p'
}
check "the newest by number: $(newest)" test "$(newest)" = global_step_10/actor
echo 3 >"$tmp/run/latest_checkpointed_iteration.txt"
check "the newest that is whole: $(newest)" test "$(newest)" = global_step_3/actor
check "tags are listed" test "$(ucckpt info "$tmp/run" | grep -c "^global_step_.* FSDP ")" = 3

# Accelerate's models.
check "others are named" grep -q "those of pytorch_model_fsdp; also in it, and not shown: pytorch_model_fsdp_1 " \
	<(ucckpt info "$good/fsdp_full")
check "another model" ucckpt convert --view hf --model pytorch_model_fsdp_1 "$good/fsdp_full" "$tmp/other" \
	>/dev/null 2>&1
cmp -s "$tmp/other/model.safetensors" "$tmp/full-hf/model.safetensors" && fail "the first model again"

# FSDP1's flat parameters.
check "weights without the optimizer" ucckpt convert --view hf "$good/fsdp_verl_fsdp1" "$tmp/fsdp1" >/dev/null 2>&1
check "why" grep -q "FSDP1's flat parameters; save the optimizer's state as" <(ucckpt info "$good/fsdp_verl_fsdp1")
check "a flat model" grep -q "LOCAL_STATE_DICT.*save SHARDED_STATE_DICT" <(ucckpt info "$good/fsdp_local")

# Damaged checkpoints.
cp -r "$good/fsdp_verl_dp3/global_step_3/actor" "$tmp/bad"
file=$tmp/bad/optim_world_size_3_rank_1.pt
printf x | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") / 2)) conv=notrunc status=none
check "damage" grep -q "optim_world_size_3_rank_1.pt" <(ucckpt check --data "$tmp/bad" 2>&1)
cp "$good/fsdp_verl_dp3/global_step_3/actor/"{model_world_size_3_rank_1.pt,optim_world_size_3_rank_1.pt} "$tmp/bad"
mv "$tmp/bad/model_world_size_3_rank_1.pt" "$tmp/bad/model_world_size_3_rank_0.pt"
check "files in each other's place" grep -q "missing" <(ucckpt info "$tmp/bad")

# Files of several saves: an optimizer of another step, shown by its checksum, and a rank of a
# larger run.
cp -r "$good/fsdp_verl_dp3/global_step_3/actor" "$tmp/mixed"
file=$tmp/mixed/optim_world_size_3_rank_1.pt
LC_ALL=C sed -i 's/\x89\xd1\xe1\xa7/\xc7\x06\x1b\x6c/g' "$file"
check "other steps" grep -q "optim_world_size_3_rank_1.pt: .*step: .*different saves" \
	<(ucckpt info "$tmp/mixed" 2>&1)
cp "$good/fsdp_verl_dp3/global_step_3/actor/optim_world_size_3_rank_1.pt" "$file"
cp "$tmp/mixed/model_world_size_3_rank_2.pt" "$tmp/mixed/model_world_size_3_rank_3.pt"
check "one rank more" grep -q "model_world_size_3_rank_3.pt: .*there were 3 ranks" \
	<(ucckpt info "$tmp/mixed" 2>&1)
rm "$tmp/mixed/model_world_size_3_rank_3.pt"
LC_ALL=C sed -i 's/0[.]norm[.]bias/0.down.bias/' "$tmp/mixed/model_world_size_3_rank_1.pt"
check "a name twice" grep -q "model_world_size_3_rank_1.pt: .*0.down.bias: is there twice" \
	<(ucckpt info "$tmp/mixed" 2>&1)
finish
