#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Training starts from Hugging Face weights, mounted or converted, on any number of
# ranks and in any stage; missing state is logged.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

gpt2=$good/hfdir_gpt2_bf16_sharded
flags=(--n_layer 2 --n_head 2 --n_embd 8 --vocab_size 32 --n_positions 16
	--seq_length 16 --train_batch_size 4 --train_micro_batch_size_per_gpu 1 --lr 1e-3 --seed 1
	--steps 4 --resume --universal_checkpoint)

# begin N NAME STAGE FLAG...: start from the weights on N ranks.
begin() {
	train "$1" "$2" "${flags[@]}" --zero_stage "$3" "${@:4}"
}

ucckpt convert "$gpt2" "$tmp/tree/weights" >/dev/null || fail "converted"
mount_fg "$gpt2"
begin 1 one 1 --ignore_missing_optim --checkpoint_dir "$tmp/mnt"
check "at step 0" grep -q "^uctrain: resumed from $tmp/mnt/. at step 0:" "$tmp/one.log"
check "with a new optimizer, which is logged" grep -q '^uctrain: no optimizer step in the checkpoint; starting with fresh' "$tmp/one.log"
check "and goes on" test "$(losses one | wc -l)" = 4
begin 2 two 3 --ignore_missing_optim --checkpoint_dir "$tmp/mnt"
begin 4 four 2 --ignore_missing_optim --checkpoint_dir "$tmp/tree"
check "it is not a new model that was trained" \
	within 1 "$(losses one | awk 'NR == 1 { d = $2 - log(32); print d < 0 ? -d : d }')"
check "two ranks of stage 3 do the same" within 1e-5 "$(apart one two 1)"
check "and four, from a disk" within 1e-5 "$(apart one four 1)"

# Missing state is an error without the flag.
try_train 2 strict "${flags[@]}" --zero_stage 1 --checkpoint_dir "$tmp/mnt" &&
	fail "missing states were accepted"
check "what is missing is named" grep -q \
	'mnt/.: no model states, which contain the step; --ignore_missing_optim starts at step 0' "$tmp/strict.log"
unmount

# A converted checkpoint with optimizer state needs no flag.
mount_fg "$gpt2" -o stage=any
begin 2 any 2 --checkpoint_dir "$tmp/mnt"
check "the optimizer's step is there" test "$(grep -c 'fresh optimizer state' "$tmp/any.log")" = 0
check "and is 0" within 1e-5 "$(apart one any 1)"
unmount

# Weights of a model without a head, such as the hub's gpt2: names lack the prefix, and attention
# masks are beside the parameters.
bare=$tmp/bare/weights
mkdir "$tmp/bare"
cp -r "$tmp/tree/weights" "$bare"
for dir in "$bare"/zero/*; do
	mv "$dir" "${dir/transformer./}"
done
cp -r "$bare/zero/ln_f.bias" "$bare/zero/h.0.attn.bias"
cp -r "$bare/zero/ln_f.bias" "$bare/zero/h.1.attn.masked_bias"
printf weights >"$tmp/bare/latest_universal"
begin 2 bare 1 --ignore_missing_optim --checkpoint_dir "$tmp/bare"
check "names without a prefix" within 1e-5 "$(apart one bare 1)"
cp -r "$bare/zero/wte.weight" "$bare/zero/lm_head.weight"
begin 1 tied 1 --ignore_missing_optim --checkpoint_dir "$tmp/bare"
check "a head that is the embedding" within 1e-5 "$(apart one tied 1)"
printf x | dd of="$bare/zero/lm_head.weight/fp32.pt" bs=1 seek=1000 conv=notrunc 2>/dev/null
try_train 1 untied "${flags[@]}" --ignore_missing_optim --checkpoint_dir "$tmp/bare" &&
	fail "another head was accepted"
check "another head is another model" grep -q 'its lm_head.weight differs from its wte.weight' "$tmp/untied.log"
rm -r "${bare:?}/zero/lm_head.weight"
cp -r "$bare/zero/ln_f.bias" "$bare/zero/h.2.ln_1.bias"
try_train 1 more "${flags[@]}" --ignore_missing_optim --checkpoint_dir "$tmp/bare" &&
	fail "another layer was accepted"
check "and so is another layer" grep -q 'it has transformer.h.2.ln_1.bias, which this model, a GPT-2, lacks' "$tmp/more.log"

# From a ZeRO checkpoint to Hugging Face weights and back into training without writing
# a file: a mount of a view of a mount.
model=("${tiny[@]}" --train_batch_size 4 --train_micro_batch_size_per_gpu 1)
train 2 zero "${model[@]}" --zero_stage 3 --steps 12 --checkpoint_dir "$tmp/run" \
	--checkpoint_interval 6
for size in 5GB 40KB; do
	mount_fg "$tmp/run" -o hf_shard_size=$size
	mkdir -p "$tmp/again"
	ucfs "$tmp/mnt/global_step6_hf" "$tmp/again" || fail "a mount of the view"
	for n in 1 4; do
		train $n "from-$size-$n" "${model[@]}" --zero_stage $((n / 2 + 1)) --steps 6 \
			--resume --universal_checkpoint --ignore_missing_optim \
			--checkpoint_dir "$tmp/again"
	done
	fusermount3 -u "$tmp/again"
	unmount
	check "$size: the same on one rank and on four" \
		within 1e-5 "$(apart "from-$size-1" "from-$size-4" 1)"
	# The rows are those of step 1, which the model has seen.
	check "$size: the loss is not a new model's" \
		awk -v a="$(losses zero | awk '$1 == 1 { print $2 }')" \
		-v b="$(losses "from-$size-1" | awk '$1 == 1 { print $2 }')" 'BEGIN { exit !(b < a - 0.2) }'
done
check "weights in several files are the same" within 0 "$(apart from-5GB-1 from-40KB-1 1)"
finish
