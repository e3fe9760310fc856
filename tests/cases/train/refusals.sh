#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Bad input on several ranks: rank 0 prints one message, and all ranks end (mostly in runs that
# share one start).  tensor.sh, pipeline.sh, parts.sh and megatron.sh test more of it.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

real=$good/megatron
flags=(--n_layer 2 --n_head 4 --n_embd 16 --n_positions 32 --seq_length 32 --vocab_size 128
	--train_batch_size 24 --steps 6)
own_flags=("${flags[@]}" --log_dir "$tmp/logs" --run_name refused)

# once LABEL PATTERN COMMAND...: it fails with one message, which matches PATTERN.
once() {
	local label=$1 pattern=$2
	shift 2
	timeout -k 10 60 "$@" >"$tmp/log" 2>&1 </dev/null
	check "$label: ends by itself" test $? -gt 0 -a $? -lt 124
	check "$label: one message" test "$(grep -c '^uctrain: ' "$tmp/log")" = 1
	grep -q -e "^uctrain: .*$pattern" "$tmp/log" || fail "$label: $(tail -n 5 "$tmp/log")"
}

# Ranks | pattern | flags
while IFS='|' read -r ranks pattern more; do
	# shellcheck disable=SC2086 # words
	refused_later "$more" "$pattern" "$ranks" "${flags[@]}" $more
done <<'END'
3|does not divide the 3 ranks|--tensor_model_parallel_size 2
4|does not divide the 4 groups|--pipeline_model_parallel_size 3
4|n_head 2 is not a multiple of 4|--tensor_model_parallel_size 4 --n_head 2
3|n_layer 2 is less than 3|--pipeline_model_parallel_size 3
4|is not a multiple of 4 ranks|--train_batch_size 6
2|is more than the model's --n_positions|--seq_length 33
2|sequence_parallel_size 2: |--sequence_parallel_size 2 --seq_length 31
2|sequence_parallel_size 4: does not divide|--sequence_parallel_size 4
2|zero_stage 2|--pipeline_model_parallel_size 2 --zero_stage 2
2|qkv_order old: must be|--qkv_order old
END
once "all of them end" "n_embd 18 is not a multiple" mpirun -n 2 uctrain "${own_flags[@]}" --n_embd 18

# The second rank has this instead.
while IFS='|' read -r pattern more; do
	# shellcheck disable=SC2086 # words
	once "another rank: $more" "rank 1: $pattern" \
		mpirun -n 1 uctrain "${own_flags[@]}" : -n 1 uctrain "${own_flags[@]}" $more
done <<'END'
was given other flags than rank 0|--n_layer 3
was given other flags than rank 0|--lr 1
was given other flags than rank 0|--recompute
was given other flags than rank 0|--checkpoint_dir elsewhere
was given other flags than rank 0|--run_name other
--nonsense: unknown option|--nonsense
.*nowhere.json|--deepspeed_config nowhere.json
END

# damage CASE: copy it to $bad, to be damaged.
damage() {
	bad=$tmp/bad$((copies += 1))
	mkdir "$bad"
	cp -r "$real/$1/global_step5" "$bad"
	chmod -R u+w "$bad"
}
copies=0

# Checkpoint | missing file | pattern
while IFS='|' read -r case file pattern; do
	damage "$case"
	rm "$bad/global_step5/$file"
	refused_later "$case: no $file" "$pattern" 2 "${flags[@]}" --resume="$bad" \
		--checkpoint_tag global_step5
done <<'END'
tp2_pp2_z1_fp32|mp_rank_00_model_states.pt|model-states file of .* model-parallel rank 0 is missing
tp2_pp2_z1_fp32|mp_rank_03_model_states.pt|model-states file of .* model-parallel rank 3 is missing
tp2_pp2_z1_fp32|zero_pp_rank_0_mp_rank_02_optim_states.pt|optimizer shard of .* model-parallel rank 2 is missing
tp2_pp2_z1_fp32|layer_02-model_00-model_states.pt|the file of layer 2, tensor-parallel rank 0, is missing
tp2_pp2_z1_fp32|layer_04-model_01-model_states.pt|the file of layer 4, tensor-parallel rank 1, is missing
tp2_pp2_z0_fp32|mp_rank_03_model_states.pt|of 4 model-parallel ranks, and the model states of 3 are there
tp2_pp2_z0_fp32|layer_02-model_01-model_states.pt|layer_02-model_01-model_states.pt: missing
z3_bf16_dp4|zero_pp_rank_2_mp_rank_00_model_states.pt|model-states file of data-parallel rank 2
z3_bf16_dp4|bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt|optimizer shard of data-parallel rank 3
END

damage tp2_pp2_z1_fp32
truncate -s 20000 "$bad/global_step5/zero_pp_rank_0_mp_rank_02_optim_states.pt"
refused_later "a shard is cut off" "zero_pp_rank_0_mp_rank_02_optim_states.pt: " 2 \
	"${flags[@]}" --resume="$bad"

for tree in whole lacking; do
	ucckpt convert "$real/tp2_pp2_z1_fp32/global_step5" "$tmp/$tree" >/dev/null 2>&1 || fail convert
done
rm -r "$tmp/lacking/zero/3.mlp.dense_h_to_4h.weight"
refused_later "a tree without a parameter" "lacking.*: checkpoint of another model: it lacks 3.mlp.dense_h_to_4h.weight," 2 \
	"${flags[@]}" --universal_checkpoint --resume="$tmp/lacking"
rm "$tmp/whole"/mp_rank_*
refused_later "a tree that does not tell the order of its rows" "give --qkv_order" 2 \
	"${flags[@]}" --universal_checkpoint --resume="$tmp/whole" --ignore_missing_optim

# The files are of different steps of one run.
train_later 4 from "${tiny[@]}" --steps 2 --train_batch_size 8 --tensor_model_parallel_size 2 \
	--pipeline_model_parallel_size 2 --checkpoint_dir "$tmp/own" --checkpoint_interval 1
train_all
cp "$tmp/own/global_step1/zero_pp_rank_0_mp_rank_02_optim_states.pt" "$tmp/own/global_step2"
once "a stage of another step" "mp_rank_02_optim_states.pt.*step" \
	mpirun -n 2 uctrain "${tiny[@]}" --train_batch_size 8 --steps 3 --resume="$tmp/own" \
	--log_dir "$tmp/logs" --run_name refused
finish
