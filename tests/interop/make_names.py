#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Save the runs of tests/good whose names or frozen parameters DeepSpeed lists only in part.

    make_names.py COLLECTION [CASE...]

  twice     a module, a parameter and a buffer have two names each in one parent; the
            embedding is frozen
  later     the head is frozen after the first step: the optimizer owns it
  excluded  all but a prompt is frozen and excluded from the save; the embedding has a
            further name, as in prompt tuning of PEFT, which stays in the module's state
"""

import os
import shutil
import socket
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
import torch.multiprocessing
import deepspeed

TAG = "global_step2"
CASES = {"z1_twice_dp2": ("twice", 1), "z3_twice_dp2": ("twice", 3),
         "z2_later_dp2": ("later", 2), "z3_excluded_dp2": ("excluded", 3)}


class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = torch.nn.Embedding(7, 5)
        self.head = torch.nn.Linear(5, 7)
        self.head.register_buffer("mask", torch.arange(3.0))
        self.prompt = torch.nn.Parameter(torch.randn(5))
        self.embed.weight.requires_grad_(kind == "later")
        if kind == "twice":
            self.again = self.head
            self.prompt_too = self.prompt
            self.embed_too = self.embed
            self.head.register_buffer("mask_too", self.head.mask)
        if kind == "excluded":
            self.outer = torch.nn.Module()
            self.outer.embed = self.embed
            self.head.requires_grad_(False)

    def forward(self, ids):
        x = self.head(self.embed(ids) + self.prompt)
        return torch.nn.functional.cross_entropy(x, ids)


def save(rank, out, kind, stage, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.manual_seed(1)
    model = Net(kind)
    deepspeed.init_distributed("gloo")
    engine = deepspeed.initialize(
        model=model, model_parameters=[p for p in model.parameters() if p.requires_grad],
        config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage},
                "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}})[0]
    for step in range(2):
        engine.backward(engine(torch.tensor([step, 3, rank])))
        engine.step()
        if kind == "later":
            model.head.weight.requires_grad_(False)
    engine.save_checkpoint(out, tag=TAG, exclude_frozen_parameters=kind == "excluded")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for name in sys.argv[2:] or CASES:
        out = os.path.join(sys.argv[1], name)
        shutil.rmtree(out, ignore_errors=True)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        torch.multiprocessing.spawn(save, (out, *CASES[name], port), nprocs=2)
        for script in "zero_to_fp32.py", "zero_to_torch.py":
            os.unlink(os.path.join(out, script))


if __name__ == "__main__":
    main()
