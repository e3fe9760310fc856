#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The mount of a run: unchanged tags, a view beside each, latest_universal, tags that appear
# later, directories of the Hugging Face Trainer.
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
require_fuse

run=$tmp/run
mkdir "$run"
cp -r "$good/z1_fp32_dp2/global_step4" "$run/global_step4"
printf global_step4 >"$run/latest"
echo '{}' >"$run/config.json"
mkdir -p "$run/logs/deep"
echo hello >"$run/logs/deep/a.txt"
ln -s a.txt "$run/logs/deep/link"

mount_fg "$run" || finish
check "a tag is shown as it is" diff -r "$run/global_step4" "$mnt/global_step4"
check "other files too" diff -r "$run/logs" "$mnt/logs"
check "a link stays one" test "$(readlink "$mnt/logs/deep/link")" = a.txt
check "a view stands beside the tag" test -f "$mnt/global_step4_universal/zero/cube/fp32.pt"
check "latest_universal names it" test "$(cat "$mnt/latest_universal")" = global_step4_universal
check "latest_universal ends without a newline" test "$(stat -c %s "$mnt/latest_universal")" = 22
check "the listing has these names" test "$(ls "$mnt" | tr '\n' ' ')" = \
	"config.json global_step4 global_step4_dcp global_step4_fp32 global_step4_hf global_step4_universal latest latest_universal logs "

# Tags appear while it is mounted.
cp -r "$good/z3_fp32_dp2/global_step4" "$run/global_step12"
printf global_step12 >"$run/latest"
sleep 1.2
check "a new tag appears" test -d "$mnt/global_step12"
check "with its view" test -f "$mnt/global_step12_universal/zero/cube/fp32.pt"
check "and is listed" grep -q global_step12_universal <(ls "$mnt")
check "latest_universal follows" test "$(cat "$mnt/latest_universal")" = global_step12_universal

# A tag that is still being written fails; once complete, it works.
mkdir "$run/global_step20"
cp "$good/z1_fp32_dp2/global_step4"/zero_pp_rank_0* "$run/global_step20"
sleep 1.2
check "a half-written tag is an error" test ! -e "$mnt/global_step20_universal/zero"
cp "$good/z1_fp32_dp2/global_step4"/* "$run/global_step20"
sleep 2.2
check "until it is complete" test -f "$mnt/global_step20_universal/zero/cube/fp32.pt"

# A tag with inconsistent files is refused as a whole.
cp -r "$good/sp2_dp2_z3/global_step4" "$run/global_step24"
sleep 1.2
check "it is an error" grep -q 'Input/output error' <(ls "$mnt/global_step24_universal" 2>&1)
check "reported in one line" test "$(grep -c 'global_step24.*sequence parallel' "$tmp/log")" = 1
check "its files are there" diff -r "$run/global_step24" "$mnt/global_step24"
check "and the other tags" test -f "$mnt/global_step4_universal/zero/cube/fp32.pt"
rm -r "${run:?}/global_step24"

# An earlier conversion is not hidden.
mkdir -p "$run/global_step4b_universal"
cp -r "$good/z1_fp32_dp2/global_step4" "$run/global_step4b"
echo old >"$run/global_step4b_universal/note"
sleep 1.2
check "a real directory wins over a view" test "$(cat "$mnt/global_step4b_universal/note")" = old

# Accelerate calls its tag pytorch_model, Lightning checkpoint.
cp -r "$good/z1_no_ucinfo_dp2/global_step4" "$run/pytorch_model"
sleep 1.2
check "a tag is known by its files, not its name" test -f "$mnt/pytorch_model_universal/zero/cube/fp32.pt"
rm -r "${run:?}/pytorch_model"

# Without tags, a real latest_universal is an ordinary file.
mkdir "$run/converted"
echo x >"$run/converted/latest_universal"
check "latest_universal of somebody else is listed" test "$(ls "$mnt/converted")" = latest_universal
check "and is itself" test "$(cat "$mnt/converted/latest_universal")" = x

check ".ucfs is not listed" test -z "$(ls -A "$mnt" | grep ucfs)"
unmount

# A damaged newest tag does not hide the others.
rm "$run/global_step12"/*rank_1*optim* && printf global_step12 >"$run/latest"
mount_fg "$run" || finish
check "the damaged tag is named" grep -q 'global_step12.*missing' "$tmp/log"
check "others are served" test -f "$mnt/global_step4_universal/zero/cube/fp32.pt"
check "it is not" test ! -e "$mnt/global_step12_universal/zero"
unmount

# Hugging Face's Trainer: checkpoint-4/{config.json,global_step4,latest}.
mount_fg "$good/hf_trainer/checkpoint-4" || finish
check "a Trainer checkpoint has a view" test -f "$mnt/global_step4_universal/zero/cube/fp32.pt"
check "beside its own files" test -f "$mnt/config.json"
unmount
mount_fg "$good/hf_trainer" || finish
check "so has its output directory" test -f \
	"$mnt/checkpoint-4/global_step4_universal/zero/cube/fp32.pt"
check "and a latest_universal there" test \
	"$(cat "$mnt/checkpoint-4/latest_universal")" = global_step4_universal
unmount

# DeepSpeed strips the white space around the name in `latest`.
mkdir "$tmp/spaced"
cp -r "$good/z1_fp32_dp2/global_step4" "$tmp/spaced/global step4"
cp -r "$good/z1_fp32_dp2/global_step4" "$tmp/spaced/global_step9"
printf ' \tglobal step4 \r\n' >"$tmp/spaced/latest"
mount_fg "$tmp/spaced" || finish
check "a tag's name may have spaces" test "$(cat "$mnt/latest_universal")" = "global step4_universal"
check "and has a view" test -f "$mnt/global step4_universal/zero/cube/fp32.pt"
unmount

# The newest of Accelerate's checkpoints has the highest number.
for n in 2 10; do
	mkdir -p "$tmp/named/checkpoints/checkpoint_$n"
	cp -r "$good/z1_fp32_dp2/global_step4" "$tmp/named/checkpoints/checkpoint_$n/pytorch_model"
	printf pytorch_model >"$tmp/named/checkpoints/checkpoint_$n/latest"
	echo $n >"$tmp/named/checkpoints/checkpoint_$n/random_states_0.pkl"
done
touch "$tmp/named/checkpoints/checkpoint_2/pytorch_model"
check "the newest of them" grep -q '^checkpoint .*/checkpoint_10/pytorch_model' <(ucckpt info "$tmp/named" 2>/dev/null)
mount_fg "$tmp/named" -o ranks=3,replace || finish
for n in 2 10; do
	check "each re-cut" test -f "$mnt/checkpoints/checkpoint_$n/pytorch_model/zero_pp_rank_2_mp_rank_00_optim_states.pt"
	check "with what lies beside it" test "$(cat "$mnt/checkpoints/checkpoint_$n/random_states_2.pkl")" = $n
done
unmount

# With save_only_model the Trainer leaves only weights.
for n in 9 10; do
	mkdir -p "$tmp/weights/checkpoint-$n"
	cp "$good/hfdir_bin/pytorch_model.bin" "$tmp/weights/checkpoint-$n"
done
check "the newest weights" grep -q '^checkpoint .*/checkpoint-10 (Hugging Face weights)' \
	<(ucckpt info "$tmp/weights" 2>/dev/null)
mount_fg "$tmp/weights" || finish
check "are there as they are" diff -r "$tmp/weights" "$mnt"
unmount

# Without the converter's flags, the views equal a conversion with them.
for flag in no_strict:z1_unused_pattern_strict_dp2 inject_missing_state:z1_no_ucinfo_dp2; do
	name=${flag#*:} flag=${flag%:*}
	ucckpt convert "--$flag" "$good/$name" "$tmp/$name" >/dev/null 2>&1 || fail "convert --$flag"
	mount_fg "$good/$name" || continue
	check "$name" diff -r "$tmp/$name" "$mnt/global_step4_universal"
	[ "$flag" = no_strict ] && check "a warning names the pattern" grep -q 'nomatch' "$tmp/log"
	unmount
done

finish
