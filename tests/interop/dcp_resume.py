#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed goes on from a mounted PyTorch distributed checkpoint.

    dcp_resume.py MOUNT [CASE...]

FSDP2 trained and saved each case (tests/good/dcp_CASE), and trained ten more steps;
run.json has their losses.  DeepSpeed loads the universal view into a model with other
weights and an optimizer with other options, in stages 1 to 3 on one and two ranks, and
its losses must be the same.
"""

import json
import os
import subprocess
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import deepspeed
from transformers import GPT2Config, GPT2LMHeadModel

import no_shm  # noqa: F401

GOOD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "good")
CASES = "fsdp2_dp2_fp32", "fsdp2_dp4_uneven", "hsdp_2x2_fp32"
RUNS = [(stage, ranks) for stage in (1, 2, 3) for ranks in (1, 2)]
TOLERANCE = 1e-6


def new_engine(run, stage, world):
    torch.manual_seed(999)
    model = GPT2LMHeadModel(GPT2Config(**run["config"]))
    config = {
        "train_micro_batch_size_per_gpu": len(run["tokens"]) // world,
        "gradient_clipping": 1.0,
        "steps_per_print": 10 ** 6,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"load_universal": True},
    }
    return deepspeed.initialize(
        model=model, config=config,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-9, weight_decay=0.5))[0]


def train_rank(rank, world, stage, path, run, results):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    deepspeed.init_distributed("gloo", verbose=False)
    engine = new_engine(run, stage, world)
    engine.load_checkpoint(path, tag="ckpt_universal")
    tokens = torch.tensor(run["tokens"])[rank::world]
    losses = []
    for _ in run["losses_after"]:
        logits = engine(input_ids=tokens).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1),
                                                 tokens[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        total = loss.detach().double()
        torch.distributed.all_reduce(total)
        losses.append(total.item() / world)
    if rank == 0:
        results.put(losses)
    torch.distributed.destroy_process_group()


def check(case, path, run):
    failed = 0
    for stage, world in RUNS:
        os.environ.update(MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(20000 + os.getpid() % 20000 + stage * 2 + world))
        results = torch.multiprocessing.get_context("spawn").SimpleQueue()
        torch.multiprocessing.spawn(train_rank, (world, stage, path, run, results), world)
        worst = max(abs(a - b) for a, b in zip(results.get(), run["losses_after"]))
        failed += worst > TOLERANCE
        print("%s %s, stage %d, %d ranks: losses differ by %.1e"
              % ("FAIL" if worst > TOLERANCE else "ok  ", case, stage, world, worst), flush=True)
    return failed


def main(mount, *cases):
    failed = 0
    for case in cases or CASES:
        source = os.path.join(GOOD, "dcp_" + case)
        with open(os.path.join(source, "run.json")) as f:
            run = json.load(f)
        server = subprocess.Popen(["ucfs", "-f", source, mount])
        try:
            while not os.path.ismount(mount) and server.poll() is None:
                pass
            failed += check(case, mount, run)
        finally:
            subprocess.run(["fusermount3", "-u", mount], check=True)
            server.wait()
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
