# SPDX-License-Identifier: Apache-2.0
"""resume.py STAGE RANKS RUN TAG: milliseconds that DeepSpeed takes to load a
checkpoint of make_bench.py's model, which is universal if its name says so, on so
many CPU ranks, the slowest of them; engines are made before."""

import os
import socket
import sys
import time


def resume(rank, stage, ranks, run, tag, port, took):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(ranks))
    sys.stdout = open(os.devnull, "w", encoding="utf-8")
    import deepspeed
    import torch
    import transformers

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50257, n_positions=1024))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config={
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "Adam",
                          "params": {"lr": 1e-4, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
            "checkpoint": {"load_universal": tag.endswith("_universal")},
        })
    torch.distributed.barrier()
    start = time.perf_counter()
    path, _ = engine.load_checkpoint(run, tag=tag)
    if path is None:
        raise RuntimeError("nothing was loaded")
    torch.distributed.barrier()
    took[rank] = (time.perf_counter() - start) * 1000


def main():
    stage, ranks, run, tag = sys.argv[1:]
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch.multiprocessing as mp

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    took = mp.get_context("spawn").Array("d", int(ranks))
    mp.spawn(resume, (int(stage), int(ranks), run, tag, port, took),
             nprocs=int(ranks))
    print(f"{max(took):.2f}")


if __name__ == "__main__":
    main()
