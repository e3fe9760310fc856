#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the results of the package ucfs, without a mount, bit for bit with what programs load
from a mount.

python.py GOOD SCRATCH CASE...

python.sh beside this file calls it."""

import contextlib
import filecmp
import glob
import logging
import os
import shutil
import sys

import fsspec
import safetensors.torch
import torch
import transformers
import ucfs
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

GOOD, SCRATCH = sys.argv[1:3]


def raw(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def same(a, b, what):
    assert a.dtype == b.dtype and a.shape == b.shape, (what, a.dtype, b.dtype)
    assert raw(a).equal(raw(b)), what


def run_of(case):
    """Return the run with the case's tag, the tag, and the options that it needs."""
    with open(f"{GOOD}/{case}.digests", encoding="utf-8") as f:
        facts = {line.split()[0]: line.split()[1] for line in f
                 if line.startswith(("tag ", "rules "))}
    path = f"{GOOD}/{case}/{facts['tag']}"
    options = {"rules": f"{GOOD}/{facts['rules']}"} if "rules" in facts else {}
    return os.path.dirname(path), os.path.basename(path), options


def compare_weights(tag, mounted, dtype):
    """Return all names of pytorch_model.bin, with the elements of model.safetensors."""
    weights = tag.state_dict(dtype)
    names = {}
    for path in glob.glob(mounted + "_fp32/*.bin"):
        names.update(torch.load(path, weights_only=True))
    assert list(weights) == list(names), tag
    found = names
    if dtype != "fp32":
        found = {}
        for path in glob.glob(mounted + "_hf/*.safetensors"):
            found.update(safetensors.torch.load_file(path))
    for name, tensor in found.items():
        same(weights[name], tensor, (tag, dtype, name))
    for name, tensor in names.items():
        tied = [n for n in names if names[n].data_ptr() == tensor.data_ptr()]
        for other in tied if tensor.numel() else []:
            assert weights[other].data_ptr() == weights[name].data_ptr(), (name, other)
    return weights


def compare_parameters(tag, mounted):
    for name, parameter in tag.parameters.items():
        for state, array in parameter.items():
            value = torch.load(f"{mounted}_universal/zero/{name}/{state}.pt",
                               weights_only=False)
            value = value["param"] if isinstance(value, dict) else value
            if isinstance(array, ucfs.Array):
                same(array.torch(), value, (name, state))
            else:
                assert array == value, (name, state)


def deepspeed_converts(case):
    """Return False without digests of weights: it is not DeepSpeed's checkpoint."""
    path = f"{GOOD}/{case}.weights"
    if not os.path.exists(path):
        return False
    with open(path, encoding="utf-8") as f:
        return "tensors fp32 " in f.read()


def compare_with_deepspeed(run, tag, weights):
    """Run zero_to_fp32.py, which lacks frozen parameters of stage 1 and confuses parameters
    without elements.  Return False, after printing a line, if the script itself fails, as for a
    sparse buffer."""
    try:
        with open(os.devnull, "w", encoding="utf-8") as nothing, \
                contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            expected = get_fp32_state_dict_from_zero_checkpoint(run, tag)
    except RuntimeError as error:
        print(f"{run}: zero_to_fp32.py does not convert it: {error}")
        return False
    for name, tensor in expected.items():
        if tensor.numel():
            same(weights[name], tensor.to(weights[name].dtype), (run, name))
    return True


def check_cases(cases):
    converted = 0
    for case in cases:
        run, name, options = run_of(case)
        with ucfs.open(run, **options) as ckpt, \
                ucfs.mount(run, stage="any", **options) as any_stage:
            tag = ckpt[name]
            compare_parameters(tag, f"{any_stage}/{name}")
            for dtype in "fp32", "bf16", "fp16":
                with ucfs.mount(run, hf_dtype=dtype, **options) as path:
                    weights = compare_weights(tag, f"{path}/{name}", dtype)
                if dtype == "fp32" and deepspeed_converts(case):
                    converted += compare_with_deepspeed(run, name, weights)
    print(f"ok: {len(cases)} checkpoints as mounted, {converted} as zero_to_fp32.py")


def check_model():
    """Check that a model with tied embeddings loads its weights by all their names."""
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=256,
                                     n_positions=32, bos_token_id=0, eos_token_id=0)
    for case in "gpt2_z1_fp32_dp4", "gpt2_z3_fp32_dp4":
        with ucfs.open(f"{GOOD}/curves/{case}") as ckpt:
            weights = ckpt[ckpt.latest].state_dict()
        model = transformers.GPT2LMHeadModel(config)
        model.load_state_dict(weights)
        for name, tensor in model.state_dict().items():
            same(tensor, weights[name], name)
    print("ok: load_state_dict")


def check_fsspec(run, name):
    """Check that programs that open ucfs:// read the same data."""
    copy = f"{SCRATCH}/run"
    shutil.copytree(run, copy)
    tensors = {"a": torch.arange(1000.0), "b": torch.ones(3, 5)}
    dcp.save(tensors, checkpoint_id=f"{copy}/dcp", no_dist=True)
    loaded = {k: torch.zeros_like(t) for k, t in tensors.items()}
    dcp.load(loaded, storage_reader=FsspecReader(f"ucfs://{copy}/dcp"), no_dist=True)
    for key, tensor in tensors.items():
        same(loaded[key], tensor, key)

    fs = fsspec.filesystem("ucfs", source=run, ranks=[1])
    views = [f"{name}_{view}" for view in ("universal", "hf", "fp32", "dp1")]
    with ucfs.mount(run, ranks=[1]) as path:
        hf = safetensors.torch.load(fs.cat_file(f"{name}_hf/model.safetensors"))
        for key, tensor in safetensors.torch.load_file(
                f"{path}/{name}_hf/model.safetensors").items():
            same(hf[key], tensor, key)
        with fsspec.open(f"ucfs://{run}/{name}_fp32/pytorch_model.bin") as f:
            assert list(torch.load(f)) == list(
                torch.load(f"{path}/{name}_fp32/pytorch_model.bin"))
        for view in views:
            fs.get(view, f"{SCRATCH}/got/{view}", recursive=True)
            files = [os.path.relpath(f, path) for f in
                     glob.glob(f"{path}/{view}/**", recursive=True) if os.path.isfile(f)]
            assert sorted(files) == sorted(fs.find(view))
            _, differ, missing = filecmp.cmpfiles(path, f"{SCRATCH}/got", files, False)
            assert files and not differ and not missing, (differ, missing)
    print("ok: torch's DCP, safetensors and torch.load by fsspec, and all files of views")


logging.getLogger("ucfs").setLevel(logging.ERROR)
check_fsspec(*run_of("z1_tied_frozen_buffers_dp2")[:2])
check_model()
check_cases(sys.argv[3:])
