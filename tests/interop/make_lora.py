#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs of PEFT for tests/good, with the adapters that PEFT itself saved beside them.

    PYTHONPATH=on_cpu torchrun --nproc_per_node 2 make_lora.py OUTPUT CASE...

Writes OUTPUT/<case>/ as Trainer and PEFT do, and OUTPUT/base/, the model that was adapted:
one layer of Llama, 8 wide.  CASE is

    lora_trainer_z2_dp2	The Trainer, which saves no frozen weights, and a head of its own
    lora_dora_z3_dp2	DoRA, all biases trained, frozen weights saved, and a second
			adapter that is not trained
    lora_named_z1_dp2	an adapter called mine, of embeddings and of a linear layer
    lora_two_z2_dp2	two adapters, both trained, of which none is called default
    peft_ia3_z3_dp2	IA3, and a head of its own
    peft_prompt_z2_dp2	prompt tuning

The last three save no frozen weights.

(deepspeed 0.19.8, peft 0.21.2, transformers 5.24 and torch 2.15 were used).
"""
import os
import shutil
import sys

import deepspeed
import peft
import torch
import transformers

WORDS, LENGTH, BATCH = 16, 8, 4
OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-1, "torch_adam": True}}


def rows():
    return (torch.arange(4 * BATCH)[:, None] + torch.arange(LENGTH)) % WORDS


def base_model(directory):
    transformers.set_seed(1)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=LENGTH,
        attention_bias=True, bos_token_id=0, eos_token_id=0, pad_token_id=0))
    if is_first():
        model.save_pretrained(directory)
    model.name_or_path = "base"
    return model


def is_first():
    return os.environ["RANK"] == "0"


def trainer(model, out):
    args = transformers.TrainingArguments(
        output_dir=out, max_steps=4, save_steps=4, per_device_train_batch_size=BATCH // 2,
        learning_rate=1e-1, report_to=[], deepspeed={
            "zero_optimization": {"stage": 2}, "zero_force_ds_cpu_optimizer": False,
            "optimizer": OPTIMIZER,
            "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"})
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=2, target_modules=["q_proj", "down_proj"], modules_to_save=["lm_head"],
        task_type="CAUSAL_LM"))
    transformers.Trainer(model=model, args=args, train_dataset=[
        {"input_ids": row, "labels": row} for row in rows()]).train()


def engine(model, stage, out, whole=True):
    """Train four steps, and save like the Trainer, but with the frozen weights if `whole`."""
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trained, config={
            "zero_optimization": {"stage": stage}, "zero_force_ds_cpu_optimizer": False,
            "optimizer": OPTIMIZER, "train_micro_batch_size_per_gpu": BATCH // 2})
    rank = int(os.environ["RANK"])
    for step in range(4):
        batch = rows()[step * BATCH:][rank * BATCH // 2:][:BATCH // 2]
        engine.backward(engine(input_ids=batch, labels=batch).loss)
        engine.step()
    engine.save_checkpoint(out, tag="global_step4", exclude_frozen_parameters=not whole)
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        if is_first():
            model.save_pretrained(out)


def dora(model, out):
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=2, target_modules=["q_proj", "up_proj"], use_dora=True, bias="all",
        task_type="CAUSAL_LM"))
    model.add_adapter("reference", peft.LoraConfig(
        r=1, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    engine(model, 3, out)


def named(model, out):
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=2, target_modules=["embed_tokens", "v_proj"], task_type="CAUSAL_LM"), "mine")
    engine(model, 1, out)


def two(model, out):
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"), "late")
    model.add_adapter("early", peft.LoraConfig(
        r=1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    model.base_model.set_adapter(["late", "early"])
    engine(model, 2, out, whole=False)


def ia3(model, out):
    model = peft.get_peft_model(model, peft.IA3Config(
        target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"],
        modules_to_save=["lm_head"], task_type="CAUSAL_LM"))
    engine(model, 3, out, whole=False)


def prompt(model, out):
    model = peft.get_peft_model(model, peft.PromptTuningConfig(
        num_virtual_tokens=3, task_type="CAUSAL_LM"))
    engine(model, 2, out, whole=False)


CASES = {"lora_trainer_z2_dp2": trainer, "lora_dora_z3_dp2": dora, "lora_named_z1_dp2": named,
         "lora_two_z2_dp2": two, "peft_ia3_z3_dp2": ia3, "peft_prompt_z2_dp2": prompt}


def main(output, *cases):
    deepspeed.init_distributed("gloo", verbose=False)
    for case in cases:
        out = os.path.join(output, case)
        if is_first():
            shutil.rmtree(out, ignore_errors=True)
        torch.distributed.barrier()
        CASES[case](base_model(os.path.join(output, "base")), out)
        torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
