#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Resume training from a mount as from a converted checkpoint.

    resume.py SCRATCH [CASE...]

For each case DeepSpeed trains a small model on some ranks and saves it.
Training then continues for one step, on the same data, in four ways:

  uninterrupted   on the same ranks, in the same processes
  converter       on other ranks, from the tree that ds_to_universal wrote
  mount, latest   on those ranks, from a mount; the tag from latest_universal
  mount, tag      the same with the tag given

The state of the last three after loading (parameters, master weights, optimizer
states, steps, hyperparameters, schedule, client state) and after the step
must be equal bit for bit.  The uninterrupted run must equal them, too, or be
within a tolerance if the number of ranks differs, which changes the order in
which gradients are summed.
"""

import collections
import contextlib
import copy
import filecmp
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import subprocess
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
import deepspeed

import no_shm  # noqa: F401

Case = collections.namedtuple("Case", "name stage dtype before after trainer groups_by_stage",
                              defaults=[False])


def cases():
    for stage in 1, 2, 3:
        for before, after in (4, 2), (2, 4), (2, 2):
            yield Case(f"z{stage}_fp32_{before}to{after}", stage, "fp32",
                       before, after, False)
    for stage in 1, 2, 3:
        yield Case(f"z{stage}_bf16_4to2", stage, "bf16", 4, 2, False)
    # Saved like the Hugging Face Trainer: one level deeper, and without
    # universal_checkpoint_info.
    for stage in 2, 3:
        yield Case(f"trainer_z{stage}_fp32_2to4", stage, "fp32", 2, 4, True)


STEPS = 4
TAG = f"global_step{STEPS}"
ROWS = 8  # rows of a batch; each rank gets the same number
TOKENS = 5
VOCAB = 31
WIDTH = 97  # odd, so that nothing divides evenly among ranks
INNER = 33
LR = 5e-3
DECAY = 0.1

# Largest difference from the uninterrupted run on another number of ranks.  Gradients then differ
# by rounding errors, 2^-24 or 2^-9 of them, and Adam scales both alike; LR bounds the effect of a
# step.
TOLERANCE = {"fp32": 1e-6, "bf16": LR / 5}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, INNER)
        self.down = torch.nn.Linear(INNER, WIDTH)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.head = torch.nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        x = x + self.down(torch.tanh(self.up(self.norm(x)))) * self.scale
        return torch.nn.functional.cross_entropy(
            self.head(x).float().flatten(0, 1), targets.flatten())


def decays_of(case):
    return (DECAY, DECAY if case.groups_by_stage else 0.0)


def groups_of(model, case):
    """Group parameters: matrices decay, the rest does not; or, with groups by stage, all decay,
    in one group in stage 3 and in two in the others, as in Megatron-DeepSpeed."""
    if case.groups_by_stage and case.stage == 3:
        return [{"params": list(model.parameters()), "weight_decay": DECAY}]
    split = [p for p in model.parameters() if p.dim() > 1], \
            [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": params, "weight_decay": decay}
            for params, decay in zip(split, decays_of(case))]


def new_engine(case, world, universal):
    torch.manual_seed(7)
    model = Model()
    config = {
        "train_micro_batch_size_per_gpu": ROWS // world,
        "gradient_accumulation_steps": 1,
        "steps_per_print": 10 ** 6,
        "zero_optimization": {"stage": case.stage},
        "bf16": {"enabled": case.dtype == "bf16"},
        "optimizer": {"type": "AdamW",
                      "params": {"lr": LR, "torch_adam": True}},
        "scheduler": {"type": "WarmupLR",
                      "params": {"warmup_min_lr": 0, "warmup_max_lr": LR,
                                 "warmup_num_steps": 2 * STEPS,
                                 "warmup_type": "linear"}},
        "checkpoint": {"load_universal": universal},
    }
    return deepspeed.initialize(model=model, config=config,
                                model_parameters=groups_of(model, case))[0]


def train_step(engine, rank, world):
    """Make one step on its data; return the loss of all rows."""
    chance = torch.Generator().manual_seed(100 + engine.global_steps)
    batch = torch.randint(0, VOCAB, (2, ROWS, TOKENS), generator=chance)
    tokens, targets = batch[:, rank::world]
    loss = engine(tokens, targets)
    engine.backward(loss)
    engine.step()
    total = loss.detach().clone()
    torch.distributed.all_reduce(total)
    return total.item() / world


# The state of an engine, merged over its ranks.


@contextlib.contextmanager
def swapped_in(zero, group):
    """Load a sub-group from NVMe into memory for the duration."""
    swapped = (getattr(zero, "swap_optimizer", False)
               and zero._swappable_optimizer_subgroup(group))
    if swapped:
        zero._optimizer_states_and_gradient_swap_in(group)
    yield
    if swapped:
        zero._release_swap_buffers(group)


def local_parts(engine, stage):
    """Return this rank's share, per flat buffer: its parameters in order, the buffer of each
    state, and the optimizer's other values (step)."""
    zero = engine.optimizer
    if stage == 3:
        pairs = zip(zero.fp16_groups, zero.fp32_partitioned_groups_flat)
    elif hasattr(zero, "bf16_groups"):  # BF16_Optimizer
        pairs = zip(zero.bf16_groups, zero.fp32_groups_flat_partition)
    else:
        pairs = zip(zero.round_robin_bit16_groups,
                    zero.single_partition_of_fp32_groups)
    for group, (params, flat) in enumerate(pairs):
        with swapped_in(zero, group):
            buffers, others = {"fp32": flat.detach().clone()}, {}
            for key, value in sorted(zero.optimizer.state[flat].items()):
                divided = torch.is_tensor(value) and value.dim()
                (buffers if divided else others)[key] = copy.deepcopy(value)
        yield params, buffers, others


def cut_concatenated(sizes, shares):
    """Join ZeRO 1 and 2: one vector, cut anywhere between the ranks."""
    return torch.cat(shares)[:sum(sizes)].split(sizes)


def cut_each(sizes, shares):
    """Join ZeRO 3: each parameter is divided by itself into equal pieces."""
    world, start = len(shares), 0
    for size in sizes:
        piece = math.ceil(size / world)
        yield torch.cat([s[start:start + piece] for s in shares])[:size]
        start += piece


def unsplit_parts(engine):
    """Without ZeRO: return each parameter, its master weight and its states."""
    wrapper = engine.optimizer
    if hasattr(wrapper, "fp32_groups_flat"):
        for params, flat in zip(wrapper.fp16_groups, wrapper.fp32_groups_flat):
            own = wrapper.optimizer.state[flat]
            cut = {k: v.split([p.numel() for p in params]) if v.dim()
                   else [v] * len(params) for k, v in own.items()}
            masters = flat.detach().split([p.numel() for p in params])
            for i, p in enumerate(params):
                yield p, masters[i], {k: v[i] for k, v in cut.items()}
    elif hasattr(wrapper, "fp32_groups"):
        for params, masters in zip(wrapper.fp16_groups, wrapper.fp32_groups):
            for p, master in zip(params, masters):
                yield p, master, wrapper.optimizer.state[master]
    else:
        for p, own in wrapper.state.items():
            yield p, p, own


def whole_states(engine, stage, world):
    """Return (parameter, state) -> tensor, on every rank."""
    out = {}
    cut = cut_each if stage == 3 else cut_concatenated
    names = {p: n for n, p in engine.module.named_parameters()}
    for p, master, own in unsplit_parts(engine) if stage == 0 else ():
        for state, tensor in {"fp32": master.detach(), **own}.items():
            out[names[p], state] = (tensor if state == "step" else
                                    tensor.flatten()).clone()
    for params, buffers, others in local_parts(engine, stage) if stage else ():
        sizes = [getattr(p, "ds_numel", p.numel()) for p in params]
        for state, buffer in buffers.items():
            shares = [None] * world
            torch.distributed.all_gather_object(shares, buffer)
            for p, tensor in zip(params, cut(sizes, shares)):
                out[names[p], state] = tensor.clone()
        for p in params:
            out[names[p], "step"] = torch.as_tensor(others["step"])
    with deepspeed.zero.GatheredParameters(list(names), enabled=stage == 3):
        for p, name in names.items():
            out[name, "module"] = p.detach().clone()
    return out


def hyperparameters(engine):
    return [{k: v for k, v in sorted(g.items()) if k != "params"}
            for g in getattr(engine.optimizer, "optimizer",
                             engine.optimizer).param_groups]


def snapshot(engine, case, world, **more):
    return {"states": whole_states(engine, case.stage, world),
            "hyperparameters": repr(hyperparameters(engine)),
            "schedule": repr(engine.lr_scheduler.state_dict()),
            "global_steps": engine.global_steps, **more}


# Each rank runs this function.


def train(rank, case, run_dir, out):
    world = case.before
    engine = new_engine(case, world, universal=False)
    for _ in range(STEPS):
        train_step(engine, rank, world)
    client = {} if case.trainer else {"universal_checkpoint_info": {},
                                      "iteration": STEPS}
    engine.save_checkpoint(run_dir, tag=TAG, client_state=client)
    loss = train_step(engine, rank, world)
    stepped = snapshot(engine, case, world, loss=loss)
    if rank == 0:
        torch.save({"stepped": stepped}, out)


def mend_loaded(engine, case):
    """Apply two effects of DeepSpeed's ZeRO 3 loader on any source, without which a run with
    several groups would continue differently: all groups get the hyperparameters of the first,
    and all flat buffers share one step, which each of them then counts up."""
    optimizer = engine.optimizer.optimizer
    for group, decay in zip(optimizer.param_groups, decays_of(case)):
        group["weight_decay"] = decay
    for state in optimizer.state.values():
        state["step"] = state["step"].clone()


def resume(rank, case, load_dir, tag, out):
    world = case.after
    engine = new_engine(case, world, universal=True)
    path, client = engine.load_checkpoint(load_dir, tag=tag)
    if path is None:
        raise RuntimeError("nothing was loaded")
    loaded = snapshot(engine, case, world, client=repr(client))
    if case.stage == 3:
        mend_loaded(engine, case)
    loss = train_step(engine, rank, world)
    stepped = snapshot(engine, case, world, loss=loss)
    if rank == 0:
        torch.save({"loaded": loaded, "stepped": stepped}, out)


def rank_main(rank, world, what, meet, log, args):
    with open(log, "a", encoding="utf-8") as f:
        os.dup2(f.fileno(), 1)
        os.dup2(f.fileno(), 2)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT="0")
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", init_method="file://" + meet,
                               rank=rank, world_size=world)
    what(rank, *args)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def on_ranks(world, what, log, *args):
    """Call what(rank, *args) in `world` forked processes, because importing DeepSpeed takes
    longer than everything else."""
    fork = multiprocessing.get_context("fork")
    meet = log + ".meet"
    ranks = [fork.Process(target=rank_main,
                          args=(r, world, what, meet, log, args))
             for r in range(world)]
    for r in ranks:
        r.start()
    try:
        running = ranks
        while running:
            multiprocessing.connection.wait([r.sentinel for r in running])
            # If one process failed, the others would wait forever.
            if any(r.exitcode for r in ranks):
                raise RuntimeError("a rank failed: " + tail(log))
            running = [r for r in running if r.exitcode is None]
    finally:
        for r in ranks:
            r.kill()
            r.join()


def tail(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return path + ":\n" + "".join(f.readlines()[-25:])


# Two ways to a universal checkpoint.


def convert(tag_dir, tree, inject, log):
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal",
               "--input_folder", tag_dir, "--output_folder", tree]
    if inject:
        command.append("--inject_missing_state")
    with open(log, "w", encoding="utf-8") as f:
        if subprocess.run(command, stdout=f, stderr=f).returncode:
            raise RuntimeError("ds_to_universal failed: " + tail(log))


class Mount:
    def __init__(self, source, where, *options):
        self.source, self.where, self.options = source, where, options

    def __enter__(self):
        os.mkdir(self.where)
        subprocess.run(["ucfs", self.source, self.where, *self.options], check=True)
        return self.where

    def __exit__(self, *_):
        subprocess.run(["fusermount3", "-u", self.where], check=True)


# Comparison.


def same_tree(a, b):
    """Check that both have the same files with the same bytes."""
    listing = [sorted((os.path.relpath(folder, top), sorted(files))
                      for folder, _, files in os.walk(top)) for top in (a, b)]
    return listing[0] == listing[1] and all(
        filecmp.cmp(os.path.join(a, folder, name),
                    os.path.join(b, folder, name), shallow=False)
        for folder, files in listing[0] for name in files)


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def differences(a, b):
    """Return the differences of two snapshots, by name."""
    found = [key for key in a if key != "states" and a[key] != b[key]]
    if list(a["states"]) != list(b["states"]):
        return found + ["names"]
    for key, x in a["states"].items():
        y = b["states"][key]
        if (x.dtype != y.dtype or x.shape != y.shape
                or not torch.equal(bits(x), bits(y))):
            found.append(".".join(key))
    return found


def distance(a, b):
    """Return the largest difference of any element of any state, without bfloat16 weights, which
    are rounded master weights."""
    return max((x.double() - b["states"][key].double()).abs().max().item()
               for key, x in a["states"].items() if x.dtype == torch.float32)


def run_case(case, top):
    """Train, convert, mount and resume; return the result of `compare`."""
    os.mkdir(top)
    run = os.path.join(top, "run")
    place = "checkpoint-4" if case.trainer else "."
    run_dir = os.path.normpath(os.path.join(run, place))
    os.makedirs(run_dir)
    if case.trainer:
        for name in "config.json", "trainer_state.json":
            with open(os.path.join(run_dir, name), "w", encoding="utf-8") as f:
                json.dump({"global_step": STEPS}, f)

    def log(name):
        return os.path.join(top, name + ".log")

    def result(name):
        return os.path.join(top, name + ".pt")

    on_ranks(case.before, train, log("train"), case, run_dir, result("train"))
    tag_dir = os.path.join(run_dir, TAG)
    converted = os.path.join(top, "converted")
    tree = os.path.join(converted, TAG + "_universal")
    convert(tag_dir, tree, case.trainer and case.stage < 3, log("convert"))

    with Mount(run, os.path.join(top, "mount")) as mount:
        mounted = os.path.normpath(os.path.join(mount, place))
        identical = same_tree(tree, os.path.join(mounted, TAG + "_universal"))
        for name, load_dir, tag in (("converter", converted, None),
                                    ("latest", mounted, None),
                                    ("tag", mounted, TAG + "_universal")):
            on_ranks(case.after, resume, log(name), case, load_dir, tag,
                     result(name))
    return compare(case, identical,
                   {name: torch.load(result(name), weights_only=False)
                    for name in ("train", "converter", "latest", "tag")})


def compare(case, identical, results):
    """Return the problems, the number of tensors compared, the distance to the uninterrupted run,
    and the losses of both."""
    reference = results["converter"]
    found = [f"{name}, {moment}: {what}"
             for name in ("latest", "tag")
             for moment in ("loaded", "stepped")
             for what in differences(reference[moment], results[name][moment])]
    far = distance(results["train"]["stepped"], results["latest"]["stepped"])
    allowed = 0 if case.before == case.after else TOLERANCE[case.dtype]
    if not distance(reference["loaded"], reference["stepped"]) > 0:
        found.append("the step changed nothing")
    if not far <= allowed:  # also true for NaN
        found.append(f"uninterrupted: differs by {far}, more than {allowed}")
    if not identical:
        found.append("the trees differ")
    loss = [results[n]["stepped"]["loss"] for n in ("train", "latest")]
    return found, len(reference["stepped"]["states"]), far, loss


def run_cases(usage, every, run, width):
    """Run the cases that the command line names, or all, in the directory that comes
    first, and print a row for each, its name in `width` columns.  Return the exit
    status."""
    if len(sys.argv) < 2:
        sys.exit(usage)
    scratch, wanted = sys.argv[1], sys.argv[2:]
    unknown = set(wanted) - {case.name for case in every}
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")
    print(f"DeepSpeed {deepspeed.__version__}, torch {torch.__version__}")
    print(f"{'case':{width}}{'as expected':>13}{'tensors':>9}"
          f"{'to uninterrupted':>18}   loss of both")
    failed = 0
    for case in every:
        if wanted and case.name not in wanted:
            continue
        found, tensors, far, loss = run(
            case, os.path.join(scratch, case.name))
        print(f"{case.name:{width}}{'no' if found else 'yes':>13}{tensors:9}"
              f"{far:18.2g}   {loss[0]:.7f} {loss[1]:.7f}", flush=True)
        for what in found:
            print("  " + what, flush=True)
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(run_cases(__doc__, list(cases()), run_case, 22))
