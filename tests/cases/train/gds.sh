#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Resuming by GPUDirect Storage: from shards and from a mount, a run has the same
# losses as one that reads through the host, also if cuFile fails.  The GPU and cuFile
# are emulated.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
require_train
rank=("$top_builddir/tests/programs/uctrain_emulated")
[ -x "${rank[0]}" ] || skip "nothing that emulates a GPU"
dd if=/dev/zero of="$tmp/direct" bs=4096 count=1 oflag=direct 2>/dev/null ||
	skip "no direct reads of files in $tmp"

# Only the tensor of positions is large enough for cuFile.
flags=("${tiny[@]}" --n_positions 40960 --seq_length 16 --train_batch_size 3
	--train_micro_batch_size_per_gpu 1 --device cuda --steps 2)
run=$tmp/run
train 1 saved "${flags[@]}" --checkpoint_dir "$run" --checkpoint_interval 1

# resumed RANKS NAME HOW APART FLAG...: resume with an emulated cuFile that works,
# fails, or is absent.
resumed() {
	local how=$3

	[ "$how" = none ] || export CUFILE_EMULATED=$how
	train "$1" "$2" "${flags[@]}" "${@:5}"
	unset CUFILE_EMULATED
	check "$2: the losses" within "$4" "$(apart saved "$2" 2)"
}

# The whole pages of three tensors of 5 MiB.
by_cufile() { grep -q 'shards, 15.7 MB by GPUDirect Storage, in' "$tmp/$1.log"; }
not_by_cufile() { ! grep -q GPUDirect "$tmp/$1.log"; }
reported_once() {
	test "$(grep -c "GPUDirect Storage failed, reading through host memory instead: .*optim_states.pt: cuFileRead at [0-9]*: some error of cuFile$" "$tmp/$1.log")" = 1
}

shards=(--resume="$run" --checkpoint_tag global_step1)
resumed 1 host none 0 "${shards[@]}"
check "without cuFile it is not spoken of" not_by_cufile host
resumed 1 gds works 0 "${shards[@]}"
check "cuFile reads the positions" by_cufile gds
resumed 1 short short 0 "${shards[@]}"
check "short reads are continued" by_cufile short
resumed 1 off works 0 "${shards[@]}" --no_gds
check "--no_gds: it reads nothing" not_by_cufile off
resumed 1 fails fails 0 "${shards[@]}"
check "a failure is reported" reported_once fails

# Gradients of three ranks are summed in another order.
if (require_fuse) && mount_fg "$run"; then
	universal=(--resume="$tmp/mnt/global_step1_universal" --universal_checkpoint)
	resumed 1 mounted works 0 "${universal[@]}"
	check "cuFile reads the shards behind a mount" by_cufile mounted
	resumed 3 mounted-fails fails 1e-6 "${universal[@]}"
	check "a failure of three ranks is reported once" reported_once mounted-fails
	unmount
fi
finish
