#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Weights from a mount, read by the programs that use them (weights.py): safetensors, torch, and
# transformers, whose loss on a fixed batch is that of the run.  By hand:
#
#     UCFS_PYTHON=/venv/bin/python weights.sh
#
# Needs a Python with torch, safetensors and transformers; no GPU.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python safetensors torch transformers
require_ucfs
make_scratch mnt
curves=$good/curves

# Supported options, for a single file and for several.
for options in hf_shard_size=5GB hf_shard_size=0.5KB; do
	for name in $(cd "$good" && printf '%s\n' *.weights | sed 's/\.weights$//'); do
		grep -qE '^(refuse|rules)' "$good/$name.digests" && continue
		tag=$(sed -n 's/^tag //p' "$good/$name.digests")
		mkdir -p "$scratch/runs/$name"
		ln -sfn "$(readlink -f "$good/$name/$tag")" "$scratch/runs/$name/global_step4"
	done
	ucfs "$scratch/runs" "$mnt" -o "$options" || exit 1
	"$UCFS_PYTHON" "$here/weights.py" files "$mnt"/*/global_step4 ||
		fail "files with $options"
	fusermount3 -u "$mnt"
done

# within LIMIT A B
within() {
	awk -v limit="$1" -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= limit) }'
}

# The loss before step 11, which DeepSpeed logged and uctrain reproduces
# (cases/train/deepspeed.sh).  config.json is in $4, or in the run.
compare_loss() {
	local case=$1 limit=$2 options=$3 place=${4:-$scratch/run} loss expected
	rm -rf "$scratch/run"
	mkdir -p "$scratch/run" "$place"
	cp -r "$curves/$case/global_step10" "$scratch/run"
	cat >"$place/config.json" <<-'EOF'
		{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_layer": 2, "n_head": 2,
		 "n_embd": 32, "vocab_size": 256, "n_positions": 32, "n_ctx": 32, "attn_pdrop": 0,
		 "embd_pdrop": 0, "resid_pdrop": 0, "tie_word_embeddings": true,
		 "bos_token_id": 0, "eos_token_id": 0}
	EOF
	ucfs "$scratch/run" "$mnt" -o "$options" || exit 1
	loss=$("$UCFS_PYTHON" "$here/weights.py" loss "$mnt/global_step10_hf" \
		"$curves/tokens.i32" 2>"$scratch/said") || { fail "$case: $(tail -3 "$scratch/said")"; loss=0; }
	fusermount3 -u "$mnt"
	expected=$(awk -F, '$1 == 11 { print $2 }' "$curves/$case/baseline_dp4.csv")
	echo "$case, $options: transformers $loss, DeepSpeed $expected"
	within "$limit" "$loss" "$expected" || fail "$case: another loss"
}

compare_loss gpt2_z1_fp32_dp4 1e-5 hf_dtype=fp32
compare_loss gpt2_z3_fp32_dp4 1e-5 hf_dtype=fp32
compare_loss gpt2_z3_fp32_dp4 1e-5 hf_shard_size=20KB
compare_loss gpt2_z3_fp32_dp4 1e-5 "hf_config=$scratch/model" "$scratch/model"
compare_loss gpt2_z3_fp32_dp4 5e-3 hf_dtype=bf16
compare_loss gpt2_z3_fp32_dp4 1e-3 hf_dtype=fp16
compare_loss gpt2_z2_bf16_dp4 2e-2 hf_dtype=fp32

[ "$failures" -eq 0 ]
