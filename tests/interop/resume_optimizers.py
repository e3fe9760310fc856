#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resume with other optimizers, for which the converter fails.

    resume_optimizers.py SCRATCH [CASE...]

Train and save cases of make_cases.py; continue for a step in the same
processes, and in new ones from a mount of the checkpoint.  The states of all
ranks, after loading and after the step, must be equal bit for bit.  The
converter cannot convert these cases, so there is no other comparison.
"""

import os
import sys

import torch

import make_cases
import parallel
import resume

# Leave out states that DeepSpeed 0.19.8 cannot load from any tree: Muon's momentum, which it cuts
# like other states, though ZeRO 1 and 2 keep whole matrices unless they are offloaded; NAdam's
# mu_product, a number other than the step; and with ZeRO 3 all states but Adam's.
CASES = ("z1_sgd_dp2", "z1_adagrad_dp2", "z2_rmsprop_dp2", "z2_amsgrad_dp2",
         "z1_lion_dp2", "z1_cpuadagrad_dp2", "z1_cpuadam_dp2",
         "z1_adafactor_dp2",
         "z2_offload_bf16_dp3", "z2_muon_offload_dp2")


def step(engine, feed):
    loss = engine(*next(feed))
    engine.backward(loss)
    engine.step()
    return loss.item()


def go(rank, case, place, load, out):
    """Train and save, or load; take a step, and record the states before and after."""
    case.config["checkpoint"] = {"load_universal": load}
    engine, grid = make_cases.new_engine(case)
    feed = make_cases.batches(grid.data, make_cases.VOCAB)
    for _ in range(make_cases.STEPS):
        if load:
            next(feed)
        else:
            step(engine, feed)
    if load:
        engine.load_checkpoint(place, tag=make_cases.TAG + "_universal")
    else:
        engine.save_checkpoint(place, tag=make_cases.TAG, client_state={
            "universal_checkpoint_info": {}})
    before = parallel.whole_states(engine, grid, case.stage)
    loss = step(engine, feed)
    after = parallel.whole_states(engine, grid, case.stage)
    if rank == 0:
        torch.save([{"states": states, "numbers": repr(numbers), "loss": loss}
                    for states, numbers in (before, after)], out)


def run_case(case, top):
    run = os.path.join(top, "run")
    os.makedirs(run)
    out = [os.path.join(top, name) for name in ("before.pt", "after.pt")]
    resume.on_ranks(case.world, go, os.path.join(top, "train.log"), case, run,
                    False, out[0])
    with resume.Mount(run, os.path.join(top, "mount")) as mount:
        resume.on_ranks(case.world, go, os.path.join(top, "resume.log"), case,
                        mount, True, out[1])
    whole, resumed = (torch.load(p, weights_only=False) for p in out)
    found = [f"{moment}: {what}" for moment, a, b in
             zip(("loaded", "stepped"), whole, resumed)
             for what in resume.differences(a, b)]
    return found, len(whole[1]["states"]), [r[1]["loss"]
                                            for r in (whole, resumed)]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wanted = sys.argv[2:] or CASES
    failed = 0
    for case in make_cases.CASES:
        if case.name not in wanted:
            continue
        found, tensors, loss = run_case(
            case, os.path.join(sys.argv[1], case.name))
        print(f"{case.name:26}{'no' if found else 'yes':>13}{tensors:9}   "
              f"{loss[0]:.7f} {loss[1]:.7f}", flush=True)
        for what in found:
            print("  " + what, flush=True)
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
