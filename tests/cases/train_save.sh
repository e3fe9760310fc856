#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints are saved whole or not at all (ranks_checkpoint.c trains).
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cases/mpi.sh
. "$(dirname "$0")/mpi.sh"
require_mpi

program=$top_builddir/tests/ranks_checkpoint
[ -x "$program" ] || skip "the trainer was not built"

run() {
	on_ranks "$1" "$program" "${@:2}"
}

# What stage 0 saves is no ZeRO checkpoint; others can be checked.
for stage in 1 2 3; do
	for dtype in fp32 bf16; do
		for n in 1 2 3; do
			dir=$tmp/z$stage-$dtype-$n
			check "$dir" run $n stage=$stage dtype=$dtype save="$dir" >/dev/null
			check "$dir: whole" ucckpt check --data "$dir/global_step3" >/dev/null
			check "$dir: latest" test "$(cat "$dir/latest")" = global_step3
		done
	done
done
check "files are named as DeepSpeed does, fp32" test "$(cd "$tmp/z2-fp32-2" && echo ./*/*)" = \
	"./global_step3/mp_rank_00_model_states.pt\
 ./global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt\
 ./global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"
check "files are named as DeepSpeed does, ZeRO-3 and bf16" test "$(cd "$tmp/z3-bf16-1" && echo ./*/*)" = \
	"./global_step3/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt\
 ./global_step3/zero_pp_rank_0_mp_rank_00_model_states.pt"

# Any kind of Adam, learning rates and loss scales are found again.
dir=$tmp/kinds
for flavor in 0 1 2; do
	check "flavor $flavor" run 2 flavor=$flavor schedule=$flavor dynamic=yes \
		json='{ "zero_optimization": { "stage": 0 }, "a": [1, 2.5, "x", null] }' \
		steps=$((flavor + 1)) save="$dir" >/dev/null
	check "flavor $flavor: whole" ucckpt check --data "$dir" >/dev/null
done

# The configuration is beside them, and is nobody's but the first run's.
check "the model's configuration" grep -q '"vocab_size":[[:blank:]]*11,' "$dir/config.json"
echo mine >"$dir/config.json"
check "another save" run 2 steps=1 save="$dir" >/dev/null
check "the configuration stays" test "$(cat "$dir/config.json")" = mine
check "and nothing of another" test ! -e "$dir/global_step1/config.json"

# Old checkpoints go when a new one is there; others do not.
mkdir "$dir/global_step2_universal"
check "keep two" run 2 steps=4 keep=2 save="$dir" >/dev/null
check "two are kept" test "$(cd "$dir" && echo *)" = \
	"config.json global_step2_universal global_step3 global_step4 latest"
check "an earlier step again" run 2 steps=3 keep=2 save="$dir" >/dev/null
check "later ones stay" test "$(cd "$dir" && echo *)" = \
	"config.json global_step2_universal global_step3 global_step4 latest"
check "the newest is what was saved last" test "$(cat "$dir/latest")" = global_step3

# One that cannot be removed, since something is mounted there, stays.
if [ -w /dev/fuse ]; then
	held=$tmp/held
	check "one to be held" run 1 steps=1 save="$held" >/dev/null
	check "and held" ucfs "$good/z1_fp32_dp2" "$held/global_step1"
	check "keep one" run 1 steps=2 keep=1 save="$held" >"$tmp/kept" 2>&1
	fusermount3 -u "$held/global_step1"
	check "the other is named" grep -q "global_step1: cannot remove" "$tmp/kept"
	check "what was saved is the newest" test "$(cat "$held/latest")" = global_step2
	check "both are whole" ucckpt check --data "$held" >/dev/null
fi

# The disk is full: files may not grow beyond 8 KiB.
before=$(cd "$dir" && find . -type f -exec cksum {} + | sort)
run 2 steps=3 save="$dir" keep=1 largest=8192 >"$tmp/full" 2>&1 &&
	fail "a save on a full disk succeeded"
check "it says so" grep -q "step 3 was not saved, those before it remain: .*too large" "$tmp/full"
check "nothing has changed" test "$before" = "$(cd "$dir" && find . -type f -exec cksum {} + | sort)"

# A directory that cannot be written.
touch "$tmp/file"
run 2 save="$tmp/file" >"$tmp/no" 2>&1 && fail "a file was taken for a directory"
check "it is named" grep -q "$tmp/file" "$tmp/no"

# --- while training goes on -----------------------------------------------------

# What is saved is what was there when it began, wherever it was.
for apart in no yes; do
	for stage in 0 1 2 3; do
		for dtype in fp32 bf16; do
			flags=(stage=$stage dtype=$dtype apart=$apart)
			name=$tmp/$apart-$stage-$dtype
			check "$name" run 2 "${flags[@]}" save="$name" >/dev/null
			check "$name: meanwhile" run 2 "${flags[@]}" background=yes more=5 \
				save="$name-meanwhile" >/dev/null
			check "$name: the same" diff -r "$name" "$name-meanwhile"
		done
	done
done

dir=$tmp/background
check "a checkpoint" run 2 steps=2 save="$dir" >/dev/null
before=$(cd "$dir" && find . -type f -exec cksum {} + | sort)
run 2 steps=4 background=yes more=3 save="$dir" largest=8192 >"$tmp/full" 2>&1 &&
	fail "a save on a full disk succeeded"
check "it says so" grep -q "step 4 was not saved, those before it remain: .*too large" "$tmp/full"
check "nothing has changed" test "$before" = "$(cd "$dir" && find . -type f -exec cksum {} + | sort)"
check "and nothing is left over" test "$(cd "$dir" && echo .[!.]*)" = ".[!.]*"

# --- killed -----------------------------------------------------------------------

for background in yes no; do
	run 2 steps=4 killed=yes background=yes more=1 save="$dir" >/dev/null 2>&1 &&
		fail "it was to be killed"
	check "the one before is whole" ucckpt check --data "$dir" >/dev/null
	check "and the newest" test "$(cat "$dir/latest")" = global_step2
	check "the other has begun" test -d "$dir"/.global_step4.tmp-*
	# somebody else's, who lives
	mkdir "$dir/.global_step9.tmp-livexx" "$dir/.mine.tmp-abcdef" "$dir/.global_step1.old"
	flock "$dir/.global_step9.tmp-livexx" sleep 60 &
	holder=$!
	until ! flock -n "$dir/.global_step9.tmp-livexx" true; do sleep 0.05; done
	check "the next save" run 2 steps=2 background=$background save="$dir" >/dev/null
	check "takes away what was left" test "$(cd "$dir" && echo .[!.]*)" = \
		".global_step9.tmp-livexx .mine.tmp-abcdef"
	kill $holder
	rm -r "$dir"/.[!.]*
done
finish
