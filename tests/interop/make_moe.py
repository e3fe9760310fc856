#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make the checkpoints of mixtures of experts in tests/good/, with the truth.

    make_moe.py [--output DIRECTORY] [CASE ...]     default: all, tests/good

Each case is trained for four steps by real DeepSpeed on the CPU: native MoE
layers (deepspeed.moe), or AutoEP, which puts its own layers into a Mixtral of
Hugging Face.  The truth is gathered in the training processes right before
they save, from the flat partitions of the optimizer and the order of the
parameters in memory; rounded to the model's type, it must equal the model's
own weights, or nothing is written.  The names of experts are global: a rank
derives the experts that it holds from its expert-parallel rank, as it does
when it runs the model.

Then DeepSpeed's converter is run, and the digests are written as README.md in
tests/good describes; they record the releases used.  Needs torch and
deepspeed.
"""

import argparse
import contextlib
import hashlib
import io
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import types

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.distributed
import torch.nn as nn
import torch.nn.functional as F

import deepspeed

import forked
import make_digests
import no_shm  # noqa: F401

STEPS = 4
TAG = make_digests.TAG
HIDDEN = 6
VOCABULARY = 13
LOCAL_EXPERT = re.compile(r"(.*\.deepspeed_experts\.)(\d+)(\..*)")

# world: ranks; ep: ranks that share the experts, or those of each layer; frozen: suffixes of
# parameters that are not trained; dtype: the model's, fp32 or bf16.
CASES = {
    "moe2_ep2_dp4_z1": dict(world=4, ep=2, stage=1, layers=2),
    "moe2_ep2_dp4_z1_bf16": dict(world=4, ep=2, stage=1, layers=2,
                                 dtype="bf16"),
    "moe_ep2_dp4_z2": dict(world=4, ep=2, stage=2),
    "moe_ep2_dp4_z2_bf16": dict(world=4, ep=2, stage=2, dtype="bf16"),
    "moe_ep2_dp4_z2_data_first": dict(world=4, ep=2, stage=2, config=dict(
        use_data_before_expert_parallelism=True)),
    "moe_ep2_dp2_z2_frozen": dict(world=2, ep=2, stage=2, dtype="bf16",
                                  frozen="bias"),
    "autoep2_dp2_z1": dict(world=2, ep=2, stage=1, autoep=True),
    "autoep2_dp4_z2_bf16": dict(world=4, ep=2, stage=2, autoep=True,
                                dtype="bf16"),
    "autoep2_dp4_z2_data_first": dict(world=4, ep=2, stage=2, autoep=True,
                                      config=dict(
        use_data_before_expert_parallelism=True)),
    "autoep2_dp2_z3": dict(world=2, ep=2, stage=3, autoep=True),
    "autoep2_dp4_z3_bf16": dict(world=4, ep=2, stage=3, autoep=True,
                                dtype="bf16"),
}


class MoeNet(nn.Module):
    def __init__(self, ep, layers):
        super().__init__()
        from deepspeed.moe.layer import MoE
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.moe = nn.ModuleList(
            MoE(hidden_size=HIDDEN, expert=nn.Linear(HIDDEN, HIDDEN),
                num_experts=4, ep_size=size, capacity_factor=4.0,
                min_capacity=1) for size in (ep if isinstance(ep, tuple) else (ep,) * layers))
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids):
        x, balance = self.embed(ids), 0
        for layer in self.moe:
            out, loss, _ = layer(x)
            x, balance = x + out, balance + 0.01 * loss
        logits = self.head(x).float().flatten(0, 1)
        return F.cross_entropy(logits, ids.flatten()) + balance


class Experts(nn.Module):
    """Has all experts of a layer in two tensors, like Hugging Face's Mixtral."""

    def __init__(self, experts, inner):
        super().__init__()
        self.gate_up_proj = nn.Parameter(
            0.3 * torch.randn(experts, 2 * inner, HIDDEN))
        self.down_proj = nn.Parameter(
            0.3 * torch.randn(experts, HIDDEN, inner))


class SparseLayer(nn.Module):
    """A block whose `mlp` AutoEP finds and replaces."""

    def __init__(self, config):
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.mlp = nn.Module()
        self.mlp.gate = nn.Linear(HIDDEN, config.num_local_experts, bias=False)
        self.mlp.experts = Experts(config.num_local_experts, inner=5)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class SparseNet(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.config = types.SimpleNamespace(
            model_type="tiny", num_local_experts=4, num_experts_per_tok=2)
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(
            SparseLayer(self.config) for _ in range(layers))
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.model.layers:
            x = layer(x)
        logits = self.head(x).float().flatten(0, 1)
        return F.cross_entropy(logits, ids.flatten())


def make_model(case):
    if case.get("autoep"):
        return SparseNet(case.get("layers", 1))
    return MoeNet(case["ep"], case.get("layers", 1))


def make_config(case):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "steps_per_print": 100000,
        "zero_optimization": {"stage": case["stage"]},
        "optimizer": {"type": "AdamW",
                      "params": {"lr": 0.01, "torch_adam": True}},
    }
    if case.get("dtype") == "bf16":
        config["bf16"] = {"enabled": True}
    if case.get("autoep"):
        config["expert_parallel"] = {
            "enabled": True, "autoep_size": case["ep"],
            "preset_model": "mixtral", "use_grouped_mm": False}
    return config | case.get("config", {})


def gather(part, group):
    parts = [torch.empty_like(part)
             for _ in range(torch.distributed.get_world_size(group=group))]
    torch.distributed.all_gather(parts, part.contiguous(), group=group)
    return torch.cat(parts)


def flat_tensors(master, state):
    """Yield (state, tensor) for everything partitioned like the master weights."""
    yield "fp32", master.detach()
    for name, value in state.items():
        if torch.is_tensor(value) and value.dim() == 1:
            yield name, value


def truth_zero12(optimizer):
    """Yield (parameter, state, its elements) from the merged groups."""
    for i, group in enumerate(optimizer.round_robin_bit16_groups):
        master = optimizer.single_partition_of_fp32_groups[i]
        state = optimizer.optimizer.state[master]
        for name, part in flat_tensors(master, state):
            flat, at = gather(part, optimizer.real_dp_process_group[i]), 0
            for param in group:
                yield param, name, flat[at:at + param.numel()].view_as(param)
                at += param.numel()


def truth_zero3(optimizer):
    for i, group in enumerate(optimizer.fp16_groups):
        master = optimizer.fp32_partitioned_groups_flat[i]
        state = optimizer.optimizer.state[master]
        for name, part in flat_tensors(master, state):
            at = 0
            for param in group:
                slots = param.ds_tensor.ds_numel
                whole = gather(part[at:at + slots], param.ds_process_group)
                yield param, name, whole[:param.ds_numel].view(param.ds_shape)
                at += slots


def weights_of(param, stage):
    if stage < 3:
        return param.detach().clone()
    with deepspeed.zero.GatheredParameters([param]):
        return param.detach().clone()


def expert_coordinates(model):
    """Map name to (name in the whole model, number of the expert-parallel rank that has the
    piece; None if it is the whole)."""
    from deepspeed.moe.layer import MoE
    from deepspeed.module_inject.auto_ep_layer import AutoEPMoELayer
    from deepspeed.utils import groups
    found = {}
    for path, module in model.named_modules():
        if isinstance(module, MoE):
            rank = groups._get_expert_parallel_rank(module.expert_group_name)
            for name, _ in module.named_parameters(prefix=path):
                match = LOCAL_EXPERT.match(name)
                if match:
                    expert = (rank * module.num_local_experts +
                              int(match.group(2)))
                    found[name] = match.expand(rf"\g<1>{expert}\g<3>"), None
        elif isinstance(module, AutoEPMoELayer):
            rank = groups._get_expert_parallel_rank(module.ep_group_name)
            for weight in "w1", "w2", "w3":
                name = f"{path}.experts.{weight}"
                found[name] = name, rank
    return found


def local_truth(engine, stage):
    """Map (name, piece, state) to the tensor that this rank has."""
    names = {id(p): n for n, p in engine.module.named_parameters()}
    experts = expert_coordinates(engine.module)
    walk = truth_zero3 if stage == 3 else truth_zero12
    truth = {}
    for param, state, tensor in walk(engine.optimizer):
        name = names[id(param)]
        if state == "fp32":
            weights = weights_of(param, stage)
            if not torch.equal(tensor.to(weights.dtype), weights):
                sys.exit(f"{name}: what was gathered is not what it is")
        name, piece = experts.get(name, (name, None))
        truth[name, piece, state] = tensor.float().clone()
    for name, param in engine.module.named_parameters():
        if not param.requires_grad:
            name, piece = experts.get(name, (name, None))
            truth[name, piece, "fp32"] = weights_of(param, stage).float()
    return truth


def merge_truth(ranks):
    """Gather all ranks' truth as name -> state -> tensor."""
    known = {}
    for truth in ranks:
        for key, tensor in truth.items():
            if not torch.equal(known.setdefault(key, tensor), tensor):
                sys.exit(f"{key}: ranks disagree")
    merged = {}
    for name, piece, state in sorted(known, key=lambda k: (k[0], k[1] or 0)):
        tensor = known[name, piece, state]
        states = merged.setdefault(name, {})
        states[state] = (torch.cat([states[state], tensor])
                         if state in states else tensor)
    return merged


def join_ranks(case, rank, rendezvous):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(case["world"]))
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank,
        world_size=case["world"])
    deepspeed.init_distributed("gloo")


def make_engine(case, rank, config, seed):
    torch.manual_seed(seed)
    model = make_model(case)
    random = torch.Generator().manual_seed(100 + rank)
    for name, param in model.named_parameters():
        # Experts start as equal copies; change them to make them distinguishable.
        if ".experts." in name and name.endswith(case.get("frozen", "?")):
            param.data.normal_(generator=random)
            param.requires_grad_(False)
    engine, *_ = deepspeed.initialize(
        model=model, config=make_config(case) | config,
        model_parameters=[p for p in model.parameters() if p.requires_grad])
    return engine


def gather_truth(case, engine):
    ranks = [None] * case["world"]
    torch.distributed.all_gather_object(ranks,
                                        local_truth(engine, case["stage"]))
    return merge_truth(ranks)


def train(case, rank, folder):
    """Run in each rank's process."""
    join_ranks(case, rank, os.path.join(folder, "rendezvous"))
    engine = make_engine(case, rank, {}, seed=4)
    random = torch.Generator().manual_seed(100 + rank)
    for _ in range(STEPS):
        ids = torch.randint(0, VOCABULARY, (2, 5), generator=random)
        engine.backward(engine(ids))
        engine.step()
    truth = gather_truth(case, engine)
    engine.save_checkpoint(folder, tag=TAG)
    if rank == 0:
        torch.save(truth, os.path.join(folder, "truth"))
    torch.distributed.barrier()


def run_rank(work, case, rank, folder):
    with open(os.path.join(folder, f"log.{rank}"), "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        forked.work_and_exit(work, case, rank, folder)


def run_ranks(work, case, folder):
    """Run work(case, rank, folder) in a process for each rank."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run_rank, args=(work, case, rank, folder))
             for rank in range(case["world"])]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    for rank, process in enumerate(ranks):
        if process.exitcode:
            with open(os.path.join(folder, f"log.{rank}")) as log:
                sys.exit(log.read()[-4000:])


def convert(folder):
    """Run DeepSpeed's converter; returns its error if it failed."""
    from deepspeed.checkpoint import ds_to_universal
    args = argparse.Namespace(
        input_folder=os.path.join(folder, TAG),
        output_folder=os.path.join(folder, TAG + "_universal"),
        num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False,
        strict=True, inject_missing_state=True)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            ds_to_universal.main(args)
    except Exception as e:
        shutil.rmtree(args.output_folder, ignore_errors=True)
        return f"{type(e).__name__}: {e}".splitlines()[0]
    return None


def digest(tensor):
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()


def digest_lines(folder):
    merged = torch.load(os.path.join(folder, "truth"))
    truth = {(name, state): digest(tensor)
             for name, states in merged.items()
             for state, tensor in states.items()}
    for name, states in sorted(merged.items()):
        yield f"shape {name} {make_digests.shape_text(states['fp32'].shape)}"
    for (name, state), value in sorted(truth.items()):
        yield f"truth {name} {state} {value}"
    tree = os.path.join(folder, TAG + "_universal")
    if os.path.isdir(tree):
        copy_models(os.path.join(folder, TAG), tree)
        yield from make_digests.file_lines(tree, truth)
        yield "complete"


def copy_models(checkpoint, tree):
    """Restore the original model states in the converter's tree: for AutoEP it saves them again,
    to add what newer releases than 0.18 record."""
    for name in os.listdir(tree):
        if name.endswith("_model_states.pt"):
            shutil.copy(os.path.join(checkpoint, name), tree)


def versions(case):
    return (f"DeepSpeed {deepspeed.__version__}, torch {torch.__version__},"
            f" {case['world']} ranks")


def make_case(name, output):
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(train, case, folder)
        failure = convert(folder)
        remark = versions(case)
        if failure:
            remark += f"; its converter: {failure}"
        make_digests.copy_checkpoint(folder, os.path.join(output, name))
        make_digests.write_digests(output, name, TAG, remark,
                                   digest_lines(folder))
    print(f"{name}: {failure or 'converted'}", flush=True)


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default=os.path.join(here, "..", "good"))
    parser.add_argument("case", nargs="*", default=list(CASES))
    args = parser.parse_args()
    os.umask(0o022)
    for name in args.case:
        make_case(name, args.output)


if __name__ == "__main__":
    main()
