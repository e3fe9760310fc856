#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Count the operations of loading on an emulated GPU and the system, from shards and from a mount
# of other ranks' shards: only the necessary ones occur.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
require_fuse

rank=("$top_builddir/tests/programs/uctrain_emulated")
[ -x "${rank[0]}" ] || skip "nothing emulates a GPU"
[ "${sanitize:-no}" = no ] || skip "the calls are the same with a sanitizer"

flags=("${tiny[@]}" --device cuda --train_batch_size 2 --train_micro_batch_size_per_gpu 1)
train 1 shards "${flags[@]}" --steps 1 --checkpoint_dir "$tmp/one"
# More than one device needs NCCL.
CUDAEMU_NCCL=1 CUDAEMU_DEVICES=own train 2 others "${flags[@]}" --steps 1 --checkpoint_dir "$tmp/two"
# 81920 positions have 10 MiB, more than a piece.
large=(--n_positions 81920 --seq_length 8)
train 1 large "${flags[@]}" "${large[@]}" --steps 1 --checkpoint_dir "$tmp/large"

# Operations of a run that loads but makes no step.
loads() {
	export CUDAEMU_TRAFFIC=$tmp/$1.traffic CUDAEMU_CALLS=$tmp/$1.calls
	train 1 "$1" "${flags[@]}" --steps 1 "${@:2}"
	unset CUDAEMU_TRAFFIC CUDAEMU_CALLS
}

loads from-shards --resume="$tmp/one" --checkpoint_tag global_step1
loads from-large "${large[@]}" --resume="$tmp/large" --checkpoint_tag global_step1
mount_fg "$tmp/two" || finish
loads from-mount --resume="$tmp/mnt/global_step1_universal" --universal_checkpoint
unmount

elements() { echo $((256 * 32 + $1 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32)); }
tensors=$((3 * 28)) # masters and two moments
bytes=$((3 * 4 * $(elements 32)))

# Copies and bytes to the device, none back.
check "from shards: a copy of each tensor" test "$(cut -d' ' -f1-4 "$tmp/from-shards.traffic.0")" = \
	"$tensors $bytes 0 0"
# In each of three states, one tensor has a part in both shards.
check "from a mount: a copy of each tensor" test "$(cut -d' ' -f1-4 "$tmp/from-mount.traffic.0")" = \
	"$tensors $bytes 0 0"
# 10 MiB outside the page cache: the bytes before whole pages, a piece, the remaining whole pages,
# and the bytes after them.
check "a large one: in pieces" test "$(cut -d' ' -f1-4 "$tmp/from-large.traffic.0")" = \
	"$((tensors + 3 * 3)) $((3 * 4 * $(elements 81920))) 0 0"

# Files opened, five of them not for tensors; files opened past the page cache; ioctls for extents
# and for sources.
check "from shards: no file twice" test "$(cat "$tmp/from-shards.calls.0")" = "5 0 0 0"
# A mount's sources are asked of one more file: each of them, and whether there are more.
check "from a mount: extents once per file, sources once" test "$(cat "$tmp/from-mount.calls.0")" = \
	"$((tensors + 6)) 0 $tensors 4"
check "a large one: two pieces of each state past the page cache" test \
	"$(cat "$tmp/from-large.calls.0")" = "5 6 0 0"
for name in from-shards from-mount from-large; do
	echo "$name: $(cat "$tmp/$name.traffic.0") / $(cat "$tmp/$name.calls.0")"
done
finish
