#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed loads tests/good on other ranks, from TAG_dpN, without load_universal.

    recut_good.py SCRATCH [CASE...]

For each checkpoint of a data-parallel run, on each number of ranks in UCFS_RANKS
("1 3"): an engine is made whose module, groups and configuration are those that the
checkpoint records, and loads the re-cut tag from a mount.  Right after that, the
tensors of the optimizer must have the digests that the training processes noted
before they saved (the `truth` lines of CASE.digests), bit for bit.

Then the engine saves.  The files that DeepSpeed writes must equal the view's in names,
keys and their order, types, shapes, dtypes, strides, storages and elements.  Files
written by another release are exempt.

0.19.8 passes on 3 ranks in every stage, except for z1_elastic_dp2 and
z2_elastic_groups_dp3, which it cannot load on the saving ranks either;
z2_muon_offload_dp2 was not tried, and z3_hpz2_dp4 needs 4 ranks.  0.14.4 and 0.16.9 pass
with their ZeRO checkpoints in old*.  Files have the same objects, but rarely the same
bytes: a pickle stores a string object once, and the saving processes shared other equal
strings.

The optimizer accepts any state and does not step, so that no optimizer of DeepSpeed has
to be compiled; Muon, which decides where states lie, is DeepSpeed's.
"""

import glob
import os
import sys
import types

import torch
import deepspeed
import deepspeed.runtime.engine as ds_engine

import make_cases
import parallel
import recut
import resume

GOOD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "good")

# Case and end of a path: torch casts loaded states to the type of the weights.
EXPLAINED = {"z2_muon_bf16_dp3": "/momentum_buffer",
             "z3_muon_bf16_dp2": "/momentum_buffer"}


class Keeper(torch.optim.Optimizer):
    """Starts with the checkpoint's states, all zero, and keeps the loaded ones."""

    def __init__(self, params, states):
        self.states = states
        super().__init__(params, {"lr": 0.0})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p] = {key: torch.zeros_like(p)
                                     for key in self.states}


def read(pattern):
    return torch.load(sorted(glob.glob(pattern))[0], map_location="cpu",
                      weights_only=False)


def is_data_parallel(tag):
    names = os.listdir(tag)
    if not any(n.endswith("optim_states.pt") for n in names) or \
            any("mp_rank_01" in n or "layer_" in n or "expert_" in n
                for n in names):
        return False
    config = read(os.path.join(tag, "*_optim_states.pt")).get("ds_config", {})
    return "sequence_parallel_size" not in config and \
        "expert_parallel" not in config


class Checkpoint:
    def __init__(self, tag):
        self.model = read(os.path.join(tag, "*model_states.pt"))
        optim = read(os.path.join(tag, "*_optim_states.pt"))
        self.config = self.model.get("ds_config") or optim["ds_config"]
        self.stage = self.config["zero_optimization"]["stage"]
        zero = optim["optimizer_state_dict"]
        self.base = zero["optimizer_state_dict" if self.stage == 3
                         else "base_optimizer_state"]
        # With elastic_checkpoint the state is a list.
        self.elastic = isinstance(self.base, list)
        states = self.base if self.elastic else self.base["state"].values()
        self.states = sorted({key for s in states for key, v in s.items()
                              if torch.is_tensor(v) and v.dim()})

    def shapes(self):
        found = {}
        for group in self.model["param_shapes"]:
            found.update(group)
        return found

    def groups(self, order):
        """Return the names of the parameters of each group of the optimizer."""
        groups = [list(g) for g in self.model["param_shapes"]]
        if self.stage == 3:
            groups = [[n for i in g["params"] for n in groups[i]]
                      for g in self.base["param_groups"]]
        if self.config["zero_optimization"].get("round_robin_gradients"):
            groups = [sorted(g, key=order.index) for g in groups]
        return groups


def put(module, name, **tensor):
    *path, leaf = name.split(".")
    for part in path:
        if part not in dict(module.named_children()):
            module.add_module(part, torch.nn.Module())
        module = dict(module.named_children())[part]
    for kind, value in tensor.items():
        getattr(module, "register_" + kind)(leaf, value)


def new_module(checkpoint):
    module, made = torch.nn.Module(), {}
    model, trained = checkpoint.model, checkpoint.shapes()
    frozen = model.get("frozen_param_shapes") or {}
    for name, tensor in model["module"].items():
        if name in model["buffer_names"]:
            put(module, name, buffer=tensor.clone())
            continue
        whole = model["shared_params"].get(name, name)
        if whole not in made:
            shape = trained.get(whole, frozen.get(whole, tensor.shape))
            made[whole] = torch.nn.Parameter(torch.zeros(shape),
                                             whole in trained)
        put(module, name, parameter=made[whole])
    return module, made


def new_engine(checkpoint):
    module, params = new_module(checkpoint)
    if any(not p.dim() for p in params.values()):
        make_cases.send_nothing()
    groups = [[params[n] for n in g]
              for g in checkpoint.groups(list(params))]
    config = dict(checkpoint.config)
    more = {}
    if config.get("optimizer", {}).get("type") == "Muon":
        trained = {id(p) for g in groups for p in g}
        more["model_parameters"] = [p for p in params.values()
                                    if id(p) in trained]
    else:
        more["optimizer"] = Keeper([{"params": g} for g in groups],
                                   checkpoint.states)
    return deepspeed.initialize(model=module, config=config, **more)[0]


def accept_everything():
    """Return cases that DeepSpeed refuses on CPUs, or whose optimizer it does not know."""
    from deepspeed.accelerator import get_accelerator

    kind = type(get_accelerator())
    kind.is_fp16_supported = kind.is_bf16_supported = lambda self: True
    ds_engine.is_zero_supported_optimizer = lambda optimizer: True
    ds_engine.DeepSpeedEngine.zero_force_ds_cpu_optimizer = lambda self: False


def load(rank, world, good, mount, tag, again, out):
    accept_everything()
    checkpoint = Checkpoint(good)
    engine = new_engine(checkpoint)
    path, client = engine.load_checkpoint(mount, tag=tag)
    if path is None:
        raise RuntimeError("nothing was loaded")
    states, numbers = parallel.whole_states(
        engine, types.SimpleNamespace(stage=0, tensor=0, data=rank, pp=1, tp=1),
        checkpoint.stage)
    client.pop("checkpoint_parallel_dimensions", None)  # DeepSpeed adds this itself
    engine.save_checkpoint(again, tag=tag, client_state=client)
    if rank == 0:
        own = checkpoint.model["ds_version"] == deepspeed.__version__
        torch.save((checkpoint.stage, states, numbers, own), out)


def digest(tensor, shape):
    if tensor.dim() and shape and tensor.shape[0] > shape[0]:
        tensor = tensor[:shape[0]]  # without the vocabulary's padding
    return make_cases.digest(tensor)


def compare_truth(lines, states, numbers):
    shapes, found, compared = {}, [], 0
    for kind, *field in lines:
        if kind == "shape":
            shapes[field[0]] = [int(n) for n in field[1].split("x") if n != "-"]
    for kind, *field in lines:
        if kind == "truth":
            name, state, want = field
            if (name, state) not in states:
                # Frozen parameters have a truth, but no state.
                found += [f"{name} {state}: missing"] if state != "fp32" else []
                continue
            compared += 1
            if digest(states[name, state], shapes.get(name)) != want:
                found.append(f"{name} {state}: not the truth")
        if kind == "number":
            name, state, kind_of, value = field
            got = make_cases.number(numbers[name][state])
            if got[0] != kind_of or float(got[1]) != float(value):
                found.append(f"{name} {state}: {got}, not {kind_of} {value}")
    return found, compared


def run(world, view, lines, tag_dir, top):
    os.makedirs(os.path.join(top, "again"))
    out = os.path.join(top, "out.pt")
    run_dir = os.path.dirname(tag_dir)
    with resume.Mount(run_dir, os.path.join(top, "mount")) as mount:
        resume.on_ranks(world, load, os.path.join(top, "log"), world, tag_dir,
                        mount, view, os.path.join(top, "again"), out)
        stage, states, numbers, own = torch.load(out, weights_only=False)
        same, files, differ = recut.compare_files(
            os.path.join(mount, view), os.path.join(top, "again", view),
            stage, ()) if own else (0, 0, [])
    found, compared = compare_truth(lines, states, numbers)
    return found, compared, same, files, differ


def is_good(case, world, lines, tag_dir, scratch):
    """Print the result; return whether it is as expected."""
    tag = os.path.basename(tag_dir)
    print(f"{case:40} {world} ", end="", flush=True)
    try:
        found, compared, same, files, differ = run(
            world, f"{tag}_dp{world}", lines, tag_dir,
            os.path.join(scratch, f"{case}_{world}"))
    except RuntimeError as e:
        # Does DeepSpeed load it on the ranks that saved it?
        old = len(glob.glob(os.path.join(tag_dir, "*_optim_states.pt")))
        try:
            run(old, tag, lines, tag_dir,
                os.path.join(scratch, f"{case}_{world}_old"))
        except RuntimeError:
            print("DeepSpeed does not load the original, either", flush=True)
            return True
        print(f"FAILED {str(e)[-1500:]}", flush=True)
        return False
    print(f"{'WRONG' if found else 'truth'}{compared:5} tensors"
          + (f", {same} of {files} files to the byte" if files else ""),
          flush=True)
    if case in EXPLAINED:
        differ = [d for d in differ
                  if not d.split(": ")[0].endswith(EXPLAINED[case])]
    for what in found[:10] + differ[:12]:
        print("    " + what)
    return not found and not differ


def lines_of(case):
    with open(os.path.join(GOOD, case + ".digests"), encoding="utf-8") as f:
        return [line.split() for line in f
                if line.strip() and not line.startswith("#")]


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wanted, failed = sys.argv[2:], 0
    ranks = [int(n) for n in os.environ.get("UCFS_RANKS", "1 3").split()]
    for path in sorted(glob.glob(os.path.join(GOOD, "*.digests"))):
        case = os.path.basename(path)[:-len(".digests")]
        lines = lines_of(case)
        tag = next((line[1] for line in lines if line[0] == "tag"), None)
        if (wanted and case not in wanted) or not tag or \
                ["refuse"] in [line[:1] for line in lines]:
            continue
        tag_dir = os.path.realpath(os.path.join(GOOD, case, tag))
        if not is_data_parallel(tag_dir):
            continue
        for world in ranks:
            failed += not is_good(case, world, lines, tag_dir, sys.argv[1])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
