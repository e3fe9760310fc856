#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed goes on from FSDP's files of ranks.

    resume_fsdp.py SCRATCH

FSDP2 trains on two ranks, whose parts of tensors are of different sizes, saves what verl saves,
and trains on.  From a mount of the run, DeepSpeed's stages 1 to 3 on one to three ranks must go
on with the same losses, within LIMIT: by TAG_universal, and by TAG_dpN_zS.
"""

import os
import subprocess
import sys

import forked
import make_fsdp_ranks
import make_moe
import torch
import torch.distributed
from torch.distributed.fsdp import fully_shard

import deepspeed

LIMIT = 1e-6
STEPS, MORE = 3, 6
ROWS = 6
OPTIONS = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def net(seed):
    torch.manual_seed(seed)
    return make_fsdp_ranks.Net(tied=True, width=7)


def join(case, rank, folder):
    make_moe.join_ranks(case, rank, os.path.join(folder, "rendezvous." + case["name"]))


def train(case, rank, folder):
    join(case, rank, folder)
    world = case["world"]
    model, losses = net(4), []
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    for i in range(STEPS + MORE):
        if i == STEPS:
            make_fsdp_ranks.save_verl(os.path.join(folder, "run/global_step_3/actor"), world, rank,
                                      model.state_dict(), optimizer.state_dict())
        loss = model(forked.batch(i, ROWS, make_fsdp_ranks.V, rank, world))
        losses.append(forked.mean(loss, world))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    forked.finish(case, rank, folder, losses[STEPS:])


def follow(case, rank, folder):
    join(case, rank, folder)
    world, tag = case["world"], case["name"].split(".")[0]
    config = {
        "train_micro_batch_size_per_gpu": ROWS // world,
        "zero_optimization": {"stage": case["stage"]},
        "zero_force_ds_cpu_optimizer": False,
        "checkpoint": {"load_universal": tag.endswith("_universal")},
    }
    model = net(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, weight_decay=0.5)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    path, _ = engine.load_checkpoint(os.path.join(folder, "mnt/global_step_3"), tag=tag)
    assert path, "nothing was loaded"
    losses = []
    for i in range(STEPS, STEPS + MORE):
        loss = engine(forked.batch(i, ROWS, make_fsdp_ranks.V, rank, world))
        losses.append(forked.mean(loss, world))
        engine.backward(loss)
        engine.step()
    forked.finish(case, rank, folder, losses)


def main(folder):
    mount = os.path.join(folder, "mnt")
    os.makedirs(mount, exist_ok=True)
    make_moe.run_ranks(train, dict(name="whole", world=2), folder)
    expected = torch.load(os.path.join(folder, "whole"))
    subprocess.run(["ucfs", os.path.join(folder, "run"), mount], check=True)
    good = True
    try:
        for stage in 1, 2, 3:
            for world in 1, 2, 3:
                for tag in "actor_universal", f"actor_dp{world}_z{stage}":
                    name = f"{tag}.{stage}.{world}"
                    case = dict(name=name, world=world, stage=stage)
                    make_moe.run_ranks(follow, case, folder)
                    found = torch.load(os.path.join(folder, name))
                    most = max(abs(a - b) for a, b in zip(found, expected, strict=True))
                    print(f"stage {stage}, {world} ranks, {tag}: {most:.1e}", flush=True)
                    good &= most <= LIMIT
    finally:
        subprocess.run(["fusermount3", "-u", mount], check=True)
    return good


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
