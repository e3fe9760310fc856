#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Read all of TAG_dcp, and compare its weights with those of TAG_fp32.

    dcp_read.py TAG_dcp
"""

import os
import sys
import tempfile

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def holds(weights, view):
    """Are the weights bit for bit those of TAG_fp32 beside this view?"""
    true = torch.load(view[:-len("dcp")] + "fp32/pytorch_model.bin", weights_only=True)
    return set(true) == set(weights) and all(
        torch.equal(true[name], weights[name].to(true[name].dtype)) for name in true)


def read(view):
    with tempfile.TemporaryDirectory() as top:
        whole = os.path.join(top, "whole.pt")
        dcp_to_torch_save(view, whole)
        return torch.load(whole, weights_only=False)


if __name__ == "__main__":
    state = read(sys.argv[1])
    good = holds(state["model"], sys.argv[1]) and state["optim"]["state"]
    print(f"torch {torch.__version__}: {'as' if good else 'NOT as'} expected")
    sys.exit(not good)
