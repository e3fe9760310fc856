# SPDX-License-Identifier: Apache-2.0
"""TRL's SFTTrainer, LoRA and DeepSpeed resume on another number of GPUs.

    $ torchrun --nproc_per_node 2 trl_lora.py run
    $ mkdir mnt
    $ ucfs -o ranks=4,replace run mnt
    $ torchrun --nproc_per_node 4 trl_lora.py run4 mnt/checkpoint-4
    $ fusermount3 -u mnt

Two GPUs train 8 steps and save every 4.  The checkpoint has the adapter alone, and
mnt/checkpoint-4 is the checkpoint as four GPUs would have saved it, so the program needs no
change.  The global batch stays the same, so steps 5 to 8 have the same losses.
"""
import os
import sys

import datasets
import peft
import tokenizers
import torch
import transformers
import trl

BATCH, LENGTH, WORDS = 8, 16, 64


class PrintLoss(transformers.TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print("step", state.global_step, "loss", logs["loss"])


def main(directory, checkpoint=None):
    args = trl.SFTConfig(
        output_dir=directory, max_steps=8, save_steps=4, logging_steps=1,
        per_device_train_batch_size=BATCH // int(os.environ["WORLD_SIZE"]),
        learning_rate=1e-1, report_to=[], bf16=False, max_length=LENGTH,
        use_cpu=not torch.cuda.is_available(),
        deepspeed={"zero_optimization": {"stage": 2},
                   "train_micro_batch_size_per_gpu": "auto",
                   "gradient_accumulation_steps": "auto"})
    transformers.set_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=WORDS, n_positions=LENGTH,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0))
    words = {str(n): n for n in range(WORDS)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "0")),
        eos_token="0", pad_token="0")
    rows = (torch.arange(8 * BATCH)[:, None] + torch.arange(LENGTH)) % WORDS
    trainer = trl.SFTTrainer(
        model=model, args=args, callbacks=[PrintLoss()], processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_dict({"input_ids": rows.tolist()}),
        peft_config=peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True,
                                    task_type="CAUSAL_LM"))
    trainer.train(resume_from_checkpoint=checkpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
