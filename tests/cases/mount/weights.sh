#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Hugging Face weights from a mount: the files of zero_to_fp32.py, read in every way, and the
# other files that from_pretrained reads.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse

# The `file` lines of a variant contain the bytes of each file of the view.
compare() {
	local name=$1 variant=$2 view=$3 file bytes digest
	while read -r _ _ file bytes digest; do
		check "$name: $variant: $file has its size" test "$(stat -c %s "$view/$file")" = "$bytes"
		check "$name: $variant: $file" test "$(sha256sum <"$view/$file")" = "$digest  -"
		check "$name: $variant: $file in pieces" test \
			"$(dd if="$view/$file" bs=77 2>/dev/null | sha256sum)" = "$digest  -"
	done < <(grep "^file $variant " "$good/$name.weights")
}

# Variants of make_weights.py by mount options.
for options in crc=exact:hf:fp32 hf_dtype=bf16:hf-bf16:fp32 hf_dtype=fp16:hf-fp16:fp32 \
	hf_shard_size=0.5KB:hf-split:fp32-split hf_shard_size=0.5kb,hf_dtype=bf16:hf-split-bf16:fp32-split; do
	IFS=: read -r options hf fp32 <<<"$options"
	for name in z3_tied_frozen_buffers_dp2 z1_tied_frozen_buffers_dp2 dsuc_gpt2_z3_offload_dp4; do
		mount_fg "$good/$name" -o "$options" || continue
		compare "$name" "$hf" "$mnt/global_step4_hf"
		compare "$name" "$fp32" "$mnt/global_step4_fp32"
		check "$name: no files but those" test \
			"$(find "$mnt"/global_step4_hf "$mnt"/global_step4_fp32 -type f | wc -l)" = \
			"$(grep -c -E "^(file|tensors) ($hf|$fp32) " "$good/$name.weights")"
		for file in "$mnt"/global_step4_fp32/*.bin; do
			check "$name: checksums in ${file##*/}" unzip -qt "$file" >/dev/null
		done
		unmount
	done
done

# Rows of tensor-parallel ranks are interleaved; mapped and read bytes are equal.
mount_fg "$good/meg_tp2_dp2_z1_bf16" -o hf_dtype=bf16 || finish
cp "$mnt/global_step4_hf/model.safetensors" "$tmp/copy"
check "a mapping has the same bytes" timeout 60 "$top_builddir/tests/programs/mapload" \
	"$mnt/global_step4_hf/model.safetensors" "$tmp/copy" </dev/null >/dev/null
check "the table says what is converted and what is woven" grep -q ' cast .*zero_pp_rank_.* \| gather ' \
	<(ucckpt extents "$mnt/global_step4_hf/model.safetensors")
unmount

# fp32 needs no conversion: extents lead to the shards.
mount_fg "$good/z3_fp32_dp4" || finish
ucckpt extents "$mnt/global_step4_hf/model.safetensors" >"$tmp/extents"
check "all but the head are a shard's" test "$(grep -c -v ' source ' "$tmp/extents")" = 1
check "the checkpoint has these weights" grep -q '^equal: 17 states of 17' \
	<(ucckpt diff "$good/z3_fp32_dp4/global_step4" "$mnt/global_step4_hf")
unmount

# Configuration files beside the tag; a changed one is refused.
run=$tmp/run
mkdir "$run"
cp -r "$good/z1_fp32_dp2/global_step4" "$run"
echo '{"model_type": "gpt2"}' >"$run/config.json"
echo '{}' >"$run/tokenizer.json"
echo 'print()' >"$run/modeling_own.py"
echo old >"$run/training_args.bin"
echo '{}' >"$run/trainer_state.json"
mkdir "$run/vocab.json"
mount_fg "$run" || finish
check "sidecars and weights, nothing else" test "$(ls "$mnt/global_step4_hf" | tr '\n' ' ')" = \
	"config.json model.safetensors modeling_own.py tokenizer.json "
check "a sidecar is the file itself" cmp "$run/config.json" "$mnt/global_step4_hf/config.json"
check "weights for PyTorch stand alone" test "$(ls "$mnt/global_step4_fp32")" = pytorch_model.bin
check "the time is the file's own" test "$(stat -c %Y "$run/config.json")" = \
	"$(stat -c %Y "$mnt/global_step4_hf/config.json")"
echo '{"model_type": "llama"}' >"$run/config.json"
sleep 0.3
check "a file that was changed is an error" grep -q 'Input/output error' \
	<(cat "$mnt/global_step4_hf/config.json" 2>&1)
check "which is reported" grep -q 'run/config.json' "$tmp/log"
unmount
echo '{"model_type": "gpt2"}' >"$run/global_step4/config.json"
mount_fg "$run" || finish
check "the tag's own goes first" cmp "$run/global_step4/config.json" "$mnt/global_step4_hf/config.json"
check "with those beside it" cmp "$run/tokenizer.json" "$mnt/global_step4_hf/tokenizer.json"
check "each once" test "$(ls "$mnt/global_step4_hf" | tr '\n' ' ')" = \
	"config.json model.safetensors modeling_own.py tokenizer.json "
unmount

# Real directories of these names are not hidden.
mkdir "$run/global_step4_hf"
echo mine >"$run/global_step4_hf/note"
mount_fg "$run" || finish
check "a real directory wins over a view" test "$(cat "$mnt/global_step4_hf/note")" = mine
check "it is listed once" test "$(ls "$mnt" | grep -c '^global_step4_hf$')" = 1
check "the other view is there" test -f "$mnt/global_step4_fp32/pytorch_model.bin"
unmount

# A single tag shows the requested view.
rm -r "${run:?}/global_step4_hf"
for view in universal hf fp32 dcp; do
	ucckpt convert --view $view "$run/global_step4" "$tmp/$view" >/dev/null || fail "convert $view"
	mount_fg "$run/global_step4" -o view=$view || continue
	check "view=$view is all there is" diff -r "$tmp/$view" "$mnt"
	unmount
done
mount_fg "$run/global_step4" || finish
check "without, the universal one" diff -r "$tmp/universal" "$mnt"
unmount
mount_fg "$good/hfdir_types" -o view=dcp || finish
check "view=dcp shows weights as a distributed checkpoint" test -s "$mnt/.metadata" -a -s "$mnt/model.of.float16.distcp"
check "its files ask for small reads" test "$(stat -c %o "$mnt/model.of.float16.distcp")" = 4096
unmount
mount_fg "$good/hfdir_bin" -o view=hf || finish
check "view=hf shows pytorch_model.bin as safetensors" test -s "$mnt/model.safetensors"
unmount
ucfs "$run" "$mnt" -f -o view=hf 2>"$tmp/said"
check "of what is no tag it is refused" test $? = 1
check "which is reported" grep -q "^ucfs: $run: option view: not a tag directory" "$tmp/said"

# The tag cannot be served.
mount_fg "$good/hf_trainer" || finish
mkdir -p "$tmp/none"
check "a tag below" test -f "$mnt/checkpoint-4/global_step4_hf/config.json"
unmount
cp -r "$good/sp2_dp2_z3/global_step4" "$run/global_step8"
mount_fg "$run" || finish
check "a damaged tag has no weights" grep -q 'Input/output error' <(ls "$mnt/global_step8_fp32" 2>&1)
check "and the log says why" grep -q 'global_step8.*sequence parallel' "$tmp/log"
unmount

# Padding rows: of 21 tokens a rank has 24 rows, which the script keeps and the converter does
# not; with two ranks, which the script refuses, both views have 21.
while read -r name rows; do
	mount_fg "$good/$name" || finish
	check "$name: rows of the weights" test "$(head -c 4096 "$mnt/global_step4_hf/model.safetensors" |
		grep -a -o 'word_embeddings.weight":{"dtype":"F32","shape":\[[0-9]*' | grep -o '[0-9]*$')" = "$rows"
	check "$name: rows of the tree" ucckpt diff --strict "$mnt/global_step4_universal" \
		"$good/$name/global_step4"
	check "$name: 21 in both sizes" grep -q '^shape language_model.embedding.word_embeddings.weight 21x8$' \
		"$good/$name.digests"
	unmount
done <<<"meg_tp1_dp2_z1_bf16 24
meg_tp2_dp1_z1_bf16 21"

# Invalid options.
mkdir -p "$tmp/mnt"
for wrong in hf_dtype=int8 hf_dtype= hf_shard_size=5 hf_shard_size=400B hf_shard_size=-1GB hf_shard_size=0GB \
	view=bf16 view=; do
	ucfs "$run" "$tmp/mnt" -f -o "$wrong" 2>"$tmp/said"
	check "$wrong is refused" test $? = 1
	check "$wrong is reported" grep -q "^ucfs: -o ${wrong}:" "$tmp/said"
done

finish
