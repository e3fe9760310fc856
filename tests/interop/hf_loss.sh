#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# transformers loads a mount's Hugging Face view with the trainer's config.json: its loss on
# a batch equals the trainer's (hf_loss.py).
#
#     UCFS_PYTHON=/venv/bin/python hf_loss.sh
#
# Needs a Python with torch and transformers; no GPU.  Takes a minute.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python transformers
require_programs mpirun uctrain
require_ucfs
make_scratch mnt
tokens=$good/curves/tokens.i32

# All 16 rows are one batch.
flags=(--n_layer 2 --n_head 2 --n_embd 32 --vocab_size 256 --n_positions 32
	--seq_length 32 --data "$tokens" --train_batch_size 16 --lr 5e-3
	--log_dir "$scratch/logs")

train() {
	on_ranks 2 uctrain "${flags[@]}" "$@" >"$scratch/words" 2>&1 || {
		tail -n 5 "$scratch/words"
		exit 1
	}
}

for stage in 1 2 3; do
	run=$scratch/z$stage
	train --zero_stage $stage --steps 20 --checkpoint_dir "$run" --run_name z$stage
	# The loss of a step is computed with the weights before that step.
	train --zero_stage $stage --steps 21 --resume="$run" --run_name next$stage
	loss=$(awk -F, '$1 == 21 { print $2 }' "$scratch/logs/next$stage/metrics.csv")
	ucfs "$run" "$mnt" || exit 1
	"$UCFS_PYTHON" "$here/hf_loss.py" "$mnt/global_step20_hf" \
		"$tokens" "$loss" || fail "stage $stage"
	fusermount3 -u "$mnt"
done
[ $failures -eq 0 ]
