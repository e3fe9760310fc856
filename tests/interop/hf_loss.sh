#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What a mount shows for Hugging Face, transformers loads: its loss on a batch is
# the one that the trainer has of it (hf_loss.py).
#
#     UCFS_PYTHON=/venv/bin/python hf_loss.sh
#
# Needs a Python with torch and transformers; no GPU.  Takes a minute.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
tokens=${top_srcdir:-$here/../..}/tests/good/curves/tokens.i32
failures=0

skip() {
	echo "skipped: $*"
	exit 77
}

[ -n "${UCFS_PYTHON:-}" ] || skip "UCFS_PYTHON does not name a python"
"$UCFS_PYTHON" -c 'import transformers' >/dev/null 2>&1 ||
	skip "$UCFS_PYTHON has no transformers"
for program in mpirun uctrain ucfs; do
	command -v $program >/dev/null || skip "no $program in PATH"
done
[ -w /dev/fuse ] || skip "/dev/fuse cannot be opened"

scratch=$(mktemp -d) || exit 1
clean_up() {
	fusermount3 -u "$scratch/mnt" 2>/dev/null
	rm -rf --one-file-system "$scratch"
}
trap clean_up EXIT
trap 'exit 1' HUP INT TERM
mkdir "$scratch/mnt"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMP_NUM_THREADS=1
# All 16 rows are one batch.
flags=(--n_layer 2 --n_head 2 --n_embd 32 --vocab_size 256 --n_positions 32
	--seq_length 32 --data "$tokens" --train_batch_size 16 --lr 5e-3
	--log_dir "$scratch/logs")

train() {
	mpirun -n 2 uctrain "${flags[@]}" "$@" >"$scratch/words" 2>&1 || {
		tail -n 5 "$scratch/words"
		exit 1
	}
}

for stage in 1 2 3; do
	run=$scratch/z$stage
	train --zero_stage $stage --steps 20 --checkpoint_dir "$run" --run_name z$stage
	"$UCFS_PYTHON" "$here/hf_loss.py" config "$run" || exit 1
	# The loss of a step is that of the weights before it.
	train --zero_stage $stage --steps 21 --resume="$run" --run_name next$stage
	loss=$(awk -F, '$1 == 21 { print $2 }' "$scratch/logs/next$stage/metrics.csv")
	ucfs "$run" "$scratch/mnt" -o noindex || exit 1
	"$UCFS_PYTHON" "$here/hf_loss.py" loss "$scratch/mnt/global_step20_hf" \
		"$tokens" "$loss" || failures=$((failures + 1))
	fusermount3 -u "$scratch/mnt"
done
[ $failures -eq 0 ]
