#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Warnings at mount name the tags that will not be served; .ucfs/errors and the file of log=
# contain the reasons.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse
mkdir -p "$mnt" "$tmp/run"
tag=$good/z1_fp32_dp4/global_step4
run=$tmp/run

# mounts WORDS OPTIONS...: mount the run in the background; the terminal shows WORDS, or nothing
# if they are empty.
mounts() {
	local words=$1
	shift
	ucfs "$run" "$mnt" "$@" >"$tmp/out" 2>&1 || fail "mount $*: $(cat "$tmp/out")"
	if [ -n "$words" ]; then
		check "said at mount" grep -q -e "$words" "$tmp/out"
	else
		check "nothing to say: $(cat "$tmp/out")" test ! -s "$tmp/out"
	fi
}

cp -r "$tag" "$run/global_step4"
mounts ""
fusermount3 -u "$mnt"
mounts "" -o check
check "a whole tag passes" test -f "$mnt/global_step4_universal/zero/cube/fp32.pt"
fusermount3 -u "$mnt"

# Names show the problem.
cp -r "$tag" "$run/global_step3"
rm "$run/global_step3"/zero_pp_rank_1_*
mounts "global_step3 will not be served: .*rank 1.*missing" -o "log=$tmp/served.log"
check "opening it fails" test ! -e "$mnt/global_step3_universal/zero"
check "errors" grep -q "global_step3_universal: .*rank 1.*missing" "$mnt/.ucfs/errors"
check "the log" grep -q "^2.*Z global_step3 will not be served" "$tmp/served.log"
check "for the owner" test "$(stat -c %a "$tmp/served.log")" = 600
fusermount3 -u "$mnt"
rm -r "${run:?}/global_step3"

mkdir "$run/global_step3"
cp "$tag"/mp_rank* "$run/global_step3"
mounts "global_step3_universal will not be served: .*copy the optimizer shards of all ranks.*"
check "the newest with an optimizer" test "$(cat "$mnt/latest_universal")" = global_step4_universal
check "weights of the other" test -s "$mnt/global_step3_hf/model.safetensors"
check "they are the same" cmp "$mnt/global_step3_hf/model.safetensors" "$mnt/global_step4_hf/model.safetensors"
# The rest of the save arrives.
cp "$tag"/zero_pp_rank_* "$run/global_step3"
for ((i = 0; i < 100; i++)); do
	[ -e "$mnt/global_step3_universal/zero" ] && break
	sleep 0.1
done
check "all views of it" test -s "$mnt/global_step3_universal/zero/cube/fp32.pt"
fusermount3 -u "$mnt"
rm -r "${run:?}/global_step3"

echo -n global_step5 >"$run/latest"
mounts "latest names global_step5, .*latest_universal names global_step4"
fusermount3 -u "$mnt"
rm "$run/latest"

# A run as the Hugging Face Trainer lays it out.
mkdir "$run/checkpoint-3"
mv "$run/global_step4" "$run/checkpoint-3"
rm "$run/checkpoint-3/global_step4"/zero_pp_rank_1_*
mounts "global_step4 will not be served: .*rank 1.*missing"
fusermount3 -u "$mnt"
rm -r "${run:?}/checkpoint-3"

# Files opened at mount show the problem.
cp -r "$tag" "$run/global_step7"
mounts "global_steps is 4, but the tag's name says .*: renamed tag"
fusermount3 -u "$mnt"
rm -r "${run:?}/global_step7"

# set_step FILE: change the step of model states from 4 to 5.  In the pickle, a memo number of one
# or four bytes lies between key and number.
set_step() {
	local at
	at=$(LC_ALL=C grep -obUaE 'global_steps[qr]' "$1")
	case $at in
	*q) flip "$1" $((${at%%:*} + 15)) ;;
	*r) flip "$1" $((${at%%:*} + 18)) ;;
	esac
}

cp -r "$tag" "$run/global_step5"
set_step "$run/global_step5/mp_rank_00_model_states.pt"
mounts "was saved at global step 5 (0 skipped), but the optimizer .* has made 4 steps"
fusermount3 -u "$mnt"
rm -r "${run:?}/global_step5"

# If an optimizer's states cannot be divided, only the views that need them are missing.
cp -r "$good/z1_soap_dp2" "$tmp/soap"
ucfs -o "log=$tmp/soap.log" "$tmp/soap" "$mnt" >"$tmp/out" 2>&1 || fail "soap: $(cat "$tmp/out")"
soap="state Q of group 0 is a list: it cannot be divided"
check "said at mount" grep -q "global_step3_universal will not be served: .*$soap" "$tmp/out"
check "its views" test "$(cd "$mnt" && echo global_step3_*)" = "global_step3_dcp global_step3_fp32 global_step3_hf"
check "weights" test -s "$mnt/global_step3_hf/model.safetensors" -a -s "$mnt/global_step3_fp32/pytorch_model.bin"
check "the model" test -s "$mnt/global_step3_dcp/.metadata"
check "no optimizer" test ! -e "$mnt/global_step3_dcp/optim.distcp"
check "its own files" cmp "$mnt/global_step3/mp_rank_00_model_states.pt" "$tmp/soap/global_step3/mp_rank_00_model_states.pt"
for view in universal dp3; do
	check "$view is not there" grep -q "No such file" <(ls "$mnt/global_step3_$view" 2>&1)
	check "$view: errors" grep -q "global_step3_$view: .*$soap" "$mnt/.ucfs/errors"
done
check "nothing fails in a walk" find "$mnt" -type f -exec cat {} + >/dev/null
check "the log" grep -q "$soap" "$tmp/soap.log"
fusermount3 -u "$mnt"
ucfs "$tmp/soap/global_step3" "$mnt" >"$tmp/out" 2>&1 && fail "a refused view was mounted"
check "another is named" grep -q "$soap.*option view=hf" "$tmp/out"
check "it is right" ucfs -o view=hf "$tmp/soap/global_step3" "$mnt" >/dev/null 2>&1
check "weights" test -s "$mnt/model.safetensors"
fusermount3 -u "$mnt"

# A tag without any view is shown unchanged: programs resume from it.
cp -r "$good/pp2_dp2_z0_fp32" "$tmp/pipe"
rm "$tmp/pipe/global_step4/layer_05-model_states.pt"
ucfs "$tmp/pipe" "$mnt" >"$tmp/out" 2>&1 || fail "pipe: $(cat "$tmp/out")"
check "said at mount" grep -q "global_step4 will not be served: .*no parameter of the model has this shape" "$tmp/out"
check "no views" test "$(cd "$mnt" && echo global_step4*)" = global_step4
check "errors" grep -q "global_step4_hf: .*no parameter of the model has this shape" "$mnt/.ucfs/errors"
check "its own files" diff -r "$mnt/global_step4" "$tmp/pipe/global_step4"
fusermount3 -u "$mnt"

# Sizes show the problem: shards that are empty, no shards, or truncated.  Other files are served.
"$top_builddir/tests/programs/mkrun" "$run" 2 100000 3 || fail "mkrun"
whole=$tmp/whole.pt
shard=$run/global_step4/zero_pp_rank_2_mp_rank_00_optim_states.pt
mv "$shard" "$whole"
least=$((200000 / 3 * 12))
while read -r size words; do
	head -c "$size" "$whole" >"$shard"
	: >"$tmp/sizes.log"
	mounts "global_step4: ${shard##*/} is $words" -o "log=$tmp/sizes.log"
	check "$size bytes: errors" grep -q "${shard##*/} is $words" "$mnt/.ucfs/errors"
	check "$size bytes: the log" grep -q "${shard##*/} is $words" "$tmp/sizes.log"
	check "$size bytes: reading it fails" bash -c "! cat '$mnt'/global_step4_universal/zero/block.0001.weight/fp32.pt" \
		>/dev/null 2>&1
	check "$size bytes: others are served" test -s "$mnt/global_step4_universal/mp_rank_00_model_states.pt"
	fusermount3 -u "$mnt"
	# The same for a single tag.
	tag_says=$(ucfs "$run/global_step4" "$mnt" 2>&1)
	check "$size bytes: a tag" grep -q "${shard##*/} is $words" <<<"$tag_says"
	fusermount3 -u "$mnt"
done <<-end
	0 no file of torch.save: it has 0 bytes
	80 no file of torch.save: it has 80 bytes
	200 truncated: it has 200 bytes
	$((least / 2)) truncated: it has
	$((least * 95 / 100)) truncated: it has
end
mv "$whole" "$shard"
mounts ""
fusermount3 -u "$mnt"
cp -r "$tag" "$run/global_step3"
: >"$run/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
: >"$run/global_step3/zero_pp_rank_3_mp_rank_00_optim_states.pt"
mounts "global_step3: zero_pp_rank_1_.* has 0 bytes, and 1 more files are too small"
fusermount3 -u "$mnt"
rm -r "${run:?}/global_step3" "${run:?}/global_step4" "${run:?}/latest"

# Only opening all files shows these: rank 2 of an interrupted save, and a damaged rank.
cp -r "$good/z3_fp32_dp4/global_step4" "$run/global_step4"
set_step "$run/global_step4/zero_pp_rank_2_mp_rank_00_model_states.pt"
mounts ""
fusermount3 -u "$mnt"
check "refused" grep -q "rank_2_.*is of global step 5, .*different checkpoints" <(ucfs "$run" "$mnt" -o check 2>&1)
cp -r "$tag" "$run/global_step2"
mounts "global_step4 will not be served: .*rank_2_.*is of global step 5" -o check
check "others are served" test -f "$mnt/global_step2_universal/zero/cube/fp32.pt"
fusermount3 -u "$mnt"
rm -r "${run:?}/global_step4"
echo garbage >"$run/global_step2/zero_pp_rank_2_mp_rank_00_optim_states.pt"
check "damage is refused" grep -q "rank_2_.*not a file of torch.save" <(ucfs "$run" "$mnt" -o check 2>&1)
check "a log that cannot be written" grep -q "log=$tmp/no/log: No such file" <(ucfs "$tag" "$mnt" -o "log=$tmp/no/log" 2>&1)
finish
