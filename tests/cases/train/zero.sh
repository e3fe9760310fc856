#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ZeRO: the same gradients give the same model in any stage and on any number of ranks
# (ranks_zero.c).
# shellcheck source=tests/cases/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=tests/cases/mpi.sh
. "$(dirname "$0")/../mpi.sh"
require_mpi

program=$top_builddir/tests/programs/ranks_zero
[ -x "$program" ] || skip "the trainer was not built"

check "without mpirun" "$program" >"$tmp/0"
check "all stages were tried" test "$(wc -l <"$tmp/0")" -eq 4
check "and agree" test "$(sed 's/.*: //' "$tmp/0" | sort -u | wc -l)" -eq 1
for n in 1 2 3 4; do
	check "on $n ranks" on_ranks "$n" "$program" >"$tmp/$n"
	check "on $n ranks as without mpirun" cmp "$tmp/0" "$tmp/$n"
done

# The same with device memory that the host cannot access; several ranks use NCCL, which MPI
# emulates: sums of these gradients are exact in any order.
check "apart" "$program" apart >"$tmp/apart"
program=$top_builddir/tests/programs/ranks_nccl
for n in 1 2 3 4; do
	check "straight, on $n ranks" on_ranks "$n" "$program" own >"$tmp/own$n"
	check "straight, on $n ranks as without mpirun" cmp "$tmp/apart" "$tmp/own$n"
done

# Ranks that share a device are refused.
on_ranks 3 "$program" shared >"$tmp/shared" 2>&1
check "a shared device: refused" test $? -eq 1
check "a shared device: the cause" grep -q \
	"ranks 0 and 1 share device gpu; each needs a GPU of its own" "$tmp/shared"

# If NCCL fails on one rank, the others do not wait for it.
NCCL_EMULATED_BROKEN=1 TRAIN_SECONDS=60 on_ranks 3 "$program" own >"$tmp/broken" 2>&1
check "all end where one cannot begin" test "$?" -eq 1
check "the message names the rank and the call" grep -q '^uctrain: rank 1: ncclCommInitRank' "$tmp/broken"
finish
