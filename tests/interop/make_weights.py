#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tests/good/<case>.weights: the results of DeepSpeed's zero_to_fp32.py.

    make_weights.py tests/good [CASE...]

For each case the script of DeepSpeed 0.19.8 is run as a module, with and without
safe_serialization, in one file and in several, in all types; README.md there
describes the lines.  Its defects are fixed before it writes, each
recorded in a `mended` line: `frozen' (it loses the frozen parameters of stage 1, which
are in `module`), `tied' (safetensors refuses tied tensors: they are left out but
for their first name, as by transformers' save_pretrained) and
`empty' (it confuses parameters without elements).  Tensors that it cannot write, and that we
leave out, have such a line, too: `plain' (sparse and quantized tensors, and those conjugated
when they are read) and `held' (types that safetensors lacks); `strided' ones are made
contiguous, as safetensors requires.  If it fails, there is only a `fails` line.

Needs torch, deepspeed, safetensors and huggingface_hub.
"""

import glob
import hashlib
import io
import os
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout

import safetensors.torch
import torch
from deepspeed.utils import zero_to_fp32 as script

SHARD_SIZE = "0.5KB"
VARIANTS = [
    # name, safetensors, size, type
    ("hf", True, "5GB", "fp32"),
    ("hf-bf16", True, "5GB", "bf16"),
    ("hf-fp16", True, "5GB", "fp16"),
    ("hf-split", True, SHARD_SIZE, "fp32"),
    ("hf-split-bf16", True, SHARD_SIZE, "bf16"),
    ("fp32", False, "5GB", "fp32"),
    ("fp32-split", False, SHARD_SIZE, "fp32"),
]


def find_tag(digests):
    for line in open(digests, encoding="utf-8"):
        if line.startswith("tag "):
            return line.split()[1]
    return None


def frozen_of_stage1(tag, state):
    """Return entries of `module` that the state dict lacks, except aliases."""
    path = os.path.join(tag, "mp_rank_00_model_states.pt")
    if not os.path.exists(path):
        return {}
    saved = torch.load(path, map_location="cpu", weights_only=False)
    if saved.get("frozen_param_shapes"):
        return {}
    shared = saved["shared_params"]
    return {name: tensor for name, tensor in saved["module"].items()
            if isinstance(tensor, torch.Tensor) and name not in state and
            (name not in shared or tensor.numel() == 0)}


def mend(tag, state, notes):
    """Return the correct state dict."""
    path = glob.glob(os.path.join(tag, "*mp_rank_00_model_states.pt"))[0]
    saved = torch.load(path, map_location="cpu", weights_only=False)
    buffers = set(saved["buffer_names"])
    shapes = dict(saved.get("frozen_param_shapes") or {})
    own = saved.get("frozen_param_fragments") or {}
    for name, shape in shapes.items():
        if name in state and tuple(state[name].shape) != tuple(shape):
            assert shape.numel() == 0
            state[name] = own[name].reshape(shape)
            notes.add("empty")
    frozen = frozen_of_stage1(tag, state)
    if not frozen:
        return state
    notes.add("frozen")
    out = {k: v for k, v in state.items() if k in buffers}
    out.update(frozen)
    out.update((k, v) for k, v in state.items() if k not in buffers)
    return out


def plain(state, notes):
    out = {}
    for name, t in state.items():
        if not isinstance(t, torch.Tensor):  # partitioned by stage 3, not yet gathered
            out[name] = t
            continue
        if t.layout != torch.strided or t.is_quantized or t.is_conj() or t.is_neg():
            notes.add("plain")
            continue
        if not t.is_contiguous():
            notes.add("strided")
        out[name] = t if t.is_contiguous() else t.contiguous()
    return out


def held(state, notes):
    out = {name: t for name, t in state.items()
           if not isinstance(t, torch.Tensor) or t.dtype in safetensors.torch._SIZE}
    if len(out) < len(state):
        notes.add("held")
    return out


def untie(state, notes):
    seen, out = set(), {}
    for name, tensor in state.items():
        if id(tensor) in seen:
            notes.add("tied")
            continue
        seen.add(id(tensor))
        out[name] = tensor
    return out


def convert(run, tag, variant, out, notes):
    _, safe, size, dtype = variant
    original = script.get_fp32_state_dict_from_zero_checkpoint

    def mended(*args, **kwargs):
        state = mend(os.path.join(run, tag), original(*args, **kwargs), notes)
        state = plain(state, notes)
        return held(untie(state, notes), notes) if safe else state

    script.get_fp32_state_dict_from_zero_checkpoint = mended
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            script.convert_zero_checkpoint_to_state_dict(
                run, out, dtype=dtype, max_shard_size=size,
                safe_serialization=safe, tag=tag)
    finally:
        script.get_fp32_state_dict_from_zero_checkpoint = original


def listing(path):
    """Return a line for each tensor of a torch.save file."""
    text = ""
    for name, t in torch.load(path, map_location="cpu").items():
        shape = "x".join(str(n) for n in t.shape) or "-"
        data = t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if t.numel() else b""
        text += "%s %s %s %d %s\n" % (name, str(t.dtype)[6:], shape, t.requires_grad,
                                      hashlib.sha256(data).hexdigest())
    return text.encode()


def make(case):
    root, name = os.path.split(case)
    tag = find_tag(case + ".digests")
    if not tag:
        return
    run = os.path.join(root, name, os.path.dirname(tag))
    lines, notes = [], set()
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as out:
            try:
                convert(run, os.path.basename(tag), variant, out, notes)
            except Exception as e:
                text = str(e).replace(root + "/", "").split("\n")[0][:160]
                lines = ["fails %s: %s" % (type(e).__name__, text)]
                notes = set()
                break
            for file in sorted(os.listdir(out)):
                path = os.path.join(out, file)
                if file.endswith(".bin"):
                    digest = hashlib.sha256(listing(path)).hexdigest()
                    lines.append("tensors %s %s %s" % (variant[0], file, digest))
                else:
                    data = open(path, "rb").read()
                    lines.append("file %s %s %d %s" % (variant[0], file, len(data),
                                                       hashlib.sha256(data).hexdigest()))
    with open(case + ".weights", "w", encoding="utf-8") as f:
        for note in sorted(notes):
            f.write("mended %s\n" % note)
        f.write("\n".join(lines) + "\n")
    print(name, "mended " + " ".join(sorted(notes)) if notes else "", lines[0][:100] if len(lines) == 1 else "")


def main():
    good = sys.argv[1].rstrip("/")
    cases = sys.argv[2:] or sorted(f[:-len(".digests")] for f in os.listdir(good)
                                   if f.endswith(".digests"))
    for case in cases:
        make(os.path.join(good, case))


main()
