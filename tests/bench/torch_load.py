# SPDX-License-Identifier: Apache-2.0
"""torch_load.py LOCAL MOUNTED: milliseconds to load the same file of torch.save
from a disk and from a mount, the first time and again; plain, then mapped with
a word of each page looked at.  Prints eight numbers, local ones first."""

import sys
import time

import torch


def tensors(loaded):
    values = loaded.values() if isinstance(loaded, dict) else [loaded]
    return [v for v in values if isinstance(v, torch.Tensor)]


def load(path, mapped):
    start = time.perf_counter()
    loaded = torch.load(path, mmap=mapped, weights_only=False)
    if mapped:
        for tensor in tensors(loaded):
            tensor.reshape(-1)[::1024].sum().item()
    return (time.perf_counter() - start) * 1000


torch.set_num_threads(1)
load(sys.argv[1], False)  # what a process does once
times = []
for mapped in False, True:
    local = [load(sys.argv[1], mapped) for _ in range(2)]
    times += local + [load(sys.argv[2], mapped) for _ in range(2)]
print(*(f"{t:.2f}" for t in times))
