# SPDX-License-Identifier: Apache-2.0
"""far_load.py ZERO COMMAND...: load all files of all parameters in the order of their
names, and print how many bytes they have and how many microseconds it took.  COMMAND runs
before, once all is imported."""

import os
import subprocess
import sys
import time

import deepspeed  # noqa: F401 (the first file that names its classes would import it)
import torch

top = sys.argv[1]
total = 0
subprocess.run(sys.argv[2:], check=True)
begun = time.monotonic()
for name in sorted(os.listdir(top)):
    folder = os.path.join(top, name)
    if not os.path.isdir(folder):
        continue
    for state in "fp32", "exp_avg", "exp_avg_sq":
        path = os.path.join(folder, state + ".pt")
        if os.path.exists(path):
            torch.load(path, weights_only=False)
            total += os.path.getsize(path)
print(total, round((time.monotonic() - begun) * 1e6))
