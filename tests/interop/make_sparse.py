#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a checkpoint many times as large as a real one, without its bytes.

    make_sparse.py [--times N] RUN OUTPUT

RUN is what make_bench.py --stage 1 (or 2) made.  Each of its parameters gets N
times the rows, and so has each partition N times the elements; files are
sparse, tensors are zeros.  Needs PyTorch 2.6 or later and DeepSpeed.
"""

import argparse
import collections
import pathlib
import tempfile

import torch
from torch.serialization import skip_data


def grow(x, n):
    """Multiply tensors, shapes and places in partitions by `n`."""
    if torch.is_tensor(x):
        shape = (x.shape[0] * n, *x.shape[1:]) if x.ndim else ()
        with tempfile.NamedTemporaryFile() as hole:
            hole.truncate(torch.Size(shape).numel() * x.itemsize)
            return torch.from_file(hole.name, shared=True, dtype=x.dtype,
                                   size=torch.Size(shape).numel()).view(shape)
    if isinstance(x, torch.Size):
        return torch.Size((x[0] * n, *x[1:])) if x else x
    if type(x).__name__ == "fragment_address":
        return type(x)(x.numel * n, x.start * n)
    if isinstance(x, collections.OrderedDict):
        return collections.OrderedDict((k, grow(v, n)) for k, v in x.items())
    if isinstance(x, dict):
        return {k: grow(v, n) for k, v in x.items()}
    if isinstance(x, list):
        return [grow(v, n) for v in x]
    return x


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--times", type=int, default=250)
    p.add_argument("run", type=pathlib.Path)
    p.add_argument("output", type=pathlib.Path)
    args = p.parse_args()
    tag = (args.run / "latest").read_text().strip()
    (args.output / tag).mkdir(parents=True)
    for f in sorted((args.run / tag).glob("*.pt")):
        whole = torch.load(f, mmap=True, weights_only=False)
        with skip_data():
            torch.save(grow(whole, args.times), args.output / tag / f.name)
    (args.output / "latest").write_text(tag)


if __name__ == "__main__":
    main()
