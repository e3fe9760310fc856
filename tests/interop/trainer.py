#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed resumes from what the trainer saved.

    trainer.py TAG STAGE DTYPE RANKS TRUTH [universal]

TAG is the directory of a checkpoint that the trainer saved, or a universal
one made of it; TRUTH is the universal tree, for its elements.  Starts RANKS
processes with Hugging Face's GPT-2 in an engine of DeepSpeed, which loads TAG.
Masters, moments and steps must then be those of TRUTH, bit for bit, and a step
of training must give a finite loss and change every parameter.
"""

import json
import math
import multiprocessing
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import deepspeed
from deepspeed.utils import (safe_get_full_fp32_param,
                             safe_get_full_optimizer_state)
from transformers import GPT2Config, GPT2LMHeadModel

import no_shm  # noqa: F401

SHAPE = json.loads(os.environ["TRAINER_SHAPE"])


def new_engine(stage, dtype, universal):
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(
        **SHAPE, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "steps_per_print": 10 ** 6,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": dtype == "bf16"},
        "checkpoint": {"load_universal": universal},
    }
    return deepspeed.initialize(model=model, optimizer=optimizer,
                                model_parameters=model.parameters(),
                                config=config)[0]


def truth_of(tree, name, state):
    value = torch.load(f"{tree}/zero/{name}/{state}.pt", weights_only=False)
    return value["param"] if isinstance(value, dict) else value


def link_states(engine):
    """Let safe_get_full_optimizer_state find the loaded states: ZeRO-1 and 2 link states only
    after a step."""
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        engine.optimizer._lazy_init_hp_params_optimizer_state()


def compare(engine, tree):
    """Return the names of states that differ."""
    wrong = []
    link_states(engine)
    for name, param in engine.module.named_parameters():
        have = {"fp32": safe_get_full_fp32_param(param)}
        for state in "exp_avg", "exp_avg_sq":
            have[state] = safe_get_full_optimizer_state(param, state)
        for state, tensor in have.items():
            want = truth_of(tree, name, state).detach().flatten()
            if not torch.equal(tensor.detach().flatten().cpu(), want):
                wrong.append(f"{name} {state}")
    return wrong


def steps_of(engine):
    inner = engine.optimizer.optimizer
    return {float(s["step"]) for s in inner.state.values() if "step" in s}


def train_step(engine):
    before = {n: safe_get_full_fp32_param(p).clone()
              for n, p in engine.module.named_parameters()}
    tokens = torch.arange(SHAPE["n_positions"]).unsqueeze(0)
    tokens = tokens % SHAPE["vocab_size"]
    loss = engine(tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    still = [n for n, p in engine.module.named_parameters()
             if torch.equal(before[n], safe_get_full_fp32_param(p))]
    return loss.item(), still


def work(rank, ranks, port, tag, stage, dtype, tree, universal, results):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    deepspeed.init_distributed("gloo", verbose=False)
    engine = new_engine(stage, dtype, universal)
    directory, name = os.path.split(tag)
    path, _ = engine.load_checkpoint(directory, tag=name)
    said = []
    if path is None:
        said.append("nothing was loaded")
    said += [f"{x} differs" for x in compare(engine, tree)]
    steps = steps_of(engine)
    if steps != {float(engine.global_steps)}:
        said.append(f"steps are {steps}, not {engine.global_steps}")
    loss, still = train_step(engine)
    if not math.isfinite(loss):
        said.append(f"the loss is {loss}")
    said += [f"{x} was not trained" for x in still]
    results.put((rank, said))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main():
    tag, stage, dtype, ranks, tree = sys.argv[1:6]
    universal = sys.argv[6:] == ["universal"]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    port = 20000 + os.getpid() % 20000
    workers = [context.Process(target=work, args=(
        r, int(ranks), port, tag, int(stage), dtype, tree, universal, results))
        for r in range(int(ranks))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    failed = [w.exitcode for w in workers if w.exitcode]
    said = [f"rank {r}: {s}" for r, lines in
            (results.get() for _ in workers if not failed) for s in lines]
    print(*said, sep="\n", end="\n" if said else "")
    return bool(failed or said)


if __name__ == "__main__":
    sys.exit(main())
