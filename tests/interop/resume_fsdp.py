#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed continues from FSDP's per-rank files, and from models with buffers.

    resume_fsdp.py SCRATCH

FSDP2 trains on two ranks, whose parts of tensors have different sizes, saves like verl, and
continues.  From a mount of the run, DeepSpeed's stages 1 to 3 on one to three ranks must
continue with the same losses, within LIMIT, from TAG_universal and from TAG_dpN_zS.  So must
stage 3, from TAG_dpN_z3 of a DCP and of Accelerate's FULL_STATE_DICT of models with buffers and
frozen parameters, which only type, name and shards distinguish.
"""

import os
import sys

import resume  # must come first: sets up DeepSpeed on the CPU

import forked
import make_dcp_by_hand
import make_fsdp_ranks
import make_moe
import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

import deepspeed

LIMIT = 1e-6
STEPS, MORE = 3, 6
ROWS = 6
OPTIONS = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
TOKENS = 6  # vocabulary of both models
# Number of training ranks, and arguments of make_dcp_by_hand.Kinds.
KINDS = {"buffers": (1, False, True), "frozen": (1, True, False), "cut": (2, True, True)}


def net(kind, seed):
    torch.manual_seed(seed)
    if kind in KINDS:
        return make_dcp_by_hand.Kinds(*KINDS[kind][1:])
    return make_fsdp_ranks.Net(tied=True, width=7)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def join(case, rank, folder):
    make_moe.join_ranks(case, rank, os.path.join(folder, "rendezvous." + case["name"]))


def save(case, rank, folder, model, optimizer):
    if case["kind"] not in KINDS:
        make_fsdp_ranks.save_verl(os.path.join(folder, "run/global_step_3/actor"), case["world"],
                                  rank, model.state_dict(), optimizer.state_dict())
        return
    weights, states = get_state_dict(model, optimizer)
    path = os.path.join(folder, case["name"] + "_%s/tag")
    dcp.save({"model": weights, "optim": states}, checkpoint_id=path % "dcp")
    if case["world"] == 1:
        os.makedirs(path % "full")
        torch.save(weights, path % "full" + "/pytorch_model_fsdp.bin")
        torch.save(states, path % "full" + "/optimizer.bin")


def train(case, rank, folder):
    join(case, rank, folder)
    world = case["world"]
    model, losses = net(case["kind"], 4), []
    for layer in model.layers if world > 1 else ():
        fully_shard(layer)
    if world > 1:
        fully_shard(model)
    optimizer = torch.optim.AdamW(trained(model), **OPTIONS)
    for i in range(STEPS + MORE):
        if i == STEPS:
            save(case, rank, folder, model, optimizer)
        loss = model(forked.batch(i, ROWS, TOKENS, rank, world))
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
        "gradient_clipping": 0.0,
        "zero_force_ds_cpu_optimizer": False,
        "checkpoint": {"load_universal": tag.endswith("_universal")},
    }
    model = net(case["kind"], 5)
    optimizer = torch.optim.AdamW(trained(model), lr=1e-9, weight_decay=0.5)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    path, _ = engine.load_checkpoint(os.path.join(folder, case["run"]), tag=tag)
    assert path, "nothing was loaded"
    losses = []
    for i in range(STEPS, STEPS + MORE):
        loss = engine(forked.batch(i, ROWS, TOKENS, rank, world))
        losses.append(forked.mean(loss, world))
        engine.backward(loss)
        engine.step()
    forked.finish(case, rank, folder, losses)


def check(folder, kind, run, world, stage, tag, expected):
    name = f"{tag}.{run.split('/')[-1]}.{stage}.{world}"
    case = dict(name=name, kind=kind, run=run, world=world, stage=stage)
    make_moe.run_ranks(follow, case, folder)
    found = torch.load(os.path.join(folder, name))
    most = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    print(f"{kind}, stage {stage}, {world} ranks, {tag}: {most:.1e}", flush=True)
    return most <= LIMIT


def check_kind(folder, kind):
    good = True
    world = KINDS[kind][0]
    make_moe.run_ranks(train, dict(name=kind, kind=kind, world=world), folder)
    expected = torch.load(os.path.join(folder, kind))
    for form in ("dcp", "full") if world == 1 else ("dcp",):
        with resume.Mount(os.path.join(folder, f"{kind}_{form}"),
                          os.path.join(folder, f"{kind}_{form}.mnt")):
            for ranks in 1, 3:
                good &= check(folder, kind, f"{kind}_{form}.mnt", ranks, 3, f"tag_dp{ranks}_z3",
                              expected)
    return good


def main(folder):
    good = all([check_kind(folder, kind) for kind in KINDS])
    make_moe.run_ranks(train, dict(name="whole", kind="verl", world=2), folder)
    expected = torch.load(os.path.join(folder, "whole"))
    with resume.Mount(os.path.join(folder, "run"), os.path.join(folder, "run.mnt")):
        for stage in 1, 2, 3:
            for world in 1, 2, 3:
                for tag in "actor_universal", f"actor_dp{world}_z{stage}":
                    good &= check(folder, "verl", "run.mnt/global_step_3", world, stage, tag,
                                  expected)
    return good


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
