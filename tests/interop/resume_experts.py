#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load mixtures of experts from a mount, or re-cut, see resume_experts.sh.

Engines hold all native experts on each rank: DeepSpeed's loader requests experts by their
names on a rank, so several expert-parallel ranks would all get those of the first."""

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
# The same for re-cuts: if the number of ranks is not a multiple, experts are on fewer.
MIXED = dict(world=4, ep=(4, 2, 2), stage=1)
RECUTS = [
    ("moe_ep2_dp4_z2", dict(world=1, ep=1)),
    ("moe_ep2_dp4_z2", dict(world=6)),
    ("moe_ep2_dp4_z2", dict(world=2, stage=1)),
    ("autoep2_dp2_z1", dict(world=4, stage=2)),
    ("moe_ep2_dp4_z2_data_first", dict(world=3, ep=1)),
    ("autoep2_dp4_z2_bf16", dict(world=2)),
    ("autoep2_dp4_z2_bf16", dict(world=3, ep=1)),
    ("autoep2_dp4_z3_bf16", dict(world=2)),
    ("autoep2_dp2_z3", dict(world=6)),
    (MIXED, dict(world=2, ep=(2, 2, 2))),
    (MIXED, dict(world=3, ep=(1, 1, 1))),
    (MIXED, dict(world=8)),
]


def load(case, rank, folder):
    """Run in each rank's process."""
    make_moe.join_ranks(case, rank, os.path.join(folder, "rendezvous.load"))
    universal = {"checkpoint": {"load_universal": True}}
    engine = make_moe.make_engine(
        case, rank, universal if case["tag"] == "mount" else {}, seed=5)
    engine.load_checkpoint(folder, tag=case["tag"])
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
            make_moe.run_ranks(load, case | changes | dict(tag="mount"), folder)
        finally:
            subprocess.run(["fusermount3", "-u", mount], check=True)
    words = " ".join(f"{k} {v}" for k, v in changes.items())
    print(f"{name}: loaded with {words or 'the same ranks'}", flush=True)


def check_recut(name, changes):
    case = name if isinstance(name, dict) else make_moe.CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        make_moe.run_ranks(make_moe.train, case, folder)
        subprocess.run(["ucckpt", "convert", "--view", "zero", "--ranks",
                        str(changes["world"]), "--stage",
                        str(changes.get("stage", case["stage"])),
                        os.path.join(folder, make_moe.TAG),
                        os.path.join(folder, "recut")], check=True, capture_output=True)
        make_moe.run_ranks(load, case | changes | dict(tag="recut"), folder)
    print(f"{name}: loaded re-cut, {changes}", flush=True)


def main():
    for name, changes in RUNS:
        check(name, changes)
    for name, changes in RECUTS:
        check_recut(name, changes)


if __name__ == "__main__":
    main()
