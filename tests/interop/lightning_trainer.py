#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lightning trains a small GPT-2 on CPU ranks.

    torchrun ... lightning_trainer.py OUT STRATEGY CHECKPOINT|-

STRATEGY is deepspeed2, deepspeed3, fsdp or model_parallel of Trainer, which trains up to
step 8, one in each epoch, and saves after step 4; or fabric, which loads CHECKPOINT by
Fabric with ModelParallelStrategy and trains up to step 8.  Writes the losses to
OUT/losses.json.
"""

import json
import os
import sys

import lightning
import torch
import transformers
from lightning.fabric.strategies import ModelParallelStrategy
from lightning.pytorch import callbacks, strategies
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

BATCH, LENGTH, WORDS = 8, 16, 64
STEPS, SAVED = 8, 4
WORLD = int(os.environ.get("WORLD_SIZE", 1))

losses = {}


def init_on_cpu(self, *args, init=FullyShardedDataParallel.__init__, **more):
    """FSDP 1 wants a device number, or nothing, for a GPU."""
    init(self, *args, **{**more, "device_id": torch.device("cpu")})


FullyShardedDataParallel.__init__ = init_on_cpu


def rows():
    return (torch.arange(BATCH)[:, None] + torch.arange(LENGTH)) % WORDS


def new_gpt2():
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=WORDS, n_positions=LENGTH,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def new_optimizer(model):
    """Make an optimizer and a schedule whose state determines the next learning rates."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def note(step, loss):
    total = loss.detach().double()
    torch.distributed.all_reduce(total)
    losses[step] = total.item() / WORLD


def shard(gpt2, mesh):
    for block in gpt2.transformer.h:
        fully_shard(block, mesh=mesh)
    fully_shard(gpt2, mesh=mesh)


class Model(lightning.LightningModule):
    def __init__(self, sharded):
        super().__init__()
        self.sharded = sharded

    def configure_model(self):
        if hasattr(self, "gpt2"):
            return
        self.gpt2 = new_gpt2()
        if self.sharded:
            shard(self.gpt2, self.device_mesh["data_parallel"])

    def training_step(self, batch, _):
        loss = self.gpt2(batch, labels=batch).loss
        note(self.global_step + 1, loss)
        return loss

    def configure_optimizers(self):
        optimizer, schedule = new_optimizer(self)
        return [optimizer], [schedule]


class FSDP(strategies.FSDPStrategy):
    """Trainer refuses the class itself if there is no GPU."""


class Wrapped(torch.nn.Module):
    """Gives parameters the same names as Model."""

    def __init__(self):
        super().__init__()
        self.gpt2 = new_gpt2()

    def forward(self, batch):
        return self.gpt2(batch, labels=batch).loss


def strategy(name):
    if name.startswith("deepspeed"):
        return strategies.DeepSpeedStrategy(stage=int(name[-1]))
    if name == "fsdp":
        return FSDP(state_dict_type="sharded")
    return strategies.ModelParallelStrategy(data_parallel_size=WORLD,
                                            tensor_parallel_size=1)


def fit(out, name, checkpoint):
    trainer = lightning.Trainer(
        accelerator="cpu", devices=WORLD, max_epochs=STEPS, logger=False,
        enable_progress_bar=False, strategy=strategy(name),
        callbacks=[callbacks.ModelCheckpoint(dirpath=out, every_n_epochs=SAVED,
                                             save_top_k=-1)])
    trainer.fit(Model(name == "model_parallel"),
                torch.utils.data.DataLoader(rows(), BATCH // WORLD),
                ckpt_path=checkpoint)


def fabric(checkpoint):
    fab = lightning.Fabric(
        accelerator="cpu", devices=WORLD,
        strategy=ModelParallelStrategy(
            lambda model, mesh: shard(model.gpt2, mesh["data_parallel"]) or model,
            data_parallel_size=WORLD, tensor_parallel_size=1))
    fab.launch()
    model = fab.setup(Wrapped())
    optimizer, schedule = new_optimizer(model)
    optimizer = fab.setup_optimizers(optimizer)
    state = {"model": model, "optimizer": optimizer, "global_step": None}
    rest = fab.load(checkpoint, state, weights_only=False)
    schedule.load_state_dict(rest["lr_schedulers"][0])
    for step in range(state["global_step"] + 1, STEPS + 1):
        loss = model(rows()[fab.global_rank::WORLD])
        note(step, loss)
        fab.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def main(out, name, checkpoint):
    lightning.seed_everything(1)
    if name == "fabric":
        fabric(checkpoint)
    else:
        fit(out, name, checkpoint if checkpoint != "-" else None)
    if torch.distributed.get_rank() == 0:
        with open(os.path.join(out, "losses.json"), "w", encoding="utf-8") as f:
            json.dump(losses, f)


if __name__ == "__main__":
    main(*sys.argv[1:])
