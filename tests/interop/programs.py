# SPDX-License-Identifier: Apache-2.0
"""Shared by dcp_titan.py and dcp_lightning.py."""

import json
import os
import subprocess
import sys

import resume

LIMIT = 1e-6


def torchrun(script, ranks, out, *args):
    """Run `script OUT ARGS` on ranks.  Return the loss of each step that it trained."""
    os.mkdir(out)
    with open(out + ".log", "w", encoding="utf-8") as f:
        failed = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone",
             f"--nproc-per-node={ranks}", script, out, *map(str, args)],
            stdout=f, stderr=f).returncode
    if failed:
        raise RuntimeError(f"{script} failed: " + resume.tail(out + ".log"))
    with open(os.path.join(out, "losses.json"), encoding="utf-8") as f:
        return {int(step): loss for step, loss in json.load(f).items()}


def check(what, losses, expected):
    """Return the number of failed checks: different steps, or losses whose relative difference
    exceeds LIMIT."""
    if list(losses) != list(expected):
        print(f"{what}: steps {list(losses)}, not {list(expected)}", flush=True)
        return 1
    far = max(abs(losses[i] - expected[i]) / expected[i] for i in expected)
    bad = not far <= LIMIT
    print(f"{what}: apart {far:.2g}{' WRONG' if bad else ''}", flush=True)
    return bad
