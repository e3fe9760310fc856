# SPDX-License-Identifier: Apache-2.0
"""resume.py STAGE RANKS: an engine of make_bench.py's model on RANKS CPU ranks,
which executes lines of standard input:

    load RUN TAG    loads a checkpoint, which is universal if its name says so
    save RUN TAG    saves one

and answers each with a line: the milliseconds that it took, and the bytes that all
ranks together read from files.  The engine is made before the first line, so the
same processes measure all sides in turns."""

import multiprocessing
import os
import socket
import sys
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ranks are forked, because importing these takes longer than everything else here.
import deepspeed
import torch
import transformers

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "interop"))
import no_shm  # noqa: F401


def new_engine(stage):
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50257, n_positions=1024))
    return deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config={
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "Adam",
                          "params": {"lr": 1e-4, "torch_adam": True}},
            "zero_optimization": {"stage": stage},
        })[0]


def bytes_read():
    with open("/proc/self/io", encoding="ascii") as f:
        return int(f.readline().split()[1])


def total(number):
    tensor = torch.tensor([number])
    torch.distributed.all_reduce(tensor)
    return tensor.item()


def obey(engine, what, run, tag):
    engine._config.load_universal_checkpoint = tag.endswith("_universal")
    torch.distributed.barrier()
    start, before = time.perf_counter(), bytes_read()
    if what == "save":
        engine.save_checkpoint(run, tag=tag)
    elif engine.load_checkpoint(run, tag=tag)[0] is None:
        raise RuntimeError("nothing was loaded")
    read = bytes_read() - before
    torch.distributed.barrier()
    return (time.perf_counter() - start) * 1000, total(read)


def rank_main(rank, stage, ranks, port, lines, answers):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(ranks))
    os.dup2(2, 1)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    engine = new_engine(stage)
    while line := lines.recv():
        answer = obey(engine, *line.split())
        if rank == 0:
            answers.send("%.2f %d" % answer)


def main():
    stage, ranks = int(sys.argv[1]), int(sys.argv[2])
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    answer, answers = fork.Pipe(duplex=False)
    pipes = [fork.Pipe(duplex=False) for _ in range(ranks)]
    processes = [fork.Process(target=rank_main, daemon=True,
                              args=(r, stage, ranks, port, lines, answers))
                 for r, (lines, _) in enumerate(pipes)]
    for p in processes:
        p.start()
    for line in sys.stdin:
        for _, to in pipes:
            to.send(line)
        while not answer.poll(1):
            if not all(p.is_alive() for p in processes):
                sys.exit("a rank failed")
        print(answer.recv(), flush=True)
    for _, to in pipes:
        to.send("")
    for p in processes:
        p.join()


if __name__ == "__main__":
    main()
