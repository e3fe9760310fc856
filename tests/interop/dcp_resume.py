#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed continues from a mounted PyTorch distributed checkpoint.

    dcp_resume.py SCRATCH [CASE...]

torch trained and saved each case (tests/good/dcp_CASE), and trained ten more steps;
run.json has their losses.  DeepSpeed loads the universal view into a model with other
weights and an optimizer with other options, in stages 1 to 3 on one to three ranks, and
its losses must be the same within LIMIT.  Three ranks cannot share eight rows equally, so
each rank's loss is weighted by its rows.  In stage 3, DeepSpeed's loader of universal
checkpoints gives all parameter groups the options of the first: with several groups
TAG_dpN_z3 is loaded instead.

With 0.19.8 and torch 2.15 the losses differed by at most 6e-7, with bfloat16's mixed
precision by 2.9e-4, and by 0.016 if torch trained without float32 master weights.
"""

import json
import os
import sys
import typing

import resume  # must come first: sets up DeepSpeed on the CPU

import torch
import deepspeed
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from titan import Titan

GOOD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "good")
STEPS_BEFORE = 4
LIMIT = {"fp32": 1e-6, "bf16": 3e-2}
STAGES = 1, 2, 3
RANKS = 1, 2, 3


class Lightning(torch.nn.Module):
    """A module whose attribute is the model."""

    def __init__(self, run):
        super().__init__()
        self.model = gpt2(run)

    def forward(self, tokens):
        return self.model(tokens)


def gpt2(run):
    return GPT2LMHeadModel(GPT2Config(**run["config"]))


def llama(run):
    return LlamaForCausalLM(LlamaConfig(**run["config"]))


def titan(_):
    return Titan(torch.nn.RMSNorm)


def titan_layer_norm(_):
    return Titan(torch.nn.LayerNorm)


def as_one(model):
    return list(model.parameters())


def matrices_and_others(model):
    return [{"params": [p for p in model.parameters() if p.dim() > 1]},
            {"params": [p for p in model.parameters() if p.dim() <= 1]}]


class Case(typing.NamedTuple):
    """How a case was trained; if scheduled, lr was divided by 1 + EPOCH / 20."""
    model: typing.Callable = gpt2
    dtype: str = "fp32"
    clip: float = 1.0
    groups: typing.Callable = as_one
    scheduled: bool = False


CASES = {
    "fsdp2_dp2_fp32": Case(),
    "fsdp2_dp4_uneven": Case(),
    "hsdp_2x2_fp32": Case(),
    "tp2_fsdp2_llama": Case(llama, clip=0.0),
    "fsdp2_dp2_bf16mp": Case(dtype="bf16"),
    "fsdp2_dp2_bf16pure": Case(dtype="bf16"),
    "fsdp2_dp2_groups_sched": Case(groups=matrices_and_others, scheduled=True),
    "fsdp2_dp1_threads": Case(),
    "fsdp2_dp2_filepertensor": Case(),
    "titan_dp2": Case(titan, scheduled=True),
    "accelerate_fsdp2_dp2": Case(scheduled=True),
    "lightning_fabric_dp2": Case(),
    "lightning_trainer_dp2": Case(Lightning),
    "fsdp1_dp2": Case(titan_layer_norm),
    "dtensor_dp2_torch2.4.1": Case(titan_layer_norm),
}


def view(case, stage, world):
    """The tag to load, None for the universal view."""
    return f"ckpt_dp{world}_z3" if stage == 3 and case.groups != as_one else None


def new_engine(case, run, stage, universal):
    torch.manual_seed(999)
    model = case.model(run)
    return deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(case.groups(model), lr=1e-9, weight_decay=0.5),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": case.clip,
            "steps_per_print": 10 ** 6,
            "zero_optimization": {"stage": stage},
            "bf16": {"enabled": case.dtype == "bf16"},
            "zero_allow_untested_optimizer": True,
            "checkpoint": {"load_universal": universal},
        })[0]


def train(engine, case, run, rank, world):
    """Return the loss of each step, the mean over all rows."""
    tokens = torch.tensor(run["tokens"])
    rows, losses = tokens[rank::world], []
    groups = engine.optimizer.param_groups
    initial = [group["lr"] * (1 + STEPS_BEFORE / 20) for group in groups]
    for epoch in range(STEPS_BEFORE, STEPS_BEFORE + len(run["losses_after"])):
        if case.scheduled:
            for group, lr in zip(groups, initial):
                group["lr"] = lr / (1 + epoch / 20)
        logits = engine(rows)
        logits = getattr(logits, "logits", logits)[:, :-1].float()
        loss = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss = loss * (len(rows) / len(tokens))
        engine.backward(loss * world)  # DeepSpeed averages gradients
        engine.step()
        total = loss.detach().double()
        torch.distributed.all_reduce(total)
        losses.append(total.item())
    return losses


def follow(rank, world, mount, case, run, out):
    losses = {}
    for stage in STAGES:
        tag = view(case, stage, world)
        engine = new_engine(case, run, stage, universal=tag is None)
        if engine.load_checkpoint(mount, tag=tag)[0] is None:
            raise RuntimeError("nothing was loaded")
        losses[stage] = train(engine, case, run, rank, world)
        engine.destroy()
    if rank == 0:
        torch.save(losses, out)


def check(name, scratch):
    """Return the number of failed checks."""
    case, failed = CASES[name], 0
    source = os.path.realpath(os.path.join(GOOD, "dcp_" + name))
    with open(os.path.join(source, "run.json"), encoding="utf-8") as f:
        run = json.load(f)
    top = os.path.join(scratch, name)
    os.mkdir(top)
    with resume.Mount(source, os.path.join(top, "mount")) as mount:
        for world in RANKS:
            out = os.path.join(top, f"{world}.pt")
            resume.on_ranks(world, follow, out + ".log", world, mount, case, run, out)
            for stage, losses in torch.load(out).items():
                far = max(abs(a - b) for a, b in zip(losses, run["losses_after"],
                                                     strict=True))
                bad = not far <= LIMIT[case.dtype]
                print(f"{name}, stage {stage}, {world} ranks: apart {far:.2g}"
                      f"{' WRONG' if bad else ''}", flush=True)
                failed += bad
    return failed


def main(scratch, *names):
    return sum(check(name, scratch) for name in names or CASES) != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
