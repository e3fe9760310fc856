#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What the trainer saves, DeepSpeed's own programs read: ds_to_universal.py
# makes the tree of it that a mount shows, byte for byte; zero_to_fp32.py finds
# the masters; and DeepSpeed resumes (trainer.py), from the shards on as many
# ranks and from the mount on others.
#
#     UCFS_PYTHON=/venv/bin/python trainer.sh
#
# Needs a Python with deepspeed (0.19.8 was used) and transformers; no GPU.
# Takes minutes.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 1
program=${top_builddir:-$here/../..}/tests/ranks_checkpoint
failures=0

skip() {
	echo "skipped: $*"
	exit 77
}

[ -n "${UCFS_PYTHON:-}" ] || skip "UCFS_PYTHON does not name a python"
export DS_ACCELERATOR=cpu
"$UCFS_PYTHON" -c 'import deepspeed, transformers' >/dev/null 2>&1 ||
	skip "$UCFS_PYTHON has no deepspeed and transformers"
[ -x "$program" ] || skip "no $program; make check builds it"
command -v mpirun >/dev/null || skip "no mpirun"
command -v ucfs >/dev/null || skip "no ucfs in PATH"
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
export OMPI_MCA_rmaps_base_oversubscribe=1
shape=(layers=2 width=16 vocab=37 positions=12)
export TRAINER_SHAPE='{"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 37, "n_positions": 12}'

# expect "what" COMMAND...
expect() {
	local what=$1
	shift
	if "$@" >"$scratch/out" 2>&1; then
		echo "ok: $what"
	else
		echo "FAILED: $what"
		tail -n 15 "$scratch/out"
		failures=$((failures + 1))
	fi
}

convert() {
	"$UCFS_PYTHON" -m deepspeed.checkpoint.ds_to_universal \
		--input_folder "$1" --output_folder "$2"
}

# The masters that zero_to_fp32 finds are those of the tree.
to_fp32() {
	"$UCFS_PYTHON" - "$1" "$2" <<-'END'
		import sys, torch
		from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as load
		run, tree = sys.argv[1:]
		found = load(run)
		assert len(found) == 29 and "lm_head.weight" in found, sorted(found)
		for name, tensor in found.items():
		    name = name.replace("lm_head", "transformer.wte")
		    want = torch.load(f"{tree}/zero/{name}/fp32.pt", weights_only=False)
		    want = want["param"] if isinstance(want, dict) else want
		    assert torch.equal(tensor.flatten(), want.flatten()), name
	END
}

for stage in 1 2 3; do
	for dtype in fp32 bf16; do
		case=z$stage-$dtype
		run=$scratch/$case
		tree=$scratch/mnt/global_step4_universal
		expect "$case: saved" mpirun -n 2 "$program" "${shape[@]}" \
			stage=$stage dtype=$dtype steps=4 save="$run"
		expect "$case: mounted" ucfs "$run" "$scratch/mnt"
		expect "$case: ds_to_universal" convert "$run/global_step4" "$scratch/tree"
		expect "$case: makes the tree that is mounted" diff -r "$scratch/tree" "$tree"
		expect "$case: zero_to_fp32" to_fp32 "$run" "$tree"
		expect "$case: DeepSpeed resumes" "$UCFS_PYTHON" "$here/trainer.py" \
			"$run/global_step4" $stage $dtype 2 "$tree"
		expect "$case: DeepSpeed resumes from the mount on 3 ranks" \
			"$UCFS_PYTHON" "$here/trainer.py" "$tree" $stage $dtype 3 "$tree" universal
		fusermount3 -u "$scratch/mnt"
		rm -rf "$scratch/tree"
	done
done
[ "$failures" -eq 0 ]
