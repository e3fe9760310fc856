#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load the files of a mount by torch.load, for torch.sh to compare.

loadtorch.py UNIVERSAL-TREE WEIGHTS-FILE...

Prints lines as good/README.md has them, of the tree "truth PARAM STATE SHA256", of weights
"tensors FILE SHA256" and "weight PARAM fp32 SHA256"."""

import glob
import hashlib
import os
import sys

import torch


def digest(t):
    return hashlib.sha256(t.detach().contiguous().numpy().tobytes()).hexdigest()


def show_states(tree):
    # Stages 1 and 2 have a dictionary with the tensor, ZeRO-3 the tensor itself.
    for path in glob.glob(os.path.join(tree, "zero", "*", "*.pt")):
        state = torch.load(path, map_location="cpu")
        if isinstance(state, dict):
            state = state["param"]
        param, name = path.split(os.sep)[-2:]
        if torch.is_tensor(state):
            print("truth", param, name[:-len(".pt")], digest(state))


def show_weights(path):
    text = ""
    for name, t in torch.load(path, map_location="cpu").items():
        shape = "x".join(str(n) for n in t.shape) or "-"
        text += "%s %s %s %d %s\n" % (name, str(t.dtype)[len("torch."):],
                                      shape, t.requires_grad, digest(t))
        print("weight", name, "fp32", digest(t))
    print("tensors", os.path.basename(path),
          hashlib.sha256(text.encode()).hexdigest())


show_states(sys.argv[1])
for path in sys.argv[2:]:
    show_weights(path)
