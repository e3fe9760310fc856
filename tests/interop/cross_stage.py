#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resume with another ZeRO stage from a mount with stage=any.

    cross_stage.py SCRATCH

DeepSpeed trains and saves with one stage; the checkpoint is mounted with
`-o stage=any` and resumed with another stage on another number of ranks, and
with its own stage.  After one step the states must equal those of the
uninterrupted run, except for the order in which gradients are summed.  In two
cases the program has one group of parameters in stage 3, two in the others.
Models, steps and comparison are those of resume.py.
"""

import os
import subprocess
import sys

import torch

import resume


class Mount(resume.Mount):
    def __enter__(self):
        os.mkdir(self.where)
        subprocess.run(["ucfs", self.source, self.where, "-o", "stage=any"],
                       check=True)
        return self.where


def run(case, after, top):
    """Train with case.stage, resume with `after`; return the distance."""
    os.makedirs(os.path.join(top, "run"))
    log, out = os.path.join(top, "log"), os.path.join(top, "out.pt")
    whole = os.path.join(top, "whole.pt")
    resume.on_ranks(case.before, resume.train, log, case,
                    os.path.join(top, "run"), whole)
    with Mount(os.path.join(top, "run"), os.path.join(top, "mount")) as mount:
        resume.on_ranks(case.after, resume.resume, log + "2",
                        case._replace(stage=after), mount,
                        resume.TAG + "_universal", out)
    stepped = [torch.load(p, weights_only=False)["stepped"]
               for p in (whole, out)]
    return resume.distance(*stepped), [s["loss"] for s in stepped]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    failed = 0
    pairs = ((1, 3), (2, 3), (3, 1), (3, 2), (2, 1), (3, 3),
             (0, 1), (0, 2), (0, 3))
    for before, after, by_stage in (
            *((*pair, False) for pair in pairs), (3, 1, True), (3, 2, True)):
        name = f"z{before}_to_z{after}_2to4" + "_one_group" * by_stage
        case = resume.Case(name, before, "fp32", 2, 4, False, by_stage)
        far, loss = run(case, after, os.path.join(sys.argv[1], name))
        good = far <= resume.TOLERANCE["fp32"]
        print(f"{name:18} {'as expected' if good else 'WRONG':12}"
              f"{far:10.2g}   {loss[0]:.7f} {loss[1]:.7f}", flush=True)
        failed += not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
