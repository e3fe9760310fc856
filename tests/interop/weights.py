#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights from a mount, read by the programs that use them.

    weights.py files VIEW...
    weights.py loss VIEW TOKENS

`files` opens every file of weights of <tag>_hf and <tag>_fp32 in each way that its
library has, and compares the tensors: safe_open by mmap and by pread, load_file,
torch.load with and without mmap.  `loss` prints the loss of the GPT-2 that
transformers' from_pretrained makes of the view, on rows of 32 tokens.
weights.sh beside this file calls it.
"""

import glob
import json
import os
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file


def same(a, b, what):
    assert list(a) == list(b) or set(a) == set(b), what
    for name in a:
        assert a[name].dtype == b[name].dtype, (what, name)
        assert a[name].shape == b[name].shape, (what, name)
        assert a[name].contiguous().view(-1).view(torch.uint8).equal(
            b[name].contiguous().view(-1).view(torch.uint8)), (what, name)


def read_safetensors(path):
    with safe_open(path, "pt") as f:
        mapped = {k: f.get_tensor(k).clone() for k in f.keys()}
        assert f.metadata() == {"format": "pt"}, path
    with safe_open(path, "pt", backend="pread") as f:
        same(mapped, {k: f.get_tensor(k) for k in f.keys()}, path + ": pread")
    same(mapped, load_file(path), path + ": load_file")
    # Read plainly, without the library's own way to open files.
    from safetensors.torch import load
    with open(path, "rb") as f:
        same(mapped, load(f.read()), path + ": read")
    return mapped


def read_torch(path):
    plain = torch.load(path, weights_only=True)
    same(plain, torch.load(path, mmap=True, weights_only=True), path + ": mmap")
    return plain


def read_all(view, index, pattern, read):
    tensors = {}
    files = sorted(glob.glob(os.path.join(view, pattern)))
    assert files, view
    for path in files:
        tensors.update(read(path))
    index = os.path.join(view, index)
    assert os.path.exists(index) == (len(files) > 1), index
    if len(files) > 1:
        with open(index, encoding="utf-8") as f:
            weight_map = json.load(f)["weight_map"]
        assert set(weight_map) == set(tensors), index
    return tensors


def check_view(view):
    hf = read_all(view + "_hf", "model.safetensors.index.json", "*.safetensors",
                  read_safetensors)
    fp32 = read_all(view + "_fp32", "pytorch_model.bin.index.json", "*.bin", read_torch)
    same({k: v for k, v in fp32.items() if k in hf}, hf, view)
    print("ok: %s: %d tensors, %d names" % (view, len(hf), len(fp32)))


def print_loss(view, tokens):
    from transformers import AutoModelForCausalLM
    model, info = AutoModelForCausalLM.from_pretrained(view, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    model.eval()
    with open(tokens, "rb") as f:
        rows = torch.frombuffer(bytearray(f.read()), dtype=torch.int32).long().view(-1, 32)
    with torch.no_grad():
        losses = [model(row[None], labels=row[None]).loss.item() for row in rows]
    print("%.8f" % (sum(losses) / len(losses)))


if sys.argv[1] == "files":
    for name in sys.argv[2:]:
        check_view(name)
else:
    print_loss(*sys.argv[2:])
