#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the table of tests/unit/train/test_rng.c.

    make_rng.py

Each row has what torch.randint returns after a number of elements.
"""
import torch

CASES = [
    (42, 256, 0),
    (42, 50257, 1000),
    (0, 2, 5000),
    (0, 2**28 - 1, 700),
    (1, 2**28, 0),
    (2**40 + 5, 2**32 - 1, 311),
    (7, 2**32, 0),
    (7, 2**40, 312),
    (3, 2**63 - 1, 0),
    (2**64 - 1, 10, 623),
]

print(f"/* torch {torch.__version__.split('+')[0]} */")
for seed, high, skip in CASES:
    torch.manual_seed(seed)
    torch.randint(0, high, (skip,))
    numbers = ", ".join(f"{n}u" for n in torch.randint(0, high, (4,)).tolist())
    print(f"{{ {seed}u, {high}u, {skip}, {{ {numbers} }} }},")
