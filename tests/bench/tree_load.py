# SPDX-License-Identifier: Apache-2.0
"""tree_load.py ZERO [COMMAND...]: print the milliseconds that it takes to run the command, if
given, and load each parameter's files below the directory, in order."""

import subprocess
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
torch.ones(1)
start = time.perf_counter()
if sys.argv[2:]:
    subprocess.run(sys.argv[2:], check=True)
for parameter in sorted(p for p in Path(sys.argv[1]).iterdir() if p.is_dir()):
    for file in sorted(parameter.glob("*.pt")):
        torch.load(file, weights_only=False)
print(f"{(time.perf_counter() - start) * 1000:.2f}")
