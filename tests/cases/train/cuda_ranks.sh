#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks on CUDA behave like ranks on the CPU: resuming on the same and other numbers of ranks,
# accumulation, and the same bits on any number of ranks.
# shellcheck source=tests/cases/train/train_lib.sh
. "$(dirname "$0")/train_lib.sh"
export TRAIN_DEVICE=cuda
require_train
require_fuse
if emulated && [ -z "${UCFS_CUDA_EMULATED-}" ]; then
	skip "no GPU; UCFS_CUDA_EMULATED=1 takes an emulated one, and ten minutes"
fi

for what in resume accumulate reshape invariant; do
	check "$what" bash "$(dirname "$0")/$what.sh"
done
finish
