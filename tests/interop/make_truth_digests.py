#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make a case of tests/good of a run whose ranks gathered the truth.

    make_truth_digests.py RUN OUTPUT [STEP]

RUN has `latest` and a tag, as DeepSpeed saved them, and truth.pt: the name of each
parameter in the whole model -> {fp32, exp_avg, ...}, whole tensors, joined from the
ranks' memory before they saved.  The tag goes to OUTPUT/<name of RUN>/, and its
expected results to OUTPUT/<name of RUN>.digests, without DeepSpeed's own converter.
STEP: the number of steps that torch's Adam counted.
"""

import hashlib
import os
import shutil
import sys

import torch


def main(run, output, step=None):
    name = os.path.basename(run)
    with open(f"{run}/latest") as f:
        tag = f.read().strip()
    truth = torch.load(f"{run}/truth.pt", weights_only=False)
    with open(f"{output}/{name}.digests", "w") as out:
        print(f"# the truth of the ranks' processes\ntag {tag}", file=out)
        for param in sorted(truth):
            states = dict(truth[param])
            model = states.pop("lp", None)
            states.setdefault("fp32", model)
            shape = "x".join(map(str, states["fp32"].shape)) or "-"
            print(f"shape {param} {shape}", file=out)
            for state in sorted(states):
                data = states[state].float().contiguous().numpy().tobytes()
                print(f"truth {param} {state} {hashlib.sha256(data).hexdigest()}", file=out)
            if step and len(states) > 1:
                print(f"number {param} step float32 {step}", file=out)
    shutil.copytree(f"{run}/{tag}", f"{output}/{name}/{tag}")
    shutil.copy(f"{run}/latest", f"{output}/{name}/latest")


main(*sys.argv[1:])
