#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Resuming from a mount: ranks read their parts of the shards, past the mount,
# and never those of another generation (ranks_checkpoint.c).
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/cases/mpi.sh
. "$(dirname "$0")/mpi.sh"
require_mpi
require_fuse

program=$top_builddir/tests/ranks_checkpoint
[ -x "$program" ] || skip "the trainer was not built"

state() {
	on_ranks "$1" "$program" "${@:2}" 2>"$tmp/words"
}

bytes_read() {
	awk '/^rank/ { all += $3; past += $5 } END { print all + 0, past + 0 }' "$tmp/words"
}

for stage in 1 3; do
	run=$tmp/run$stage
	want=$(state 2 stage=$stage save="$run")
	mount_fg "$run" || finish
	for n in 1 3; do
		got=$(state $n stage=$stage universal=yes load="$tmp/mnt" steps=0)
		check "stage $stage on $n ranks" test "$got" = "$want"
		check "each rank read its part, from the shards" test "$(bytes_read)" = "13536 13536"
	done
	got=$(state 1 stage=$stage universal=yes load="$tmp/mnt/global_step3_universal" steps=0)
	check "stage $stage, the tag itself" test "$got" = "$want"
	unmount
done

# A shard that is replaced under the mount is noticed.
mount_fg "$run" || finish
shard=$run/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt
cat "$tmp/mnt/global_step3_universal/zero/transformer.wte.weight/fp32.pt" >/dev/null
cp "$shard" "$shard.new"
mv "$shard.new" "$shard"
state 2 stage=3 universal=yes load="$tmp/mnt" steps=0 >"$tmp/replaced" &&
	fail "a replaced shard was read"
check "it is named" grep -q "zero_pp_rank_1_mp_rank_00_optim_states.pt\|Input/output error" "$tmp/words"
unmount
finish
