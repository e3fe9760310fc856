#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Continue a folded run (AutoEP with AutoTP), see resume_folded.sh.

    resume_folded.py SCRATCH [STAGE...]

DeepSpeed trains on four ranks, two of them tensor-parallel and two
expert-parallel, saves, and continues.  From the save, DeepSpeed on one
data-parallel rank (TAG_dp1) and on four (TAG_dp4), without tensor parallelism on other
numbers of expert-parallel ranks (TAG_universal), and torch's FSDP2 on two ranks
(TAG_dcp) must continue with the same losses, within LIMIT.  Stage 0 continues as stage 1.
With torch 2.15 the losses differed by at most 2.4e-7.
"""

import os
import subprocess
import sys

import forked
import make_moe
import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint import state_dict
from torch.distributed.fsdp import fully_shard

import deepspeed

LIMIT = 1e-6
STEPS, MORE = 3, 6
ROWS = 8  # rows of a batch, divided among data-parallel ranks
SIZE, INNER = 8, 12
TP = 2


class Layer(make_moe.SparseLayer):
    def __init__(self, config):
        super().__init__(config)
        self.norm = nn.LayerNorm(SIZE)
        self.up, self.down = nn.Linear(SIZE, INNER), nn.Linear(INNER, SIZE)
        self.mlp.gate = nn.Linear(SIZE, config.num_local_experts, bias=False)
        self.mlp.experts.gate_up_proj = nn.Parameter(0.3 * torch.randn(4, 10, SIZE))
        self.mlp.experts.down_proj = nn.Parameter(0.3 * torch.randn(4, SIZE, 5))

    def forward(self, x):
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        return x + self.mlp(x)


class Net(make_moe.SparseNet):
    def __init__(self):
        super().__init__(0)
        self.embed = nn.Embedding(make_moe.VOCABULARY, SIZE)
        self.model.layers = nn.ModuleList(Layer(self.config) for _ in range(2))
        self.head = nn.Linear(SIZE, make_moe.VOCABULARY)


class PlainMlp(nn.Module):
    """Has AutoEP's layer with its parameters' names, without DeepSpeed."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Module(), nn.Module()
        self.router.gate = nn.Linear(SIZE, 4, bias=False)
        for name, shape in ("w1", (4, 5, SIZE)), ("w2", (4, SIZE, 5)), ("w3", (4, 5, SIZE)):
            setattr(self.experts, name, nn.Parameter(torch.randn(shape)))

    def forward(self, x):
        scores = torch.softmax(self.router.gate(x).float(), -1)
        best, which = scores.topk(2, -1)
        weight = torch.zeros_like(scores).scatter(-1, which, best / best.sum(-1, keepdim=True))
        e = self.experts
        inner = (F.silu(torch.einsum("...h,eih->...ei", x, e.w1)) *
                 torch.einsum("...h,eih->...ei", x, e.w3))
        return torch.einsum("...ei,ehi,...e->...h", inner, e.w2, weight)


def plain_net():
    net = Net()
    for layer in net.model.layers:
        layer.mlp = PlainMlp()
    return net


def config(case):
    spec = [("column", r".*\.up\.weight$"), ("row", r".*\.down\.weight$"), ("skip", r".*")]
    return make_moe.make_config(case) | {
        "train_micro_batch_size_per_gpu": ROWS // case["dp"],
        "gradient_clipping": 0.0,  # DeepSpeed computes norms of divided gradients in its own way
        "checkpoint": {"load_universal": case["name"].startswith("tag_universal")},
    } | ({} if case["tp"] == 1 else {
        "tensor_parallel": {"autotp_size": TP, "partition_config": {
            "use_default_specs": False,
            "layer_specs": [{"patterns": [p], "partition_type": kind} for kind, p in spec]}},
    })


def make_engine(case, seed):
    torch.manual_seed(seed)
    model = Net()
    return deepspeed.initialize(
        model=model, config=config(case),
        model_parameters=[p for p in model.parameters() if p.requires_grad])[0]


def steps(case, engine, rank, numbers):
    losses = []
    for i in numbers:
        loss = engine(forked.batch(i, ROWS, make_moe.VOCABULARY, rank // case["tp"], case["dp"]))
        losses.append(forked.mean(loss, case["world"]))
        engine.backward(loss)
        engine.step()
    return losses


def train(case, rank, folder):
    make_moe.join_ranks(case, rank, os.path.join(folder, "rendezvous"))
    engine = make_engine(case, 4)
    steps(case, engine, rank, range(STEPS))
    engine.save_checkpoint(folder, tag="tag")
    forked.finish(case, rank, folder, steps(case, engine, rank, range(STEPS, STEPS + MORE)))


def follow(case, rank, folder):
    make_moe.join_ranks(case, rank, os.path.join(folder, "rendezvous." + case["name"]))
    engine = make_engine(case, 5)
    path, _ = engine.load_checkpoint(folder + ".mnt", tag=case["name"].split(".")[0])
    assert path, "nothing was loaded"
    if case["stage"] == 3:  # with a universal tree all sub-groups share one tensor (stage3.py)
        for state in engine.optimizer.optimizer.state.values():
            state["step"] = state["step"].clone()
    forked.finish(case, rank, folder, steps(case, engine, rank, range(STEPS, STEPS + MORE)))


def follow_fsdp(case, rank, folder):
    """Train without DeepSpeed."""
    world = case["world"]
    make_moe.join_ranks(case, rank, os.path.join(folder, "rendezvous." + case["name"]))
    torch.manual_seed(6)
    model = plain_net()
    mesh = torch.distributed.init_device_mesh("cpu", (world,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, weight_decay=0.5)
    weights, optim = state_dict.get_state_dict(model, optimizer)
    state = {"model": weights, "optim": optim}
    dcp.load(state, checkpoint_id=os.path.join(folder + ".mnt", case["name"]))
    state_dict.set_state_dict(model, optimizer, model_state_dict=state["model"],
                              optim_state_dict=state["optim"])
    losses = []
    for i in range(STEPS, STEPS + MORE):
        loss = model(forked.batch(i, ROWS, make_moe.VOCABULARY, rank, world))
        losses.append(forked.mean(loss, world))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    forked.finish(case, rank, folder, losses)


def compare(folder, name, expected, what):
    found = torch.load(os.path.join(folder, name))
    most = max(abs(a - b) for a, b in zip(found, expected, strict=True))
    print(f"{what}: {most:.1e}", flush=True)
    return most <= LIMIT


def check(scratch, stage):
    folder = os.path.join(scratch, f"z{stage}")
    mount = folder + ".mnt"
    os.mkdir(folder)
    os.mkdir(mount)
    case = dict(name="whole", autoep=True, ep=2, stage=stage, tp=TP, dp=2, world=2 * TP)
    make_moe.run_ranks(train, case, folder)
    expected = torch.load(os.path.join(folder, "whole"))
    subprocess.run(["ucfs", folder, mount], check=True)
    good = True
    try:
        for dp in 1, 4:
            name = f"tag_dp{dp}"
            other = dict(name=name, dp=dp, world=dp * TP, stage=stage or 1)
            make_moe.run_ranks(follow, case | other, folder)
            good &= compare(folder, name, expected, f"stage {stage}, {dp} data-parallel ranks")
        for dp, ep in (1, 1), (2, 2), (4, 2):
            name = f"tag_universal.{dp}.{ep}"
            other = dict(name=name, tp=1, dp=dp, ep=ep, world=dp, stage=stage or 1)
            make_moe.run_ranks(follow, case | other, folder)
            good &= compare(folder, name, expected,
                            f"stage {stage}, without tensor parallelism, {dp} ranks")
        name = "tag_dcp"
        make_moe.run_ranks(follow_fsdp, case | dict(name=name, world=2), folder)
        good &= compare(folder, name, expected, f"stage {stage}, FSDP2")
    finally:
        subprocess.run(["fusermount3", "-u", mount], check=True)
    return good


def main():
    stages = [int(s) for s in sys.argv[2:]] or [0, 1, 2, 3]
    sys.exit(not all([check(sys.argv[1], stage) for stage in stages]))


if __name__ == "__main__":
    main()
