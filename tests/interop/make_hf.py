#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face directories for tests/good, and the expected results.

    make_hf.py OUTPUT

Writes OUTPUT/hfdir_<case>/ with the real libraries (safetensors, transformers,
torch), and OUTPUT/hfdir_<case>.digests (tests/good/README.md has the format):
the universal tree of each, which is made here by torch as DeepSpeed's
hf_to_universal.py makes it (pull request 7212):

    zero/NAME/fp32.pt			{param: the tensor as float32, cat_dim: 0}
    zero/NAME/exp_avg.pt, exp_avg_sq.pt	the same with zeros
    source.txt				"Huggingface checkpoint"

and `vocab_tensor: True` behind these for names that look like vocabularies.
Where a tensor of pytorch_model.bin is a part of a larger storage, that script
writes all of it into each file; ours has the tensor alone, so there is no digest
of the file but of its values.
"""

import hashlib
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

VOCABULARY = ("word_embeddings", "embed_tokens", "embedding", "wte", "lm_head")
STATES = ("exp_avg", "exp_avg_sq")


def digest(path):
    with open(path, "rb") as f:
        data = f.read()
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}"


def whole(t):
    """Does the tensor fill its storage?"""
    return t.untyped_storage().nbytes() == t.numel() * t.element_size()


def convert(tensors, out, lines):
    with open(os.path.join(out, "source.txt"), "w") as f:
        f.write("Huggingface checkpoint")
    lines.append("file source.txt " + digest(os.path.join(out, "source.txt")))
    for name, t in sorted(tensors.items()):
        extra = {"cat_dim": 0}
        if any(v in name.lower() for v in VOCABULARY):
            extra["vocab_tensor"] = True
        folder = os.path.join(out, "zero", name)
        os.makedirs(folder)
        files = {"fp32": t.to(torch.float32)}
        for state in STATES:
            files[state] = torch.zeros_like(t, dtype=torch.float32)
        for state, value in files.items():
            path = os.path.join(folder, state + ".pt")
            torch.save({"param": value, **extra}, path)
            where = f"zero/{name}/{state}.pt"
            if whole(value):
                lines.append(f"file {where} {digest(path)}")
                continue
            data = value.detach().contiguous().numpy().tobytes()
            lines.append("exists " + where)
            lines.append(f"truth {name} {state} "
                         + hashlib.sha256(data).hexdigest())
            lines.append(f"shape {name} " + "x".join(map(str, t.shape)))


def finish(out, case, tensors):
    lines = [f"# {case}: safetensors, torch {torch.__version__.split('+')[0]},"
             f" transformers {transformers.__version__}", "hugging-face", "tag ."]
    tree = os.path.join(out, case + ".tree")
    os.makedirs(tree)
    convert(tensors, tree, lines)
    shutil.rmtree(tree)
    lines.append("complete")
    with open(os.path.join(out, case + ".digests"), "w") as f:
        f.write("\n".join(lines) + "\n")


def begin(out, case):
    folder = os.path.join(out, case)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def some(dtype, *shape):
    """Make numbers including special ones.  Float16 gets no NaN: torch converts those at the end
    of a tensor differently from others."""
    n = 1
    for d in shape:
        n *= d
    x = torch.arange(n, dtype=torch.float64) * 37 % 101 - 13
    if dtype.is_floating_point:
        x = x / 64
        for i, v in enumerate((float("inf"), -0.0, float("nan"), 1e-8)):
            if i < n:
                x[n - 1 - i] = 0 if v != v and dtype is torch.float16 else v
    elif not dtype.is_signed:
        x = x.abs()
    return x.to(dtype).reshape(shape)


def types(out):
    folder = begin(out, "hfdir_types")
    t = {}
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16,
                  torch.int64, torch.int32, torch.int16, torch.int8,
                  torch.uint64, torch.uint32, torch.uint16, torch.uint8,
                  torch.bool, torch.float8_e4m3fn, torch.float8_e5m2):
        t[f"of.{str(dtype)[6:]}"] = some(dtype, 3, 5)
    t["scalar"] = torch.tensor(2.5)
    t["none"] = torch.zeros(0, 3, dtype=torch.float16)
    t["long"] = some(torch.bfloat16, 1500)
    t["model.embed_tokens.weight"] = some(torch.bfloat16, 7, 2)
    t["LM_Head.weight"] = some(torch.float32, 2, 7)
    t["ln_Embedding.bias"] = some(torch.float32, 4)
    save_file(t, os.path.join(folder, "model.safetensors"),
              metadata={"format": "pt", "made by": "hand"})
    finish(out, "hfdir_types",
           load_file(os.path.join(folder, "model.safetensors")))


def gpt2(out):
    """Save like save_pretrained: several files, tied weights once."""
    torch.manual_seed(1)
    folder = begin(out, "hfdir_gpt2_bf16_sharded")
    config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=8,
                                     n_layer=2, n_head=2, bos_token_id=0,
                                     eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="2KB")
    tensors = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            tensors.update(load_file(os.path.join(folder, name)))
    # Files that are ignored because safetensors take precedence.
    with open(os.path.join(folder, "pytorch_model.bin"), "w") as f:
        f.write("not looked at\n")
    finish(out, "hfdir_gpt2_bf16_sharded", tensors)


def pytorch(out):
    """Save a model's state by torch.save."""
    folder = begin(out, "hfdir_bin")
    group = some(torch.float32, 40)
    wte = some(torch.float32, 6, 4)
    t = {
        "wte.weight": wte,
        "lm_head.weight": wte,
        "h.0.weight": group[4:24].view(5, 4),
        "h.0.bias": group[24:40],
        "transposed": some(torch.float32, 3, 4).t(),
        "half": some(torch.float16, 4, 3),
        "half.transposed": some(torch.float16, 2, 3).t(),
        "trained": some(torch.float32, 3).requires_grad_(),
        "trained.bf16": some(torch.bfloat16, 2, 2).requires_grad_(),
        "steps": torch.tensor(77),
        "mask": some(torch.bool, 1, 1, 3, 3),
        "none": torch.zeros(3, 0),
    }
    torch.save(t, os.path.join(folder, "pytorch_model.bin"))
    finish(out, "hfdir_bin", torch.load(
        os.path.join(folder, "pytorch_model.bin")))


def pytorch_sharded(out):
    """Save several files, the second in the container before torch 1.6."""
    folder = begin(out, "hfdir_bin_sharded")
    files = {
        "pytorch_model-00001-of-00002.bin": {
            "embedding.weight": some(torch.float16, 5, 2),
            "w": some(torch.float16, 2, 2, 2)},
        "pytorch_model-00002-of-00002.bin": {
            "b": some(torch.float32, 3), "c": some(torch.float64, 3)},
    }
    tensors = {}
    for i, (name, t) in enumerate(files.items()):
        torch.save(t, os.path.join(folder, name),
                   _use_new_zipfile_serialization=i == 0)
        tensors.update(torch.load(os.path.join(folder, name)))
    names = ",\n    ".join(f'"{t}": "{name}"' for name in files
                           for t in files[name])
    with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w") as f:
        f.write('{\n  "metadata": {\n    "total_size": 74\n  },\n'
                '  "weight_map": {\n    ' + names + "\n  }\n}\n")
    finish(out, "hfdir_bin_sharded", tensors)


def main():
    out = sys.argv[1]
    types(out)
    gpt2(out)
    pytorch(out)
    pytorch_sharded(out)


main()
