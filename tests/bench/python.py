# SPDX-License-Identifier: Apache-2.0
"""python.py RUN FILE ROUNDS: milliseconds of each side of python.sh, in turns."""

import sys
import time

import numpy as np
import torch
import ucfs
from ucfs._fsspec import UcfsFileSystem
from ucfs._source import Source

run, consolidated, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
path = "global_step4_fp32/pytorch_model.bin"
ckpt = ucfs.open(run, crc="zero")
tag = ckpt[ckpt.latest]
fs = UcfsFileSystem(run, crc="zero")
file = Source(run, {"crc": "zero"}).open(path)
memory = np.ones(file.size, np.uint8)

comparisons = [
    [("torch", lambda: torch.load(consolidated)),
     ("state_dict", tag.state_dict),
     ("bf16", lambda: tag.state_dict("bf16"))],
    [("read", lambda: file.read_at(memory.ctypes.data, file.size, 0)),
     ("cat", lambda: fs.cat_file(path))],
]
for sides in comparisons:
    for i in range(rounds + 1):
        for name, side in sides:
            start = time.perf_counter()
            side()
            if i:  # the first round plans the views, so do not count it
                print(name, f"{(time.perf_counter() - start) * 1000:.2f}")
