#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start training in unmodified DeepSpeed from mounted Hugging Face weights.

    resume_hf.py DIRECTORY TAG STAGE OPTIMIZER [offload]

DIRECTORY/TAG is a mount, with stage=any, of tests/good/
hfdir_gpt2_bf16_sharded.  A new model of transformers loads it and takes four
steps; its weights must be those of the directory, and its steps must count
from 0.  OPTIMIZER is torch's AdamW or, with `offload`, DeepSpeed's Adam.
The last line has the losses, which are the same in all stages.
"""

import glob
import os
import sys

os.environ.update({"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0",
                   "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": os.environ.get("MASTER_PORT", "29517")})

import deepspeed
import torch
import transformers
from deepspeed.utils import safe_get_full_fp32_param
from safetensors.torch import load_file

import no_shm  # noqa: F401

WEIGHTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "good",
                       "hfdir_gpt2_bf16_sharded")


def main():
    place, tag, stage, optimizer = sys.argv[1:5]
    offload = sys.argv[5:] == ["offload"]
    zero = {"stage": int(stage)}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    params = {"lr": 1e-3} if offload else {"lr": 1e-3, "torch_adam": True}
    torch.manual_seed(7)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config.from_pretrained(
        WEIGHTS, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0))
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config={
            "train_batch_size": 1, "zero_optimization": zero,
            "zero_allow_untested_optimizer": True,
            "checkpoint": {"load_universal": True},
            "optimizer": {"type": optimizer, "params": params},
            "scheduler": {"type": "WarmupLR",
                          "params": {"warmup_num_steps": 10}}})
    engine.load_checkpoint(place, tag=tag)
    assert engine.global_steps == 0
    truth = {}
    for path in glob.glob(os.path.join(WEIGHTS, "model-*.safetensors")):
        truth.update(load_file(path))
    for name, p in engine.module.named_parameters():
        got = safe_get_full_fp32_param(p)
        assert torch.equal(got.reshape(-1), truth[name].float().reshape(-1)), name
    ids = torch.arange(16).reshape(1, 16)
    losses = []
    for _ in range(4):
        loss = engine(input_ids=ids, labels=ids).loss
        losses.append(loss.item())
        engine.backward(loss)
        engine.step()
    assert losses[-1] < losses[0]
    print("stage", stage, optimizer, *(f"{x:.5f}" for x in losses))


main()
