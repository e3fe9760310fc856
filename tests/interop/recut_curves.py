#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed resumes the runs of tests/good/curves on other ranks, from a mount.

    recut_curves.py SCRATCH [RUN...]

Four ranks saved each run after step 10.  1, 2 and 8 ranks load TAG_universal, with
load_universal, and without it TAG_dpN, and TAG_dpN_zS for the other stages, and train
steps 11 to 20.  The losses after a re-cut load must equal those of the universal resume:
exactly in the saved stage, within LIMIT in others.

0.19.8 passes; in other stages losses differ by at most 2.4e-7 in float32 and by 6.3e-4
in bfloat16.
"""

import os
import sys

import torch
import deepspeed
import transformers

import resume

CURVES = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                      "..", "good", "curves")
RUNS = {"gpt2_z1_fp32_dp4": 1, "gpt2_z2_bf16_dp4": 2, "gpt2_z3_fp32_dp4": 3}
RANKS = 1, 2, 8
TAG = "global_step10"
STEPS = range(11, 21)
BATCH, WORDS, LENGTH = 16, 256, 32

# Other stages sum gradients in another order.
LIMIT = {"fp32": 2e-6, "bf16": 2e-3}


def tokens():
    with open(os.path.join(CURVES, "tokens.i32"), "rb") as f:
        words = torch.frombuffer(bytearray(f.read()), dtype=torch.int32)
    return words.view(-1, LENGTH)[:BATCH].long()


def new_engine(stage, dtype, micro, universal):
    torch.manual_seed(42)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=WORDS, n_positions=LENGTH,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3,
                                  weight_decay=0.01)
    return deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_batch_size": BATCH, "train_micro_batch_size_per_gpu": micro,
        "gradient_clipping": 1.0, "steps_per_print": 10 ** 6,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": dtype == "bf16"},
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"load_universal": universal}})[0]


def train(engine, rank, world, micro):
    """Return the loss of each step: the mean over ranks and micro-batches."""
    rows, losses = tokens()[rank::world], []
    for _ in STEPS:
        total = torch.zeros((), dtype=torch.float64)
        for batch in rows.split(micro):
            loss = engine(batch, labels=batch).loss
            total += loss.item() * len(batch) / BATCH
            engine.backward(loss)
            engine.step()
        torch.distributed.all_reduce(total)
        losses.append(total.item())
    return losses


def views(stage, world):
    """Return the name of a view, the engine's stage, and load_universal."""
    yield f"{TAG}_universal", stage, True
    yield f"{TAG}_dp{world}", stage, False
    for other in {1, 2, 3} - {stage}:
        yield f"{TAG}_dp{world}_z{other}", other, False


def follow(rank, world, mount, stage, dtype, out):
    micro, losses = min(4, BATCH // world), {}
    for tag, to, universal in views(stage, world):
        engine = new_engine(to, dtype, micro, universal)
        if engine.load_checkpoint(mount, tag=tag)[0] is None:
            raise RuntimeError("nothing was loaded")
        losses[tag] = train(engine, rank, world, micro)
        engine.destroy()
    if rank == 0:
        torch.save(losses, out)


def compare(losses, stage, world, dtype):
    whole, failed = losses[f"{TAG}_universal"], 0
    for tag, to, universal in views(stage, world):
        far = max(abs(a - b) for a, b in zip(whole, losses[tag]))
        good = far <= (0 if to == stage else LIMIT[dtype])
        print(f"    {tag:26} stage {to}: {losses[tag][0]:.7f} .. "
              f"{losses[tag][-1]:.7f}, apart {far:.2g}"
              f"{'' if good else ' WRONG'}", flush=True)
        failed += not good
    return failed


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    scratch, failed = sys.argv[1], 0
    for run in sys.argv[2:] or RUNS:
        dtype = "bf16" if "bf16" in run else "fp32"
        for world in RANKS:
            top = os.path.join(scratch, f"{run}_{world}")
            os.makedirs(top)
            out = os.path.join(top, "losses.pt")
            with resume.Mount(os.path.realpath(os.path.join(CURVES, run)),
                              os.path.join(top, "mount")) as mount:
                resume.on_ranks(world, follow, os.path.join(top, "log"), world,
                                mount, RUNS[run], dtype, out)
            print(f"{run}, {world} ranks", flush=True)
            failed += compare(torch.load(out), RUNS[run], world, dtype)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
