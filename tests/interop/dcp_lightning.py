#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning continues from TAG_dcp of its DeepSpeedStrategy's checkpoints, and DeepSpeed
from checkpoints of its ModelParallelStrategy.

    dcp_lightning.py SCRATCH

Trainer gets the view as ckpt_path, and must continue with the next step of the next epoch
and with the schedule of the learning rate; Fabric loads it.  The losses must equal those of
the uninterrupted run (programs.py).

With Lightning 2.6.6, torch 2.15 and DeepSpeed 0.19.8 they differed by at most 3e-7.
"""

import os
import sys

import resume  # must come first: sets up DeepSpeed on the CPU

import deepspeed
import torch

import lightning_trainer as trainer
from programs import check, torchrun

SAVED = f"epoch={trainer.SAVED - 1}-step={trainer.SAVED}.ckpt"
RUNS = {"deepspeed2": {"lightning": ("model_parallel", "fsdp"), "fabric": ("fabric",)},
        "deepspeed3": {"lightning": ("model_parallel",)}}


def after(losses):
    return {step: loss for step, loss in losses.items() if step > trainer.SAVED}


def go_on(rank, world, mount, out):
    losses = {}
    for stage in 1, 2, 3:
        model = trainer.Wrapped()
        optimizer, schedule = trainer.new_optimizer(model)
        engine = deepspeed.initialize(
            model=model, optimizer=optimizer, lr_scheduler=schedule,
            config={
                "train_micro_batch_size_per_gpu": 1,
                "gradient_clipping": 0.0,
                "steps_per_print": 10 ** 6,
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True,
                "checkpoint": {"load_universal": True},
            })[0]
        if engine.load_checkpoint(mount, tag=SAVED + "_universal")[0] is None:
            raise RuntimeError("nothing was loaded")
        losses[stage] = {}
        while engine.global_steps < trainer.STEPS:
            loss = engine(trainer.rows()[rank::world])
            total = loss.detach().double()
            torch.distributed.all_reduce(total)
            losses[stage][engine.global_steps + 1] = total.item() / world
            engine.backward(loss)
            engine.step()
        engine.destroy()
    if rank == 0:
        torch.save(losses, out)


def check_views(name, styles, top):
    """Return the number of failed checks."""
    run, failed = os.path.join(top, name), 0
    expected = after(torchrun(trainer.__file__, 4, run, name, "-"))
    for style, ways in styles.items():
        with resume.Mount(run, os.path.join(top, f"{name}_{style}"),
                          "-o", "dcp_style=" + style) as mount:
            view = os.path.join(mount, SAVED, "checkpoint_dcp")
            failed += sum(check(f"{name}, {way}",
                                torchrun(trainer.__file__, 2,
                                         os.path.join(top, f"{name}_to_{way}"), way, view),
                                expected) for way in ways)
    return failed


def check_source(top):
    """Return the number of failed checks."""
    run, out = os.path.join(top, "source"), os.path.join(top, "losses.pt")
    expected = after(torchrun(trainer.__file__, 2, run, "model_parallel", "-"))
    with resume.Mount(run, os.path.join(top, "mount")) as mount:
        resume.on_ranks(4, go_on, out + ".log", 4, mount, out)
    return sum(check(f"model_parallel, DeepSpeed in stage {stage}", losses, expected)
               for stage, losses in torch.load(out).items())


def main(top):
    os.environ["PYTHONPATH"] = os.path.join(os.path.dirname(trainer.__file__), "on_cpu")
    failed = sum(check_views(name, styles, top) for name, styles in RUNS.items())
    return failed + check_source(top) != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
