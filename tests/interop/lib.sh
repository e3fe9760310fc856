#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2034 # read by the scripts
#
# Shared by the scripts here: sourced, not run.  (Run it and it does nothing.)
#
#   require_python MODULE...   skips unless $UCFS_PYTHON can import them all
#   require_ucfs               skips unless ucfs can mount
#   require_programs NAME...   skips unless these are in PATH
#   make_scratch NAME          makes $scratch, and in it NAME to mount on, $mnt;
#                              both are removed at the end, after unmounting
#   on_ranks N COMMAND...      runs it on N ranks; needs $scratch
#   require_megatron           skips unless $UCFS_MEGATRON is the source of
#                              Megatron-DeepSpeed (4efb479d of 2025-07-16 was used), and
#                              $UCFS_PYTHON imports what it needs
#   copy_megatron DIR          a copy for ranks without a GPU, with vocab.json and merges.txt
#
# $here is this directory, $good tests/good; count $failures.

[ "${BASH_SOURCE[0]}" != "$0" ] || exit 77
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 1
good=${top_srcdir:-$here/../..}/tests/good
failures=0

skip() {
	echo "skipped: $*"
	exit 77
}

fail() {
	echo "FAILED: $*"
	failures=$((failures + 1))
}

require_python() {
	local IFS=,
	[ -n "${UCFS_PYTHON:-}" ] || skip "UCFS_PYTHON does not name a python"
	export DS_ACCELERATOR=cpu
	"$UCFS_PYTHON" -c "import $*" >/dev/null 2>&1 ||
		skip "$UCFS_PYTHON cannot import $*"
}

require_programs() {
	local program
	for program; do
		command -v "$program" >/dev/null || skip "no $program in PATH"
	done
}

require_ucfs() {
	require_programs ucfs fusermount3
	[ -w /dev/fuse ] || skip "/dev/fuse cannot be opened"
}

make_scratch() {
	scratch=$(mktemp -d) || exit 1
	mnt=$scratch/$1
	mkdir "$mnt" || exit 1
	trap clean_up EXIT
	trap 'exit 1' HUP INT TERM
}

clean_up() {
	local m
	awk -v below="$scratch/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo |
		while read -r m; do
			fusermount3 -u "$m"
		done
	rm -rf --one-file-system "$scratch"
}

# The scratch directory contains the ranks' shared memory, and is removed however they end.
on_ranks() {
	OMPI_MCA_btl_vader_backing_directory=$scratch \
		OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
		OMPI_MCA_rmaps_base_oversubscribe=1 OMP_NUM_THREADS=1 \
		mpirun -n "$1" "${@:2}"
}

require_megatron() {
	require_python deepspeed regex six nltk einops pybind11
	[ -f "${UCFS_MEGATRON:-}/pretrain_gpt.py" ] ||
		skip "UCFS_MEGATRON does not name the source of Megatron-DeepSpeed"
}

# Patch views of non-contiguous tensors, a missing import, two unneeded imports, and DeepSpeed's
# buffers in shared memory, which it would leave there.
copy_megatron() {
	cp -r "$UCFS_MEGATRON" "$1" && chmod -R u+w "$1" || exit 1
	sed -i 's/\(query\|key\)_layer\.view(output_size/\1_layer.reshape(output_size/
		s/value_layer\.view(value_layer\.size(0),$/value_layer.reshape(value_layer.size(0),/' \
		"$1/megatron/model/transformer.py"
	sed -i '1i import torch' "$1/megatron/optimizer/__init__.py"
	sed -i '/^from megatron.model.vision.knn_monitor/d; /^from deepspeed.compression/d' \
		"$1/megatron/training.py"
	sed -i '1i import no_shm' "$1/pretrain_gpt.py"
	cp "$here/no_shm.py" "$1" || exit 1
	# A vocabulary of 128 tokens without merges.
	"$UCFS_PYTHON" - >"$1/vocab.json" <<-'END'
		import json
		print(json.dumps({**{f"t{i}": i for i in range(127)}, "<|endoftext|>": 127}))
	END
	echo "#version: 0.2" >"$1/merges.txt"
}
