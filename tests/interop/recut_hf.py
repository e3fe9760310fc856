#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs without knowledge of views resume on other ranks, from a mount with
-o ranks=N,replace, under the names that they saved.

    recut_hf.py SCRATCH [PROGRAM_STAGE]

Hugging Face's Trainer (resume_from_checkpoint) and Accelerate (load_state), with
DeepSpeed, train on two ranks: two steps, then a checkpoint, then two more.  On one
rank and on four they resume from the mount; after the same steps all weights, master
weights and states must equal those of the uninterrupted run, except for the order in
which gradients are summed.

With DeepSpeed 0.19.8, transformers 5.23 and Accelerate 1.15 they differed by at most
3e-6.  Lightning's DeepSpeed strategy requires GPUs.
"""

import os
import subprocess
import sys

import torch
import accelerate
import deepspeed
import transformers

import resume

BEFORE, AFTER = 2, (1, 4)
SAVED, STEPS, ROWS, LENGTH, WORDS = 2, 4, 8, 9, 61
LR = 5e-3
LIMIT = LR / 1000  # lost states would show as a difference of LR


class Mount(resume.Mount):
    """Mount the run with its tags re-cut under their own names."""

    def __init__(self, source, where, ranks):
        super().__init__(source, where)
        self.ranks = ranks

    def __enter__(self):
        os.mkdir(self.where)
        subprocess.run(["ucfs", "-o", f"ranks={self.ranks},replace",
                        self.source, self.where], check=True)
        return self.where


def use_cpus():
    """Replaces a check: Accelerate does not support DeepSpeed on several CPU ranks."""
    accelerate.PartialState._prepare_backend = lambda *_, **__: (
        "gloo", accelerate.DistributedType.MULTI_CPU)


def config(stage, world):
    return {"train_micro_batch_size_per_gpu": ROWS // world,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "optimizer": {"type": "AdamW", "params": {
                "lr": LR, "torch_adam": True}}}


def new_model():
    torch.manual_seed(7)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=1, n_head=1, n_embd=13, vocab_size=WORDS, n_positions=LENGTH,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def rows():
    chance = torch.Generator().manual_seed(3)
    words = torch.randint(0, WORDS, (ROWS * STEPS, LENGTH), generator=chance)
    return [{"input_ids": row, "labels": row} for row in words]


def with_trainer(stage, world, directory, start):
    args = transformers.TrainingArguments(
        output_dir=directory, max_steps=STEPS,
        save_steps=SAVED, save_strategy="no" if start else "steps",
        per_device_train_batch_size=ROWS // world, learning_rate=LR,
        lr_scheduler_type="constant", report_to=[], logging_steps=1,
        deepspeed=config(stage, world), seed=7)
    trainer = transformers.Trainer(model=new_model(), args=args,
                                   train_dataset=rows())
    trainer.train(resume_from_checkpoint=start and os.path.join(
        start, f"checkpoint-{SAVED}"))
    return trainer.model_wrapped


def with_accelerate(stage, world, directory, start):
    accelerator = accelerate.Accelerator(
        deepspeed_plugin=accelerate.DeepSpeedPlugin(
            hf_ds_config=config(stage, world)))
    model = new_model()
    loader = torch.utils.data.DataLoader(rows(), batch_size=ROWS // world)
    engine, _, loader = accelerator.prepare(
        model, accelerate.utils.DummyOptim(model.parameters(), lr=LR), loader)
    if start:
        accelerator.load_state(os.path.join(start, "saved"))
        loader = accelerator.skip_first_batches(loader, SAVED)
    for step, batch in enumerate(loader, SAVED if start else 0):
        accelerator.backward(engine(**batch).loss)  # backward also steps
        if step + 1 == SAVED:
            accelerator.save_state(os.path.join(directory, "saved"))
    return engine


PROGRAMS = {"trainer": with_trainer, "accelerate": with_accelerate}


def train(rank, program, stage, world, directory, start, out):
    use_cpus()
    engine = PROGRAMS[program](stage, world, directory, start)
    if engine.global_steps != STEPS:
        raise RuntimeError(f"took {engine.global_steps} steps")
    states = resume.whole_states(engine, stage, world)
    if rank == 0:
        torch.save({"states": states}, out)


def run(program, stage, top):
    """Return how far each number of ranks is from the uninterrupted run."""
    whole, source = os.path.join(top, "whole.pt"), os.path.join(top, "run")
    os.makedirs(source)
    resume.on_ranks(BEFORE, train, os.path.join(top, "log"), program, stage,
                    BEFORE, source, None, whole)
    for world in AFTER:
        out = os.path.join(top, f"{world}.pt")
        with Mount(source, os.path.join(top, f"mount{world}"), world) as mount:
            resume.on_ranks(world, train, os.path.join(top, f"log{world}"),
                            program, stage, world,
                            os.path.join(top, "again"), mount, out)
        yield world, resume.distance(*(torch.load(p, weights_only=False)
                                       for p in (whole, out)))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    print(f"DeepSpeed {deepspeed.__version__}, transformers "
          f"{transformers.__version__}, Accelerate {accelerate.__version__}")
    failed = 0
    for program in PROGRAMS:
        for stage in 1, 2, 3:
            name = f"{program}_{stage}"
            if sys.argv[2:] and name not in sys.argv[2:]:
                continue
            for world, far in run(program, stage,
                                  os.path.join(sys.argv[1], name)):
                good = far <= LIMIT
                print(f"{name:14} {BEFORE} to {world}: apart {far:.2g}"
                      f"{'' if good else ' WRONG'}", flush=True)
                failed += not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
