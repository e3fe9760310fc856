#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resume with other tensor and pipeline parallelism from a mount.

    resume_parallel.py SCRATCH [CASE...]

Like resume.py, for the models of parallel.py and for AutoTP: DeepSpeed trains on
one arrangement of ranks and saves; training continues for a step in the same
processes, and on another arrangement from the converter's tree and from a
mount.  Each rank's state after loading and after the step must be equal bit
for bit from both, and close to the uninterrupted run, which sums gradients in
another order.
"""

import collections
import os
import sys

import torch
import deepspeed

import parallel
import resume

# Numbers of ranks of each kind.
Ranks = collections.namedtuple("Ranks", "tp pp dp")
Case = collections.namedtuple("Case", "name kind stage dtype before after")

CASES = [
    Case("tp2dp2_to_tp1dp2_z1", "tensor", 1, "fp32",
         Ranks(2, 1, 2), Ranks(1, 1, 2)),
    Case("tp1dp2_to_tp2dp2_z1", "tensor", 1, "fp32",
         Ranks(1, 1, 2), Ranks(2, 1, 2)),
    Case("tp2dp2_to_tp1dp2_z2", "tensor", 2, "fp32",
         Ranks(2, 1, 2), Ranks(1, 1, 2)),
    Case("tp2dp2_to_tp1dp2_z1_bf16", "tensor", 1, "bf16",
         Ranks(2, 1, 2), Ranks(1, 1, 2)),
    Case("tp1dp2_to_tp2dp2_z1_bf16", "tensor", 1, "bf16",
         Ranks(1, 1, 2), Ranks(2, 1, 2)),
    Case("tp2dp2_to_tp4dp1_z1", "tensor", 1, "fp32",
         Ranks(2, 1, 2), Ranks(4, 1, 1)),
    Case("tp2dp2_to_tp2dp2_z1", "tensor", 1, "fp32",
         Ranks(2, 1, 2), Ranks(2, 1, 2)),
    Case("autotp2dp2_to_tp1dp2_z1", "autotp", 1, "fp32",
         Ranks(2, 1, 2), Ranks(1, 1, 2)),
    Case("tp1dp2_to_autotp2dp2_z2", "autotp", 2, "fp32",
         Ranks(1, 1, 2), Ranks(2, 1, 2)),
    Case("autotp2dp1_to_autotp2dp2_z3", "autotp", 3, "fp32",
         Ranks(2, 1, 1), Ranks(2, 1, 2)),
    Case("autotp2dp2_to_tp1dp2_z1_bf16", "autotp", 1, "bf16",
         Ranks(2, 1, 2), Ranks(1, 1, 2)),
    Case("pp2dp1_to_pp1dp1_z1", "pipe", 1, "fp32",
         Ranks(1, 2, 1), Ranks(1, 1, 1)),
    Case("pp1dp2_to_pp2dp2_z1", "pipe", 1, "fp32",
         Ranks(1, 1, 2), Ranks(1, 2, 2)),
    Case("pp2dp2_to_pp1dp2_z1_bf16", "pipe", 1, "bf16",
         Ranks(1, 2, 2), Ranks(1, 1, 2)),
    Case("pp2tp2dp1_to_pp1tp1dp2_z1", "pipe", 1, "fp32",
         Ranks(2, 2, 1), Ranks(1, 1, 2)),
    Case("pp1tp1dp2_to_pp2tp2dp1_z1", "pipe", 1, "fp32",
         Ranks(1, 1, 2), Ranks(2, 2, 1)),
]

MODELS = {"tensor": parallel.TensorModel, "pipe": parallel.pipeline,
          "autotp": lambda grid: parallel.llama()}
STEPS = resume.STEPS
ROWS = 8
TOKENS = 4
MICRO = 2  # number of micro-batches of a pipeline


def world(ranks):
    return ranks.tp * ranks.pp * ranks.dp


def new_engine(case, ranks, universal):
    grid = parallel.Grid(*ranks)
    autotp = case.kind == "autotp" and ranks.tp > 1
    positions = parallel.autotp_positions(ranks.tp) if autotp else None
    micro = MICRO if case.kind == "pipe" else 1
    config = {
        "train_micro_batch_size_per_gpu": ROWS // (ranks.dp * micro),
        "gradient_accumulation_steps": micro,
        "steps_per_print": 10 ** 6,
        "zero_optimization": {"stage": case.stage},
        "bf16": {"enabled": case.dtype == "bf16"},
        "optimizer": {"type": "AdamW",
                      "params": {"lr": resume.LR, "torch_adam": True}},
        "checkpoint": {"load_universal": universal},
    }
    if autotp:
        config["tensor_parallel"] = {"autotp_size": ranks.tp}
    model = MODELS[case.kind](grid)
    engine = deepspeed.initialize(
        model=model, config=config, model_parameters=model.parameters(),
        mpu=grid if case.kind == "tensor" else None)[0]
    if autotp:
        parallel.set_positions(engine, positions)
    return engine, grid


def train_step(engine, grid, kind):
    """Make one step on its data; return the loss of all rows."""
    chance = torch.Generator().manual_seed(100 + engine.global_steps)
    words = parallel.LLAMA_VOCAB if kind == "autotp" else parallel.VOCAB
    batch = torch.randint(0, words, (2, ROWS, TOKENS),
                          generator=chance)[:, grid.data::grid.dp]
    if kind == "pipe":
        return engine.train_batch(map(tuple, batch.chunk(MICRO, 1))).item()
    loss = (engine(input_ids=batch[0], labels=batch[1]).loss
            if kind == "autotp" else engine(*batch))
    engine.backward(loss)
    engine.step()
    total = loss.detach().clone()
    torch.distributed.all_reduce(total)
    return total.item() / torch.distributed.get_world_size()


def all_ranks(engine, stage):
    """Return each rank's state, and the merged one, named as in resume.py."""
    mine = {("module", n): p.detach().clone()
            for n, p in engine.module.named_parameters()}
    for g, (_, buffers, others) in enumerate(
            resume.local_parts(engine, stage)):
        mine.update(((g, key), torch.as_tensor(value))
                    for key, value in {**buffers, **others}.items())
    ranks = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(ranks, mine)
    return {(f"rank {r}", *map(str, key)): tensor
            for r, mine in enumerate(ranks) for key, tensor in mine.items()}


def snapshot(engine, grid, case, **more):
    whole = parallel.whole_states(engine, grid, case.stage)[0]
    return {"states": all_ranks(engine, case.stage),
            "hyperparameters": repr(resume.hyperparameters(engine)),
            "global_steps": engine.global_steps, **more}, \
           {"states": {key: t[:parallel.VOCAB] if key[0].endswith("words")
                       else t for key, t in whole.items()}}


def train(rank, case, run_dir, out):
    engine, grid = new_engine(case, case.before, universal=False)
    for _ in range(STEPS):
        train_step(engine, grid, case.kind)
    info = "universal_checkpoint_info"
    if case.kind != "autotp":
        client = {info: parallel.uc_info(grid, pipe=case.kind == "pipe")}
    else:  # AutoTP adds universal_checkpoint_info itself
        client = {} if grid.tp > 1 else {info: {}}
    engine.save_checkpoint(run_dir, tag=resume.TAG, client_state=client)
    loss = train_step(engine, grid, case.kind)
    whole = snapshot(engine, grid, case)[1]
    if rank == 0:
        torch.save({"whole": whole, "loss": loss}, out)


def go_on(rank, case, load_dir, tag, out):
    engine, grid = new_engine(case, case.after, universal=True)
    path, client = engine.load_checkpoint(load_dir, tag=tag)
    if path is None:
        raise RuntimeError("nothing was loaded")
    loaded = snapshot(engine, grid, case, client=repr(client))[0]
    loss = train_step(engine, grid, case.kind)
    stepped, whole = snapshot(engine, grid, case, loss=loss)
    if rank == 0:
        torch.save({"loaded": loaded, "stepped": stepped, "whole": whole,
                    "loss": loss}, out)


def run_case(case, top):
    """Train, convert, mount, resume; return the problems, the number of tensors compared, the
    distance, the losses."""
    run, converted = os.path.join(top, "run"), os.path.join(top, "converted")
    os.makedirs(run)

    def file(name):
        return os.path.join(top, name)

    resume.on_ranks(world(case.before), train, file("train.log"), case, run,
                    file("train.pt"))
    view = resume.TAG + "_universal"
    resume.convert(os.path.join(run, resume.TAG),
                   os.path.join(converted, view), False, file("convert.log"))
    with resume.Mount(run, file("mount")) as mount:
        found = [] if resume.same_tree(os.path.join(converted, view),
                                       os.path.join(mount, view)) \
            else ["the trees differ"]
        for name, place in ("converter", converted), ("mount", mount):
            resume.on_ranks(world(case.after), go_on, file(name + ".log"),
                            case, place, view, file(name + ".pt"))
    before, wanted, got = (torch.load(file(n + ".pt"), weights_only=False)
                           for n in ("train", "converter", "mount"))
    found += [f"{moment}: {what}" for moment in ("loaded", "stepped")
              for what in resume.differences(wanted[moment], got[moment])]
    far = resume.distance(before["whole"], got["whole"])
    allowed = (0 if case.before == case.after
               else resume.TOLERANCE[case.dtype])
    if not far <= allowed:
        found.append(f"uninterrupted: differs by {far}, more than {allowed}")
    if not resume.distance(wanted["loaded"], wanted["stepped"]) > 0:
        found.append("the step changed nothing")
    return found, len(got["stepped"]["states"]), far, (before["loss"],
                                                       got["loss"])


if __name__ == "__main__":
    sys.exit(resume.run_cases(__doc__, CASES, run_case, 29))
