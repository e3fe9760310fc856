#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A GPT of Megatron-DeepSpeed is resumed on any ranks, from its files, from a mount and from a
# tree; each rank reads only its part.  good/megatron has checkpoints of the real trainer.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
# shellcheck source=tests/cases/train/ranks_lib.sh
. "$(dirname "$0")/ranks_lib.sh"
require_train
require_fuse

real=$good/megatron
model="layers=2 width=16 heads=4 positions=32 steps=0"

# Checkpoint | its tokens | rows of its embedding
cases="tp2_pp2_z1_fp32 128 128
z3_bf16_dp4 128 128
tp2_dp2_z1_bf16_padded 97 112"

# Ranks | of which tensor-parallel | stages | ZeRO stage
others="1 1 1 0
3 1 1 2
2 2 1 2
2 1 2 1
4 2 2 1
4 4 1 1
2 1 1 3"

# each CALL...: call it with the ranks of all lines of `others`.
each() {
	local n t p z
	while read -r n t p z; do
		"$@"
	done <<<"$others"
}

resume_from() {
	# shellcheck disable=SC2086 # $model is words
	later $n $case-$1-n$n-t$t-p$p-z$z $model vocab=$words tensor=$t pipe=$p stage=$z "${@:2}"
}

resumed_from() {
	same "$case from $1 on $n ranks, $t of them tensor-parallel, $p stages, ZeRO's $z" \
		"$want" $case-$1-n$n-t$t-p$p-z$z
}

resume() {
	# shellcheck disable=SC2086
	local at=(vocab=$words load="$tmp/all" tag=$case)
	each resume_from files load="$tmp/all" tag=$case
	each resume_from tree load="$tmp/trees/$case" universal=yes
	each resume_from mount load="$tmp/mnt" universal=yes tag=${case}_universal
	# shellcheck disable=SC2086
	{
		later 1 $case-rows $model "${at[@]}" vocab=$rows words=$words
		later 1 $case-heads $model "${at[@]}" qkv_order=2
		later 1 $case-preset $model "${at[@]}" preset=megatron-qkv-by-head
	}
}

resumed() {
	want=$(state $case-files-n1-t1-p1-z0)
	echo "$case: $want"
	case $want in "step 5 updates 5 "*) ;; *) fail "$case: $(said $case-files-n1-t1-p1-z0)" ;; esac
	each resumed_from files
	each resumed_from tree
	each resumed_from mount
	same "$case by head, as flag or preset" "$(state $case-heads)" $case-preset
	check "$case: which is another order" test "$(state $case-heads)" != "$want"
	if [ $words = $rows ]; then
		same "$case: nothing is padded" "$want" $case-rows
	else
		same "$case: padding was trained" "$want and padding" $case-rows
	fi
}

# All are tags of one run, so one mount shows all.
mkdir "$tmp/all" "$tmp/trees"
while read -r case words rows; do
	cp -r "$real/$case/global_step5" "$tmp/all/$case"
	ucckpt convert "$real/$case/global_step5" "$tmp/trees/$case" >/dev/null 2>&1 || fail "convert $case"
	resume
done <<<"$cases"
mount_fg "$tmp/all" -o preset=megatron-qkv-thirds || finish
# Resume without ZeRO from the files.
case=tp2_pp2_z0_fp32 words=128
at=(load="$real/$case" tag=global_step5)
each resume_from files "${at[@]}"
# shellcheck disable=SC2086 # $model is words
{
	later 1 $case-heads $model vocab=$words "${at[@]}" qkv_order=2
	later 1 $case-preset $model vocab=$words "${at[@]}" preset=megatron-qkv-by-head
}
start
unmount
want=$(state $case-files-n1-t1-p1-z0)
case $want in "step 5 updates 5 "*) ;; *) fail "$case: $(said $case-files-n1-t1-p1-z0)" ;; esac
each resumed_from files
same "$case by head, as flag or preset" "$(state $case-heads)" $case-preset
check "$case: which is another order" test "$(state $case-heads)" != "$want"
while read -r case words rows; do
	resumed
done <<<"$cases"

# Three states of 9152 elements of 4 bytes are read once; tensor-parallel ranks each read 736
# replicated ones again, and both ends of a pipeline the 2048 of the embedding.
bytes() {
	said "tp2_pp2_z1_fp32-$1" | sed -n 's/^read \([0-9]*\) .*/\1/p'
}
for from in files tree mount; do
	check "from $from, bytes of one rank" test "$(bytes $from-n1-t1-p1-z0)" = $((9152 * 12))
	check "of two that share layers" test "$(bytes $from-n2-t2-p1-z2)" = $(((9152 + 736) * 12))
	check "of four that share all" test "$(bytes $from-n4-t2-p2-z1)" = $(((9152 + 736 + 2048) * 12))
	# A fragment that begins or ends inside one of our rows reads the whole row.
	check "of three that partition" test "$(bytes $from-n3-t1-p1-z2)" -lt $((9152 * 12 * 105 / 100))
done

# Megatron's learning rate would fall until step 100.
echo '{"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 100,
	"warmup_num_steps": 0, "warmup_type": "linear", "cos_min_ratio": 0.1}}}' >"$tmp/rate.json"
flags=(--n_layer 2 --n_head 4 --n_embd 16 --n_positions 32 --seq_length 32 --vocab_size 128
	--data "$real/data/tiny_text_document" --data_samples "$real/data/train"
	--train_batch_size 8 --train_micro_batch_size_per_gpu 1 --lr 6e-3
	--deepspeed_config "$tmp/rate.json" --steps 10 --betas 0.9,0.95 --weight_decay 0.1)

# as_real CASE LIMIT NAME: compare five losses of a run with Megatron's.
as_real() {
	local case=$1 limit=$2 name=$3 d
	mkdir -p "$tmp/logs/$case"
	cut -d, -f1,2 "$real/$case/baseline.csv" >"$tmp/logs/$case/metrics.csv"
	d=$(apart "$case" "$name" 6)
	echo "$name: $d apart"
	check "$name: the losses are Megatron's" within "$limit" "$d"
}

at=(--resume="$real/tp2_pp2_z1_fp32")
train_later 1 one "${flags[@]}" "${at[@]}"
echo '{ "parameter_with_3_sub_params_cat_dim_0": [".*query_key_value\\.(weight|bias)$"] }' >"$tmp/thirds.json"
train_later 1 thirds-preset "${flags[@]}" "${at[@]}" --preset megatron-qkv-thirds
train_later 1 thirds-rules "${flags[@]}" "${at[@]}" --rules "$tmp/thirds.json"
sed '$ s/ }$/, "parameter_to_average_patterns": [".*layernorm.*"] }/' "$tmp/thirds.json" >"$tmp/average.json"
train_later 1 thirds-average "${flags[@]}" "${at[@]}" --rules "$tmp/average.json"
train_later 1 thirds-flag "${flags[@]}" "${at[@]}" --qkv_order thirds
train_later 2 heads-flag "${flags[@]}" "${at[@]}" --qkv_order by_head
train_later 2 heads-preset "${flags[@]}" "${at[@]}" --preset megatron-qkv-by-head
train_later 4 four "${flags[@]}" "${at[@]}" --tensor_model_parallel_size 2 \
	--pipeline_model_parallel_size 2 --train_micro_batch_size_per_gpu 2
train_later 2 stage3 "${flags[@]}" --dtype bf16 --zero_stage 3 --resume="$real/z3_bf16_dp4"
train_later 1 undecayed "${flags[@]}" --dtype bf16 --eps 1e-7 --steps 6 --resume="$real/z3_bf16_dp4"
train_later 2 padded "${flags[@]}" --dtype bf16 --vocab_size 112 --tensor_model_parallel_size 2 \
	--resume="$real/tp2_dp2_z1_bf16_padded"
# Megatron's losses were not clipped.
at0=("${flags[@]}" --resume="$real/tp2_pp2_z0_fp32" --checkpoint_tag global_step5)
train_later 1 whole "${at0[@]}" --gradient_clipping 1000
train_later 4 whole-four "${at0[@]}" --gradient_clipping 1000 --tensor_model_parallel_size 2 \
	--pipeline_model_parallel_size 2 --train_micro_batch_size_per_gpu 2
refused_later "more blocks than a pipeline without ZeRO" "another model: it has 4.bias" 2 \
	"${at0[@]}" --n_layer 3
refused_later "another width without ZeRO" "another model: tied_modules" 2 "${at0[@]}" --n_embd 32

# Combinations that are impossible.
refuses() {
	refused_later "$1" "$2" 2 "${flags[@]}" "${at[@]}" "${@:3}"
}

echo '{ "tp_replicated_parameter_patterns": [".*dense_h_to_4h.weight"] }' >"$tmp/rules.json"
refuses "other heads" "it has 4 attention heads, this one has 2" --n_head 2
refuses "another width" "1.mlp.dense\|2.*has\|another model" --n_embd 32
refuses "more layers" "4.input_layernorm.weight\|another model" --n_layer 3
refuses "words are missing" "another model: tied_modules.embed.word_embeddings.weight has 128 x 16" --vocab_size 120
refuses "rules that do not fit" "another model: 2.mlp.dense_h_to_4h.weight has 32 x 16" --rules "$tmp/rules.json"
refuses "no such rules" "none.json: cannot open" --rules "$tmp/none.json"
refuses "no such preset" "is not a preset" --preset none
refuses "rules of a mount" "mount it with ucfs -o preset" --preset megatron-qkv-thirds --universal_checkpoint
refuses "validation on samples" "leaves 0 rows for validation" --eval_interval 1
refuses "no samples" "none_doc_idx.npy" --data_samples "$tmp/none"
refuses "samples of a text" "not an indexed dataset" --data "$top_srcdir/LICENSE"
refuses "samples of another length" "is not 17 tokens" --seq_length 16
train_all
check "nothing decays: the checkpoint's weight decay is told" \
	grep -q "^uctrain: using the checkpoint's .* weight decay 0 (AdamW)$" "$tmp/undecayed.log"

as_real tp2_pp2_z1_fp32 2e-6 one
check "another GELU is told" grep -q "exact GELU" "$tmp/one.log"
for how in preset rules average flag; do
	same_bits "by $how: what was guessed" one thirds-$how
done
check "nothing is said against the files" bash -c "! grep -q 'its args tell' $tmp/one.log $tmp/thirds-*.log"
for how in preset flag; do
	check "$how against the args: told once" test \
		"$(grep -c "order thirds; reading them as by_head, which was given" "$tmp/heads-$how.log")" = 1
done
as_real tp2_pp2_z1_fp32 2e-6 four
as_real tp2_pp2_z0_fp32 2e-6 whole
as_real tp2_pp2_z0_fp32 2e-6 whole-four
as_real z3_bf16_dp4 3e-3 stage3
as_real tp2_dp2_z1_bf16_padded 3e-3 padded
finish
