#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints are saved whole or not at all (ranks_checkpoint.c trains).
# shellcheck source=tests/cases/train/ranks_lib.sh
. "$(dirname "$0")/ranks_lib.sh"

# now N KEY=VALUE...: run it alone, with its output in $tmp/words.
now() {
	on_ranks "$1" "$program" "${@:2}" >"$tmp/words" 2>&1 || fail "${*:2}: $(cat "$tmp/words")"
}

# saves "what" N KEY=VALUE...
saves() {
	now "${@:2}"
	check "$1" grep -q '^done$' "$tmp/words"
}

# fails "what" PATTERN N KEY=VALUE...
fails() {
	now "${@:3}"
	check "$1" grep -q "^failed: .*$2" "$tmp/words"
}

# Stage 0 saves no ZeRO checkpoint; other stages' checkpoints can be checked.
kinds=$(for stage in 1 2 3; do
	for dtype in fp32 bf16; do
		for n in 1 2 3; do echo "$stage $dtype $n"; done
	done
done)
while read -r stage dtype n; do
	later $n z$stage-$dtype-$n stage=$stage dtype=$dtype save="$tmp/z$stage-$dtype-$n"
done <<<"$kinds"
start
while read -r stage dtype n; do
	dir=$tmp/z$stage-$dtype-$n
	did z$stage-$dtype-$n
	check "$dir: whole" ucckpt check --data "$dir/global_step3" >/dev/null
	check "$dir: latest" test "$(cat "$dir/latest")" = global_step3
done <<<"$kinds"
check "files are named as DeepSpeed does, fp32" test "$(cd "$tmp/z2-fp32-2" && echo ./*/*.pt)" = \
	"./global_step3/mp_rank_00_model_states.pt\
 ./global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt\
 ./global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
check "files are named as DeepSpeed does, ZeRO-3 and bf16" test "$(cd "$tmp/z3-bf16-1" && echo ./*/*.pt)" = \
	"./global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt\
 ./global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt"

# The kind of Adam, learning rates and loss scales are restored.
dir=$tmp/kinds
for flavor in 0 1 2; do
	later 2 flavor$flavor flavor=$flavor schedule=$flavor dynamic=yes \
		json='{ "zero_optimization": { "stage": 0 }, "a": [1, 2.5, "x", null] }' \
		steps=$((flavor + 1)) save="$dir"
done
start
for flavor in 0 1 2; do
	did flavor$flavor
	check "flavor $flavor: whole" ucckpt check --data "$dir/global_step$((flavor + 1))" >/dev/null
done

# Each checkpoint contains its configuration; one in the run's directory stays unchanged.
has_config() { grep -q '"vocab_size":[[:blank:]]*11,' "$dir/$1/config.json"; }
check "the model's configuration" has_config global_step2
echo mine >"$dir/config.json"
saves "another save" 2 steps=1 save="$dir"
check "that of another save" has_config global_step1
check "the configuration beside them stays" test "$(cat "$dir/config.json")" = mine

# Old checkpoints are removed after a new one was saved; other directories stay.
mkdir "$dir/global_step2_universal"
saves "keep two" 2 steps=4 keep=2 save="$dir"
check "two are kept" test "$(cd "$dir" && echo *)" = \
	"config.json global_step2_universal global_step3 global_step4 latest"
saves "an earlier step again" 2 steps=3 keep=2 save="$dir"
check "later ones stay" test "$(cd "$dir" && echo *)" = \
	"config.json global_step2_universal global_step3 global_step4 latest"
check "the newest is what was saved last" test "$(cat "$dir/latest")" = global_step3

# A checkpoint that is a mount point cannot be removed, and stays.
if [ -w /dev/fuse ]; then
	held=$tmp/held
	saves "one to be held" 1 steps=1 save="$held"
	check "and held" ucfs "$good/z1_fp32_dp2" "$held/global_step1"
	saves "keep one" 1 steps=2 keep=1 save="$held"
	fusermount3 -u "$held/global_step1"
	check "the other is named" grep -q "global_step1: cannot remove" "$tmp/words"
	check "what was saved is the newest" test "$(cat "$held/latest")" = global_step2
	check "both are whole" ucckpt check --data "$held" >/dev/null
fi

# The disk is full: files are limited to 8 KiB.
before=$(cd "$dir" && find . -type f -exec cksum {} + | sort)
fails "it says so" "step 3 was not saved, earlier ones remain: .*too large" \
	2 steps=3 save="$dir" keep=1 largest=8192
check "nothing has changed" test "$before" = "$(cd "$dir" && find . -type f -exec cksum {} + | sort)"

# A failed first save leaves nothing behind.
fails "it says so" "step 3 was not saved" 2 steps=3 save="$tmp/new/run" largest=8192
check "it was not there before" test ! -e "$tmp/new"
mkdir -p "$tmp/led/latest"
fails "it says so" "led/latest: cannot rename to" 2 steps=3 save="$tmp/led"
check "all is as before" test "$(ls -A "$tmp/led")" = latest
saves "a checkpoint" 2 steps=2 save="$tmp/led/run"
rm "$tmp/led/run/latest" && mkdir "$tmp/led/run/latest"
before=$(cd "$tmp/led" && find . -type f -exec cksum {} + | sort)
fails "it says so" "run/latest: cannot rename to" 2 steps=2 width=8 save="$tmp/led/run"
check "as is what was to give way" \
	test "$before" = "$(cd "$tmp/led" && find . -type f -exec cksum {} + | sort)"

# A directory without write permission.
touch "$tmp/file"
fails "it is named" "$tmp/file" 2 save="$tmp/file"

# An asynchronous save has the state at its beginning, in any memory.
kinds=$(for apart in no yes; do
	for stage in 0 1 2 3; do
		for dtype in fp32 bf16; do echo "$apart $stage $dtype"; done
	done
done)
while read -r apart stage dtype; do
	name=$apart-$stage-$dtype
	flags=(stage=$stage dtype=$dtype apart=$apart)
	later 2 $name "${flags[@]}" save="$tmp/$name"
	later 2 $name-meanwhile "${flags[@]}" background=yes more=5 save="$tmp/$name-meanwhile"
done <<<"$kinds"
start
while read -r apart stage dtype; do
	name=$apart-$stage-$dtype
	did $name
	did $name-meanwhile
	check "$name: the same" diff -r "$tmp/$name" "$tmp/$name-meanwhile"
done <<<"$kinds"

dir=$tmp/background
saves "a checkpoint" 2 steps=2 save="$dir"
before=$(cd "$dir" && find . -type f -exec cksum {} + | sort)
fails "it says so" "step 4 was not saved, earlier ones remain: .*too large" \
	2 steps=4 background=yes more=3 save="$dir" largest=8192
check "nothing has changed" test "$before" = "$(cd "$dir" && find . -type f -exec cksum {} + | sort)"
check "and nothing is left over" test "$(cd "$dir" && echo .[!.]*)" = ".[!.]*"

for background in yes no; do
	on_ranks 2 "$program" steps=4 killed=yes background=yes more=1 save="$dir" >/dev/null 2>&1 &&
		fail "it was to be killed"
	check "the one before is whole" ucckpt check --data "$dir" >/dev/null
	check "and the newest" test "$(cat "$dir/latest")" = global_step2
	check "the other has begun" test -d "$dir"/.global_step4.tmp-*
	# another process, which is alive, owns it
	mkdir "$dir/.global_step9.tmp-livexx" "$dir/.mine.tmp-abcdef" "$dir/.global_step1.old"
	flock "$dir/.global_step9.tmp-livexx" sleep 60 &
	holder=$!
	until ! flock -n "$dir/.global_step9.tmp-livexx" true; do sleep 0.05; done
	saves "the next save" 2 steps=2 background=$background save="$dir"
	check "takes away what was left" test "$(cd "$dir" && echo .[!.]*)" = \
		".global_step9.tmp-livexx .mine.tmp-abcdef"
	kill $holder
	rm -r "${dir:?}"/.[!.]*
done
finish
