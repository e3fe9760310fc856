#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism, with FSDP2 or alone, continues training from TAG_dcp.

    dcp_view_tp.py save RUN STAGE
    dcp_view_tp.py follow RUN MOUNT DPxTP

`save` needs DeepSpeed, which trains a model on two ranks, saves it in RUN and trains
STEPS more.  `follow` needs only torch (2.4 or later): on a mesh of DP x TP ranks a model
with other weights and an optimizer with other settings load the view of MOUNT and train
these steps.  The losses must be the same within LIMIT.

With torch 2.15 and 2.4.1 they differed by at most 4.8e-7.
"""

import json
import os
import sys
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel
from torch.nn import functional

try:
    from torch.distributed.tensor import Replicate
except ImportError:  # torch 2.4 has another name
    from torch.distributed._tensor import Replicate

from titan import Titan, WORDS

LIMIT = 1e-6
STEPS = 10
ROWS, LENGTH = 8, 16
SAVED_ON = 2
TAG = "global_step10"
LOSSES = "losses.json"
BLOCK = {
    "attention.wq": parallel.ColwiseParallel(),
    "attention.wk": parallel.ColwiseParallel(),
    "attention.wv": parallel.ColwiseParallel(),
    "attention.wo": parallel.RowwiseParallel(),
    "feed_forward.w1": parallel.ColwiseParallel(),
    "feed_forward.w3": parallel.ColwiseParallel(),
    "feed_forward.w2": parallel.RowwiseParallel(),
}


def tokens():
    chance = torch.Generator().manual_seed(7)
    return torch.randint(0, WORDS, (ROWS, LENGTH), generator=chance)


def share_of_loss(model, rows):
    """Return these rows' part of the mean over all rows."""
    logits = model(rows)[:, :-1]
    return functional.cross_entropy(logits.flatten(0, 1),
                                    rows[:, 1:].flatten()) * (len(rows) / ROWS)


def train(model, rows, step, data_parallel=None):
    """Return the losses of STEPS; step(loss) runs backward and an optimizer step."""
    losses = []
    for _ in range(STEPS):
        loss = share_of_loss(model, rows)
        step(loss)
        total = loss.detach().double()
        if data_parallel:
            dist.all_reduce(total, group=data_parallel)
        losses.append(total.item())
    return losses


def write(losses, path):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(losses, f)


def read(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def train_and_save(rank, run, stage):
    import deepspeed
    torch.manual_seed(42)
    model = Titan(torch.nn.RMSNorm)
    engine = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=5e-3),
        config={"train_micro_batch_size_per_gpu": ROWS // SAVED_ON,
                "steps_per_print": 10 ** 6,
                "zero_optimization": {"stage": stage},
                "zero_allow_untested_optimizer": True})[0]

    def step(loss):
        engine.backward(loss * SAVED_ON)  # DeepSpeed averages gradients
        engine.step()

    rows = tokens()[rank::SAVED_ON]
    train(engine, rows, step, dist.group.WORLD)
    engine.save_checkpoint(run, tag=TAG)
    losses = train(engine, rows, step, dist.group.WORLD)
    if rank == 0:
        write(losses, os.path.join(run, LOSSES))


def load(model, optimizer, view):
    weights, optim = state_dict.get_state_dict(model, optimizer)
    state = {"model": weights, "optim": optim}
    dcp.load(state, checkpoint_id=view)
    state_dict.set_state_dict(model, optimizer, model_state_dict=state["model"],
                              optim_state_dict=state["optim"])


def shard(model, mesh):
    """Divide the model along the mesh dimensions that have more than one rank."""
    if mesh["tp"].size() > 1:
        parallel.parallelize_module(model, mesh["tp"], {
            "tok_embeddings": parallel.RowwiseParallel(input_layouts=Replicate()),
            "output": parallel.ColwiseParallel(output_layouts=Replicate())})
        parallel.parallelize_module(model.layers["0"], mesh["tp"], BLOCK)
    if mesh["dp"].size() > 1:
        from torch.distributed.fsdp import fully_shard  # torch 2.4 lacks it
        fully_shard(model.layers["0"], mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])


def follow(rank, view, dp, tp, meet, out):
    if dp * tp > 1:  # a single process needs no group
        dist.init_process_group("gloo", init_method="file://" + meet, rank=rank,
                                world_size=dp * tp)
        mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(999)
    model = Titan(torch.nn.RMSNorm)
    if dp * tp > 1:
        shard(model, mesh)
    # Not all parameters are divided, and foreach cannot mix both kinds.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9, weight_decay=0.5,
                                  foreach=False)
    load(model, optimizer, view)

    def step(loss):
        (loss * dp).backward()  # FSDP averages gradients
        optimizer.step()
        optimizer.zero_grad()

    losses = train(model, tokens()[rank // tp::dp], step,
                   mesh["dp"].get_group() if dp > 1 else None)
    if rank == 0:
        write(losses, out)
    os._exit(0)  # torch 2.4 may hang in destroy_process_group


def check(run, mount, dp, tp):
    """Return whether the losses equal those of `run`."""
    with tempfile.TemporaryDirectory() as top:
        out = os.path.join(top, LOSSES)
        torch.multiprocessing.spawn(
            follow, (os.path.join(mount, TAG + "_dcp"), dp, tp,
                     os.path.join(top, "meet"), out), dp * tp)
        far = max(abs(a - b) for a, b in
                  zip(read(out), read(os.path.join(run, LOSSES)), strict=True))
    good = far <= LIMIT
    print(f"{os.path.basename(run)}, torch {torch.__version__}, {dp} x TP {tp}: "
          f"apart {far:.2g}{'' if good else ' WRONG'}", flush=True)
    return good


def main(what, run, *args):
    if what == "save":
        import resume
        os.makedirs(run)
        resume.on_ranks(SAVED_ON, train_and_save, run + ".log", run, int(args[0]))
        return 0
    return not check(run, args[0], *map(int, args[1].split("x")))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
