# SPDX-License-Identifier: Apache-2.0
"""A mount takes the place of ds_to_universal in programs that save and load in one directory.

    $ torchrun --nproc_per_node 2 latest_universal.py run
    $ mkdir mnt
    $ ucfs run mnt
    $ echo "$PWD/mnt/global_step4_universal" >run/latest_universal
    $ torchrun --nproc_per_node 4 latest_universal.py run
    $ fusermount3 -u mnt

Two GPUs train 8 steps and save after 4; four GPUs train steps 5 to 8 with the same losses.
The converter would have written a tree beside the checkpoint, and its name to
latest_universal, where DeepSpeed's engine looks for it.  The name can as well be the path
of the tree in a mount.

This is what OpenRLHF needs, too, with --ds.use_universal_ckpt (--use_ds_universal_ckpt in
older versions), instead of its script ckpt_ds_zero_to_universal.sh.  Each of _actor and
_critic in its directory has a latest_universal of its own.
"""
import os
import sys

import deepspeed
import torch

STEPS, SAVED = 8, 4
BATCH, WIDTH = 8, 16


def main(directory):
    deepspeed.init_distributed()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    resume = os.path.exists(os.path.join(directory, "latest_universal"))
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.GELU(),
                                torch.nn.Linear(64, WIDTH))
    engine, _, _, _ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        config={"train_batch_size": BATCH, "zero_optimization": {"stage": 2},
                "zero_allow_untested_optimizer": True,
                "checkpoint": {"load_universal": resume}})
    if resume:
        engine.load_checkpoint(directory)
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
