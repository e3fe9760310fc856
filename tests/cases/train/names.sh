#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# --names megatron saves in the form of Megatron-DeepSpeed.  File names and keys equal those of
# its real checkpoint; the tree differs from that of the same run in Hugging Face's names only in
# names and the form of tensors.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
sanitized_by train/megatron train/save
require_train
require_fuse

files=$top_builddir/tests/programs/megatron_files
flags=(--n_layer 2 --n_head 4 --n_embd 16 --n_positions 32 --seq_length 32
	--data "$top_srcdir/LICENSE" --vocab_size 257 --lr 1e-2 --steps 3 --train_batch_size 12)

# Ranks | tensor-parallel | pipeline stages | ZeRO stage | type | more flags.  With 3 ranks groups
# are padded.
plan="1 1 1 1 fp32
3 1 1 1 bf16
3 1 1 1 fp16
2 1 2 1 fp32
4 2 2 1 bf16
4 2 2 1 fp32
2 2 1 1 fp32
4 2 1 2 bf16
4 2 1 3 fp32
2 1 1 1 bf16 --sequence_parallel_size 2"
# Under sanitizers, run only the lines that others are compared with, and ranks that share
# sequences.
[ "${sanitize:-no}" = no ] || plan=$(sed -n '2p; 6,8p; 10p' <<<"$plan")
case_of() { case=n$ranks-t$tensor-p$pipe-z$stage-$dtype${more:+-more}; }

while read -r ranks tensor pipe stage dtype more; do
	case_of
	for names in hf megatron; do
		# shellcheck disable=SC2086 # words
		train_later "$ranks" "$case-$names" "${flags[@]}" --tensor_model_parallel_size "$tensor" \
			--pipeline_model_parallel_size "$pipe" --zero_stage "$stage" --dtype "$dtype" \
			--weight_decay 0 $more --names $names --checkpoint_dir "$tmp/$case/$names"
	done
done <<<"$plan"
shared=(--tensor_model_parallel_size 2 --pipeline_model_parallel_size 2)
train_later 4 later "${flags[@]}" "${shared[@]}" --weight_decay 0 --names megatron --async_save --checkpoint_dir "$tmp/later"
train_later 2 old "${flags[@]}" --tensor_model_parallel_size 2 --weight_decay 0 --names megatron \
	--qkv_order by_head --checkpoint_dir "$tmp/old"
for decay in 0 10; do
	train_later 2 decay$decay "${flags[@]}" --steps 1 --weight_decay $decay --names megatron \
		--checkpoint_dir "$tmp/decay$decay"
done
whole=("${flags[@]}" --names megatron --steps 12 --eval_interval 6)
for order in thirds by_head; do
	train_later 4 $order "${whole[@]}" "${shared[@]}" --qkv_order $order --checkpoint_interval 6 \
		--checkpoint_dir "$tmp/$order"
done
train_later 4 stage3 "${whole[@]}" --tensor_model_parallel_size 2 --zero_stage 3 --checkpoint_interval 6 \
	--checkpoint_dir "$tmp/stage3"
train_later 4 one "${flags[@]}" --zero_stage 3 --dtype bf16 --names megatron --checkpoint_dir "$tmp/one"
train_later 4 stage0 "${whole[@]}" "${shared[@]}" --zero_stage 0 --checkpoint_interval 6 \
	--checkpoint_dir "$tmp/stage0"
train_later 2 model0 "${whole[@]}" --dtype bf16 --tensor_model_parallel_size 2 --zero_stage 0 \
	--checkpoint_interval 6 --checkpoint_dir "$tmp/model0"
refused_later "a pipeline of bf16 in stage 0" 'does not go with a pipeline of bf16' 2 \
	"${flags[@]}" --names megatron --zero_stage 0 --dtype bf16 --pipeline_model_parallel_size 2
train_all

while read -r ranks tensor pipe stage dtype more; do
	case_of
	for names in hf megatron; do
		check "$case: whole in names of $names" \
			ucckpt check --data "$tmp/$case/$names/global_step3"
		ucckpt convert "$tmp/$case/$names/global_step3" "$tmp/$case/$names/tree" >/dev/null ||
			fail "$case: $names is not converted"
	done
	same_bits "$case: names do not matter to training" "$case-hf" "$case-megatron"
	check "$case: the same state" "$files" tree "$tmp/$case/hf/tree" "$tmp/$case/megatron/tree" 16 0
done <<<"$plan"

real=$good/megatron/tp2_pp2_z1_fp32/global_step5
saved=$tmp/n4-t2-p2-z1-fp32/megatron/global_step3
check "files" cmp <(ls "$real") <(ls "$saved")

# Only a few of the arguments are saved; Megatron has no rules for the thirds of query_key_value,
# and frozen parameters are None only in stage 1.
keys() {
	"$files" keys "$1" | grep -v -e ^args/ -e ds_config/ -e universal_checkpoint_info/.*sub_param \
		-e ^frozen_param_
}
# keys_are_those_of REAL SAVED FILE...: compare keys and kinds.
keys_are_those_of() {
	local name
	for name in "${@:3}"; do
		check "keys of $name" cmp <(keys "$1/$name.pt") <(keys "$2/$name.pt")
	done
}
keys_are_those_of "$real" "$saved" mp_rank_00_model_states mp_rank_02_model_states \
	zero_pp_rank_0_mp_rank_00_optim_states zero_pp_rank_0_mp_rank_03_optim_states \
	layer_01-model_00-model_states layer_03-model_01-model_states layer_04-model_00-model_states
# Without a pipeline engine, bf16 has the same optimizer.
keys_are_those_of "$good/megatron/tp2_dp2_z1_bf16_padded/global_step5" \
	"$tmp/n4-t2-p1-z2-bf16/megatron/global_step3" mp_rank_01_model_states
check "keys of bf16's optimizer" cmp \
	<(keys "$good/megatron/tp2_dp2_z1_bf16_padded/global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt" |
		grep -v -e slice_mappings/./) \
	<(keys "$tmp/n3-t1-p1-z1-bf16/megatron/global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt" |
		grep -v -e slice_mappings/./)
# In stage 3 all parameters form one group.  With one tensor-parallel rank Megatron does not
# record how more would be joined.
real3=$good/megatron/z3_bf16_dp4/global_step5
saved3=$tmp/one/global_step3
check "files of stage 3" cmp <(ls "$real3") <(ls "$saved3")
keys_are_those_of "$real3" "$saved3" bf16_zero_pp_rank_3_mp_rank_00_optim_states
check "keys of stage 3" cmp \
	<(keys "$real3/zero_pp_rank_1_mp_rank_00_model_states.pt" | grep -v universal_checkpoint_info/) \
	<(keys "$saved3/zero_pp_rank_1_mp_rank_00_model_states.pt" | grep -v universal_checkpoint_info/)
check "nothing decays: told" grep -q "nothing decays" "$tmp/one.log"
# Without ZeRO the model states contain the optimizer.
real0=$good/megatron/tp2_pp2_z0_fp32/global_step5
saved0=$tmp/stage0/global_step12
check "files of stage 0" cmp <(ls "$real0") <(ls "$saved0")
keys_are_those_of "$real0" "$saved0" mp_rank_00_model_states mp_rank_03_model_states \
	layer_01-model_01-model_states layer_04-model_00-model_states
check "files of bf16 in stage 0" test "$(ls "$tmp/model0/global_step6")" = "mp_rank_00_model_states.pt
mp_rank_01_model_states.pt"

# Megatron's checkpointing.py compares these in check_checkpoint_args, or adopts them in
# load_args_from_checkpoint.
"$files" keys "$saved/mp_rank_02_model_states.pt" >"$tmp/keys"
for key in num_layers hidden_size num_attention_heads num_key_value_heads add_position_embedding \
	max_position_embeddings tokenizer_type tensor_model_parallel_size \
	pipeline_model_parallel_size consumed_train_samples consumed_valid_samples \
	make_vocab_size_divisible_by padded_vocab_size data_parallel_random_init ffn_hidden_size \
	seq_length kv_channels use_rotary_position_embeddings rotary_percent add_bias_linear swiglu \
	untie_embeddings_and_output_weights apply_layernorm_1p; do
	check "args.$key" grep -q "^args/$key " "$tmp/keys"
done

ucckpt convert "$tmp/old/global_step3" "$tmp/old/tree" >/dev/null
check "the same state by heads" "$files" tree "$tmp/n2-t2-p1-z1-fp32/hf/tree" "$tmp/old/tree" 16 4

# Saved as | ranks | tensor-parallel | stages | ZeRO stage.  In stage 3 nothing decays.
others="thirds 1 1 1 1
thirds 2 2 1 1
thirds 2 1 2 1
thirds 4 2 2 1
by_head 1 1 1 1
by_head 2 2 1 1
by_head 2 1 2 1
by_head 4 2 2 1
stage0 1 1 1 1
stage0 2 2 1 0
stage0 3 1 1 2
stage0 4 2 2 1
model0 2 2 1 0
stage3 2 2 1 3
stage3 3 1 1 2
stage3 4 2 2 1"
others=$(sampled <<<"$others")
# Then all are tags of one run, and one mount shows them.
mkdir "$tmp/all"
for order in thirds by_head stage0 model0 stage3; do
	mv "$tmp/$order/global_step6" "$tmp/all/$order"
done
mount_fg "$tmp/all" || finish
while read -r from ranks tensor pipe stage; do
	into=("${whole[@]}" --tensor_model_parallel_size "$tensor" --pipeline_model_parallel_size "$pipe"
		--zero_stage "$stage")
	[ $from = model0 ] && into+=(--dtype bf16)
	case=$from-$ranks-$tensor-$pipe-$stage
	train_later "$ranks" "$case-files" "${into[@]}" --resume="$tmp/all" --checkpoint_tag "$from"
	train_later "$ranks" "$case-mount" "${into[@]}" --resume="$tmp/mnt" --universal_checkpoint \
		--checkpoint_tag "${from}_universal"
done <<<"$others"
train_all
unmount
while read -r from ranks tensor pipe stage; do
	for by in files mount; do
		case=$from-$ranks-$tensor-$pipe-$stage-$by
		alike "$case" 1e-5 "$from" "$case"
	done
done <<<"$others"

for decay in 0 10; do
	ucckpt convert "$tmp/decay$decay/global_step1" "$tmp/decay$decay/tree" >/dev/null
done
same() { cmp -s "$tmp/decay0/tree/zero/$1/fp32.pt" "$tmp/decay10/tree/zero/$1/fp32.pt"; }
for name in 2.input_layernorm.weight 3.mlp.dense_h_to_4h.bias 4.bias; do
	check "$name does not decay" same $name
done
for name in 2.self_attention.dense.weight tied_modules.embed.position_embeddings.weight; do
	same $name && fail "$name does not decay"
done

check "saved in the background" diff -r "$saved" "$tmp/later/global_step3"
finish
