#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the checkpoint that tests/bench/gather.sh reads.

    make_rows.py [--ranks N] [--rows R] [--columns C] OUTPUT

A ZeRO-1 checkpoint of N tensor-parallel ranks with two parameters of R x C
float32: column.weight, whose slices follow each other in the whole, and
row.weight, of which each rank has C / N columns.  No optimizer states.  Saved
to OUTPUT/global_step1 by PyTorch alone, in DeepSpeed's format.
"""

import argparse
import os
from collections import OrderedDict

import torch


def save_rank(rank, args):
    shapes = OrderedDict([
        ("column.weight", torch.Size((args.rows // args.ranks, args.columns))),
        ("row.weight", torch.Size((args.rows, args.columns // args.ranks))),
    ])
    used = sum(s.numel() for s in shapes.values())
    tag = os.path.join(args.output, "global_step1")
    os.makedirs(tag, exist_ok=True)
    torch.manual_seed(rank)
    torch.save(
        {
            "module": {},
            "buffer_names": [],
            "param_shapes": [shapes],
            "dp_world_size": 1,
            "mp_world_size": args.ranks,
            "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": args.ranks},
            "ds_config": {"zero_optimization": {"stage": 1}},
            "ds_version": "0.19.8",
            "universal_checkpoint_info": {
                "universal_checkpoint_version": 0.4,
                "parameter_with_row_parallelism_patterns": ["row"],
            },
        }, os.path.join(tag, f"mp_rank_{rank:02d}_model_states.pt"))
    torch.save(
        {
            "optimizer_state_dict": {
                "base_optimizer_state": {"state": {}, "param_groups": [{"params": [0]}]},
                "single_partition_of_fp32_groups": [torch.rand(used)],
                "zero_stage": 1,
                "partition_count": [1],
                "ds_version": "0.19.8",
            },
            "ds_version": "0.19.8",
        }, os.path.join(tag, f"zero_pp_rank_0_mp_rank_{rank:02d}_optim_states.pt"))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, default=8)
    p.add_argument("--rows", type=int, default=4096)
    p.add_argument("--columns", type=int, default=16384)
    p.add_argument("output")
    args = p.parse_args()
    for rank in range(args.ranks):
        save_rank(rank, args)
    with open(os.path.join(args.output, "latest"), "w", encoding="ascii") as f:
        f.write("global_step1")


if __name__ == "__main__":
    main()
