#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load mixtures of experts from a mount, see resume_experts.sh.

Native experts go to engines that hold all of them on each rank: DeepSpeed's
loader asks for experts by the names that they have on a rank, so that with
several expert-parallel ranks all would get those of the first.
"""

import os
import subprocess
import sys
import tempfile

import make_moe
import torch
import torch.distributed

import deepspeed

# (the case of make_moe.py that saves, what is different when loading)
RUNS = [
    ("moe2_ep2_dp4_z1_bf16", dict(ep=1, world=2)),
    ("moe_ep2_dp4_z2", dict(ep=1, world=4)),
    ("moe_ep2_dp4_z2_data_first", dict(ep=1, world=2)),
    ("autoep2_dp2_z1", dict()),
    ("autoep2_dp2_z1", dict(ep=1)),
    ("autoep2_dp4_z2_bf16", dict(world=2)),
    ("autoep2_dp4_z2_data_first", dict(ep=4)),
    ("autoep2_dp2_z3", dict(ep=1)),
    ("autoep2_dp4_z3_bf16", dict(world=2)),
]


def load(case, rank, folder):
    """Called in each rank's process."""
    make_moe.join_ranks(case, rank, os.path.join(folder, "rendezvous.load"))
    engine = make_moe.make_engine(
        case, rank, {"checkpoint": {"load_universal": True}}, seed=5)
    engine.load_checkpoint(folder, tag="mount")
    truth = make_moe.gather_truth(case, engine)
    if rank == 0:
        compare(truth, torch.load(os.path.join(folder, "truth")))
    torch.distributed.barrier()


def compare(found, truth):
    for name, states in truth.items():
        for state, tensor in states.items():
            if not torch.equal(found[name][state], tensor):
                sys.exit(f"{name}: {state} is not what was saved")
    if found.keys() != truth.keys():
        sys.exit(f"loaded {sorted(found)}, saved {sorted(truth)}")


def check(name, changes):
    case = make_moe.CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        make_moe.run_ranks(make_moe.train, case, folder)
        mount = os.path.join(folder, "mount")
        os.mkdir(mount)
        subprocess.run(["ucfs", os.path.join(folder, make_moe.TAG), mount],
                       check=True)
        try:
            make_moe.run_ranks(load, case | changes, folder)
        finally:
            subprocess.run(["fusermount3", "-u", mount], check=True)
    words = " ".join(f"{k} {v}" for k, v in changes.items())
    print(f"{name}: loaded with {words or 'the same ranks'}", flush=True)


def main():
    for name, changes in RUNS:
        check(name, changes)


if __name__ == "__main__":
    main()
