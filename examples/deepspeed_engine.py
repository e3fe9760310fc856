# SPDX-License-Identifier: Apache-2.0
"""A loop of DeepSpeed's engine resumes on another number of GPUs.

    $ torchrun --nproc_per_node 2 deepspeed_engine.py run
    $ mkdir mnt
    $ ucfs run mnt
    $ torchrun --nproc_per_node 4 deepspeed_engine.py run4 mnt global_step4_dp4
    $ fusermount3 -u mnt

Two GPUs train 8 steps and save after 4.  The tag global_step4_dp4 is the checkpoint as four
GPUs would have saved it.  The global batch stays the same, so steps 5 to 8 have the same losses.
"""
import sys

import deepspeed
import torch

STEPS, SAVED = 8, 4
BATCH, WIDTH = 8, 16


def main(directory, source=None, tag=None):
    deepspeed.init_distributed()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.GELU(),
                                torch.nn.Linear(64, WIDTH))
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        config={"train_batch_size": BATCH, "zero_optimization": {"stage": 1},
                "zero_allow_untested_optimizer": True})
    if source:
        engine.load_checkpoint(source, tag=tag)
    rows = torch.randn((STEPS, BATCH, WIDTH), generator=torch.Generator().manual_seed(1))
    for step in range(engine.global_steps, STEPS):
        mine = rows[step].chunk(ranks)[rank].to(engine.device)
        loss = torch.nn.functional.mse_loss(engine(mine), mine.flip(1))
        engine.backward(loss)
        engine.step()
        loss = loss.detach() / ranks
        torch.distributed.all_reduce(loss)
        if rank == 0:
            print("step", step + 1, "loss", loss.item())
        if step + 1 == SAVED:
            engine.save_checkpoint(directory)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
