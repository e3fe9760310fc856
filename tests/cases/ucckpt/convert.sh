#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ucckpt convert writes the same files as the converter, byte for byte, and takes its options.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

# convert ARGUMENT...: run it with its messages in $tmp/said.
convert() {
	ucckpt convert "$@" >"$tmp/said" 2>&1
}

good_lists
while read -r name tag; do
	out=$tmp/all/$name/global_step4_universal
	options=()
	[[ $name == *unused_pattern* ]] && options=(--no_strict)
	convert "${options[@]}" "$good/$name/$tag" "$out" || {
		fail "$name: $(cat "$tmp/said")"
		continue
	}
	cd "$out" || exit 1
	check "$name: the converter's bytes" sha256sum --quiet -c "$tmp/lists/$name.sums"
done <"$tmp/lists/cases"
cd "$tmp/all" || exit 1
find . -mindepth 3 -type f -printf '%s %P\n' | sed 's|/global_step4_universal/|/|' >"$tmp/found"
good_compare "$tmp/found"
n=$(wc -l <"$tmp/lists/cases")
check "latest_universal, without a newline" cmp <(cat ./*/latest_universal) \
	<(for _ in $(seq "$n"); do printf global_step4_universal; done)
check "nothing else beside it" test "$(find . -mindepth 2 -maxdepth 2 | wc -l)" = $((2 * n))
cd "$tmp" || exit 1
rm -rf "$tmp/all"

# Weights: files of zero_to_fp32.py, by options and variants of good/NAME.weights.
while read -r variant options; do
	for name in dsuc_gpt2_z3_offload_dp4 z1_tied_frozen_buffers_dp2 z3_tied_frozen_buffers_dp2; do
		out=$tmp/$name/weights
		# shellcheck disable=SC2086 # several words
		convert $options "$good/$name/$(tag_of "$name")" "$out" || {
			fail "$name $variant: $(cat "$tmp/said")"
			continue
		}
		grep "^file $variant " "$good/$name.weights" |
			sed "s|.* \(.*\) [0-9]* \([0-9a-f]*\)$|\2  $out/\1|" >"$tmp/sums"
		[ ! -s "$tmp/sums" ] || check "$name: $variant" sha256sum --quiet -c "$tmp/sums"
		check "$name: $variant: no other files" test "$(find "$out" -type f | wc -l)" = \
			"$(grep -c -E "^(file|tensors) $variant " "$good/$name.weights")"
		check "$name: $variant: no latest_universal" test "$(ls "$tmp/$name")" = weights
		rm -rf "${tmp:?}/$name"
	done
done <<END
hf --view hf
hf --view=hf --hf_dtype fp32 --hf_shard_size 5GB
hf-bf16 --view hf --hf_dtype=bf16
hf-fp16 --view hf --hf_dtype=fp16
hf-split --view hf --hf_shard_size=0.5KB
hf-split-bf16 --view hf --hf_shard_size 0.5kb --hf_dtype bf16
fp32 --view fp32
fp32-split --view fp32 --hf_shard_size 0.5KB
END

# It prints how to load the output.
while IFS='|' read -r options source line; do
	# shellcheck disable=SC2086 # several words
	check "convert $options" convert $options "$source" "$tmp/run/out/"
	check "$options: is loaded by: $(cat "$tmp/said")" grep -q -x -F "ucckpt: to load it: $line" "$tmp/said"
	rm -r "$tmp/run"
done <<END
|$good/z1_fp32_dp2|engine.load_checkpoint("$tmp/run", tag="out"), with {"checkpoint": {"load_universal": true}} in DeepSpeed's configuration
--view zero --ranks 1|$good/z1_fp32_dp2|engine.load_checkpoint("$tmp/run", tag="out")
--view zero --ranks 1|$good/z3_fp32_dp2|engine.load_checkpoint("$tmp/run", tag="out")
--view dcp --dcp_ranks 2 --dcp_style flat|$good/z1_fp32_dp2|torch.distributed.checkpoint.load(state, checkpoint_id="$tmp/run/out/")
--view hf --hf_dtype bf16|$good/hf_trainer|AutoModelForCausalLM.from_pretrained("$tmp/run/out/")
--view hf --hf_shard_size 1KB|$good/z1_fp32_dp2|accelerate.load_checkpoint_in_model(model, "$tmp/run/out/")
--view fp32|$good/z1_fp32_dp2|accelerate.load_checkpoint_in_model(model, "$tmp/run/out/")
END

# Convert a tag that is not the newest of its run, also in a run that is spread over directories.
mkdir "$tmp/run" "$tmp/run1" "$tmp/run1/step3"
cp -r "$good/z1_fp32_dp2/global_step4" "$good/z1_fp32_dp2/latest" "$tmp/run"
cp -r "$good/z1_fp32_dp4/global_step4" "$tmp/run/step3"
chmod -R u+w "$tmp/run"
check "--tag" convert --tag step3 --view hf "$tmp/run" "$tmp/weights"
check "is that tag" ucckpt diff "$tmp/run/step3" "$tmp/weights" >"$tmp/diff"
mv "$tmp/run/step3/"*rank_2* "$tmp/run1/step3"
check "--tag of several directories" convert --tag step3 --view hf "$tmp/run" "$tmp/run1" "$tmp/weights1"
check "is the same" diff -r "$tmp/weights" "$tmp/weights1"
rm -r "$tmp/weights" "$tmp/weights1" "$tmp/run" "$tmp/run1"

check "a distributed checkpoint" convert --view dcp "$good/z1_fp32_dp2" "$tmp/weights"
check "with its metadata" grep -q _StorageInfo "$tmp/weights/.metadata"
check "without latest_dcp" test ! -e "$tmp/latest_dcp"
rm -r "$tmp/weights"
for name in z1_groups2_dp2 z3_subgroup_dp2 meg_tp2_dp2_z1_fp32; do
	for style in fsdp2 flat titan titan_fused accelerate lightning fabric; do
		check "$name --dcp_style $style" convert --view dcp --dcp_style $style --dcp_ranks 2 "$good/$name" "$tmp/weights"
		check "$name: reading it back gives the same states" ucckpt diff "$good/$name" "$tmp/weights" >"$tmp/diff"
		rm -r "$tmp/weights"
	done
done
check "Hugging Face weights" convert --view dcp "$good/hfdir_types" "$tmp/weights"
check "contain only the model" test -f "$tmp/weights/model.of.float16.distcp" -a ! -e "$tmp/weights/optim.distcp"
# Write Hugging Face weights as safetensors, in their own or another type, in files of another size.
for name in hfdir_bin hfdir_bin_sharded hfdir_types hfdir_gpt2_bf16_sharded; do
	rm -rf "$tmp/weights"
	check "$name as safetensors" convert --view hf "$good/$name" "$tmp/weights"
	check "$name: the same weights" ucckpt diff --strict "$good/$name" "$tmp/weights" >"$tmp/diff"
	rm -rf "$tmp/weights"
	check "$name in float32" convert --view hf --hf_dtype fp32 --hf_shard_size 2KB "$good/$name" "$tmp/weights"
	check "$name: the same numbers" ucckpt diff --rtol 1e-7 "$good/$name" "$tmp/weights" >"$tmp/diff"
done
check "config.json is beside it" cmp "$good/$name/config.json" "$tmp/weights/config.json"
check "in files of that size, and their index" test "$(find "$tmp/weights" -name 'model-*-of-*.safetensors' | wc -l)" -gt 3
rm -r "$tmp/weights"
mkdir "$tmp/model"
cp -r "$good/z1_fp32_dp2/global_step4" "$tmp/model"
echo '{"model_type": "gpt2"}' >"$tmp/model/config.json"
touch -d '2001-02-03 04:05:06' "$tmp/model/config.json"
check "from a run with a configuration" convert --view hf "$tmp/model" "$tmp/weights"
check "which goes along" cmp "$tmp/model/config.json" "$tmp/weights/config.json"
check "with its time" test "$(stat -c %Y "$tmp/model/config.json")" = "$(stat -c %Y "$tmp/weights/config.json")"
rm -r "$tmp/weights"

# Warnings are those of a mount.
check "ranks took turns" convert "$good/z2_round_robin_dp3" "$tmp/v"
check "which is reported" grep -q '^ucckpt: warning: round_robin_gradients was on' "$tmp/said"
rm -r "$tmp/v"

tag=$good/z1_fp32_dp2/global_step4
run=$good/z1_fp32_dp2
rm "$tmp/latest_universal"
digest=$(convert "$tag" "$tmp/u" && cd "$tmp/u" && find . -type f -exec sha256sum {} + | sort)

# same WHAT: check that $tmp/v is the same tree, and remove it.
same() {
	check "$1" test "$digest" = \
		"$(cd "$tmp/v" && find . -type f -exec sha256sum {} + | sort)"
	rm -rf "$tmp/v"
}

check "the converter's options" convert --input_folder "$tag" --output_folder="$tmp/v" \
	--num_extract_workers 4 --num_merge_workers 2 --inject_missing_state --no_strict
same "the same tree"
check "the same by our names" convert --to universal --readers 4 -j 2 --no_strict "$tag" "$tmp/v"
same "the same tree"
check "one writer or many" convert "$tag" "$tmp/v" --jobs 1
same "the same tree"
check "slashes at the end" convert "$tag/" "$tmp/v//"
check "are not part of the name" cmp "$tmp/latest_universal" <(printf v)
same "nor of the tree"
check "a run directory" convert "$run" "$tmp/v"
check "means its newest tag" grep -q "converting $run/global_step4" "$tmp/said"
same "which is converted"
cp -r "$run" "$tmp/run"
mkdir "$tmp/v"
check "an empty directory gives way" convert "$tag" "$tmp/v"
same "to the tree"
mkdir "$tmp/elsewhere"
ln -s elsewhere "$tmp/v"
check "so does one behind a link" convert "$tag" "$tmp/v"
check "which stays one" test -L "$tmp/v"
check "latest_universal is beside the link" cmp "$tmp/latest_universal" <(printf v)
same "and leads to the tree"
rm -rf "$tmp/elsewhere"
check "missing parents are made" convert "$tag" "$tmp/a/b/c"
check "latest_universal is in the last" cmp "$tmp/a/b/latest_universal" <(printf c)
cd "$tmp" || exit 1
check "a name without a directory" convert "$tag" v
same "is one here"

# Copied files keep their modes and times; the modes of other files follow the umask.
cp -r "$tag" "$tmp/modes"
chmod 640 "$tmp/modes/mp_rank_00_model_states.pt"
touch -d '2001-02-03 04:05:06.789' "$tmp/modes/mp_rank_00_model_states.pt"
(umask 027 && convert "$tmp/modes" "$tmp/v") || fail "convert with another umask"
check "copies keep mode and time" test "$(stat -c '%a %y' "$tmp/modes/mp_rank_00_model_states.pt")" = \
	"$(stat -c '%a %y' "$tmp/v/mp_rank_00_model_states.pt")"
check "files by the umask" test "$(stat -c %a "$tmp/v/zero/cube/fp32.pt")" = 640
check "directories by the umask" test "$(stat -c '%a %n' "$tmp/v" "$tmp/v/zero/cube" | cut -d' ' -f1 | uniq)" = 750
check "latest_universal by the umask" test "$(stat -c %a "$tmp/latest_universal")" = 640
rm -rf "$tmp/v"

# Without checksums the files differ, but not their sizes.
check "--crc=zero" convert --crc=zero "$tag" "$tmp/v"
check "changes tensors' files" test "$(cmp "$tmp/u/zero/cube/fp32.pt" "$tmp/v/zero/cube/fp32.pt" | wc -l)" = 1
check "not their sizes" cmp <(cd "$tmp/u" && find . -type f -printf '%P %s\n' | sort) \
	<(cd "$tmp/v" && find . -type f -printf '%P %s\n' | sort)
if command -v unzip >/dev/null; then
	check "with them, unzip finds each right" unzip -tqq "$tmp/u/zero/cube/fp32.pt"
fi
rm -rf "$tmp/v"

# usage WORDS ARGUMENT...
usage() {
	local words=$1
	shift
	convert "$@"
	check "$*: exit status 2" test $? = 2
	check "$*: says '$words'" grep -q -e "^ucckpt: convert: .*$words" "$tmp/said"
}
usage "expected INPUT and OUTPUT"
usage "expected INPUT and OUTPUT" "$tag"
usage "unexpected argument 'more'" --input_folder "$tag" --output_folder "$tmp/v" more
usage "--frobnicate: unknown option" --frobnicate "$tag" "$tmp/v"
usage "-x: unknown option" -x "$tag" "$tmp/v"
usage "--input_folder: needs a value" --input_folder
usage "takes no value" --no_strict=1 "$tag" "$tmp/v"
usage "--num_merge_workers: .*=0: not a number of workers" --num_merge_workers 0 "$tag" "$tmp/v"
usage "--num_extract_workers: .*=-3: not a number of workers" --num_extract_workers -3 "$tag" "$tmp/v"
usage "crc=none: must be exact or zero" --crc none "$tag" "$tmp/v"
usage "view=pt: must be universal, hf, fp32, dcp or zero" --view pt "$tag" "$tmp/v"
usage "hf_dtype=int8: must be fp32, bf16 or fp16" --view hf --hf_dtype int8 "$tag" "$tmp/v"
usage "hf_shard_size=5 apples: not a size" --view hf --hf_shard_size '5 apples' "$tag" "$tmp/v"
usage "dcp_style=fsdp3: must be fsdp2, flat, titan, titan_fused, accelerate, lightning or fabric" --view dcp --dcp_style fsdp3 "$tag" "$tmp/v"
usage "dcp_ranks=0: not a number of ranks" --view dcp --dcp_ranks 0 "$tag" "$tmp/v"
usage "dcp_style and dcp_ranks require view=dcp" --dcp_ranks 2 "$tag" "$tmp/v"
usage "hf_dtype requires view=hf" --hf_dtype bf16 "$tag" "$tmp/v"
usage "hf_dtype requires view=hf" --hf_dtype bf16 --view fp32 "$tag" "$tmp/v"
usage "hf_shard_size requires view=hf or view=fp32" --hf_shard_size 1GB "$tag" "$tmp/v"
usage "stage=any requires view=universal" --view hf --stage any "$tag" "$tmp/v"
usage "no name" "$tag" "$tmp/."
usage "no name" "$tag" /
check "--help" grep -q '^usage: ucckpt convert' <(ucckpt convert --help)
check "ucckpt --help" grep -q '^usage: ucckpt .*COMMAND' <(ucckpt --help)
check "ucckpt --version" grep -q '^ucckpt [0-9]' <(ucckpt --version)
ucckpt frobnicate 2>/dev/null
check "an unknown command: exit status 2" test $? = 2
check "nothing was written meanwhile" test ! -e "$tmp/v"
finish
