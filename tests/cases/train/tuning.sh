#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# --tuning_cache keeps choices from run to run; of a file that is of no use there is
# one warning, also with several ranks.  On emulated GPUs, which know two algorithms.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train

rank=("$top_builddir/tests/programs/uctrain_emulated")
[ -x "${rank[0]}" ] || skip "nothing emulates a GPU"
export CUDAEMU_ALGORITHMS=2
cache=$tmp/tuning

# Each rank has two passes: the first stores gradients, the second adds to them, which
# are products of their own.
tuned() {
	local ranks=$1 name=$2
	shift 2
	train "$ranks" "$name" "${tiny[@]}" --device cuda --train_batch_size $((2 * ranks)) \
		--train_micro_batch_size_per_gpu 1 --steps 2 --tuning_cache "$cache" "$@"
}

# The file with as many choices as it should have, and nothing beside it.
has_choices() {
	test "$(sed 1d "$cache" | grep -c ' cuBLASLt .* emulated$')" = "$1" &&
		test "$(ls "$tmp"/tuning*)" = "$cache"
}

warned() {
	test "$(grep -c -- "--tuning_cache" "$tmp/$2.log")" = "$1"
}

tuned 2 first
n=$(grep -c cuBLASLt "$cache")
check "$n choices of the first run" test "$n" -gt 5
check "the file is whole" has_choices "$n"
cp "$cache" "$tmp/kept"
tuned 1 again
check "a run of the same shapes adds none" cmp "$cache" "$tmp/kept"
tuned 1 fixed --deterministic --dtype bf16
check "--deterministic adds none" cmp "$cache" "$tmp/kept"
tuned 1 bf16 --dtype bf16
check "another type adds its own" has_choices $((2 * n))
for name in first again fixed bf16; do
	check "$name: no warning" warned 0 "$name"
done

sed -i 's/cuBLASLt/cublasLt/' "$cache"
tuned 2 damaged
check "damaged: one warning" warned 1 damaged
check "damaged: with the file and the cause" \
	grep -q "^uctrain: --tuning_cache is ignored: $cache: is damaged" "$tmp/damaged.log"
check "damaged: replaced" cmp "$cache" "$tmp/kept"

echo "my notes" >"$cache"
tuned 2 foreign
check "somebody else's: one warning" warned 1 foreign
check "somebody else's: left alone" test "$(cat "$cache")" = "my notes"
check "the curve is the same" within 0 "$(apart first foreign 1)"

cache=$tmp/absent/tuning
tuned 1 nowhere
check "no directory: one warning" warned 1 nowhere
finish
