#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the cases dcp_* of tests/good from PyTorch distributed checkpoints.

    make_dcp.py COLLECTION OUTPUT

COLLECTION holds one directory per case: the checkpoint as torch saved it on several
ranks after four steps, in `ckpt/`, `step-4/` or `checkpoint-4/`, and
`truth.safetensors`: param/NAME, exp_avg/NAME, exp_avg_sq/NAME and step/NAME, gathered
to full tensors before the save; and `truth.json`: `tokens`, `losses_after` of the steps
that followed, and the `config` of a model of transformers, which run.json gets
(dcp_resume.py).  Needs nothing but the standard library.
"""

import hashlib
import json
import os
import re
import shutil
import struct
import sys

TAGS = ("ckpt", "step-4", "checkpoint-4", "iter_0000004")
REFUSED = ("fsdp2_dp2_zstd",)
# Lightning's names begin with the module's attribute.
PREFIX = {"lightning_trainer_dp2": "model."}


def read_truth(path):
    """Read {name: (type, shape, bytes)}."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])])
            for k, v in header.items()}


def whole_of_megatron(truth):
    """Join the truth of two ranks, which have slices or layers, to the model's."""
    slices = {}
    layers = {int(n[4]): {k.split("layers.")[1].split(".")[0] for k in truth
                          if k.startswith(n) and "layers." in k}
              for n in ("rank0", "rank1")}
    pipeline = layers[0] == layers[1] == {"0"}
    for key, value in truth.items():
        rank, kind, name = key.split("/", 2)
        if pipeline and rank == "rank1":
            name = name.replace("layers.0.", "layers.1.")
        name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
        name = name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
        slices.setdefault(("param" if kind == "p" else kind, name), []).append(value)
    for (kind, name), parts in slices.items():
        dtype, shape, data = parts[0]
        if len(parts) == 2 and not pipeline:
            if re.search(r"(qkv|fc1)\.(weight|bias)$|word_emb|output_layer", name):
                shape = [2 * shape[0]] + shape[1:]
                data += parts[1][2]
            elif re.search(r"(proj|fc2)\.weight$", name):
                row = 4 * shape[1]
                data = b"".join(p[2][i:i + row] for i in range(0, len(data), row)
                                for p in parts)
                shape = [shape[0], 2 * shape[1]]
        yield kind + "/" + name, (dtype, shape, data)
        if kind == "param":
            yield "step/" + name, (dtype, [], 1)


def widened(dtype, data):
    if dtype == "F32":
        return data
    assert dtype == "BF16", dtype
    return b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))


def digests(case, tag, truth):
    yield "tag " + tag
    if case in REFUSED:
        yield "refuse open"
        return
    for key in sorted(truth):
        kind, name = key.split("/", 1)
        dtype, shape, data = truth[key]
        name = PREFIX.get(case, "") + name
        if kind == "param":
            yield "shape %s %s" % (name, "x".join(map(str, shape)) or "-")
        if kind == "step" and data == 1:
            yield "number %s step int 1" % name
        elif kind == "step":
            yield "number %s step float32 %r" % (name, struct.unpack("<f", data)[0])
        elif kind != "buffer":
            yield "truth %s %s %s" % (name, "fp32" if kind == "param" else kind,
                                      hashlib.sha256(widened(dtype, data)).hexdigest())


def main(collection, output):
    for case in sorted(os.listdir(collection)):
        source = os.path.join(collection, case)
        tag = next((t for t in TAGS if os.path.isdir(os.path.join(source, t))), None)
        if not tag:
            continue
        out = os.path.join(output, "dcp_" + case)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(os.path.join(source, tag), os.path.join(out, tag),
                        copy_function=shutil.copyfile)
        for root, dirs, _ in os.walk(out):
            os.chmod(root, 0o755)
        with open(os.path.join(source, "truth.json")) as f:
            run = json.load(f)
        if "losses_after" in run and case not in REFUSED:
            run.get("config", {}).pop("transformers_version", None)
            with open(os.path.join(out, "run.json"), "w") as f:
                json.dump({k: run[k] for k in ("config", "tokens", "losses_after")
                           if k in run}, f)
                f.write("\n")
        with open(out + ".digests", "w") as f:
            truth = read_truth(os.path.join(source, "truth.safetensors"))
            if "mcore" in case:
                truth = dict(whole_of_megatron(truth))
            f.write("\n".join(digests(case, tag, truth)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
