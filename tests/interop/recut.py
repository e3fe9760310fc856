#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resume from TAG_dpN of a mount, without load_universal.

    recut.py SCRATCH [CASE...]

DeepSpeed trains and saves on some ranks; the run is mounted, and loaded on other
ranks from TAG_dpN, or with another stage from TAG_dpN_zS.  The loaded state
(parameters, master weights, optimizer states, steps, hyperparameters, schedule)
must equal the saved state, bit for bit, and after one step the states must equal
those of the uninterrupted run, except for the order in which gradients are
summed.

The loaded state is saved again on the new ranks: DeepSpeed's own files must
equal those of the view.  Models, steps and comparison are those of resume.py.
"""

import os
import sys

import torch

import resume


def cases():
    """Case, with the stage of the engine that resumes."""
    for stage, dtype, before, after, to in (
            (1, "fp32", 4, 2, 1), (1, "fp32", 2, 8, 1), (1, "fp32", 4, 1, 1),
            (2, "bf16", 4, 2, 2), (2, "fp32", 1, 4, 2), (1, "bf16", 2, 4, 1),
            (3, "fp32", 4, 2, 3), (3, "fp32", 2, 8, 3), (3, "bf16", 4, 8, 3),
            (1, "fp32", 4, 2, 3), (3, "fp32", 4, 2, 1), (2, "fp32", 2, 4, 3),
            (3, "fp32", 2, 4, 2), (1, "fp32", 4, 2, 2),
            (0, "fp32", 2, 4, 1), (0, "fp32", 2, 1, 2), (0, "fp32", 2, 4, 3),
            (0, "bf16", 2, 4, 1), (0, "bf16", 2, 2, 2), (0, "bf16", 2, 1, 3)):
        name = f"z{stage}_{dtype}_{before}_to_z{to}_{after}"
        yield resume.Case(name, stage, dtype, before, after, False), to


CLIENT = {"iteration": resume.STEPS, "universal_checkpoint_info": {}}


def train(rank, case, run_dir, out):
    engine = resume.new_engine(case, case.before, universal=False)
    for _ in range(resume.STEPS):
        resume.train_step(engine, rank, case.before)
    engine.save_checkpoint(run_dir, tag=resume.TAG, client_state=CLIENT)
    saved = resume.snapshot(engine, case, case.before)
    loss = resume.train_step(engine, rank, case.before)
    stepped = resume.snapshot(engine, case, case.before, loss=loss)
    if rank == 0:
        torch.save({"saved": saved, "stepped": stepped}, out)


def load(rank, case, load_dir, tag, again, out):
    engine = resume.new_engine(case, case.after, universal=False)
    path, client = engine.load_checkpoint(load_dir, tag=tag)
    if path is None:
        raise RuntimeError("nothing was loaded")
    if client.get("iteration") != resume.STEPS:
        raise RuntimeError(f"client state: {client}")
    engine.save_checkpoint(again, tag=resume.TAG, client_state=CLIENT)
    loaded = resume.snapshot(engine, case, case.after)
    loss = resume.train_step(engine, rank, case.after)
    stepped = resume.snapshot(engine, case, case.after, loss=loss)
    if rank == 0:
        torch.save({"loaded": loaded, "stepped": stepped}, out)


# Values that differ between a view's files and DeepSpeed's own.


def expected(case, to):
    """Keys that may differ.  The configuration is that of the new run, which was started with
    another batch size.  Stage 3 records neither clip_grad, so that an engine of another stage
    keeps its own, nor param_alignment_paddings, so that such an engine aligns what it loads by
    its configuration.  Stage 1 does not record that there are no frozen parameters: they may have
    been excluded."""
    crossed = ("clip_grad", "param_alignment_paddings")
    frozen = ("frozen_param_shapes", "frozen_param_fragments")
    return (("ds_config",) + (crossed if case.stage == 3 and to < 3 else ())
            + (frozen if case.stage == 1 and to > 1 else ()))


def describe(a, b, ignored, path=""):
    """Return the paths at which two loaded objects differ."""
    if type(a) is not type(b):
        return [f"{path}: {type(a).__name__}, {type(b).__name__}"]
    if isinstance(a, dict):
        found = []
        if [k for k in a if k not in ignored] != \
                [k for k in b if k not in ignored]:
            found.append(f"{path}: keys {list(a)}, {list(b)}")
        for key in a:
            if key in b and key not in ignored:
                found += describe(a[key], b[key], ignored, f"{path}/{key}")
        return found
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return [f"{path}: {len(a)} items, {len(b)}"]
        return [d for i, (x, y) in enumerate(zip(a, b))
                for d in describe(x, y, ignored, f"{path}/{i}")]
    if torch.is_tensor(a):
        # A view's module keeps the storages of the ranks that saved it, or has one for each
        # tensor.
        stored = not path.startswith(("/module", "/frozen_param_fragments"))
        facts = [(t.dtype, t.shape, t.stride(), t.requires_grad)
                 + stored * (t.storage_offset(), t.untyped_storage().nbytes())
                 for t in (a, b)]
        if facts[0] != facts[1]:
            return [f"{path}: {facts[0]}, {facts[1]}"]
        return [] if a.numel() == 0 else unequal(a, b, path)
    if hasattr(a, "__dict__"):
        return describe(vars(a), vars(b), ignored, path)
    return [] if a == b else [f"{path}: {a}, {b}"]


def unequal(a, b, path):
    same = resume.bits(a.detach()) == resume.bits(b.detach())
    return [] if same.all() else [f"{path}: elements"]


def zero_padding(value, stage):
    """Ignore differences in slots of stage 3 beyond a parameter's end, which hold anything in
    DeepSpeed's own files."""
    return [d for d in value if stage < 3 or not d.endswith(": elements")]


def compare_files(view, again, stage, ignored):
    """Return the numbers of equal files and of all files, and the differences of the others."""
    names = sorted(n for n in os.listdir(again) if n.endswith(".pt"))
    if names != sorted(os.listdir(view)):
        return 0, len(names), [f"{sorted(os.listdir(view))}, {names}"]
    same, found = 0, []
    for name in names:
        paths = os.path.join(view, name), os.path.join(again, name)
        a, b = (open(p, "rb").read() for p in paths)
        same += a == b
        if a != b:
            found += [name + d for d in zero_padding(describe(
                *(torch.load(p, weights_only=False) for p in paths), ignored),
                stage)]
    return same, len(names), found


def run(case, to, top):
    """Return the problems, the distance, and the number of equal files."""
    os.makedirs(os.path.join(top, "run"))
    whole, out = os.path.join(top, "whole.pt"), os.path.join(top, "out.pt")
    again, log = os.path.join(top, "again"), os.path.join(top, "log")
    resume.on_ranks(case.before, train, log, case, os.path.join(top, "run"),
                    whole)
    tag = f"{resume.TAG}_dp{case.after}"
    if to != case.stage:
        tag += f"_z{to}"
    with resume.Mount(os.path.join(top, "run"),
                      os.path.join(top, "mount")) as mount:
        resume.on_ranks(case.after, load, log + "2", case._replace(stage=to),
                        mount, tag, again, out)
        # Without ZeRO, DeepSpeed has no files to compare with.
        same, files, found = compare_files(
            os.path.join(mount, tag), os.path.join(again, resume.TAG), to,
            expected(case, to)) if case.stage else (0, 0, [])
    a, b = (torch.load(p, weights_only=False) for p in (whole, out))
    for key in a["saved"], b["loaded"], a["stepped"], b["stepped"]:
        key["states"] = dict(sorted(key["states"].items()))
    found += ["loaded: " + d
              for d in resume.differences(a["saved"], b["loaded"])]
    return found, resume.distance(a["stepped"], b["stepped"]), same, files


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    failed = 0
    for case, to in cases():
        if sys.argv[2:] and case.name not in sys.argv[2:]:
            continue
        found, far, same, files = run(case, to,
                                      os.path.join(sys.argv[1], case.name))
        if not far <= resume.TOLERANCE[case.dtype]:
            found.append(f"uninterrupted: differs by {far}")
        print(f"{case.name:22} {'WRONG' if found else 'as expected':12}"
              f"{far:10.2g}  {same} of {files} files to the byte", flush=True)
        for what in found[:20]:
            print("    " + what)
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
