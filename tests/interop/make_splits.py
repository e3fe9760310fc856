#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print tests/splits.expect: how huggingface_hub splits weights into files.

    make_splits.py > tests/splits.expect

A line is `MAX: TENSOR... -> FILE / FILE... ; BYTES`, where BYTES is the size of all storages.
A tensor is its size, or =K if it shares the storage of tensor K (from 0 on); a file is the
numbers of its tensors, in order.  Needs huggingface_hub.
"""

import random

from huggingface_hub.serialization._base import split_state_dict_into_shards_factory

CASES = [
    (400, [32, 12, 308, 140, 20, 20, 20, 140, 28, 308]),  # from a real export
    (100, [100]),
    (100, [101]),
    (100, [60, 40, 1]),  # full to the byte
    (100, [60, 41]),
    (100, [10, 200, 20]),  # the large one gets a file before the open one
    (100, [200, 10, 300, 20, 400]),
    (100, [90, 200, 90, 300, 90]),
    (100, [200, 300]),
    (100, [0, 0, 0]),
    (1, [0, 1, 0, 2, 0]),
    (100, [50, "=0", 50, 50, "=2", "=0"]),  # shared ones come last in their file
    (100, [200, 50, "=0", "=1"]),
    (100, [60, 60, "=0", "=1", "=0", 30, "=5", "=1"]),
]


def random_case(rng):
    sizes = []
    for i in range(rng.randint(1, 14)):
        firsts = [k for k, s in enumerate(sizes) if not isinstance(s, str)]
        if firsts and rng.random() < 0.25:
            sizes.append("=%d" % rng.choice(firsts))
        else:
            sizes.append(rng.choice([0, 1, 7, 30, 50, 99, 100, 101, 250]))
    return rng.choice([1, 50, 100, 100, 200, 1000]), sizes


def split(most, sizes):
    tensors = {}
    for i, s in enumerate(sizes):
        same = int(s[1:]) if isinstance(s, str) else i
        tensors[str(i)] = (sizes[same], same)
    out = split_state_dict_into_shards_factory(
        tensors, get_storage_size=lambda t: t[0], get_storage_id=lambda t: t[1],
        filename_pattern="w{suffix}", max_shard_size=most)
    return list(out.filename_to_tensors.values()), out.metadata["total_size"]


def main():
    rng = random.Random(4711)
    for most, sizes in CASES + [random_case(rng) for _ in range(60)]:
        files, total = split(most, sizes)
        print("%d: %s -> %s ; %d" % (most, " ".join(map(str, sizes)),
                                     " / ".join(" ".join(f) for f in files), total))


main()
