#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Resuming from slow storage: the same training, no byte read twice, and many parallel requests,
# from shards, from a mount of them and from a converted tree.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
# shellcheck source=tests/cases/far_lib.sh
. "$(dirname "$0")/../far_lib.sh"
sanitized_by train/load remote/http

# 76 parameters; 57 MB with moments.
f=("${tiny[@]}" --n_layer 6 --n_head 4 --n_embd 256 --train_batch_size 4 --deterministic)
train 2 near "${f[@]}" --steps 2 --checkpoint_dir "$tmp/run" --checkpoint_interval 1
rm -r "$tmp/run/global_step2"
echo global_step1 >"$tmp/run/latest"
check "convert" ucckpt convert "$tmp/run/global_step1" "$tmp/tree" >/dev/null
tensors=$((4813056 * 12))

# resume NAME FLAG...: train as before, from a new mount of the store.
resume() {
	local -r name=$1

	shift
	train 2 "$name" "${f[@]}" --steps 2 "$@"
	check "$name: the same training" within 0 "$(apart near "$name" 2)"
	check "$name: $(far_count bytes) bytes of $tensors were read" \
		test "$(far_count bytes)" -le $((tensors / 10 * 11))
	check "$name: $(far_count most) requests at once" test "$(far_count most)" -ge 8
}
be_far() { "$slowfs" -d 3000 "$1" "$far" || fail "slowfs"; }

be_far "$tmp/run"
resume shards --resume="$far"
leave "$far"
be_far "$tmp/tree"
resume tree --resume="$far" --universal_checkpoint
leave "$far"
be_far "$tmp/run"
mount_fg "$far" || finish
resume mount --resume="$tmp/mnt" --universal_checkpoint
leave "$tmp/mnt"
wait "$server"
leave "$far"
finish
