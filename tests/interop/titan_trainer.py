#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchtitan's trainer on CPU ranks, with a model of two layers and fixed data.

    torchrun ... titan_trainer.py OUT STEPS FUSED TENSOR_PARALLEL VIEW|- SAVE_EVERY|-

Trains up to STEPS, from VIEW or from the beginning, saves in OUT/checkpoint, and writes
the losses to OUT/losses.json.  FUSED is 1 for a model with one matrix for q, k and v.
"""

import dataclasses
import json
import os
import sys

import torch

# Must precede the import of torchtitan, which cannot select the CPU otherwise.
torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.current_device = lambda: 0

from torch.distributed.fsdp import FSDPModule
from torchtitan.components import metrics, optimizer, tokenizer
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models import llama3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_gqa_config
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

ROWS, LENGTH, WORDS = 8, 16, 2048
HEADS, KV_HEADS, HEAD = 16, 4, 16
LR, BETAS, DECAY = 1e-3, (0.9, 0.95), 0.1
ALL_STEPS = 20  # steps of the schedule

losses = {}


class Monitor:
    """Replaces statistics of a GPU's memory."""
    device_name = "CPU"

    def get_peak_stats(self):
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

    def reset_peak_stats(self):
        pass


def log(_, step, loss, *_args, **_more):
    losses[step] = loss


def set_factor(self, factor, set_it=FSDPModule.set_gradient_divide_factor):
    """Gloo can sum gradients, but not multiply them, too."""
    set_it(self, factor)
    self.set_force_sum_reduction_for_comms(True)


metrics.build_device_memory_monitor = Monitor
metrics.MetricsProcessor.log = log
FSDPModule.set_gradient_divide_factor = set_factor


def rows():
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, WORDS, (ROWS, LENGTH + 1), generator=generator)


class Rows(BaseDataLoader):
    """Yields the same rows in each step."""

    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, *, dp_world_size, dp_rank, **_):
        self.rows = rows()[dp_rank::dp_world_size]

    def __iter__(self):
        while True:
            yield {"input": self.rows[:, :-1]}, self.rows[:, 1:].contiguous()

    def state_dict(self):
        return {"rows": len(self.rows)}

    def load_state_dict(self, state_dict):
        raise NotImplementedError


class NoTokenizer(tokenizer.BaseTokenizer):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(tokenizer.BaseTokenizer.Config):
        pass

    def __init__(self, **_):
        super().__init__()

    encode = decode = get_vocab_size = None


def model_config(fused):
    """Makes torchtitan's debug model with fewer layers, and attention that a CPU can train."""
    config = llama3.llama3_configs["debugmodel"](attn_backend="flex")
    config.layers = config.layers[:2]
    for i, layer in enumerate(config.layers):
        layer.attention = make_gqa_config(
            dim=config.dim, n_heads=HEADS, n_kv_heads=KV_HEADS, fuse_qkv=fused,
            wqkv_param_init=llama3._LINEAR_INIT, wo_param_init=llama3._depth_init(i),
            inner_attention=ScaledDotProductAttention.Config(),
            rope=layer.attention.rope)
    return config


def schedule(optimizers):
    return schedule_config().build(optimizers=optimizers, training_steps=ALL_STEPS)


def schedule_config():
    return optimizer.LRSchedulersContainer.Config(warmup_steps=3, total_steps=ALL_STEPS)


def trainer_config(out, steps, fused, tensor_parallel, view, save_every):
    ranks = int(os.environ["WORLD_SIZE"]) // tensor_parallel
    return Trainer.Config(
        dump_folder=out,
        model_spec=ModelSpec(
            name="llama3", flavor="small", model=model_config(fused),
            parallelize_fn=llama3.parallelize_llama, pipelining_fn=None,
            post_optimizer_build_fn=None, state_dict_adapter=None),
        loss=CrossEntropyLoss.Config(global_vocab_size=WORDS),
        tokenizer=NoTokenizer.Config(),
        dataloader=Rows.Config(),
        optimizer=dataclasses.replace(
            optimizer.default_adamw(lr=LR, betas=BETAS, weight_decay=DECAY),
            implementation="foreach"),
        lr_scheduler=schedule_config(),
        training=TrainingConfig(
            local_batch_size=ROWS // ranks, seq_len=LENGTH, steps=steps,
            mixed_precision_param="float32", disable_cuda_graphs=True),
        parallelism=ParallelismConfig(tensor_parallel_degree=tensor_parallel),
        activation_checkpoint=None,
        metrics=metrics.MetricsProcessor.Config(log_freq=1),
        checkpoint=CheckpointManager.Config(
            enable=True, initial_load_path=view, initial_load_model_only=False,
            exclude_from_loading=["dataloader"], load_only=not save_every,
            interval=save_every or 1, last_save_model_only=False))


def main(out, steps, fused, tensor_parallel, view, save_every):
    trainer = trainer_config(
        out, int(steps), fused == "1", int(tensor_parallel), view if view != "-" else None,
        int(save_every) if save_every != "-" else None).build()
    trainer.train()
    trainer.close()
    if torch.distributed.get_rank() == 0:
        with open(os.path.join(out, "losses.json"), "w", encoding="utf-8") as f:
            json.dump(losses, f)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
