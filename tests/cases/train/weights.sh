#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Weights of a ZeRO-3 run on four ranks become Hugging Face weights, and training
# resumes from them on four and two ranks with fresh optimizer state: by a mount of a
# mount's view, and by two conversions.
pictures=yes
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

# Of 177 rows 17 are held out: an epoch is 10 steps of 16, so a run that counts from 1 again has
# the same batches as from step 101.
head -c $((32 * 177)) "$top_srcdir/LICENSE" >"$tmp/text"
flags=("${tiny[@]}" --lr 1e-3 --data "$tmp/text" --train_batch_size 16
	--train_micro_batch_size_per_gpu 4 --deterministic --eval_interval 10
	--zero_stage 3)
run=$tmp/run

# resume N NAME DIR: train 20 steps from the universal checkpoint in DIR.
resume() {
	train "$1" "$2" "${flags[@]}" --steps 20 --resume="$3" --universal_checkpoint \
		--ignore_missing_optim
}

# from N RUN STEP: print "step loss" of N steps from STEP on, counted from 1.
from() {
	losses "$2" | awk -v n="$1" -v first="$3" \
		'$1 >= first && $1 < first + n { print $1 - first + 1, $2 }'
}

# valid RUN: print the validation losses.
valid() {
	awk -F, 'NR > 1 && $8 != "" { print $8 }' "$tmp/logs/$1/metrics.csv"
}

less() {
	awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 < b + 0) }'
}

# goes_on HOW: check that HOW-4 and HOW-2 have resumed.
goes_on() {
	check "$1: begins where the run was" \
		test "$(from 1 base 101)" = "$(from 1 "$1-4" 1)"
	check "$1: goes on as with the run's own weights and a new optimizer" \
		diff <(from 20 anew 101) <(from 20 "$1-4" 1)
	d=$(apart "$1-4" "$1-2" 1)
	echo "$1: two ranks are $d apart from four"
	check "$1: on two ranks as on four" within 2e-5 "$d"
	for n in 4 2; do
		check "$1-$n: learns" less "$(valid "$1-$n" | tail -n 1)" "$(valid base | sed -n 10p)"
	done
}

train 4 base "${flags[@]}" --steps 101 --checkpoint_dir "$run" --checkpoint_interval 100
train 4 anew "${flags[@]}" --steps 120 --resume="$run" --checkpoint_tag global_step100 \
	--no_load_optimizer_states

check "the model's configuration" diff - <(tr -d ' \t' <"$run/global_step100/config.json") <<END
{
"architectures":["GPT2LMHeadModel"],
"model_type":"gpt2",
"n_layer":2,
"n_head":2,
"n_embd":32,
"vocab_size":256,
"n_positions":32,
"layer_norm_epsilon":1e-05,
"embd_pdrop":0,
"attn_pdrop":0,
"resid_pdrop":0,
"activation_function":"gelu_new",
"tie_word_embeddings":true,
"bos_token_id":null,
"eos_token_id":null
}
END

tag=$run/global_step100
ucckpt convert --view hf "$tag" "$tmp/hf" >/dev/null || fail "convert --view hf"
ucckpt convert "$tmp/hf" "$tmp/universal" >/dev/null || fail "convert from hf"
check "with the run's configuration" cmp "$run/global_step100/config.json" "$tmp/hf/config.json"
check "the weights are the run's" ucckpt diff "$tag" "$tmp/hf" >"$tmp/diff"
check "those of the tree, too" ucckpt diff "$tmp/hf" "$tmp/universal" >"$tmp/diff"
resume 4 converted-4 "$tmp/universal"
resume 2 converted-2 "$tmp/universal"
goes_on converted

if [ -c /dev/fuse ]; then
	mount_fg "$run" || finish
	check "the view has the configuration" cmp "$run/global_step100/config.json" \
		"$tmp/mnt/global_step100_hf/config.json"
	mkdir "$tmp/second"
	ucfs "$tmp/mnt/global_step100_hf" "$tmp/second" || fail "a mount of a mount"
	check "the mounts show what was converted" \
		ucckpt diff --strict "$tmp/second" "$tmp/universal" >"$tmp/diff"
	resume 4 mounted-4 "$tmp/second"
	resume 2 mounted-2 "$tmp/second"
	fusermount3 -u "$tmp/second"
	unmount
	goes_on mounted
else
	echo "no /dev/fuse: mounts were left out"
fi

command -v gnuplot >/dev/null || tables=--csv
ucplot "$tmp/logs/base" "$tmp/logs/converted-4" "$tmp/logs/converted-2" \
	-o "$tmp/curves" ${tables:-} || fail ucplot
for name in converted-4 converted-2; do
	table=$tmp/curves-$name.csv
	check "$name: its table" test "$(head -n 1 "$table")" = step,loss,valid_loss
	check "$name: its steps" test "$(awk -F, 'NR > 1 && $2 > 0' "$table" | wc -l)" = 20
	check "$name: its validations" test "$(awk -F, 'NR > 1 && $3 > 0' "$table" | wc -l)" = 2
done
[ -n "${tables:-}" ] || check "the picture" test \
	"$(head -c 8 "$tmp/curves.png" | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a
finish
