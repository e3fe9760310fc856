# SPDX-License-Identifier: Apache-2.0
"""A loop of Accelerate with DeepSpeed resumes on another number of GPUs.

    $ torchrun --nproc_per_node 2 accelerate_state.py run
    $ mkdir mnt
    $ ucfs -o ranks=4,replace run mnt
    $ torchrun --nproc_per_node 4 accelerate_state.py run4 mnt/step4
    $ fusermount3 -u mnt

Two GPUs train 8 steps and save after 4.  mnt/step4 is the state as four GPUs would have saved
it, so load_state() accepts it.  The global batch stays the same, so steps 5 to 8 have the same
losses.
"""
import os
import sys

import accelerate
import torch
import transformers

STEPS, SAVED = 8, 4
BATCH, LENGTH, WORDS = 8, 16, 64


def main(directory, state=None):
    ranks = int(os.environ["WORLD_SIZE"])
    if not torch.cuda.is_available():
        accelerate.PartialState(cpu=True)  # its ranks meet by gloo
    accelerator = accelerate.Accelerator(deepspeed_plugin=accelerate.DeepSpeedPlugin(
        zero_stage=2, gradient_accumulation_steps=1))
    accelerate.utils.set_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=WORDS, n_positions=LENGTH,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    rows = (torch.arange(STEPS * BATCH)[:, None] + torch.arange(LENGTH)) % WORDS
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2),
        torch.utils.data.DataLoader(rows, batch_size=BATCH // ranks))
    done = 0
    if state:
        accelerator.load_state(state)
        done = SAVED
    for step, ids in enumerate(accelerator.skip_first_batches(loader, done), done + 1):
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        loss = accelerator.reduce(loss.detach(), "mean")
        accelerator.print("step", step, "loss", loss.item())
        if step == SAVED:
            accelerator.save_state(os.path.join(directory, f"step{step}"))
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
