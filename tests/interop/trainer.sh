#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# DeepSpeed's own programs read the trainer's checkpoints: ds_to_universal.py makes
# the same tree that a mount shows, byte for byte; zero_to_fp32.py finds the masters;
# and DeepSpeed resumes (trainer.py), from the shards on as many ranks and from the
# mount on others.  For ranks that shared the model, also in Megatron's names, the
# mount's tree equals the converter's, too, and data-parallel DeepSpeed resumes from
# it.
#
#     UCFS_PYTHON=/venv/bin/python trainer.sh
#
# Needs a Python with deepspeed (0.19.8 was used) and transformers; no GPU.
# Takes minutes.
# shellcheck source=tests/interop/lib.sh
. "$(dirname "$0")/lib.sh"
require_python deepspeed transformers
require_programs mpirun
require_ucfs
program=${top_builddir:-$here/../..}/tests/programs/ranks_checkpoint
[ -x "$program" ] || skip "no $program; make check builds it"
make_scratch mnt

shape=(layers=2 width=16 vocab=37 positions=12)
export TRAINER_SHAPE='{"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 37, "n_positions": 12}'

# expect "what" COMMAND...
expect() {
	local what=$1
	shift
	if "$@" >"$scratch/out" 2>&1; then
		echo "ok: $what"
	else
		fail "$what"
		tail -n 15 "$scratch/out"
	fi
}

convert() {
	"$UCFS_PYTHON" -m deepspeed.checkpoint.ds_to_universal \
		--input_folder "$1" --output_folder "$2"
}

# The masters of zero_to_fp32 equal those of the tree.
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

# Print the result, which is in the last line of a run.
save_on() {
	on_ranks "$1" "$program" "${shape[@]}" "${@:2}" </dev/null | tail -n 1 | grep 'done$'
}
save() { save_on 2 "$@"; }

for stage in 1 2 3; do
	for dtype in fp32 bf16; do
		case=z$stage-$dtype
		run=$scratch/$case
		tree=$mnt/global_step4_universal
		expect "$case: saved" save stage=$stage dtype=$dtype steps=4 \
			save="$run"
		expect "$case: mounted" ucfs "$run" "$mnt"
		expect "$case: ds_to_universal" convert "$run/global_step4" "$scratch/tree"
		expect "$case: makes the tree that is mounted" diff -r "$scratch/tree" "$tree"
		expect "$case: zero_to_fp32" to_fp32 "$run" "$tree"
		expect "$case: DeepSpeed resumes" "$UCFS_PYTHON" "$here/trainer.py" \
			"$run/global_step4" $stage $dtype 2 "$tree"
		expect "$case: DeepSpeed resumes from the mount on 3 ranks" \
			"$UCFS_PYTHON" "$here/trainer.py" "$tree" $stage $dtype 3 "$tree" universal
		fusermount3 -u "$mnt"
		rm -rf "$scratch/tree"
	done
done

# Ranks | of which tensor-parallel | pipeline stages | ZeRO stage | type
while read -r ranks tensor pipe stage dtype; do
	case=n$ranks-t$tensor-p$pipe-z$stage-$dtype
	run=$scratch/$case
	tree=$mnt/global_step4_universal
	expect "$case: saved" save_on "$ranks" tensor="$tensor" pipe="$pipe" stage="$stage" \
		dtype="$dtype" steps=4 save="$run"
	expect "$case: mounted" ucfs "$run" "$mnt"
	expect "$case: ds_to_universal" convert "$run/global_step4" "$scratch/tree"
	expect "$case: makes the tree that is mounted" diff -r "$scratch/tree" "$tree"
	expect "$case: DeepSpeed resumes from the mount on 2 ranks" \
		"$UCFS_PYTHON" "$here/trainer.py" "$tree" "$stage" "$dtype" 2 "$tree" universal
	fusermount3 -u "$mnt"
	rm -rf "$scratch/tree"
done <<<"2 2 1 1 fp32
4 2 1 2 bf16
2 1 2 1 bf16
4 2 2 1 fp32"

# Save in Megatron's names, with padded and unpadded groups.
while read -r ranks tensor pipe dtype; do
	case=megatron-n$ranks-t$tensor-p$pipe-$dtype
	run=$scratch/$case
	expect "$case: saved" save_on "$ranks" names=1 tensor="$tensor" pipe="$pipe" \
		dtype="$dtype" steps=4 save="$run"
	expect "$case: mounted" ucfs "$run" "$mnt"
	expect "$case: ds_to_universal" convert "$run/global_step4" "$scratch/tree"
	expect "$case: makes the tree that is mounted" diff -r "$scratch/tree" \
		"$mnt/global_step4_universal"
	fusermount3 -u "$mnt"
	rm -rf "$scratch/tree"
done <<<"1 1 1 fp32
2 1 1 bf16
3 1 1 bf16
3 1 1 fp32
2 2 1 fp16
2 1 2 bf16
4 2 2 fp32
4 2 2 bf16"
[ "$failures" -eq 0 ]
