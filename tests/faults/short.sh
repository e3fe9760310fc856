#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A short run of the campaign: system calls fail, and everything ends with the right bytes or an
# error, with nothing left over.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/../cases/train/train_lib.sh"
[ "${sanitize:-no}" = no ] || skip "sanitizers replace malloc themselves"
# shellcheck source=tests/faults/parts.sh
. "$(dirname "$0")/parts.sh"
LD_PRELOAD=$faults true 2>/dev/null || skip "$faults cannot be preloaded: it needs glibc"

# run PART FIRST LAST
run() {
	local seed

	for seed in $(seq "$2" "$3"); do
		"part_$1" "$seed"
	done
}

run convert 1 40
run check 1 12
run pack 1 12
run pack 5061 5061 # fails when a block is decoded again
run unpack 1 12
if command -v uctrain >/dev/null; then
	run save 1 8
fi
check "the injector injects" test "$injected" -gt 70
require_fuse
run mount 1 6
run mount 1017 1017 # fails when the command line is parsed
run mutant 1 4
finish
