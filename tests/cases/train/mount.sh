#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Resuming from a mount: ranks read their parts of the shards directly, and never those of another
# generation (ranks_checkpoint.c).
# shellcheck source=tests/cases/train/ranks_lib.sh
. "$(dirname "$0")/ranks_lib.sh"
require_fuse

for stage in 1 3; do
	later 2 run$stage stage=$stage save="$tmp/run$stage"
done
start
for stage in 1 3; do
	run=$tmp/run$stage
	want=$(state run$stage)
	mount_fg "$run" || finish
	for n in 1 3; do
		later $n run$stage-$n stage=$stage universal=yes load="$tmp/mnt" steps=0
	done
	later 1 run$stage-tag stage=$stage universal=yes load="$tmp/mnt/global_step3_universal" steps=0
	start
	for n in 1 3; do
		same "stage $stage on $n ranks" "$want" run$stage-$n
		check "each rank read its part, from the shards" \
			test "$(said run$stage-$n | grep '^read')" = "read 13536 bytes, 13536 past the mount"
	done
	same "stage $stage, the tag itself" "$want" run$stage-tag
	# A re-cut view is a checkpoint of that many ranks, of this stage or another.
	other=$((4 - stage))
	for n in 1 3; do
		later $n run$stage-dp$n stage=$stage load="$tmp/mnt" tag=global_step3_dp$n steps=0
		later $n run$stage-dp$n-z$other stage=$other load="$tmp/mnt" \
			tag=global_step3_dp${n}_z$other steps=0
	done
	start
	for n in 1 3; do
		same "stage $stage, re-cut for $n ranks" "$want" run$stage-dp$n
		same "stage $stage, re-cut for $n ranks and stage $other" "$want" run$stage-dp$n-z$other
	done
	unmount
done

# Replacing a shard under the mount is detected.
mount_fg "$run" || finish
shard=$run/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt
cat "$tmp/mnt/global_step3_universal/zero/transformer.wte.weight/fp32.pt" >/dev/null
cp "$shard" "$shard.new"
mv "$shard.new" "$shard"
later 2 replaced stage=3 universal=yes load="$tmp/mnt" steps=0
start
refused "a replaced shard is not read" \
	'\(zero_pp_rank_1_mp_rank_00_optim_states.pt\|Input/output error\)' replaced
unmount
finish
