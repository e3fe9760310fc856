#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's trainer continues from TAG_dcp of a run of DeepSpeed, and DeepSpeed from
checkpoints of torchtitan's trainer.

    dcp_titan.py SCRATCH

Both train the same model of torchtitan, with the same schedule of the learning rate.
The trainer gets the view as checkpoint.initial_load_path and must continue with the next
step; only the state of its data loader is excluded from loading.  The losses must equal
those of the uninterrupted run (programs.py).

With torchtitan 0.3.0, torch 2.15 and DeepSpeed 0.19.8 they differed by at most 6e-7.
"""

import os
import sys

import resume  # must come first: sets up DeepSpeed on the CPU

import deepspeed
import torch
from torch.nn import functional

import titan_trainer as titan
from programs import check, torchrun

BEFORE, AFTER = 10, 5  # numbers of steps
# DeepSpeed's stage, whether q, k and v are one matrix there and in torchtitan, and torchtitan's
# ranks and tensor-parallel degrees.  DeepSpeed cannot save such a matrix in stage 3.
RUNS = ((1, False, False, ((1, 1), (2, 1), (4, 2))),
        (3, False, False, ((2, 1),)),
        (1, True, True, ((2, 1),)),
        (1, False, True, ((2, 1), (4, 2))),
        (3, False, True, ((2, 1),)))


def new_engine(stage, fused, universal=False):
    with torch.device("meta"):
        model = titan.model_config(fused).build()
    model.to_empty(device="cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=titan.LR, betas=titan.BETAS,
                                  weight_decay=titan.DECAY)
    return deepspeed.initialize(
        model=model, optimizer=optimizer,
        lr_scheduler=titan.schedule([optimizer]).schedulers[0],
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 1.0,
            "steps_per_print": 10 ** 6,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "checkpoint": {"load_universal": universal},
        })[0]


def train(engine, rank, world, steps):
    """Return the loss of each step, the mean over all rows."""
    rows, losses = titan.rows()[rank::world], {}
    for _ in range(steps):
        logits = engine(rows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        total = loss.detach().double()
        torch.distributed.all_reduce(total)
        losses[engine.global_steps] = total.item() / world
    return losses


def save(rank, world, stage, fused, run, out):
    engine = new_engine(stage, fused)
    train(engine, rank, world, BEFORE)
    engine.save_checkpoint(run)
    losses = train(engine, rank, world, AFTER)
    if rank == 0:
        torch.save(losses, out)


def go_on(rank, world, mount, tag, out):
    losses = {}
    for stage in 1, 2, 3:
        engine = new_engine(stage, False, universal=True)
        if engine.load_checkpoint(mount, tag=tag)[0] is None:
            raise RuntimeError("nothing was loaded")
        losses[stage] = train(engine, rank, world, AFTER)
        engine.destroy()
    if rank == 0:
        torch.save(losses, out)


def check_view(stage, fused, fuse, ways, top):
    """Return the number of failed checks."""
    run, out = os.path.join(top, "run"), os.path.join(top, "losses.pt")
    resume.on_ranks(4, save, out + ".log", 4, stage, fused, run, out)
    style = f"dcp_style=titan_fused,head_dim={titan.HEAD}" if fuse > fused else "dcp_style=titan"
    with resume.Mount(run, os.path.join(top, "mount"), "-o", style) as mount:
        view = os.path.join(mount, f"global_step{BEFORE}_dcp")
        return sum(check(f"stage {stage}{', fused' if fused else ''}, torchtitan on {ranks} "
                         f"ranks, {parallel} tensor parallel{', fused' if fuse else ''}",
                         torchrun(titan.__file__, ranks, os.path.join(top, f"titan{ranks}"),
                                  BEFORE + AFTER, int(fuse), parallel, view, "-"),
                         torch.load(out))
                   for ranks, parallel in ways)


def check_source(top):
    """Return the number of failed checks."""
    run, out = os.path.join(top, "titan"), os.path.join(top, "losses.pt")
    expected = torchrun(titan.__file__, 2, run, BEFORE + AFTER, 0, 1, "-", BEFORE)
    expected = {step: loss for step, loss in expected.items() if step > BEFORE}
    with resume.Mount(os.path.join(run, "checkpoint"), os.path.join(top, "mount")) as mount:
        resume.on_ranks(4, go_on, out + ".log", 4, mount, f"step-{BEFORE}_universal", out)
    return sum(check(f"torchtitan, DeepSpeed in stage {stage}", losses, expected)
               for stage, losses in torch.load(out).items())


def main(scratch):
    failed = 0
    for number, run in enumerate(RUNS):
        top = os.path.join(scratch, f"run{number}")
        os.mkdir(top)
        failed += check_view(*run, top)
    top = os.path.join(scratch, "source")
    os.mkdir(top)
    return failed + check_source(top) != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
