#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP2 continues training from TAG_dcp of a DeepSpeed run.

    dcp_view.py SCRATCH [RUN...]

DeepSpeed saved the runs of tests/good/curves on four ranks after step 10.  A model with
other weights and an optimizer with other settings load the view on 1 to 4 ranks, in the
way of each dcp_style, and train steps 11 to 20; with bfloat16, in FSDP2's mixed
precision.  The losses must equal those of DeepSpeed's uninterrupted run within LIMIT.
Loading only the model, and dcp_to_torch_save, must give the weights of TAG_fp32.

With torch 2.15 the losses differed by at most 7.2e-7, with bfloat16 by 1.4e-3.
"""

import csv
import os
import sys

import accelerate
import torch
import torch.distributed.checkpoint as dcp
import transformers
from accelerate.utils import fsdp_utils
from torch.distributed.checkpoint import state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import dcp_read
import resume
import recut_curves as curves

LIMIT = {"fp32": 1e-6, "bf16": 3e-2}
STYLES = {"fsdp2": (1, 2, 3, 4), "flat": (1, 2, 3, 4), "titan": (2,),
          "accelerate": (2,), "fabric": (2,)}
RUNS = {"gpt2_z1_fp32_dp4": STYLES, "gpt2_z3_fp32_dp4": STYLES,
        "gpt2_z2_bf16_dp4": {"fsdp2": (1, 2, 3, 4)}}


def whole_model():
    torch.manual_seed(999)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=curves.WORDS,
        n_positions=curves.LENGTH, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def new_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-9, weight_decay=0.5)


def dtype_of(run):
    return "bf16" if "bf16" in run else "fp32"


def new_model(world, dtype):
    model = whole_model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    how = {"mesh": torch.distributed.init_device_mesh("cpu", (world,)),
           **({"mp_policy": policy} if dtype == "bf16" else {})}
    for block in model.transformer.h:
        fully_shard(block, **how)
    fully_shard(model, **how)
    return model


def load_accelerate(view):
    """Load a model and an optimizer as Accelerator.load_state does with FSDP2."""
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, state_dict_type="SHARDED_STATE_DICT",
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["GPT2Block"], cpu_ram_efficient_loading=False)
    accelerator = accelerate.Accelerator(cpu=True, fsdp_plugin=plugin)
    # Accelerate selects FSDP only if there is an accelerator.
    accelerator.state.distributed_type = accelerate.utils.DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    model = whole_model()
    optimizer = new_optimizer(model)
    # This adds initial_lr, which the optimizer then requires.
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1)
    model, optimizer = accelerator._prepare_fsdp2(model, optimizer)
    fsdp_utils.load_fsdp_model(plugin, accelerator, model, view)
    fsdp_utils.load_fsdp_optimizer(plugin, accelerator, optimizer, model, view)
    return model, optimizer.optimizer


def load(model, optimizer, view, style):
    options = state_dict.StateDictOptions(
        flatten_optimizer_state_dict=style in ("flat", "titan"))
    weights, optim = state_dict.get_state_dict(model, optimizer, options=options)
    state = {
        "fsdp2": {"model": weights, "optim": optim},
        "flat": {"model": weights, "optim": optim},
        "titan": {**weights, "optimizer": optim},
        "fabric": {"model": weights, "optimizer": optim},
    }[style]
    dcp.load(state, checkpoint_id=view)
    # dcp.load fills tensors in place and replaces other values.
    weights = state.get("model", weights)
    optim = state.get("optim", state.get("optimizer"))
    state_dict.set_state_dict(model, optimizer, model_state_dict=weights,
                              optim_state_dict=optim, options=options)


def train(model, optimizer, rank, world):
    """Return the loss of each step, the mean over all rows."""
    rows, losses = curves.tokens()[rank::world], []
    for _ in curves.STEPS:
        share = len(rows) / curves.BATCH
        loss = model(rows, labels=rows).loss * share
        (loss * world).backward()  # FSDP averages gradients
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().double()
        torch.distributed.all_reduce(total)
        losses.append(total.item())
    return losses


def follow(rank, world, view, style, dtype, out):
    if style == "accelerate":
        model, optimizer = load_accelerate(view)
    else:
        model = new_model(world, dtype)
        optimizer = new_optimizer(model)
        load(model, optimizer, view, style)
    losses = train(model, optimizer, rank, world)
    if rank == 0:
        torch.save(losses, out)


def weigh(_, world, view, out):
    """Load only the model."""
    model = new_model(world, "fp32")
    state = {"model": state_dict.get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=view)
    torch.save({name: tensor.full_tensor() for name, tensor in state["model"].items()}, out)


def expected(run):
    with open(os.path.join(curves.CURVES, run, "baseline_dp4.csv"), encoding="utf-8") as f:
        losses = {int(row["step"]): float(row["loss"]) for row in csv.DictReader(f)}
    return [losses[i] for i in curves.STEPS]


class Mount(resume.Mount):
    def __init__(self, run, where, style):
        super().__init__(os.path.realpath(os.path.join(curves.CURVES, run)), where,
                         "-o", "dcp_style=" + style)

    def __enter__(self):
        return os.path.join(super().__enter__(), curves.TAG + "_dcp")


def check_losses(run, style, ranks, top):
    """Return the number of failed checks."""
    failed = 0
    with Mount(run, os.path.join(top, "mount"), style) as view:
        for world in ranks:
            out = os.path.join(top, f"{world}.pt")
            resume.on_ranks(world, follow, out + ".log", world, view, style,
                            dtype_of(run), out)
            far = max(abs(a - b) for a, b in zip(torch.load(out), expected(run)))
            good = far <= LIMIT[dtype_of(run)]
            print(f"{run}, {style}, {world} ranks: apart {far:.2g}"
                  f"{'' if good else ' WRONG'}", flush=True)
            failed += not good
    return failed


def check_weights(run, top):
    out = os.path.join(top, "weights.pt")
    with Mount(run, os.path.join(top, "mount"), "fsdp2") as view:
        resume.on_ranks(1, weigh, out + ".log", 1, view, out)
        good = all(dcp_read.holds(weights, view)
                   for weights in (torch.load(out), dcp_read.read(view)["model"]))
    print(f"{run}: weights are {'those' if good else 'NOT those'} of {curves.TAG}_fp32")
    return not good


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    failed = 0
    for run in sys.argv[2:] or RUNS:
        for style, ranks in RUNS[run].items():
            top = os.path.join(sys.argv[1], run, style)
            os.makedirs(top)
            failed += check_losses(run, style, ranks, top)
        failed += check_weights(run, os.path.join(sys.argv[1], run))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
