#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tests/arith.expect, the results that test_arith.c expects.

    make_arith.py >tests/arith.expect

PyTorch's results on a CPU, for the numbers most sensitive to
rounding.  Bits of elements are hexadecimal.

    mean TYPE SLICE... RESULT		sum(slices) / len(slices)
    divide TYPE NUMBER ELEMENT RESULT	tensor / number
"""

import random

import torch

# For each type: name, bits, fraction bits.
TYPES = [
    ("float16", torch.float16, torch.int16, 16, 10),
    ("bfloat16", torch.bfloat16, torch.int16, 16, 7),
    ("float32", torch.float32, torch.int32, 32, 23),
    ("float64", torch.float64, torch.int64, 64, 52),
]
NUMBERS = [2.0, 3.0, 7.0, -4.0, 0.1, 0.1**-1, 0.1**-2, (1 / 3)**-2, 2.0**-20]


def corners(bits, fraction):
    """Numbers around zero, the end of subnormals, one and the largest; infinity, NaN."""
    sign = 1 << (bits - 1)
    inf = sign - (1 << fraction)
    one = ((1 << (bits - fraction - 2)) - 1) << fraction
    least = 1 << fraction
    some = [0, 1, 2, 3, least - 1, least, least + 1, one - 1, one, one + 1,
            one + 2, one + (1 << fraction), inf - 1, inf, inf + (least >> 1)]
    return some + [v | sign for v in some]


def tensor(values, type_, ints, bits):
    wrap = [v - (1 << bits) if v >> (bits - 1) else v for v in values]
    return torch.tensor(wrap, dtype=ints).view(type_)


def bits_of(t, ints, bits):
    return f"{t.view(ints).item() & ((1 << bits) - 1):0{bits // 4}x}"


def main():
    random.seed(1)
    for name, type_, ints, bits, fraction in TYPES:
        some = corners(bits, fraction)
        for values in ([(v, v) for v in some] + [(v, 0) for v in some] +
                       [random.choices(some, k=random.randint(2, 5)) for _ in range(60)] +
                       [[random.getrandbits(bits) for _ in range(3)] for _ in range(20)]):
            slices = [tensor([v], type_, ints, bits) for v in values]
            result = sum(slices) / len(slices)
            print("mean", name, *(f"{v:0{bits // 4}x}" for v in values), bits_of(result, ints, bits))
        for number in NUMBERS:
            for v in random.sample(some, 12) + [random.getrandbits(bits) for _ in range(4)]:
                result = tensor([v], type_, ints, bits) / number
                print("divide", name, number.hex(), f"{v:0{bits // 4}x}", bits_of(result, ints, bits))


if __name__ == "__main__":
    main()
