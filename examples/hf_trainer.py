# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with DeepSpeed resumes on another number of GPUs.

    $ torchrun --nproc_per_node 2 hf_trainer.py run
    $ mkdir mnt
    $ ucfs -o ranks=4,replace run mnt
    $ torchrun --nproc_per_node 4 hf_trainer.py run4 mnt/checkpoint-4
    $ fusermount3 -u mnt

Two GPUs train 8 steps and save every 4.  mnt/checkpoint-4 is the checkpoint as four GPUs would
have saved it, so the program needs no change.  The global batch stays the same, so steps 5 to 8
have the same losses.
"""
import os
import sys

import torch
import transformers

BATCH, LENGTH, WORDS = 8, 16, 64


class PrintLoss(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print("step", state.global_step, "loss", logs["loss"])


def main(directory, checkpoint=None):
    args = transformers.TrainingArguments(
        output_dir=directory, max_steps=8, save_steps=4, logging_steps=1,
        per_device_train_batch_size=BATCH // int(os.environ["WORLD_SIZE"]),
        learning_rate=1e-2, report_to=[], use_cpu=not torch.cuda.is_available(),
        deepspeed={"zero_optimization": {"stage": 3},
                   "train_micro_batch_size_per_gpu": "auto",
                   "gradient_accumulation_steps": "auto"})
    transformers.set_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=WORDS, n_positions=LENGTH,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    rows = (torch.arange(8 * BATCH)[:, None] + torch.arange(LENGTH)) % WORDS
    trainer = transformers.Trainer(
        model=model, args=args, callbacks=[PrintLoss()],
        train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
