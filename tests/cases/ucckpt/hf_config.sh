#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# TAG_hf gets files other than weights from the tag, its run, hf_config, or a directory above the
# run; a message appears if none of these has the configuration.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"

run=$tmp/out/checkpoint-4
tag=$run/global_step4
mkdir -p "$run"
cp -r "$good/z1_fp32_dp2/global_step4" "$run"
cd "$tmp" || exit 1

# In a Hugging Face cache, files of a snapshot are links.
hub=$tmp/cache/hub
for model in models--org--tiny models--single; do
	mkdir -p "$hub/$model"/{blobs,refs,snapshots/c0ffee}
	printf c0ffee >"$hub/$model/refs/main"
	printf '{"from": "%s"}' "$model" >"$hub/$model/blobs/1"
	ln -s ../../blobs/1 "$hub/$model/snapshots/c0ffee/config.json"
	touch "$hub/$model/snapshots/c0ffee/tokenizer.json"
done
mkdir -p "$hub/models--org--other/snapshots"
export HF_HOME=$tmp/cache
unset HF_HUB_CACHE

# The model is 6 wide.  Directories with a config.json, and its content | options | the directory
# or model whose file TAG_hf shows; none: "-".
while IFS='|' read -r files options from; do
	rm -f "$tag/config.json" "$run/config.json" "$tmp/out/config.json" "$tmp/config.json"
	for file in $files; do
		printf '{"from": "%s"%s}' "${file%%,*}" "$(expr "$file" : '[^,]*\(,.*\)')" \
			>"$tmp/${file%%,*}/config.json"
	done
	read -r -a options <<<"$options"
	found=$(ucckpt "${options[@]}" cat "$run" global_step4_hf/config.json 2>"$tmp/errors" |
		sed 's/{"from": "\([^"]*\)".*/\1/')
	check "$files ${options[*]}: $from, not $found" test "${found:--}" = "$from"
	said=$(ucckpt "${options[@]}" info "$run" | sed -n 's/^from_pretrained *//p')
	config=$(ucckpt "${options[@]}" info --json "$run" | sed -n 's/.*"config":[^"]*"\(.*\)",/\1/p')
	if [ "$from" = - ]; then
		check "$files: info says what is missing" test -n "$(grep '^no config.json of this model' <<<"$said")"
		check "$files: and where it was looked for: $said" grep -q "$run or above" <<<"$said"
	else
		check "$files ${options[*]}: info names the file: $config" grep -q -F "\"$from\"" "$config"
		check "$files ${options[*]}: nothing is to be done" test -z "$said"
	fi
done <<'END'
out/checkpoint-4/global_step4 out/checkpoint-4 out,"n_embd":6|-o hf_config=org/tiny|out/checkpoint-4/global_step4
out/checkpoint-4 out,"n_embd":6|-o hf_config=org/tiny|out/checkpoint-4
out,"n_embd":6|-o hf_config=org/tiny|models--org--tiny
|-o hf_config=single|models--single
|-o hf_config=cache/hub/models--single/snapshots/c0ffee|models--single
out,"n_embd":6||out
out,"hidden_size":13||out
out,"text_config":{"d_model":6}||out
out,"n_embd":7||-
out||-
.,"n_embd":6||-
||-
END

# A directory that anyone may write to is not trusted.
rm -f "$tmp/config.json"
echo '{"n_embd": 6}' >"$tmp/out/config.json"
check "above: trusted" ucckpt cat "$run" global_step4_hf/config.json >"$tmp/said"
chmod o+w "$tmp/out"
check "above, writable by all: not trusted" test -z "$(ucckpt cat "$run" global_step4_hf/config.json 2>&1 | grep n_embd)"
rm "$tmp/out/config.json"

# For a run on several disks, the directory above the first one counts.
mkdir n0 n1
cp -r "$run" n0/run
mkdir -p n1/run/global_step4
mv n0/run/global_step4/zero_pp_rank_1_* n1/run/global_step4
echo '{"n_embd": 6}' | tee n0/config.json >n1/config.json
check "above several" grep -q "\"config\":[^\"]*\"$tmp/n0/config.json" <(ucckpt info --json "$tmp/n0/run" "$tmp/n1/run")

check "a model's other files are with it" test "$(ucckpt -o hf_config=org/tiny ls "$run" 'global_step4_hf/*' | tr '\n' ' ')" = \
	"global_step4_hf/config.json global_step4_hf/model.safetensors global_step4_hf/tokenizer.json "
ucckpt convert --view hf --hf_config org/tiny "$run" "$tmp/written" >/dev/null 2>"$tmp/said"
check "convert says how it is loaded" grep -q 'AutoModelForCausalLM.from_pretrained(' "$tmp/said"
ucckpt convert --view hf "$run" "$tmp/without" >/dev/null 2>"$tmp/said"
check "or what is missing" grep -q "warning: .*no config.json of this model.*$run or above; option hf_config" "$tmp/said"
check "in JSON" grep -q '"config":[[:space:]]*null' <(ucckpt info --json "$run")

for wrong in org/none org/other none /none cache/hub/models--single/refs/main; do
	ucckpt -o "hf_config=$wrong" info "$run" >/dev/null 2>"$tmp/said"
	check "hf_config=$wrong is refused" test $? = 2
	check "with the reason" grep -q "hf_config=$wrong: neither a directory nor a model with a snapshot in $hub" "$tmp/said"
done
HF_HUB_CACHE=$tmp/nowhere ucckpt -o hf_config=org/tiny info "$run" >/dev/null 2>"$tmp/said"
check "HF_HUB_CACHE names the cache" grep -q "in $tmp/nowhere" "$tmp/said"

# A LoRA adapter has another configuration.
cp -r "$good/lora_trainer_z2_dp2" lora
run=$tmp/lora/checkpoint-4
rm "$run/adapter_config.json"
echo '{}' | tee "$run/config.json" >"$run/tokenizer.json"
missing="no adapter_config.json of this model for from_pretrained: not in the tag, $run or above"
check "an adapter: what is missing" grep -q "^from_pretrained *$missing" <(ucckpt info "$run")
config=$good/lora_trainer_z2_dp2/checkpoint-4/adapter_config.json
sed 's/"r": 2/"r": 7/' "$config" >lora/adapter_config.json
check "one of another rank above is not it" grep -q "$missing" <(ucckpt info "$run")
cp "$config" lora
check "an adapter's files" test "$(ucckpt ls "$run" global_step4_hf | sed 's,.*/,,' | tr '\n' ' ')" = \
	"adapter_config.json adapter_model.safetensors config.json tokenizer.json "
ucckpt convert --view hf "$run" "$tmp/adapter" >/dev/null 2>"$tmp/said"
check "convert says how it is loaded, too" grep -q 'PeftModel.from_pretrained(model, "' "$tmp/said"
run=$tmp/out/checkpoint-4

[ -w /dev/fuse ] || finish
mount_fg "$run" || finish
ls "$mnt/global_step4_hf" >/dev/null
check "a mount says it, too" grep -q "no config.json of this model.*$run or above" "$tmp/log"
unmount
finish
