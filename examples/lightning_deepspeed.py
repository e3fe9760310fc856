# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer with DeepSpeedStrategy resumes on another number of GPUs.

    $ torchrun --nproc_per_node 2 lightning_deepspeed.py run
    $ mkdir mnt
    $ ucfs -o ranks=4,replace run mnt
    $ torchrun --nproc_per_node 4 lightning_deepspeed.py run4 mnt/epoch=3-step=4.ckpt
    $ fusermount3 -u mnt

Two GPUs train 8 epochs of one step and save every 4.  mnt/epoch=3-step=4.ckpt is the
checkpoint as four GPUs would have saved it, so the program needs no change.  The global
batch stays the same, so steps 5 to 8 have the same losses.
"""
import os
import sys

import torch
import transformers
import lightning

BATCH, LENGTH, WORDS = 8, 16, 64
WORLD = int(os.environ["WORLD_SIZE"])


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=32, vocab_size=WORDS, n_positions=LENGTH,
            resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))

    def training_step(self, rows, _):
        loss = self.gpt2(rows, labels=rows).loss
        total = self.all_gather(loss.detach()).mean().item()
        if self.global_rank == 0:
            print("step", self.global_step + 1, "loss", total)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main(directory, checkpoint=None):
    lightning.seed_everything(1)
    trainer = lightning.Trainer(
        devices=WORLD, max_epochs=8, logger=False, enable_progress_bar=False,
        strategy=lightning.pytorch.strategies.DeepSpeedStrategy(stage=2),
        callbacks=[lightning.pytorch.callbacks.ModelCheckpoint(
            dirpath=directory, every_n_epochs=4, save_top_k=-1)])
    rows = (torch.arange(BATCH)[:, None] + torch.arange(LENGTH)) % WORDS
    trainer.fit(Model(), torch.utils.data.DataLoader(rows, BATCH // WORLD),
                ckpt_path=checkpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
