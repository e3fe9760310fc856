#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the checkpoint that tests/bench reads, with real DeepSpeed.

    make_bench.py [--stage 1|2|3] [--ranks N] OUTPUT

A GPT-2 of 124 million parameters (Hugging Face's GPT2LMHeadModel, weights
tied), float32, Adam, on CPU ranks over gloo: one step on a tiny batch, then
saved to OUTPUT/global_step1.  About 2 GB for stages 1 and 2, 1.5 GB for stage
3; each rank needs about 2 GB of memory.  Needs PyTorch, transformers
and DeepSpeed; nothing is downloaded.
"""

import argparse
import os
import socket

VOCABULARY = 50257
CONTEXT = 1024


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def train_and_save(rank, args, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(args.ranks))
    import deepspeed
    import torch
    import transformers

    import no_shm  # noqa: F401

    torch.set_num_threads(1)
    torch.manual_seed(1)
    deepspeed.init_distributed("gloo")
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=CONTEXT))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "optimizer": {"type": "Adam",
                          "params": {"lr": 1e-4, "torch_adam": True}},
            "zero_optimization": {"stage": args.stage},
            "steps_per_print": 1 << 30,
        })
    ids = torch.randint(0, VOCABULARY, (1, 8))
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    engine.save_checkpoint(args.output, tag="global_step1")
    torch.distributed.barrier()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--stage", type=int, choices=(1, 2, 3), default=1)
    p.add_argument("--ranks", type=int, default=4)
    p.add_argument("output")
    args = p.parse_args()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch.multiprocessing

    torch.multiprocessing.spawn(train_and_save, (args, free_port()),
                                nprocs=args.ranks)


if __name__ == "__main__":
    main()
